"""The resources of the server of `framedex inspect --serve`. A resource is a function that answers a request.

All checks of the audit are run once, in another process, while the page is already open. Decoded clips are kept in
memory up to a limit. Pictures are encoded as PNG or JPEG when the page requests them.
"""

import json
import math
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol

import orjson

from framedex.auditor.browser.selections import ANSWER_BYTES, Selections, bare, wanted_of
from framedex.auditor.browser.shown import MAX_CLIP_BYTES, Shown, whole_number
from framedex.auditor.findings import plain
from framedex.auditor.tables.database import EXPLANATION, Result
from framedex.core.words import size_text
from framedex.errors import FramedexError, printable
from framedex.execution.spawning import python_environment
from framedex.loader.contact_sheets.sheet import jpeg, png, reduced
from framedex.storage.places import Place

State = Literal["running", "done", "failed"]

KEPT = ("title", "severity", "count", "means", "remedy")  # attributes of a finding that are sent to the page


class Findings:
    """The findings of `framedex audit`, which `start` runs in a separate process.

    A separate process can be killed at any time, and its memory is freed when it ends.

    Args:
        place: The index or dataset.
        link: A function that takes the names of columns, and returns the name of the column that identifies clips or
            media, or None.
    """

    def __init__(self, place: Place, link: Callable[[Sequence[str]], str | None]) -> None:
        self._place, self._link = place, link
        self._state: State = "running"
        self._found: dict[str, Any] = {"findings": [], "passed": []}
        self._message: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._wait, name="audit", daemon=True)

    def start(self) -> None:
        """Start `framedex audit` in a separate process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "framedex", "audit", "--json", "--", str(self._place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,  # so that Ctrl-C does not reach the process
        )
        self._thread.start()

    def close(self) -> None:
        """Kill the process if it is still running."""
        if self._process is not None:
            self._process.kill()
            self._thread.join()

    def _wait(self) -> None:
        assert self._process is not None  # `start` assigns it before it starts this thread
        out, err = self._process.communicate()
        if self._process.returncode == 0:
            self._found = orjson.loads(out)
            self._state = "done"
        else:
            message = err.decode("utf-8", "replace").strip() or f"exit status {self._process.returncode}"
            self._message = printable(message, lines=True)
            self._state = "failed"

    def as_json(self) -> dict[str, Any]:
        """Return the state of the audit and its findings, as JSON values."""
        return {
            "state": self._state,
            "message": self._message,
            "passed": len(self._found["passed"]),
            "findings": [
                {
                    "name": finding["check"],
                    **{name: finding[name] for name in KEPT},
                    "names_items": self._link(list(finding["examples"][0])) is not None,
                }
                for finding in self._found["findings"]
            ],
        }


MAX_BYTES = MAX_CLIP_BYTES + (256 << 20)  # memory limit in bytes for decoded clips, for the largest clip and some more
POSTER_SIDE = 320
POSTER_QUALITY = 82

Key = tuple[str, int | None]  # the key of a clip or medium, and `first` of `Items.show`


class Items(Protocol):
    """The interface of `Clips` and `Media`.

    Attributes:
        spans: Whether the user can choose a range of frames.
    """

    spans: bool

    def first_column(self) -> str:
        """Return the column that is preselected for filters."""

    def card(self, key: Any) -> dict[str, Any]:
        """Return the content of an item's entry in the list."""

    def describe(self, key: Any) -> dict[str, Any]:
        """Return the metadata of an item that the player shows."""

    def show(self, key: Any, first: int | None) -> Shown:
        """Decode an item. `first` is the number of the first frame of a range of frames, or None."""


class Pictures:
    """A cache of decoded clips or media. Thread-safe."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._kept: OrderedDict[Key, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._being_decoded: dict[Key, threading.Lock] = {}
        self._decoders = threading.BoundedSemaphore(os.cpu_count() or 1)

    def shown(self, key: str, first: int | None, wanted: Callable[[], bool]) -> Shown:
        """Return a decoded clip or medium.

        Args:
            key: The key of the clip or medium.
            first: The number of the first frame of a range of frames of a medium, or None.
            wanted: A function that returns whether the page still waits for the result. It is called before decoding.

        Raises:
            FramedexError: The clip or medium cannot be decoded, or the page no longer waits for it.
        """
        name = (key, first)
        with self._lock:
            own = self._being_decoded.setdefault(name, threading.Lock())
        with own:  # if several requests need the same clip, the first one decodes it, and the others wait
            with self._lock:
                if name in self._kept:
                    self._kept.move_to_end(name)
                    return self._kept[name]
            try:
                with self._decoders:
                    if not wanted():
                        raise FramedexError("the page no longer waits for this clip")
                    found = self._items.show(key, first)
                with self._lock:
                    self._kept[name] = found
                    while len(self._kept) > 1 and sum(one.size_bytes for one in self._kept.values()) > MAX_BYTES:
                        self._kept.popitem(last=False)
            finally:
                with self._lock:
                    self._being_decoded.pop(name, None)
            return found


PAGE = 24  # number of clips or media per page of the list. It fills all rows of 2, 3, 4 or 6 columns
ROWS = 1000  # maximum number of rows of a query's result on the page
MAX_TEXT_BYTES = 4 * ANSWER_BYTES  # maximum size of a result as JSON, which is longer than the values in memory
FINDING_ROWS = 50  # number of rows of a finding per page
NOT_FINITE = {math.inf: "inf", -math.inf: "-inf"}  # texts for numbers that JSON cannot represent, except NaN
EXACT_DIGITS = 15  # number of decimal digits that JavaScript represents exactly
VALUES = 50  # number of values of a column that the page suggests for a filter

JSON, PNG, JPEG, WAV = "application/json", "image/png", "image/jpeg", "audio/wav"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP response.

    Attributes:
        content: The body.
        type_: The media type of the body.
    """

    content: bytes
    type_: str


class Request(Protocol):
    """The interface of a request.

    Attributes:
        query: The parameters in the address.
        body: The JSON value of the body, or None for GET.
    """

    query: Mapping[str, str]
    body: Any

    def is_waiting(self) -> bool:
        """Return whether the page still waits for the answer."""


Resource = Callable[[Request], Answer]


def as_json(value: object) -> Answer:
    """Return an answer whose body is a value as JSON. Values of types that JSON lacks become text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return Answer(content=orjson.dumps(value, default=_plain, option=options), type_=JSON)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return f"{value[:32].hex()}{'…' if len(value) > 32 else ''}"
    return plain(value, bits=53)


def _cell(value: object, *, lines: bool = False) -> object:
    """Return a value of a query's result as a JSON value. Numbers that JavaScript cannot represent exactly become text.

    Args:
        value: The value.
        lines: Whether the line ends of a text are kept. All other control characters are escaped.
    """
    if isinstance(value, str):
        return printable(value, lines=lines)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_FINITE.get(value, "NaN")
    if isinstance(value, list | dict):
        return printable(json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")))
    if isinstance(value, Decimal) and len(value.as_tuple().digits) > EXACT_DIGITS:
        return str(value)
    return value


def _bounded(answer: Answer) -> Answer:
    """Raise FramedexError if the body of an answer is too large, and return the answer otherwise.

    JSON can be much larger than the values in memory, for example for lists of booleans.
    """
    if len(answer.content) > MAX_TEXT_BYTES:
        raise FramedexError(
            "the result is too large to show",
            found=size_text(len(answer.content)),
            allowed=f"up to {size_text(MAX_TEXT_BYTES)}",
            remedy="select fewer columns, or parts of lists with list[:100]",
        )
    return answer


class Resources:
    """The resources of the page of an index or a dataset.

    Args:
        selections: Queries for the keys of the clips or media that a request selects.
        items: The metadata and pictures of the clips or media.
        findings: The findings of the audit.
    """

    def __init__(self, selections: Selections, items: Items, findings: Findings) -> None:
        self._selections, self._items, self._findings = selections, items, findings
        self._pictures = Pictures(items)
        self.get: dict[str, Resource] = {
            "subject": self._subject,
            "findings": lambda _: as_json(self._findings.as_json()),
            "values": self._values,
            "item": self._item,
            "picture": self._picture,
            "poster": self._poster,
            "sound": self._sound,
        }
        self.post: dict[str, Resource] = {
            "items": self._items_page,
            "rows": self._rows,
            "sql": self._sql,
            "stop": self._stop,
        }

    def _subject(self, _: Request) -> Answer:
        return as_json(
            {
                "kind": self._selections.kind,
                "total": self._selections.total,
                "columns": [{"name": name, "type": type_} for name, type_ in self._selections.types.items()],
                "first_column": self._items.first_column(),
                "spans": self._items.spans,
            }
        )

    def _values(self, request: Request) -> Answer:
        found = self._selections.values(request.query.get("column", ""), VALUES + 1)
        values = [{"value": value, "text": value and printable(value), "count": n} for value, n in found[:VALUES]]
        return as_json({"values": values, "more": len(found) > VALUES})

    def _items_page(self, request: Request) -> Answer:
        wanted, first = _page_of(request.body)
        total, keys = self._selections.page(wanted_of(wanted), first * PAGE, PAGE)
        return as_json({"total": total, "each": PAGE, "items": [self._card(key) for key in keys]})

    def _card(self, key: Any) -> dict[str, Any]:
        try:
            return self._items.card(key)
        except FramedexError as error:  # a damaged row does not prevent the list from showing the others
            return {"key": str(key), "name": str(key), "source": "", "text": "", "columns": [], "error": error.text()}

    def _rows(self, request: Request) -> Answer:
        wanted, page = _page_of(request.body)
        check = self._selections.finding(str(wanted.get("finding")))
        sql = f"SELECT * FROM ({bare(check.sql)}\n) LIMIT {FINDING_ROWS} OFFSET {page * FINDING_ROWS}"
        return _bounded(as_json(self._table(self._selections.query(sql, FINDING_ROWS)) | {"each": FINDING_ROWS}))

    def _sql(self, request: Request) -> Answer:
        if not isinstance(request.body, dict) or not isinstance(request.body.get("sql"), str):
            raise FramedexError("a query is a text", found=repr(request.body)[:80])
        answer = self._selections.query(request.body["sql"], ROWS + 1)
        more = answer.cut or len(answer.rows) > ROWS
        return _bounded(as_json(self._table(answer) | {"more": more}))

    def _table(self, answer: Result) -> dict[str, Any]:
        is_drawing = answer.names == EXPLANATION  # EXPLAIN returns a drawing of several lines
        cut = f"the result is cut off after {size_text(ANSWER_BYTES)}; select fewer columns or shorter texts"
        return {
            "columns": [printable(name) for name in answer.names],
            "rows": [[_cell(value, lines=is_drawing) for value in row] for row in answer.rows[:ROWS]],
            "cut": cut if answer.cut else None,
            "names_items": self._selections.link(answer.names) is not None,
        }

    def _stop(self, _: Request) -> Answer:
        self._selections.stop()
        return as_json({})

    def _item(self, request: Request) -> Answer:
        key, first = _key_of(request)
        item = self._items.describe(key)
        if item["error"] is None:
            try:
                item |= self._pictures.shown(key, first, request.is_waiting).as_json()
            except FramedexError as error:
                item["error"] = error.text()
        return as_json(item)

    def _shown(self, request: Request) -> Shown:
        """Return the decoded clip or medium of a request. Raises FramedexError."""
        return self._pictures.shown(*_key_of(request), request.is_waiting)

    def _picture(self, request: Request) -> Answer:
        """Return the picture of a frame of a clip as a PNG file, which is lossless."""
        place = _whole(request.query, "place")
        shown = self._shown(request)
        if not 0 <= place < len(shown.frames):
            raise FramedexError("the clip has no such frame", found=place, allowed=f"0 to {len(shown.frames) - 1}")
        return Answer(content=png(shown.pictures[place]), type_=PNG)

    def _poster(self, request: Request) -> Answer:
        """Return a small picture of the first frame of a clip as a JPEG file."""
        poster = self._shown(request).poster()
        if poster is None:
            raise FramedexError("all frames of the clip are padding")
        return Answer(content=jpeg(reduced(poster, POSTER_SIDE), POSTER_QUALITY), type_=JPEG)

    def _sound(self, request: Request) -> Answer:
        sound = self._shown(request).sound
        if sound is None:
            raise FramedexError("the clip has no sound")
        return Answer(content=sound.wav(), type_=WAV)


def _key_of(request: Request) -> tuple[str, int | None]:
    """Return the key of the requested clip or medium, and the first frame of the requested range, or None."""
    return request.query.get("key", ""), _whole(request.query, "first") if "first" in request.query else None


def _whole(query: Mapping[str, str], name: str) -> int:
    """Return an integer parameter. Raises FramedexError if it is missing or not an integer."""
    text = query.get(name, "")
    number = whole_number(text)
    if number is None:
        raise FramedexError(f"{name} must be a whole number", found=repr(text)[:80])
    return number


def _page_of(body: Any) -> tuple[dict[str, Any], int]:
    """Return the selection and the page number in the body of a request. Raises FramedexError."""
    if not isinstance(body, dict) or not isinstance(body.get("wanted"), dict) or type(body.get("page")) is not int:
        raise FramedexError("the request has wrong keys or types", allowed="wanted, page")
    if not 0 <= body["page"] < 1 << 40:
        raise FramedexError("there is no such page", found=body["page"])
    return body["wanted"], body["page"]
