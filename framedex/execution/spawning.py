"""Worker processes that import the caller's script only if they need it, and numbers that processes share.

By default, a spawned process imports the main script of its parent under another name, so that pickled objects can
refer to the script. If the script has no `if __name__ == "__main__"` guard, this import starts the work of the script
again in each worker, and fails. framedex itself sends only functions of framedex and plain data to workers. So a worker
needs the script only if the caller passes an object that is defined in the script.
"""

import contextlib
import fcntl
import io
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import re
import secrets
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from multiprocessing import context
from typing import Any

MAIN = re.compile(rb"__(mp_)?main__")  # the main module, as the first process and spawned ones name it
SAFE_PATH, THREADS = "PYTHONSAFEPATH", "OPENBLAS_NUM_THREADS"  # names of environment variables
_lock = threading.RLock()


class _Process(context.SpawnProcess):
    def start(self) -> None:
        # The new process inherits the mask of blocked signals. If SIGINT were not blocked, Ctrl-C during the imports of
        # the new process would print a traceback.
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
    """Return the multiprocessing context for processes to which an object will be sent.

    The processes import the caller's script only if the object needs the script. In each process, OpenBLAS starts a
    single thread.
    """
    try:
        needs_main = MAIN.search(pickle.dumps(handed_over)) is not None
    except Exception:  # the error will be reported when the object is sent to a process
        needs_main = True
    return _Context() if needs_main else _ContextWithoutMain()


def is_starting() -> bool:
    """Return whether this process was spawned and has not begun its work yet, so that it must not start processes.

    It is importing the main script of its parent then.
    """
    return getattr(multiprocessing.current_process(), "_inheriting", False)


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pyarrow must not import pandas here", name=fullname)


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread for the duration of the block.

    Processes that this thread starts in the block inherit the mask of blocked signals. So SIGINT stays blocked in these
    processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_out_pandas() -> None:
    """Prevent pyarrow from importing pandas in this process. The process must not run code of the user.

    At the first conversion between Arrow and Python, pyarrow tries once to import pandas. The import takes half a
    second and 39 MB in each worker, and workers do not need pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa  # imported here, since processes that only start others do not need this slow import

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def end_with_parent() -> None:
    """Make this process end when its parent process ends, even if the parent is killed by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def python_environment() -> dict[str, str]:
    """Return environment variables with which another Python process imports from the same folders as this process.

    PYTHONSAFEPATH is set, so that the other process does not import from its working directory. Without this variable,
    `python -c` and `python -m` search the working directory first. If the working directory is the folder of an
    untrusted dataset, Python would run a file `signal.py` in this folder.
    """
    return os.environ | {SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def _worker_environment() -> Iterator[None]:
    """Set environment variables for processes that are started in the block.

    - PYTHONSAFEPATH prevents imports from the working directory, as in `python_environment`. multiprocessing starts a
      process by `python -c`, and sends the import path of this process afterwards.
    - OPENBLAS_NUM_THREADS limits OpenBLAS to one thread, unless the user has set the variable. The workers already run
      in parallel, and each thread of OpenBLAS maps additional memory. With 16 threads, this is more than a worker with
      a limit of 1 GiB may map. The variable must be in the environment when the process starts, since OpenBLAS reads it
      when numpy is imported, before any code of framedex runs.
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
    """Hide `__file__` and `__spec__` of the main module in the block, so that multiprocessing does not find the script.

    `multiprocessing.spawn.get_preparation_data` reads these attributes.
    """
    main = sys.modules["__main__"]
    with _lock:
        kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        main.__spec__ = None
        vars(main).pop("__file__", None)
        try:
            yield
        finally:
            vars(main).update(kept)


@contextlib.contextmanager
def _opened_memory(place: str, token: bytes) -> Iterator[io.FileIO]:
    """Open the shared memory of a `SharedNumber`. Raises OSError if it does not exist any more.

    The process id, or the number of the descriptor, may belong to something else by then. Reading from a
    pipe would wait forever, or take bytes that are meant for another process.
    """
    if not os.readlink(place).startswith(f"/memfd:{MEMORY_NAME}"):
        raise FileNotFoundError(place)
    with io.FileIO(os.open(place, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), "rb+") as memory:
        if not stat.S_ISREG(os.fstat(memory.fileno()).st_mode) or memory.read(TOKEN_BYTES) != token:
            raise FileNotFoundError(place)
        yield memory


MEMORY_NAME = "framedex-epoch"
# The shared memory consists of a random token and a number. These are their sizes. The token identifies the memory. A
# process id and a file descriptor would not suffice, since process ids are reused.
TOKEN_BYTES, NUMBER_BYTES = 16, 8


class SharedNumber:
    """An integer of 0 or more that is shared by all copies of this object in the processes of one machine.

    Copies are made by forking, spawning or pickling. Examples are the epoch of random draws, and the flag that a
    warning was given. The number is in anonymous shared memory, which exists as long as a process uses it. A copy that
    is unpickled on another machine, or after the process that created the number has ended, cannot access this memory.
    Such a copy has the number at the time of pickling, and does not share it.
    """

    def __init__(self, number: int = 0) -> None:
        self._create(number)

    def _create(self, number: int) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        descriptor = os.memfd_create(MEMORY_NAME)
        os.write(descriptor, self._token + bytes(NUMBER_BYTES))
        self._memory = mmap.mmap(descriptor, TOKEN_BYTES + NUMBER_BYTES)
        self._descriptor: int | None = descriptor  # kept open, so that other processes can open `self._place`
        self._place = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.set(number)

    # `os.close` is a default argument, since the module `os` may be deleted already when the interpreter exits.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def get(self) -> int:
        """Return the number."""
        return int.from_bytes(self._memory[TOKEN_BYTES:], "little")

    def set(self, number: int) -> None:
        """Set the number, for all copies."""
        self._memory[TOKEN_BYTES:] = number.to_bytes(NUMBER_BYTES, "little")

    def claim(self) -> bool:
        """Change the number from 0 to 1 if it is 0. Return whether this call changed the number.

        Of concurrent calls on all copies, only one returns True.
        """
        if self.get():
            return False
        try:
            with _opened_memory(self._place, self._token) as memory:
                fcntl.flock(memory, fcntl.LOCK_EX)
                is_first = self.get() == 0
                self.set(1)
                return is_first
        except OSError:  # the first process has ended, so the lock cannot be taken
            self.set(1)
            return True

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place, "token": self._token, "number": self.get()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            with _opened_memory(state["place"], state["token"]) as memory:
                self._memory = mmap.mmap(memory.fileno(), TOKEN_BYTES + NUMBER_BYTES)
        except (OSError, ValueError):
            self._create(state["number"])
            return
        self._descriptor, self._place, self._token = None, state["place"], state["token"]
