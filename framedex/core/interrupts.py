"""Interrupts of commands by Ctrl-C, SIGTERM and SIGHUP."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130  # the exit status that shells use: 128 + SIGINT
# Time until an interrupt that Python dropped is raised again. By then, the callback in which it was dropped has ended.
REPEAT_SECONDS = 0.05


@contextlib.contextmanager
def interrupt_says(kept: Callable[[], str]) -> Iterator[None]:
    """Add a message to a KeyboardInterrupt that is raised in the block.

    Args:
        kept: A function that returns the message, which says which results are kept and how to continue. It is called
            after the block has ended.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(kept()) from None


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does.

    In other threads than the main thread, this function has no effect. Job schedulers send SIGTERM. A terminal that
    closes sends SIGHUP. A process that was started with nohup ignores SIGHUP, and this function does not change that.
    Python drops exceptions that are raised in finalizers and in callbacks of weak references. A KeyboardInterrupt that
    Python dropped is therefore raised again a moment later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, signal.default_int_handler) for one in ending}
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
    """Handle an exception that Python dropped. Schedule another KeyboardInterrupt; report any other exception."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
    else:
        report(dropped)


def _interrupt_again(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, unless the command is already handling a KeyboardInterrupt."""
    if isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return
    while frame is not None:
        if frame.f_code is _on_dropped.__code__:  # Python would also drop an exception that is raised now
            signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
