"""Worker processes that skip the caller's script if they do not need it, and numbers that processes share.

A spawned process imports its parent's script under another name, so that pickled objects can refer to it. Without an
`if __name__ == "__main__"` guard, the script starts its work again in each worker, and fails. framedex sends its own
functions and plain data, so a worker needs the script only if the caller passes an object that the script defines.
"""

import contextlib
import fcntl
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from multiprocessing import context
from typing import Any

MAIN = b"__main__"
SAFE_PATH, THREADS = "PYTHONSAFEPATH", "OPENBLAS_NUM_THREADS"  # environment variables
_lock = threading.RLock()


class _Process(context.SpawnProcess):
    def start(self) -> None:
        # The new process inherits the mask of signals. Without it, Ctrl-C while it imports would print a traceback.
        with _lock, _worker_environment(), _blocked_interrupts():
            super().start()


class _ProcessWithoutMain(_Process):
    def start(self) -> None:
        with _hidden_main():
            super().start()


class _Context(context.SpawnContext):
    Process = _Process


class _ContextWithoutMain(context.SpawnContext):
    Process = _ProcessWithoutMain


def spawning(handed_over: object) -> context.SpawnContext:
    """Return the multiprocessing context for processes to which this object is sent.

    The processes skip the caller's script unless the object needs it. OpenBLAS starts one thread in each of them.
    """
    return _Context() if needs_main(handed_over) else _ContextWithoutMain()


def needs_main(handed_over: object) -> bool:
    """Return whether an object, once pickled, refers to the caller's script."""
    try:
        return MAIN in pickle.dumps(handed_over)
    except Exception:  # starting the process will report the error
        return True


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pyarrow must not import pandas here", name=fullname)


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block SIGINT for this thread inside, and permanently for the processes that it starts there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_out_pandas() -> None:
    """Keep pyarrow from importing pandas, in a process that runs only framedex's own code.

    At the first conversion between Arrow and Python, pyarrow tries once to import pandas. The import takes half a
    second and 39 MB in each worker, which does not need it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa  # slow, and processes that only start others do not need it

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def end_with_parent() -> None:
    """End this process when its parent ends, even if the parent is killed with SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def python_environment() -> dict[str, str]:
    """Return an environment in which another Python process imports from the same folders as this one, and no others.

    Without PYTHONSAFEPATH, `python -c` and `python -m` import from the working directory first: a `signal.py` in the
    folder of a stranger's dataset would run.
    """
    return os.environ | {SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def _worker_environment() -> Iterator[None]:
    """Set environment variables for the processes that start inside.

    - They do not import from the working directory, as in `python_environment`. multiprocessing starts them by
      `python -c`, and passes the import path of this process afterwards.
    - OpenBLAS has one thread, unless the user chose a number. The workers run in parallel, and each thread of OpenBLAS
      maps memory of its own: on 16 cores, more than a worker with a limit of 1 GiB may have. OpenBLAS reads the
      variable when numpy is imported, which is before a worker's first line of framedex.
    """
    own = {name: value for name, value in {SAFE_PATH: "1", THREADS: "1"}.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the script from `multiprocessing.spawn.get_preparation_data`, which reads `__file__` and `__spec__`."""
    main = sys.modules["__main__"]
    with _lock:
        kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        main.__spec__ = None
        vars(main).pop("__file__", None)
        try:
            yield
        finally:
            vars(main).update(kept)


TOKEN_BYTES, NUMBER_BYTES = 16, 8  # a random token identifies the memory, since process ids are used again


class SharedNumber:
    """A whole number of 0 or more that all copies of this object on this machine share: forked, spawned or pickled.

    Examples are the epoch of random draws, and whether a warning was given. The number is in anonymous memory, which
    lives as long as a process uses it. A copy that cannot reach that memory (on another machine, or after the first
    process ended) keeps the number that it was pickled with, and does not share it.
    """

    def __init__(self, number: int = 0) -> None:
        self._create(number)

    def _create(self, number: int) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        descriptor = os.memfd_create("framedex-epoch")
        os.write(descriptor, self._token + bytes(NUMBER_BYTES))
        self._memory = mmap.mmap(descriptor, TOKEN_BYTES + NUMBER_BYTES)
        self._descriptor: int | None = descriptor  # other processes find the memory by it
        self._place = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.set(number)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # a default, as `os` may be gone at exit
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def get(self) -> int:
        """Return the number."""
        return int.from_bytes(self._memory[TOKEN_BYTES:], "little")

    def set(self, number: int) -> None:
        """Change the number for all copies."""
        self._memory[TOKEN_BYTES:] = number.to_bytes(NUMBER_BYTES, "little")

    def claim(self) -> bool:
        """Change the number from 0 to 1. Return whether this copy did so: of all copies, a single one does."""
        if self.get():
            return False
        try:
            with open(self._place, "rb+", buffering=0) as memory:
                fcntl.flock(memory, fcntl.LOCK_EX)
                is_first = self.get() == 0
                self.set(1)
                return is_first
        except OSError:  # the first process has ended, so other copies do not see the number
            self.set(1)
            return True

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place, "token": self._token, "number": self.get()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            with open(state["place"], "rb+", buffering=0) as memory:
                if memory.read(TOKEN_BYTES) != state["token"]:
                    raise FileNotFoundError(state["place"])  # a later process has the same process id
                self._memory = mmap.mmap(memory.fileno(), TOKEN_BYTES + NUMBER_BYTES)
        except (OSError, ValueError):
            self._create(state["number"])
            return
        self._descriptor, self._place, self._token = None, state["place"], state["token"]
