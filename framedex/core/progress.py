"""A progress bar on stderr, and none off a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm


@contextlib.contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows (done, total)."""
    with tqdm(unit=unit, disable=None, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
