"""What a command says when it is interrupted."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130  # exit status: 128 + SIGINT, as of shells
REPEAT_SECONDS = 0.05  # by then, the callback that dropped an interrupt has returned


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

    Schedulers of jobs send SIGTERM, and a terminal that is closed SIGHUP, which nohup lets processes ignore. An
    interrupt that comes while Python runs a finalizer or a callback of a weak reference, whose exceptions it drops, is
    raised again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, _interrupt) for one in ending}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _interrupt_again)
    report = sys.unraisablehook
    sys.unraisablehook = functools.partial(_on_dropped, report)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        for one, handler in before.items():
            signal.signal(one, handler)


def _on_dropped(report: Callable[[sys.UnraisableHookArgs], object], dropped: sys.UnraisableHookArgs) -> None:
    """Have the main thread interrupted again, if Python has dropped an interrupt; report another exception."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
    else:
        report(dropped)


def _interrupt_again(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, unless the command is ending because of one."""
    if isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return
    while frame is not None:
        if frame.f_code is _on_dropped.__code__:  # which would drop it, too
            signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
