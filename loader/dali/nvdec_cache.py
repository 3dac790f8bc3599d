"""A cache between DALI and the video driver, for decoder capabilities and for decoders.

DALI 2.4 queries the decoder capabilities (`cuvidGetDecoderCaps`) for each movie, which takes about 8 ms. Creating a
decoder takes about 75 ms, and DALI destroys decoders if there are more than 100. The driver executes only one such call
at a time on the whole machine (docs/decisions/0024-nvdec-cache.md). So a small C library (`nvdec_cache.c`) caches the
capabilities and the decoders.

DALI loads the driver by the name libnvcuvid.so. The C library has the same name in its header (`DT_SONAME`) and is
loaded first, so that DALI gets the C library instead. It is compiled in a temporary folder, in less than 0.2 s.
"""

import ctypes
import functools
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from framedex.errors import FramedexError

SOURCE = Path(__file__).with_name("nvdec_cache.c")
DRIVER, ASKED_BY = "libnvcuvid.so.1", "libnvcuvid.so"  # the driver's DT_SONAME, and the name that DALI loads
COMPILERS = ("cc", "gcc", "clang")
SECONDS = 60  # time limit for the compiler. Usually it takes less than one second
SWITCH = "FRAMEDEX_NVDEC_CACHE"  # environment variable. The value "off" disables the cache
LOG = logging.getLogger("framedex.loader")


@functools.lru_cache
def cache_nvdec() -> bool:
    """Install the cache in this process, and return whether it is installed.

    This must be called before DALI loads the driver. If the cache cannot be installed, the reason is logged as a
    warning, and DALI calls the driver each time.
    """
    if os.environ.get(SWITCH) == "off":
        return False
    try:
        load_library()
    except (FramedexError, OSError, subprocess.SubprocessError) as error:
        LOG.warning(
            "NVDEC will be slower: DALI queries the video driver for each movie, which takes about 8 ms, "
            "and the cache for these queries could not be installed: %s\n"
            "  to run without the cache and without this message, set %s=off",
            error,
            SWITCH,
        )
        return False
    return True


def load_library() -> ctypes.CDLL:
    """Compile the C library, load it under the name of the library that DALI loads, and return it.

    Raises:
        FramedexError: No compiler was found, the compiler failed, or the driver was already loaded under that name.
        OSError: The library cannot be loaded.
        SubprocessError: The compiler exceeded its time limit.
    """
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        library = ctypes.CDLL(str(compiled(Path(folder))))
    if ctypes.CDLL(ASKED_BY)._handle != library._handle:
        raise FramedexError(
            "the video driver was already loaded, by DALI or another library",
            found=ASKED_BY,
            remedy="create the ClipLoader, or call clip_pipeline, before any other DALI pipeline that decodes video",
        )
    return library


def compiled(folder: Path) -> Path:
    """Compile the C library in a folder, and return the path of the library.

    Raises:
        FramedexError: No compiler was found, or the compiler failed.
        SubprocessError: The compiler exceeded its time limit.
    """
    named = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [named] if named else COMPILERS)), None)
    if compiler is None:
        raise FramedexError(
            "a C compiler is missing",
            found=f"CC={named}" if named else "none of " + ", ".join(COMPILERS),
            remedy="install one (apt install gcc libc6-dev)",
        )
    driver, library = folder / DRIVER, folder / "nvdec_cache.so"
    shared = [compiler, "-shared", "-fPIC", "-O2"]
    # The linker needs only the name of the driver, so an empty library takes its place.
    _run([*shared, "-x", "c", os.devnull, f"-Wl,-soname,{DRIVER}", "-o", str(driver)])
    links = [f"-Wl,-soname,{ASKED_BY}", "-Wl,--no-as-needed", str(driver), "-ldl", "-lpthread"]
    _run([*shared, str(SOURCE), *links, "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise FramedexError("the compiler failed", where=command[0], found=done.stderr[-400:].strip())
