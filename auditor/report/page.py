"""The page of an audit: sections, findings, charts and the table as one HTML document without external resources.

The report of an audit: one page without external resources, and a JSON file beside it.

The summary of an audit as HTML elements: tiles, facts and tables.

Findings as HTML elements: the meaning, the remedy, examples with pictures, and the SQL of each.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

import orjson

from framedex.auditor.findings import SEVERITIES, Audit, Finding, Section, Severity, legible
from framedex.auditor.report.charts import clips_timeline, frames_timeline, histogram
from framedex.auditor.report.histograms import CHARTS, Histogram, histograms
from framedex.auditor.report.media_table import OWN_COLUMNS, TABLE_SQL, MediaTable, as_script, media_table
from framedex.auditor.report.pictures import Picture, Strip, pictured, strips
from framedex.auditor.report.timelines import COLUMNS, ClipsTimeline, FramesTimeline, Timeline, timeline
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind
from framedex.core.version import __version__
from framedex.core.words import counted, number_text
from framedex.errors import OutputError
from framedex.files.outputs import write_aside
from framedex.html.document import (
    Document,
    coded,
    drawing,
    element,
    folded,
    jpeg_uri,
    markup,
    said,
    section,
    sentence,
    table,
    titled,
)
from framedex.storage.places import Access

SUMMARY_ROWS = 8  # of a table before it is unfolded
MAX_SUMMARY_ROWS = 200
BAD = ("failed", "failures", "refused")  # facts that should be 0
SPREAD = ("least", "tenth", "median", "nine_tenths", "greatest", "mean")


def summary(found: Audit) -> Element:
    """Return the section of the summary. `found` must have sections."""
    first, *others = found.sections
    tiles, tables, spreads = [], [], []
    for part in others:
        if not part.rows:
            continue
        if is_spread(part):
            spreads.append(part)
        elif len(part.rows) == 1 and len(part.names) > 4:
            tiles.append(part)
        else:
            tables.append(_table(part))
    return section(
        "summary",
        "Summary",
        _facts(first, "tiles"),
        *[element("div", element("h3", tile.question.title), _facts(tile, "facts")) for tile in tiles],
        _spreads(spreads) if spreads else None,
        element("div", *tables, class_="tables") if tables else None,
    )


def is_spread(part: Section) -> bool:
    """Return whether a section is about the distribution of a number: its minimum, median and so on."""
    return len(part.rows) == 1 and len(part.names) > 3 and set(part.names[1:]) <= set(SPREAD)


def _facts(part: Section, class_: str) -> Element:
    pairs = [legible(*pair) for pair in zip(part.names, part.rows[0], strict=True)]
    return element(
        "dl",
        *[
            element("div", element("dt", sentence(name)), element("dd", said(value)), class_=_tone(name, value))
            for name, value in pairs
        ],
        class_=class_,
    )


def _tone(name: str, value: object) -> str | None:
    if not value:
        return "nothing"
    return "bad" if name in BAD else None


def _spreads(parts: Sequence[Section]) -> Element:
    """Return a table with one row per section. The first column of a section counts its subjects."""
    names = ["", "count", *(name for name in SPREAD if any(name in part.names for part in parts))]
    rows = []
    for part in parts:
        facts = dict(zip(part.names, part.rows[0], strict=True))
        rows.append([part.question.title, part.rows[0][0], *(facts.get(name) for name in names[2:])])
    caption = "How numbers are spread"
    return element("div", element("h3", caption), table(names, rows, caption=caption, class_="spread"))


def _table(part: Section) -> Element:
    title = part.question.title
    rest = part.rows[SUMMARY_ROWS:MAX_SUMMARY_ROWS]
    made = element("div", element("h3", title), table(part.names, part.rows[:SUMMARY_ROWS], caption=title))
    if rest:
        left = len(part.rows) - MAX_SUMMARY_ROWS
        more = counted(len(part.rows) - SUMMARY_ROWS, "more row")
        note = element("p", f"… and {left:,} more; the .json beside this page has all", class_="soft")
        made.append(folded(more, table(part.names, rest, caption=f"{title}, more"), note if left > 0 else None))
    return made


MARKS: dict[Severity, str] = {"error": "✕", "warning": "▲", "note": "●"}
OWN = ("media_id",)  # columns that only programs read
Strips = Mapping[str, Sequence[Strip]]  # by check, those of its examples


def findings(found: Audit, strips: Strips) -> Element:
    """Return the section of all findings, the most severe first."""
    groups = []
    for severity in SEVERITIES:
        mine = [finding for finding in found.findings if finding.check.severity == severity]
        if mine:
            title = f"{severity.capitalize()}s"
            articles = [_finding(finding, strips.get(finding.check.name, ())) for finding in mine]
            groups.append(element("div", element("h3", title, id=f"{severity}s"), *articles, class_="group"))
    nothing = element("p", f"Nothing found by {len(found.passed)} checks.") if not found.findings else None
    return section(
        "findings", "Findings", nothing, _overview(found) if len(found.findings) > 2 else None, *groups, _others(found)
    )


def _overview(found: Audit) -> Element:
    """Return the findings as a list of links."""
    entries = []
    for finding in found.findings:
        check = finding.check
        mark = element("span", MARKS[check.severity], class_=f"mark-{check.severity}", aria_hidden="true")
        word = element("span", f"{check.severity}: ", class_="unseen")
        link = element("a", check.title, href=f"#check-{check.name}")
        entries.append(element("li", mark, word, link, element("span", f"{finding.count:,}", class_="count")))
    return element("ol", *entries, class_="overview", aria_label="All findings")


def _finding(finding: Finding, strips: Sequence[Strip]) -> Element:
    check = finding.check
    names = [name for name in finding.examples[0] if name not in OWN]
    rows = [[example[name] for name in names] for example in finding.examples]
    shown_of = f"{len(rows)} of {finding.count:,}" if finding.count > len(rows) else f"{finding.count:,}"
    badge = element(
        "span",
        element("span", f"{MARKS[check.severity]} ", aria_hidden="true"),
        f"{check.severity} · {finding.count:,}",
        class_=f"badge {check.severity}",
    )
    return element(
        "article",
        element("h4", check.title, " ", badge, id=f"check-{check.name}-title"),
        element("p", *coded(check.means)),
        element("p", element("b", "Remedy: "), *coded(check.remedy)),
        table(names, rows, caption=f"Examples, {shown_of}: {check.title}"),
        _more(finding),
        _sheet(finding, strips),
        folded("SQL behind it", element("pre", element("code", check.sql))),
        id=f"check-{check.name}",
        class_=f"finding {check.severity}",
        aria_labelledby=f"check-{check.name}-title",
    )


def _more(finding: Finding) -> Element | None:
    """Return the number of findings that are not shown as examples, or None if all are shown."""
    left = finding.count - len(finding.examples)
    return element("p", f"… and {left:,} more, which the SQL behind it gives", class_="soft more") if left else None


def _sheet(finding: Finding, strips: Sequence[Strip]) -> Element | None:
    """Return the pictures of a finding's examples. A reason that the row of an example states is not repeated."""
    said_already = "error_message" in finding.examples[0]
    if said_already:
        strips = [strip for strip in strips if strip.pictures]
    reasons = {strip.reason for strip in strips}
    if len(strips) > 1 and len(reasons) == 1 and not any(strip.pictures for strip in strips):
        return element("p", element("b", "No pictures: "), reasons.pop(), class_="reason apart")
    return element("div", *map(_strip, strips), class_="sheet") if strips else None


def _strip(strip: Strip) -> Element:
    frames = [
        element(
            "li",
            drawing(
                element("use", href=f"#{identity_of(picture)}"),
                size=(picture.width, picture.height),
                label=f"frame {picture.frame} at {picture.seconds:.3f} seconds",
            ),
            element("span", f"#{picture.frame}"),
            element("span", f"{picture.seconds:.2f} s", class_="soft"),
        )
        for picture in strip.pictures
    ]
    reason = element(
        "p",
        element("b", "No picture: " if not frames else "Some pictures are missing: "),
        strip.reason,
        class_="reason",
    )
    return element(
        "figure",
        element("figcaption", element("bdi", said(strip.name))),
        element("ol", *frames, class_="strip") if frames else None,
        reason if strip.reason else None,
    )


def identity_of(picture: Picture) -> str:
    """Return the id of a picture on the page. Equal pictures share one id."""
    return f"p{hashlib.sha256(picture.jpeg).hexdigest()[:16]}"


def pictures(strips: Mapping[str, Strip]) -> Element | None:
    """Return all pictures, each once, for the strips to refer to."""
    all_of_them = {identity_of(picture): picture for strip in strips.values() for picture in strip.pictures}
    if not all_of_them:
        return None
    symbols = [
        element(
            "symbol",
            element(
                "image",
                href=jpeg_uri(picture.jpeg),
                width=picture.width,
                height=picture.height,
            ),
            id=identity,
            viewBox=f"0 0 {picture.width} {picture.height}",
        )
        for identity, picture in all_of_them.items()
    ]
    return element("svg", *symbols, class_="pictures", aria_hidden="true", width="0", height="0")


def _others(found: Audit) -> Element | None:
    """Return the checks that found nothing and the checks that did not run."""
    passed = [element("li", check.title, " ", element("code", check.name)) for check in found.passed]
    unasked = [
        element("li", check.title, " ", element("code", check.name), f" needs {needs}")
        for check, needs in found.unasked
    ]
    return element(
        "div",
        folded(f"{counted(len(found.passed), 'check')} found nothing", element("ul", *passed)) if passed else None,
        folded(f"{counted(len(found.unasked), 'check')} not asked", element("ul", *unasked)) if unasked else None,
        class_="others",
    )


PLAIN_ROWS = 50  # shown without JavaScript, and in print
EXAMPLES = {"media": "fps>30, status=failed", "clips": "padded>0, codec=h264"}  # of conditions in the filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything that a page shows.

    Attributes:
        found: The audit.
        charts: The histograms.
        timeline: The timeline of one medium. None: there is none.
        wanted: The identities of the pictures of each check.
        strips: The pictures by identity.
    """

    found: Audit
    charts: list[Histogram]
    timeline: Timeline | None
    wanted: Mapping[str, Sequence[str]]
    strips: Mapping[str, Strip]

    def by_check(self) -> dict[str, list[Strip]]:
        """Return the pictures of the examples of each check."""
        return {
            check: [self.strips[identity] for identity in identities if identity in self.strips]
            for check, identities in self.wanted.items()
        }


def page(shown: Shown, rows: MediaTable) -> bytes:
    """Return the page of an audit as HTML."""
    name = title_of(shown.found)
    sections = [part for part in _sections(shown, rows) if part is not None]
    document = Document(
        title=f"{name}: audit",
        style=_part("page.css"),
        script=_part("page.js"),
        before=[
            element("a", "Skip to the findings", href="#findings", class_="skip"),
            _header(shown.found, name),
            _contents(sections),
            pictures(shown.strips),
        ],
        main=map(markup, sections),
        after=[_footer(shown.found), element("script", as_script(rows), type="application/json", id="rows")],
    )
    return document.content()


def title_of(found: Audit) -> str:
    """Return the name of the index or dataset, without its parent folders."""
    return PurePosixPath(found.place.rstrip("/")).name or found.place


def _part(name: str) -> str:
    return (files("framedex.auditor") / "page" / name).read_text(encoding="utf-8")


def _header(found: Audit, name: str) -> Element:
    chips = []
    for severity in SEVERITIES:
        count = sum(finding.check.severity == severity for finding in found.findings)
        text = f"{count} {severity}{'' if count == 1 else 's'}"
        mark = element("span", MARKS[severity], aria_hidden="true")
        link = element("a", mark, f" {text}", href=f"#{severity}s") if count else element("span", mark, f" {text}")
        chips.append(element("li", link, class_=f"chip {severity if count else 'none'}"))
    passed = f"{len(found.passed)} checks found nothing"
    chips.append(
        element("li", element("span", element("span", "✓", aria_hidden="true"), f" {passed}"), class_="chip none")
    )
    return titled(
        f"framedex audit of {'an index' if found.kind == 'index' else 'a dataset'}",
        name,
        element("p", element("bdi", found.place), class_="soft place"),
        element("ul", *chips, class_="chips", aria_label="Findings"),
    )


def _contents(sections: Sequence[Element]) -> Element:
    links = [element("li", element("a", part[0].text or "", href=f"#{part.get('id')}")) for part in sections]
    return element("nav", element("ul", *links), aria_label="Sections")


def _sections(shown: Shown, rows: MediaTable) -> list[Element | None]:
    found = shown.found
    return [
        summary(found) if found.sections else None,
        findings(found, shown.by_check()),
        _charts(shown.charts) if shown.charts else None,
        _timeline(shown.timeline) if shown.timeline else None,
        _rows(rows),
    ]


def _charts(charts: Sequence[Histogram]) -> Element:
    return section(
        "distributions", "Distributions", element("div", *[_chart(chart) for chart in charts], class_="charts")
    )


def _chart(shown: Histogram) -> Element:
    counted = shown.counted
    zeros = [["0", shown.zeros]] if shown.zeros else []
    others = [[f"{shown.others:,} others", shown.other_count]] if shown.others else []
    rows = [*zeros, *([bar.label, bar.count] for bar in shown.bars), *others]
    facts = f"{shown.total:,} {counted.of}"
    if shown.median is not None and shown.least != shown.greatest:
        least, greatest = number_text(shown.least or 0.0), number_text(shown.greatest or 0.0)
        facts += f" · median {number_text(shown.median)} · {least} to {greatest}"
    return element(
        "figure",
        element("figcaption", element("h3", counted.title), element("p", facts, class_="soft")),
        histogram(shown),
        folded(
            "Numbers", table([counted.axis or counted.title, counted.of], rows, caption=f"{counted.title}: numbers")
        ),
    )


def _timeline(shown: Timeline) -> Element:
    drawn = frames_timeline(shown) if isinstance(shown, FramesTimeline) else clips_timeline(shown)
    title = "Timeline of a video" if isinstance(shown, FramesTimeline) else "Clips of a video over time"
    box = element("div", drawn, class_="box wide", role="group", aria_label=f"{title} (drawing)")
    return section(
        "timeline",
        title,
        element("p", element("b", element("bdi", said(shown.uri))), f" – {shown.why}. {_part_shown(shown)}"),
        _legend(shown),
        box,
        folded("Numbers", _facts_of(shown.as_json())),
    )


def _part_shown(shown: Timeline) -> str:
    if isinstance(shown, ClipsTimeline):
        return f"{len(shown.clips):,} of its {shown.total:,} clips." if len(shown.clips) < shown.total else ""
    first, count = shown.first, len(shown.seconds)
    if count == shown.total:
        return f"All {count:,} frames."
    return f"Frames {first:,} to {first + count - 1:,} of {shown.total:,}, those around its longest gap."


def _legend(shown: Timeline) -> Element:
    if isinstance(shown, ClipsTimeline):
        entries = [
            ("medium", "▬", "the video"),
            ("clip", "▬", "a clip, from its first frame to its last"),
            ("taken", "|", "a frame"),
        ]
    else:
        entries = [
            ("frame", "▮", "a frame"),
            ("start", "▮", "a start point"),
            ("start", "▲", "closed"),
            ("start", "△", "open"),
        ]
        if (shown.start[shown.is_start] < 0).any():
            entries.append(("start", "|", "not looked at"))
        if shown.is_damaged.any():
            entries.append(("harmed", "▤", "in a damaged GOP"))
        if shown.long_gaps.any():
            entries.append(("gap", "▒", "no frame for three times as long as usual"))
    items = [
        element("li", element("span", mark, class_=f"key {class_}", aria_hidden="true"), f" {text}")
        for class_, mark, text in entries
    ]
    return element("ul", *items, class_="legend", aria_label="Legend")


def _facts_of(facts: Mapping[str, Any]) -> Element:
    pairs = [
        element("div", element("dt", sentence(name)), element("dd", element("bdi", said(value))))
        for name, value in facts.items()
    ]
    return element("dl", *pairs, class_="facts")


def _rows(rows: MediaTable) -> Element:
    title = f"All {rows.of}"
    shown = f"{len(rows):,} of {rows.total:,} {rows.of}"
    if len(rows) < rows.total:
        shown += ", those with findings first; framedex audit --sql gives all"
    help_text = (
        f"Words match names, codecs, findings and the like; {EXAMPLES[rows.of]} and so on compare a column:"
        f" {', '.join(column.key for column in rows.columns if column.form == 'number')}."
    )
    live = element(
        "div",
        element(
            "div",
            element("label", "Filter", for_="filter"),
            element(
                "input",
                id="filter",
                type="search",
                autocomplete="off",
                spellcheck="false",
                aria_describedby="filter-help",
            ),
            element("p", "", id="matches", role="status", class_="soft"),
            class_="controls",
        ),
        element("p", help_text, id="filter-help", class_="soft"),
        element("div", id="table", class_="box scroll", tabindex="0", role="region", aria_label=f"{title} (table)"),
        id="live",
        hidden="",
    )
    return section("all", title, element("p", f"{shown}.", class_="soft"), live, _plain(rows))


def _plain(rows: MediaTable) -> Element:
    """Return the first rows, for print and for browsers without JavaScript."""
    first = rows.first(PLAIN_ROWS)
    cells = list(zip(*[column.values for column in first.columns], strict=True))
    made = table([column.title for column in first.columns], cells, caption=f"The first {rows.of}")
    note = element("p", f"The first {len(first):,}.", class_="soft") if len(first) < len(rows) else None
    return element("div", made, note, id="plain")


def _footer(found: Audit) -> Element:
    return element(
        "footer",
        element(
            "p",
            f"framedex {__version__} · the .json beside this page has the same findings, and the numbers of the charts",
        ),
        class_="soft",
    )


MAX_BYTES = 1_000_000  # of a page without its pictures
SUFFIX = ".html"


def queries(kind: Kind) -> list[str]:
    """Return texts that name all columns of `videos` (index) or `clips` (dataset) that a report needs."""
    return [TABLE_SQL[kind], *OWN_COLUMNS, *(chart.sql for chart in CHARTS[kind]), *COLUMNS]


def write_report(db: Database, found: Audit, path: Path, *, access: Access, pictures: bool) -> None:
    """Write the page of an audit, and a .json file beside it. The same input gives the same bytes.

    Args:
        db: The database of the index or dataset.
        found: The audit.
        path: The .html file.
        access: Which sources may be read.
        pictures: Whether frames of examples are decoded.

    Raises:
        OutputError: The file name does not end in .html.
        FramedexError: A table cannot be read.
    """
    if path.suffix.lower() != SUFFIX:
        raise OutputError("the report is a page", where=str(path), found=path.suffix or "no ending", allowed=SUFFIX)
    wanted = pictured(found) if pictures else {}
    identities = list(dict.fromkeys(identity for several in wanted.values() for identity in several))
    shown = Shown(
        found=found,
        charts=histograms(db),
        timeline=timeline(db, found),
        wanted=wanted,
        strips=strips(db, identities, access),
    )
    content, rows = _within_budget(shown, media_table(db, found))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, content)
    facts = as_json(shown, rows) | {"schema_version": db.audited.header["schema_version"]}
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    write_aside(path.with_suffix(".json"), orjson.dumps(facts, option=options, default=str) + b"\n")


def _within_budget(shown: Shown, rows: MediaTable) -> tuple[bytes, MediaTable]:
    """Return the page and the rows that fit into it."""
    different = {picture.jpeg for strip in shown.strips.values() for picture in strip.pictures}
    pictures = sum(len(jpeg_uri(jpeg)) for jpeg in different)
    while True:
        content = page(shown, rows)
        excess = len(content) - pictures - MAX_BYTES
        if excess <= 0 or not len(rows):
            return content, rows
        each = len(as_script(rows)) / len(rows)
        rows = rows.first(max(0, len(rows) - int(excess / each) - 1))


def as_json(shown: Shown, rows: MediaTable) -> dict[str, Any]:
    """Return the contents of the page as JSON values: those of `framedex audit --json` and the numbers of charts."""
    return shown.found.as_json() | {
        "framedex": __version__,
        "histograms": {chart.counted.name: chart.as_json() for chart in shown.charts},
        "timeline": shown.timeline and shown.timeline.as_json(),
        "table": {"of": rows.of, "shown": len(rows), "total": rows.total},
        "pictures": {
            identity: {
                "name": strip.name,
                "frames": [{"frame": p.frame, "seconds": p.seconds} for p in strip.pictures],
                "reason": strip.reason,
            }
            for identity, strip in shown.strips.items()
        },
    }
