"""The resources of the browser's server. Each is a function of the parameters of a request.

All checks of the audit run once, in another process, while the page is already open. Decoded clips are kept in memory
within a limit, and their pictures are encoded when the page asks for them.
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

KEPT = ("title", "severity", "count", "means", "remedy")  # the page does not show the other attributes of a finding


class Findings:
    """The findings of `framedex audit`. `start` begins to run it.

    A process of its own can be killed at any time, and leaves its memory and its processor to the page afterwards.

    Args:
        place: The index or dataset.
        link: Returns the column of a finding's rows that identifies clips or media, if there is one.
    """

    def __init__(self, place: Place, link: Callable[[Sequence[str]], str | None]) -> None:
        self._place, self._link = place, link
        self._state: State = "running"
        self._found: dict[str, Any] = {"findings": [], "passed": []}
        self._message: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._wait, name="audit", daemon=True)

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "framedex", "audit", "--json", "--", str(self._place)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,  # Ctrl-C is for the page
        )
        self._thread.start()

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._thread.join()

    def _wait(self) -> None:
        assert self._process is not None  # `start` made it
        out, err = self._process.communicate()
        if self._process.returncode == 0:
            self._found = orjson.loads(out)
            self._state = "done"
        else:
            message = err.decode("utf-8", "replace").strip() or f"exit status {self._process.returncode}"
            self._message = printable(message, lines=True)
            self._state = "failed"

    def as_json(self) -> dict[str, Any]:
        """Return the progress of the checks and their findings."""
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


MAX_BYTES = MAX_CLIP_BYTES + (256 << 20)  # the largest clip and some others fit into memory together
POSTER_SIDE = 320
POSTER_QUALITY = 82

Key = tuple[str, int | None]  # the key of a clip or medium, and the first frame of the part that is shown


class Items(Protocol):
    """The clips of a dataset or the media of an index. `spans`: whether a part of them can be shown."""

    spans: bool

    def first_column(self) -> str:
        """Return the column that a filter begins with."""
        ...

    def card(self, key: Any) -> dict[str, Any]:
        """Return the entry of an item in the list."""
        ...

    def describe(self, key: Any) -> dict[str, Any]:
        """Return all facts about an item except its pictures."""
        ...

    def show(self, key: Any, first: int | None) -> Shown:
        """Return an item with its pictures."""
        ...


class Pictures:
    """The pictures of clips or media. Each is decoded once, as long as it is kept. Threads may share this object."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._kept: OrderedDict[Key, Shown] = OrderedDict()
        self._lock = threading.Lock()
        self._being_decoded: dict[Key, threading.Lock] = {}
        self._decoders = threading.BoundedSemaphore(os.cpu_count() or 1)

    def shown(self, key: str, first: int | None, wanted: Callable[[], bool]) -> Shown:
        """Return a clip with its pictures.

        Args:
            key: The clip or medium.
            first: The first frame of the part of a medium.
            wanted: Returns whether the page still waits for it. Called before it is decoded.

        Raises:
            FramedexError: It cannot be decoded, or the page no longer waits for it.
        """
        name = (key, first)
        with self._lock:
            own = self._being_decoded.setdefault(name, threading.Lock())
        with own:  # requests for the same clip wait until the first one has decoded it
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


PAGE = 24  # clips or media on a page of the list: 2, 3, 4 or 6 columns fill all rows
ROWS = 1000  # the page shows at most this many rows of an answer
MAX_TEXT_BYTES = 4 * ANSWER_BYTES  # JSON is longer than the values, mostly by less than this
FINDING_ROWS = 50  # rows of a finding on one page
NOT_FINITE = {math.inf: "inf", -math.inf: "-inf"}  # numbers that JSON lacks, beside NaN
EXACT_DIGITS = 15  # JavaScript represents decimal numbers of up to 15 digits exactly
VALUES = 50  # values of a column that the page suggests

JSON, PNG, JPEG, WAV = "application/json", "image/png", "image/jpeg", "audio/wav"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A successful answer.

    Attributes:
        content: The body.
        type_: Its media type.
    """

    content: bytes
    type_: str


class Request(Protocol):
    """The parameters of a request, and whether the page still waits for its answer."""

    query: Mapping[str, str]
    body: Any

    def is_waiting(self) -> bool:
        """Return whether the page still waits."""
        ...


Resource = Callable[[Request], Answer]


def as_json(value: object) -> Answer:
    """Return an answer in JSON. Values without a JSON form become text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return Answer(content=orjson.dumps(value, default=_plain, option=options), type_=JSON)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return f"{value[:32].hex()}{'…' if len(value) > 32 else ''}"
    return plain(value, bits=53)


def _cell(value: object, *, lines: bool = False) -> object:
    """Return a value of a table. Numbers that JavaScript cannot represent exactly become text.

    Args:
        value: The value.
        lines: Whether the line ends of a text are kept. Other control characters become escapes.
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
    """Return an answer. Raises FramedexError if its text is too large: lists of booleans are longer as text."""
    if len(answer.content) > MAX_TEXT_BYTES:
        raise FramedexError(
            "the answer is too large to show",
            found=size_text(len(answer.content)),
            allowed=f"up to {size_text(MAX_TEXT_BYTES)}",
            remedy="choose fewer columns, or a part of a list: list[:100]",
        )
    return answer


class Resources:
    """The resources of a browser over an index or a dataset.

    Args:
        selections: The keys of the clips or media that a request selects.
        items: The facts and pictures of each of them.
        findings: The findings of an audit.
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
        except FramedexError as error:  # one damaged row does not hide the others
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
        is_drawing = answer.names == EXPLANATION  # of a query plan, in several lines
        cut = f"the answer is cut after {size_text(ANSWER_BYTES)}; choose fewer columns or shorter texts"
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
        """Return the clip or medium of a request, decoded. Raises FramedexError."""
        return self._pictures.shown(*_key_of(request), request.is_waiting)

    def _picture(self, request: Request) -> Answer:
        """Return the picture at a place of a clip as a PNG file, which keeps each pixel exactly."""
        place = _whole(request.query, "place")
        shown = self._shown(request)
        if not 0 <= place < len(shown.frames):
            raise FramedexError("the clip has no such place", found=place, allowed=f"0 to {len(shown.frames) - 1}")
        return Answer(content=png(shown.pictures[place]), type_=PNG)

    def _poster(self, request: Request) -> Answer:
        """Return a small picture of the first frame of a clip."""
        poster = self._shown(request).poster()
        if poster is None:
            raise FramedexError("every place of the clip is padding")
        return Answer(content=jpeg(reduced(poster, POSTER_SIDE), POSTER_QUALITY), type_=JPEG)

    def _sound(self, request: Request) -> Answer:
        sound = self._shown(request).sound
        if sound is None:
            raise FramedexError("the clip has no sound")
        return Answer(content=sound.wav(), type_=WAV)


def _key_of(request: Request) -> tuple[str, int | None]:
    """Return the key of a clip or medium, and the first frame of the part that is shown."""
    return request.query.get("key", ""), _whole(request.query, "first") if "first" in request.query else None


def _whole(query: Mapping[str, str], name: str) -> int:
    """Return a parameter that is a whole number. Raises FramedexError."""
    text = query.get(name, "")
    number = whole_number(text)
    if number is None:
        raise FramedexError(f"{name} is a whole number", found=repr(text)[:80])
    return number


def _page_of(body: Any) -> tuple[dict[str, Any], int]:
    """Return the selection and the page number of a request. Raises FramedexError."""
    if not isinstance(body, dict) or not isinstance(body.get("wanted"), dict) or type(body.get("page")) is not int:
        raise FramedexError("a page of a selection has other keys or types", allowed="wanted, page")
    if not 0 <= body["page"] < 1 << 40:
        raise FramedexError("there is no such page", found=body["page"])
    return body["wanted"], body["page"]
