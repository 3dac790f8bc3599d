"""Serves a browser over an index or a dataset until it is interrupted."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from framedex.auditor.browser.clips import Clips
from framedex.auditor.browser.findings import Findings
from framedex.auditor.browser.media import Media
from framedex.auditor.browser.page import page
from framedex.auditor.browser.pictures import Items
from framedex.auditor.browser.resources import Resources
from framedex.auditor.browser.selections import LESS, LIMITS, Selections
from framedex.auditor.browser.server import Server
from framedex.auditor.tables.database import QueryLimits
from framedex.auditor.tables.query_process import QueryProcess
from framedex.auditor.tables.subject import opened
from framedex.core.tallies import counted
from framedex.errors import printable
from framedex.records.medium import OK
from framedex.storage.locations import OWN_STORE, Access
from framedex.storage.places import Place


@contextlib.contextmanager
def bound(
    place: Place, *, port: int, access: Access = OWN_STORE, longest_side: int | None, limits: QueryLimits = LIMITS
) -> Iterator[Server]:
    """Provide the server of an index or a dataset, which has a port and does not answer yet.

    Args:
        place: The index or dataset.
        port: The port. 0: any free port.
        access: Which sources may be read.
        longest_side: Limit of a picture's longer side, in pixels. None: pictures have their stored size.
        limits: The limits of each query.

    Raises:
        FormatError: there is no index or dataset, or it is damaged.
        FramedexError: the port is taken.
    """
    with contextlib.ExitStack() as stack:
        audited = stack.enter_context(opened(place))
        queries = stack.enter_context(QueryProcess(audited, limits, remedy=LESS))
        selections = Selections(queries)
        items: Items
        if audited.kind == "dataset":
            items = Clips(place, access=access, longest_side=longest_side)
            heading = items.heading()
            counts, settings, policy = heading.counts(), heading.settings, heading.policy
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="framedex-browser-"))
            items = Media(place, access=access, longest_side=longest_side, folder=folder)
            counts, settings, policy = _media_counts(queries, selections.total), None, None
        findings = Findings(place, selections.link)
        stack.callback(selections.close)
        content = page(
            kind=audited.kind,
            name=printable(PurePosixPath(str(place.absolute())).name or str(place)),
            place=printable(str(place.absolute())),
            counts=counts,
            settings=settings,
            policy=policy,
        )
        server = stack.enter_context(Server(port, content, Resources(selections, items, findings)))
        findings.start()
        stack.callback(findings.close)
        yield server


def serve(place: Place, *, port: int, access: Access, longest_side: int | None, ready: Callable[[str], None]) -> None:
    """Serve a browser until the process is interrupted, and close it then.

    Args:
        place: As for `bound`, as are `port`, `access` and `longest_side`.
        ready: Called with the address when the server has its port.

    Raises:
        FormatError: there is no index or dataset, or it is damaged.
        FramedexError: the port is taken.
    """
    with bound(place, port=port, access=access, longest_side=longest_side) as server:
        ready(server.address.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)


def _media_counts(queries: QueryProcess, total: int) -> str:
    """Return how many media an index has, as a line."""
    states = Counter(dict(queries.rows("SELECT status, count(*) FROM videos GROUP BY ALL").rows))
    bad = [f"{count:,} {state}" for state, count in sorted(states.items()) if state != OK]
    return " · ".join([counted(total, "medium", "media"), *bad])
