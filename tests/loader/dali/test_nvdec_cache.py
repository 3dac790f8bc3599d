"""The video driver's answers and decoders are cached, and every other function is the driver's own.

The driver's libraries are stand-ins that count how often they are asked, in a process of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.outcomes import NO_COMPILER, skip_but_in_ci
from tests.support.running import environment

VIDEO_DRIVER = """
static int calls;
static long created, alive, destroyed[1000], times;
int cuvidGetDecoderCaps(unsigned *caps) {
    calls++;
    if (caps[0] == 99)
        return 1;
    ((unsigned char *)caps)[24] = 1;
    caps[7] = 4096 + caps[0];
    return 0;
}
int cuvidCreateDecoder(long *decoder, unsigned long *wanted) {
    if (wanted[0] == 99)
        return 1;
    if (alive == 288)
        return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    alive++;
    *decoder = ++created;
    return 0;
}
int cuvidDestroyDecoder(long decoder) {
    destroyed[times++] = decoder;
    alive--;
    return 0;
}
long times_destroyed(void) { return times; }
long destroyed_at(long n) { return destroyed[n]; }
int cuvidMapVideoFrame(void) { return 42; }
int times_asked(void) { return calls; }
"""
CUDA_DRIVER = """
static int device;
int cuCtxGetCurrent(long *context) {
    *context = device < 0 ? 0 : 1000 + device;
    return device < 0 ? 201 : 0;
}
int cuCtxGetDevice(int *found) {
    if (device < 0)
        return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    *found = device;
    return 0;
}
void set_device(int number) { device = number; }
"""
LOADED = """
import ctypes, json, sys
from framedex.loader.dali.nvdec_cache import load_library

driver, cuda = ctypes.CDLL("libnvcuvid.so.1"), ctypes.CDLL("libcuda.so.1")
library = load_library()
dali = ctypes.CDLL("libnvcuvid.so")
found = []
"""
QUESTIONS = (
    LOADED
    + """
from framedex.loader.routing.driver import DecodeCaps

for device, codec in json.loads(sys.argv[1]):
    cuda.set_device(device)
    caps = DecodeCaps(codec=codec)
    code = dali.cuvidGetDecoderCaps(ctypes.byref(caps))
    found.append([code, caps.codec, caps.is_supported, caps.most_width, driver.times_asked()])
spared = (ctypes.c_ulong * 2)()
library.framedex_spared(spared, ctypes.byref(spared, 8))
print(json.dumps({"found": found, "other": dali.cuvidMapVideoFrame(), "spared": list(spared)}))
"""
)
DECODERS = (
    LOADED
    + """
for what, device, value in json.loads(sys.argv[1]):
    cuda.set_device(device)
    if what == "create":
        wanted = (ctypes.c_ulong * 22)(value[0], value[1], 20, 4 + (1 << 32))
        decoder = ctypes.c_long()
        found.append([dali.cuvidCreateDecoder(ctypes.byref(decoder), wanted), decoder.value])
    else:
        assert dali.cuvidDestroyDecoder(ctypes.c_long(value)) == 0
spared = (ctypes.c_ulong * 2)()
library.framedex_spared(spared, ctypes.byref(spared, 8))
destroyed = [driver.destroyed_at(number) for number in range(driver.times_destroyed())]
print(json.dumps({"found": found, "destroyed": destroyed, "spared": spared[1]}))
"""
)


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """A folder of stand-ins for the driver's libraries."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        skip_but_in_ci(NO_COMPILER)
    for name, source in (("libnvcuvid.so.1", VIDEO_DRIVER), ("libcuda.so.1", CUDA_DRIVER)):
        (tmp_path / "source.c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "source.c", f"-Wl,-soname,{name}", "-o", name]
        subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "libnvcuvid.so").symlink_to("libnvcuvid.so.1")
    return tmp_path


def run(drivers: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the stand-ins."""
    command = [sys.executable, "-c", script, *arguments]
    env = environment(LD_LIBRARY_PATH=str(drivers), **variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_driver_is_asked_once_for_each_device_and_format(drivers: Path) -> None:
    questions = [(0, 4), (0, 4), (0, 8), (1, 4), (1, 4), (0, 4)]
    done = run(drivers, QUESTIONS, json.dumps(questions))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [answer[:4] for answer in said["found"]] == [[0, codec, 1, 4096 + codec] for _, codec in questions]
    assert [asked for *_, asked in said["found"]] == [1, 1, 2, 3, 3, 3]
    assert said["spared"] == [3, 0]
    assert said["other"] == 42


def test_what_the_driver_refuses_and_questions_without_a_device_are_asked_each_time(drivers: Path) -> None:
    done = run(drivers, QUESTIONS, json.dumps([(0, 99), (0, 99), (-1, 4), (-1, 4)]))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(code, asked) for code, *_, asked in said["found"]] == [(1, 1), (1, 2), (0, 3), (0, 4)]
    assert said["spared"] == [0, 0]


def decoders(drivers: Path, *calls: tuple[str, int, object]) -> dict[str, Any]:
    """Return what calls gave: (code, decoder) of each creation, decoders that the driver destroyed, calls spared."""
    done = run(drivers, DECODERS, json.dumps(calls))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


SMALL, OTHER = (352, 256), (352, 272)
LARGE = (8192, 4096)  # twenty pictures take 1 GiB


def test_a_decoder_that_was_destroyed_is_given_for_an_equal_request_on_the_same_device(drivers: Path) -> None:
    found = decoders(
        drivers,
        ("create", 0, SMALL),
        ("create", 0, SMALL),  # the first one is in use
        ("destroy", 0, 1),
        ("create", 0, OTHER),
        ("create", 1, SMALL),
        ("create", 0, SMALL),
        ("create", 0, SMALL),
    )
    assert found == {"found": [[0, 1], [0, 2], [0, 3], [0, 4], [0, 1], [0, 5]], "destroyed": [], "spared": 1}


def test_what_does_not_fit_in_two_gibibytes_is_destroyed_the_longest_idle_first(drivers: Path) -> None:
    calls = [("create", 0, LARGE)] * 3 + [("create", 0, OTHER)]
    returned = [("destroy", 0, decoder) for decoder in (4, 2, 1, 3)]
    found = decoders(drivers, *calls, *returned, ("create", 0, LARGE), ("create", 0, OTHER))
    assert found["destroyed"] == [4, 2]
    assert [decoder for _, decoder in found["found"][4:]] == [1, 5]


def test_a_process_has_so_few_decoders_that_others_find_some_left(drivers: Path) -> None:
    created = [("create", 0, (16, 16 * n)) for n in range(1, 231)]
    returned = [("destroy", 0, decoder) for decoder in range(1, 231)]
    found = decoders(drivers, *created, *returned)
    assert found["destroyed"] == [1, 2, 3, 4, 5, 6]


def test_if_the_driver_has_no_room_for_a_decoder_idle_ones_are_destroyed(drivers: Path) -> None:
    calls = [("create", -1, SMALL)] * 200 + [("create", 0, SMALL)] * 88  # the first ones are those of others
    calls += [("destroy", 0, 207), ("destroy", 0, 205)]
    found = decoders(drivers, *calls, ("create", 0, OTHER), ("create", 0, SMALL), ("create", 0, OTHER))
    assert found["destroyed"] == [207]
    assert found["found"][-3:] == [[0, 289], [0, 205], [2, 0]]


def test_decoders_without_a_context_and_those_refused_are_left_to_the_driver(drivers: Path) -> None:
    calls = [("create", -1, SMALL), ("destroy", -1, 1), ("create", -1, SMALL), ("create", 0, (99, 99))]
    found = decoders(drivers, *calls)
    assert found["found"][:2] == [[0, 1], [0, 2]]
    assert found["found"][2][0] == 1
    assert found["destroyed"] == [1]


TOLD = "from framedex.loader.dali.nvdec_cache import cache_nvdec as c; print(c(), c())"


@pytest.mark.parametrize(
    ("before", "variables", "kept", "message"),
    [
        ("", {}, True, ""),
        ("import ctypes; ctypes.CDLL('libnvcuvid.so.1');", {}, True, ""),
        ("import ctypes; ctypes.CDLL('libnvcuvid.so');", {}, False, "already loaded"),
        ("", {"CC": "no-such-compiler"}, False, "a C compiler is missing"),
        ("", {"CC": "false"}, False, "the compiler failed"),
        ("", {"CC": "no-such-compiler", "FRAMEDEX_NVDEC_CACHE": "off"}, False, ""),
    ],
)
def test_without_the_cache_a_warning_says_why_once(
    drivers: Path, before: str, variables: dict[str, str], kept: bool, message: str
) -> None:
    done = run(drivers, before + TOLD, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(kept)] * 2
    assert done.stderr.count("NVDEC will be slower") == (1 if message else 0)
    assert message in done.stderr


def test_without_a_driver_a_warning_says_so(drivers: Path) -> None:
    (drivers / "libnvcuvid.so.1").unlink()
    done = run(drivers, TOLD)
    assert done.stdout.split() == ["False", "False"]
    assert "libnvcuvid.so.1: cannot open shared object" in done.stderr
