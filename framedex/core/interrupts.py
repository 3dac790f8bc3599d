"""What a command says when it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130  # exit status: 128 + SIGINT, as of shells


@contextlib.contextmanager
def interrupt_says(kept: Callable[[], str]) -> Iterator[None]:
    """Raise KeyboardInterrupt with a message if the user interrupts what runs inside.

    Args:
        kept: Returns what is kept and how to go on. Called after everything inside has ended.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept()) from None


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what runs inside as Ctrl-C does. For the main thread alone.

    Schedulers of jobs send SIGTERM, and a terminal that is closed SIGHUP, which nohup lets processes ignore.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, _interrupt) for one in ending}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
