/* A cache for the results of two slow functions of the video driver. The driver executes only one call of these
functions at a time on the whole machine.

- cuvidGetDecoderCaps takes about 8 ms. DALI 2.4 calls it for each movie (FramesDecoderGpu::SelectVideoStream). The
  result for a device and a format never changes, so it is cached.
- cuvidCreateDecoder takes about 75 ms. DALI keeps up to 100 decoders. Beyond that, it destroys one decoder for each
  that it creates, beginning with those of one codec. Decoders that DALI destroys are kept here, and are reused for an
  equal request. A process has at most MOST_DECODERS, since all processes on an H200 together can have 288. Beyond
  that, the decoder that has been idle for the longest time is destroyed.

This library has the name of the library that DALI loads, libnvcuvid.so. It depends on the driver's library,
libnvcuvid.so.1, in which dlsym finds all other functions. See nvdec_cache.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, MOST_ANSWERS = 512, MOST_DECODERS = 224, MOST_KNOWN = 1024 };
static const unsigned long MOST_IDLE_BYTES = 2ul << 30;

/* The structure CUVIDDECODECAPS of cuviddec.h, divided into input and output members. */
typedef struct {
    unsigned asked[6];
    unsigned char answer[64];
} Caps;

/* The structure CUVIDDECODECREATEINFO of cuviddec.h. Only the members that determine a decoder's memory are named. */
typedef struct {
    unsigned long width, height, decoded_pictures;
    int codec, chroma;
    unsigned long flags, bits_above_8;
    unsigned char rest[128];
} Wanted;

typedef struct {
    void *decoder, *context;
    int idle;
    unsigned long returned; /* value of the counter `returns` when DALI destroyed the decoder */
    Wanted wanted;
} Decoder;

static struct {
    int device;
    Caps caps;
} answers[MOST_ANSWERS];
static int answered;

static Decoder decoders[MOST_KNOWN]; /* decoders that DALI uses, and idle decoders */
static int known;
static unsigned long returns, idle_bytes;

static unsigned long saved_answers, saved_decoders;

static int (*ask_driver)(Caps *);
static int (*create)(void **, Wanted *);
static int (*destroy)(void *);
static int (*current_device)(int *);
static int (*current_context)(void **);
static pthread_once_t found = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void find_driver(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    ask_driver = (int (*)(Caps *))dlsym(RTLD_NEXT, "cuvidGetDecoderCaps");
    create = (int (*)(void **, Wanted *))dlsym(RTLD_NEXT, "cuvidCreateDecoder");
    destroy = (int (*)(void *))dlsym(RTLD_NEXT, "cuvidDestroyDecoder");
    current_device = cuda ? (int (*)(int *))dlsym(cuda, "cuCtxGetDevice") : NULL;
    current_context = cuda ? (int (*)(void **))dlsym(cuda, "cuCtxGetCurrent") : NULL;
}

static int answer(Caps *caps) {
    int device, result;
    if (!current_device || current_device(&device) != SUCCESS)
        return ask_driver(caps);
    for (int n = 0; n < answered; n++)
        if (answers[n].device == device && !memcmp(answers[n].caps.asked, caps->asked, sizeof caps->asked)) {
            memcpy(caps->answer, answers[n].caps.answer, sizeof caps->answer);
            saved_answers++;
            return SUCCESS;
        }
    Caps asked = *caps;
    result = ask_driver(caps);
    if (result == SUCCESS && answered < MOST_ANSWERS) {
        memcpy(asked.answer, caps->answer, sizeof asked.answer);
        answers[answered].caps = asked;
        answers[answered++].device = device;
    }
    return result;
}

int cuvidGetDecoderCaps(Caps *caps) {
    pthread_once(&found, find_driver);
    if (!ask_driver)
        return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    int result = answer(caps);
    pthread_mutex_unlock(&lock);
    return result;
}

static void *context_of_caller(void) {
    void *context;
    return current_context && current_context(&context) == SUCCESS ? context : NULL;
}

/* Return the size of a decoder's picture buffers. 8-bit pictures take 1.5 bytes per pixel in 4:2:0, and at most 3 bytes
per pixel in other chroma formats. */
static unsigned long bytes(const Wanted *wanted) {
    unsigned long pixels = wanted->width * wanted->height * wanted->decoded_pictures;
    return pixels * (wanted->chroma > 1 ? 6 : 3) / 2 * (wanted->bits_above_8 ? 2 : 1);
}

static int idle_decoder(void *context, const Wanted *wanted) {
    for (int n = 0; n < known; n++)
        if (decoders[n].idle && decoders[n].context == context && !memcmp(&decoders[n].wanted, wanted, sizeof *wanted))
            return n;
    return -1;
}

static int longest_idle(void *context) {
    int found = -1;
    for (int n = 0; n < known; n++)
        if (decoders[n].idle && decoders[n].context == context)
            if (found < 0 || decoders[n].returned < decoders[found].returned)
                found = n;
    return found;
}

static int number_of(const void *decoder) {
    for (int n = 0; n < known; n++)
        if (decoders[n].decoder == decoder)
            return n;
    return -1;
}

static void *forget_idle(int n) {
    void *decoder = decoders[n].decoder;
    idle_bytes -= bytes(&decoders[n].wanted);
    decoders[n] = decoders[--known];
    return decoder;
}

/* Destroy the decoder that has been idle for the longest time, if `always` is set or if a limit is exceeded. Return
whether a decoder was destroyed. */
static int destroy_one(void *context, int always, int *result) {
    pthread_mutex_lock(&lock);
    int too_many = always || known > MOST_DECODERS || idle_bytes > MOST_IDLE_BYTES;
    int n = too_many ? longest_idle(context) : -1;
    void *decoder = n >= 0 ? forget_idle(n) : NULL;
    pthread_mutex_unlock(&lock);
    if (decoder)
        *result = destroy(decoder);
    return decoder != NULL;
}

int cuvidCreateDecoder(void **decoder, Wanted *wanted) {
    pthread_once(&found, find_driver);
    if (!create)
        return NOT_INITIALIZED;
    void *context = context_of_caller();
    Wanted asked = *wanted;
    pthread_mutex_lock(&lock);
    int n = context ? idle_decoder(context, &asked) : -1;
    if (n >= 0) {
        *decoder = decoders[n].decoder;
        decoders[n].idle = 0;
        idle_bytes -= bytes(&asked);
        saved_decoders++;
    }
    pthread_mutex_unlock(&lock);
    if (n >= 0)
        return SUCCESS;
    int result = create(decoder, wanted), destroyed = SUCCESS;
    while (result == OUT_OF_MEMORY && context && destroy_one(context, 1, &destroyed))
        result = create(decoder, wanted);
    if (result != SUCCESS || !context)
        return result;
    pthread_mutex_lock(&lock);
    if (known < MOST_KNOWN)
        decoders[known++] = (Decoder){.decoder = *decoder, .context = context, .wanted = asked};
    pthread_mutex_unlock(&lock);
    while (destroy_one(context, 0, &destroyed))
        ;
    return result;
}

int cuvidDestroyDecoder(void *decoder) {
    pthread_once(&found, find_driver);
    if (!destroy)
        return NOT_INITIALIZED;
    void *context = NULL;
    pthread_mutex_lock(&lock);
    int n = number_of(decoder);
    if (n >= 0) {
        context = decoders[n].context;
        decoders[n].idle = 1;
        decoders[n].returned = returns++;
        idle_bytes += bytes(&decoders[n].wanted);
    }
    pthread_mutex_unlock(&lock);
    if (n < 0)
        return destroy(decoder);
    int result = SUCCESS;
    while (destroy_one(context, 0, &result))
        ;
    return result;
}

/* Return the number of calls of each function that were answered from the cache. */
void framedex_spared(unsigned long *found_answers, unsigned long *found_decoders) {
    pthread_mutex_lock(&lock);
    *found_answers = saved_answers;
    *found_decoders = saved_decoders;
    pthread_mutex_unlock(&lock);
}
