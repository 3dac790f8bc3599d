/* Answers cuvidGetDecoderCaps from memory once the driver has answered it for a device and a format.

DALI 2.4 calls it for each movie (FramesDecoderGpu::SelectVideoStream). The driver takes about 8 ms, handles one call at
a time on the whole machine, and its answer never changes. This library has the name by which DALI looks for the
driver's library, libnvcuvid.so, and depends on the driver's own, libnvcuvid.so.1, in which dlsym finds every other
function. See driver_answers.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 3, MOST_ANSWERS = 512 };

/* CUVIDDECODECAPS of cuviddec.h: the request, and the answer. */
typedef struct {
    unsigned asked[6];
    unsigned char answer[64];
} Caps;

typedef int (*AskCaps)(Caps *);
typedef int (*AskDevice)(int *);

static struct {
    int device;
    Caps caps;
} answers[MOST_ANSWERS];
static int answered;
static unsigned long from_memory;
static AskCaps ask_driver;
static AskDevice ask_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void find_driver(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    ask_driver = (AskCaps)dlsym(RTLD_NEXT, "cuvidGetDecoderCaps");
    ask_device = cuda ? (AskDevice)dlsym(cuda, "cuCtxGetDevice") : NULL;
}

static int answer(Caps *caps) {
    int device, result;
    if (!ask_driver)
        find_driver();
    if (!ask_driver)
        return NOT_INITIALIZED;
    if (!ask_device || ask_device(&device) != SUCCESS)
        return ask_driver(caps);
    for (int n = 0; n < answered; n++)
        if (answers[n].device == device && !memcmp(answers[n].caps.asked, caps->asked, sizeof caps->asked)) {
            memcpy(caps->answer, answers[n].caps.answer, sizeof caps->answer);
            from_memory++;
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
    pthread_mutex_lock(&lock);
    int result = answer(caps);
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned long framedex_from_memory(void) {
    pthread_mutex_lock(&lock);
    unsigned long count = from_memory;
    pthread_mutex_unlock(&lock);
    return count;
}
