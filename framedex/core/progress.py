"""A progress bar on stderr. It is shown on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm


@contextlib.contextmanager
def progress_bar(unit: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Provide a function that shows (done, total). With `shown=False`, nothing is shown on a terminal either."""
    with tqdm(unit=unit, disable=None if shown else True, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
