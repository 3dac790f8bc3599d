"""What a command says when it is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

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
