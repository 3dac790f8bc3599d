"""The video driver's answers are kept by device and format, and every other function is the driver's own.

The driver's libraries are stand-ins that count how often they are asked, in a process of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framedex.loader.dali.driver_answers import COMPILERS, SWITCH
from tests.support.outcomes import NO_COMPILER, skip_but_in_ci
from tests.support.running import environment

VIDEO_DRIVER = """
static int calls;
int cuvidGetDecoderCaps(unsigned *caps) {
    calls++;
    if (caps[0] == 99)
        return 1;
    ((unsigned char *)caps)[24] = 1;
    caps[7] = 4096 + caps[0];
    return 0;
}
int cuvidCreateDecoder(void) { return 42; }
int times_asked(void) { return calls; }
"""
CUDA_DRIVER = """
static int device;
int cuCtxGetDevice(int *found) {
    if (device < 0)
        return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    *found = device;
    return 0;
}
void set_device(int number) { device = number; }
"""
QUESTIONS = """
import ctypes, json, sys
from framedex.loader.dali.driver_answers import load_library
from framedex.loader.routing.driver import DecodeCaps

driver, cuda = ctypes.CDLL("libnvcuvid.so.1"), ctypes.CDLL("libcuda.so.1")
library = load_library()
dali = ctypes.CDLL("libnvcuvid.so")
found = []
for device, codec in json.loads(sys.argv[1]):
    cuda.set_device(device)
    caps = DecodeCaps(codec=codec)
    code = dali.cuvidGetDecoderCaps(ctypes.byref(caps))
    found.append([code, caps.codec, caps.is_supported, caps.most_width, driver.times_asked()])
print(json.dumps({"found": found, "other": dali.cuvidCreateDecoder(), "kept": library.framedex_from_memory()}))
"""


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """A folder of stand-ins for the driver's libraries."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
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
    assert said["kept"] == 3
    assert said["other"] == 42


def test_what_the_driver_refuses_and_questions_without_a_device_are_asked_each_time(drivers: Path) -> None:
    done = run(drivers, QUESTIONS, json.dumps([(0, 99), (0, 99), (-1, 4), (-1, 4)]))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(code, asked) for code, *_, asked in said["found"]] == [(1, 1), (1, 2), (0, 3), (0, 4)]
    assert said["kept"] == 0


TOLD = "from framedex.loader.dali.driver_answers import remember_driver_answers as r; print(r(), r())"


@pytest.mark.parametrize(
    ("before", "variables", "kept", "message"),
    [
        ("", {}, True, ""),
        ("import ctypes; ctypes.CDLL('libnvcuvid.so.1');", {}, True, ""),
        ("import ctypes; ctypes.CDLL('libnvcuvid.so');", {}, False, "loaded before"),
        ("", {"CC": "no-such-compiler"}, False, "there is no C compiler"),
        ("", {"CC": "false"}, False, "the compiler failed"),
        ("", {"CC": "no-such-compiler", SWITCH: "ask"}, False, ""),
    ],
)
def test_where_answers_are_not_kept_a_warning_says_why_once(
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
