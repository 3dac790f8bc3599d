"""A cache of the video driver's answers and decoders, which DALI requests again and again.

DALI 2.4 calls `cuvidGetDecoderCaps` for each movie. The driver takes about 8 ms to answer. Creating a decoder takes
about 75 ms, and DALI destroys decoders if there are more than 100. The driver handles one such call at a time on the
whole machine (docs/decisions/0024-nvdec-cache.md). So a small library in C (`nvdec_cache.c`) keeps the answers and the
decoders.

DALI loads the driver by the name libnvcuvid.so. If a library with that name in its header (`DT_SONAME`) is loaded
earlier, DALI gets that library. It is compiled in a temporary folder, in less than 0.2 s.
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
DRIVER, ASKED_BY = "libnvcuvid.so.1", "libnvcuvid.so"  # the driver's own name, and the name that DALI loads
COMPILERS = ("cc", "gcc", "clang")
SECONDS = 60  # the time limit of a compiler, which needs less than one second
SWITCH = "FRAMEDEX_NVDEC_CACHE"  # with "off", DALI calls the driver each time
LOG = logging.getLogger("framedex.loader")


@functools.lru_cache
def cache_nvdec() -> bool:
    """Cache the driver's answers and decoders in this process. Return whether this works.

    It works only before DALI first loads the driver. If it does not work, a warning says why, and DALI calls the driver
    each time.
    """
    if os.environ.get(SWITCH) == "off":
        return False
    try:
        load_library()
    except (FramedexError, OSError, subprocess.SubprocessError) as error:
        LOG.warning(
            "NVDEC will be slower: DALI queries the video driver for each movie, which takes about 8 ms, "
            "and the answers could not be cached: %s\n  to use no cache, without this message, set %s=off",
            error,
            SWITCH,
        )
        return False
    return True


def load_library() -> ctypes.CDLL:
    """Compile the library, load it under the name that DALI looks for, and return it.

    Raises:
        FramedexError: A compiler is missing or failed, or the driver was already loaded under that name.
        OSError: Loading failed.
        SubprocessError: The compiler took too long.
    """
    with tempfile.TemporaryDirectory(prefix="framedex-") as folder:
        library = ctypes.CDLL(str(compiled(Path(folder))))
    if ctypes.CDLL(ASKED_BY)._handle != library._handle:
        raise FramedexError(
            "the driver was loaded before, by DALI or another library",
            found=ASKED_BY,
            remedy="make the ClipLoader, or call clip_pipeline, before other pipelines that decode video",
        )
    return library


def compiled(folder: Path) -> Path:
    """Compile the library in a folder and return its path.

    Raises:
        FramedexError: A compiler is missing or failed.
        SubprocessError: The compiler took too long.
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
    # An empty library stands for the driver: linking needs only its name.
    _run([*shared, "-x", "c", os.devnull, f"-Wl,-soname,{DRIVER}", "-o", str(driver)])
    links = [f"-Wl,-soname,{ASKED_BY}", "-Wl,--no-as-needed", str(driver), "-ldl", "-lpthread"]
    _run([*shared, str(SOURCE), *links, "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise FramedexError("the compiler failed", where=command[0], found=done.stderr[-400:].strip())
