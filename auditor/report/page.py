"""The report of an audit, which consists of an HTML page without external resources and a JSON file.

The page contains the summary, the findings with examples and pictures, charts, a timeline, and a table of all media or
clips.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

import orjson

from framedex.auditor.findings import (
    DAMAGE_MET,
    NAMES,
    SEVERITIES,
    SPREAD,
    Audit,
    Finding,
    Section,
    Severity,
    legible,
    legible_table,
    with_damage,
)
from framedex.auditor.report.charts import clips_timeline, frames_timeline, histogram
from framedex.auditor.report.histograms import CHARTS, Histogram, histograms
from framedex.auditor.report.media_table import OWN_COLUMNS, TABLE_SQL, MediaTable, as_script, media_table
from framedex.auditor.report.pictures import Picture, Strip, pictured, strips
from framedex.auditor.report.timelines import COLUMNS, NOT_KNOWN, ClipsTimeline, FramesTimeline, Timeline, timeline
from framedex.auditor.tables.database import Database
from framedex.auditor.tables.subject import Kind
from framedex.core.version import __version__
from framedex.core.words import counted, number_text
from framedex.files.outputs import write_aside
from framedex.html import document as html
from framedex.html.document import Document, coded, element, folded, said, section, table
from framedex.storage.places import Access

SUMMARY_ROWS = 8  # number of rows of a table that are visible before the user unfolds it
MAX_SUMMARY_ROWS = 200
BAD = ("failed", "failures", "refused")  # counts that are highlighted if they are not 0


def summary(found: Audit) -> Element | None:
    """Return the summary, without its totals, as a section of the page. Return None if nothing else was counted."""
    tiles, tables, spreads = [], [], []
    for part in found.sections[1:]:
        if not part.rows:
            continue
        if len(part.rows) == 1 and len(part.names) > 3 and set(part.names[1:]) <= set(SPREAD):
            spreads.append(part)
        elif len(part.rows) == 1 and len(part.names) > 4:
            tiles.append(element("div", element("h3", part.question.title), _summary_facts(part, "facts")))
        else:
            tables.append(_table(part))
    if not (tiles or tables or spreads):
        return None
    return section(
        "summary",
        "Summary",
        *tiles,
        _spreads(spreads) if spreads else None,
        element("div", *tables, class_="tables") if tables else None,
    )


def _summary_facts(part: Section, class_: str) -> Element:
    """Return names and values of the only row of a section. Zeros are pale, and counts in BAD are coloured."""
    entries = []
    for name, value in (legible(*pair) for pair in zip(part.names, part.rows[0], strict=True)):
        tone = "nothing" if not value else "bad" if name in BAD else None
        entries.append(element("div", element("dt", html.sentence(name)), element("dd", said(value)), class_=tone))
    return element("dl", *entries, class_=class_)


def _spreads(parts: Sequence[Section]) -> Element:
    """Return one table for sections that describe distributions, with one row per section."""
    names = [name for name in SPREAD if any(name in part.names for part in parts)]
    rows = []
    for part in parts:
        facts = dict(zip(part.names, part.rows[0], strict=True))
        rows.append([part.question.title, part.rows[0][0], *map(facts.get, names)])
    caption = "Distributions of numbers"
    titles = ["", "count", *(SPREAD[name] for name in names)]
    return element("div", element("h3", caption), table(titles, rows, caption=caption, class_="spread"))


def _table(part: Section) -> Element:
    title = part.question.title
    names, rows = legible_table(part.names, part.rows[:MAX_SUMMARY_ROWS])
    made = element("div", element("h3", title), table(names, rows[:SUMMARY_ROWS], caption=title))
    rest = rows[SUMMARY_ROWS:]
    if rest:
        left = len(part.rows) - MAX_SUMMARY_ROWS
        more = counted(len(part.rows) - SUMMARY_ROWS, "more row")
        note = _soft(f"… and {left:,} more, which are in the .json file beside this page") if left > 0 else None
        made.append(folded(more, table(names, rest, caption=f"{title}, more"), note))
    return made


def _soft(text: str) -> Element:
    return element("p", text, class_="soft")


MARKS: dict[Severity, str] = {"error": "✕", "warning": "▲", "note": "●"}
Strips = Mapping[str, Sequence[Strip]]  # the pictures of the examples of each check


def findings(found: Audit, strips: Strips) -> Element:
    """Return the findings as a section of the page, in descending order of severity."""
    groups = []
    for severity in SEVERITIES:
        mine = [finding for finding in found.findings if finding.check.severity == severity]
        if mine:
            title = element("h3", f"{severity.capitalize()}s", id=f"{severity}s")
            articles = [_finding(finding, strips.get(finding.check.name, ())) for finding in mine]
            groups.append(element("div", title, *articles, class_="group"))
    nothing = element("p", f"Nothing found by {counted(len(found.passed), 'check')}.") if not found.findings else None
    # One or two findings are visible without scrolling, so they need no list of links.
    overview = _overview(found) if len(found.findings) > 2 else None
    return section("findings", "Findings", nothing, overview, *groups, _others(found))


def _overview(found: Audit) -> Element:
    """Return a list of links to the findings."""
    entries = []
    for finding in found.findings:
        check = finding.check
        mark = element("span", MARKS[check.severity], class_=f"mark-{check.severity}", aria_hidden="true")
        word = element("span", f"{check.severity}: ", class_="unseen")
        link = element("a", check.title, href=f"#check-{check.name}")
        entries.append(element("li", mark, word, link, element("span", f"{finding.count:,}", class_="count")))
    return element("ol", *entries, class_="overview", aria_label="All findings")


def _finding(finding: Finding, strips: Sequence[Strip]) -> Element:
    check, count = finding.check, finding.count
    names = [name for name in finding.examples[0] if name not in NAMES]
    rows = [[example[name] for name in names] for example in finding.examples]
    left = count - len(rows)
    shown_of = f"{len(rows)} of {count:,}" if left else f"{count:,}"
    badge = element(
        "span",
        element("span", f"{MARKS[check.severity]} ", aria_hidden="true"),
        f"{check.severity} · {count:,}",
        class_=f"badge {check.severity}",
    )
    return element(
        "article",
        element("h4", check.title, " ", badge, id=f"check-{check.name}-title"),
        element("p", *coded(check.means)),
        element("p", element("b", "Remedy: "), *coded(check.remedy)),
        table(names, rows, caption=f"Examples, {shown_of}: {check.title}"),
        element("p", f"… and {left:,} more, which the SQL query returns", class_="soft more") if left else None,
        _sheet(finding, strips),
        folded("SQL query", element("pre", element("code", check.sql))),
        id=f"check-{check.name}",
        class_=f"finding {check.severity}",
        aria_labelledby=f"check-{check.name}-title",
    )


def _sheet(finding: Finding, strips: Sequence[Strip]) -> Element | None:
    """Return the pictures of a finding's examples, or the reasons why they are missing.

    Reasons are left out if the table of examples already has a column with error messages.
    """
    if "error_message" in finding.examples[0]:
        strips = [strip for strip in strips if strip.pictures]
    reasons = {strip.reason for strip in strips}
    if len(strips) > 1 and len(reasons) == 1 and not any(strip.pictures for strip in strips):
        return element("p", element("b", "No pictures: "), reasons.pop(), class_="reason apart")
    return element("div", *map(_strip, strips), class_="sheet") if strips else None


def _strip(strip: Strip) -> Element:
    frames = [
        element(
            "li",
            html.drawing(
                element("use", href=f"#{identity_of(picture)}"),
                size=(picture.width, picture.height),
                label=f"frame {picture.frame} at {picture.seconds:,.3f} seconds",
            ),
            element("span", f"#{picture.frame}"),
            element("span", f"{picture.seconds:,.2f} s", class_="soft"),
        )
        for picture in strip.pictures
    ]
    title = element("b", "Some pictures are missing: " if frames else "No picture: ")
    return element(
        "figure",
        element("figcaption", element("bdi", said(strip.name))),
        element("ol", *frames, class_="strip") if frames else None,
        element("p", title, strip.reason, class_="reason") if strip.reason else None,
    )


def identity_of(picture: Picture) -> str:
    """Return the HTML id of a picture on the page. Equal pictures have the same id."""
    return f"p{hashlib.sha256(picture.jpeg).hexdigest()[:16]}"


def pictures(strips: Mapping[str, Strip]) -> Element | None:
    """Return an SVG element that contains each distinct picture once. Strips refer to its symbols by id."""
    all_of_them = {identity_of(picture): picture for strip in strips.values() for picture in strip.pictures}
    if not all_of_them:
        return None
    symbols = []
    for identity, picture in all_of_them.items():
        image = element("image", href=html.jpeg_uri(picture.jpeg), width=picture.width, height=picture.height)
        symbols.append(element("symbol", image, id=identity, viewBox=f"0 0 {picture.width} {picture.height}"))
    return element("svg", *symbols, class_="pictures", aria_hidden="true", width="0", height="0")


def _others(found: Audit) -> Element | None:
    """Return lists of the checks that found nothing and of the checks that could not be run."""
    passed = [element("li", check.title, " ", element("code", check.name)) for check in found.passed]
    unasked = [
        element("li", check.title, " ", element("code", check.name), f" needs {needs}")
        for check, needs in found.unasked
    ]
    return element(
        "div",
        folded(f"{counted(len(passed), 'check')} found nothing", element("ul", *passed)) if passed else None,
        folded(f"{counted(len(unasked), 'check')} not run", element("ul", *unasked)) if unasked else None,
        class_="others",
    )


PLAIN_ROWS = 50  # number of rows that are shown without JavaScript and in print
EXAMPLES = {"media": "fps>30, status=failed", "clips": "padded>0, codec=h264"}  # examples of conditions in the filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The contents of a page, without the table of all media or clips.

    Attributes:
        found: The result of the audit.
        charts: The histograms.
        timeline: The timeline of one medium. None if no medium is suitable.
        wanted: The media_ids or clip_ids of the examples that are shown with pictures, by check.
        strips: The pictures of each medium or clip, by media_id or clip_id.
    """

    found: Audit
    charts: list[Histogram]
    timeline: Timeline | None
    wanted: Mapping[str, Sequence[str]]
    strips: Mapping[str, Strip]


def page(shown: Shown, rows: MediaTable) -> bytes:
    """Return the HTML page of a report."""
    found = shown.found
    name = PurePosixPath(found.place.rstrip("/")).name or found.place
    strips = {
        check: [shown.strips[identity] for identity in identities if identity in shown.strips]
        for check, identities in shown.wanted.items()
    }
    charts = element("div", *map(_chart, shown.charts), class_="charts")
    parts = [
        findings(found, strips),
        summary(found),
        section("distributions", "Distributions", charts) if shown.charts else None,
        _timeline(shown.timeline) if shown.timeline else None,
        _rows(rows),
    ]
    sections = [part for part in parts if part is not None]
    links = [element("li", element("a", part[0].text or "", href=f"#{part.get('id')}")) for part in sections]
    same = f"framedex {__version__} · the .json file beside this page has the findings and the numbers of the charts"
    folder = files("framedex.auditor") / "page"
    return Document(
        title=f"{name}: audit",
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        before=[
            element("a", "Skip to the findings", href="#findings", class_="skip"),
            _header(found, name),
            element("nav", element("ul", *links), aria_label="Sections"),
            pictures(shown.strips),
        ],
        main=map(html.markup, sections),
        after=[
            element("footer", element("p", same), class_="soft"),
            element("script", as_script(rows), type="application/json", id="rows"),
        ],
    ).content()


def _header(found: Audit, name: str) -> Element:
    chips = []
    for severity in SEVERITIES:
        count = sum(finding.check.severity == severity for finding in found.findings)
        content = element("span", MARKS[severity], aria_hidden="true"), f" {counted(count, severity)}"
        link = element("a", *content, href=f"#{severity}s") if count else element("span", *content)
        chips.append(element("li", link, class_=f"chip {severity if count else 'none'}"))
    content = element("span", "✓", aria_hidden="true"), f" {counted(len(found.passed), 'check')} found nothing"
    chips.append(element("li", element("span", *content), class_="chip none"))
    return html.titled(
        f"framedex audit of {'an index' if found.kind == 'index' else 'a dataset'}",
        name,
        element("p", element("bdi", found.place), class_="soft place"),
        element("ul", *chips, class_="chips", aria_label="Findings"),
        beside=[_summary_facts(found.sections[0], "tiles")] if found.sections else (),
    )


def _chart(shown: Histogram) -> Element:
    counted = shown.counted
    rows: list[list[str | int]] = [[bar.label, bar.count] for bar in shown.bars]
    if shown.zeros:
        rows.insert(0, ["0", shown.zeros])
    if shown.others:
        rows.append([f"{shown.others:,} others", shown.other_count])
    facts = f"{shown.total:,} {counted.of}"
    if shown.median is not None and shown.least != shown.greatest:
        least, greatest = number_text(shown.least or 0.0), number_text(shown.greatest or 0.0)
        facts += f" · median {number_text(shown.median)} · {least} to {greatest}"
    numbers = table([counted.axis or counted.title, counted.of], rows, caption=f"{counted.title}: numbers")
    return element(
        "figure",
        element("figcaption", element("h3", counted.title), _soft(facts)),
        histogram(shown),
        folded("Numbers", numbers),
    )


def _timeline(shown: Timeline) -> Element:
    part = ""
    if isinstance(shown, FramesTimeline):
        title, drawn, count = "Timeline of a video", frames_timeline(shown), len(shown.seconds)
        part = f"All {count:,} frames."
        if count < shown.total:
            last = shown.first + count - 1
            part = f"Frames {shown.first:,} to {last:,} of {shown.total:,}, around the longest gap."
    else:
        title, drawn = "Clips of a video over time", clips_timeline(shown)
        if len(shown.clips) < shown.total:
            part = f"{len(shown.clips):,} of its {shown.total:,} clips."
    facts = [
        element("div", element("dt", html.sentence(name)), element("dd", element("bdi", said(value))))
        for name, value in shown.as_json().items()
    ]
    return section(
        "timeline",
        title,
        element("p", element("b", element("bdi", said(shown.uri))), f" – {shown.why}. {part}"),
        _legend(shown),
        element("div", drawn, class_="box wide", role="group", aria_label=f"{title} (drawing)"),
        folded("Numbers", element("dl", *facts, class_="facts")),
    )


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
            ("start", "▮", "a random access point"),
            ("start", "▲", "closed"),
            ("start", "△", "open"),
        ]
        if (shown.start[shown.is_start] == NOT_KNOWN).any():
            entries.append(("start", "|", "not known whether open"))
        if shown.is_damaged.any():
            entries.append(("harmed", "▤", "in a damaged GOP"))
        if shown.long_gaps.any():
            entries.append(("gap", "▒", "a gap of more than three times the median"))
    items = [
        element("li", element("span", mark, class_=f"key {class_}", aria_hidden="true"), f" {text}")
        for class_, mark, text in entries
    ]
    return element("ul", *items, class_="legend", aria_label="Legend")


def _rows(rows: MediaTable) -> Element:
    """Return the table of all media or clips as a section of the page.

    With JavaScript, the table can be filtered and sorted. Without it, and in print, the first rows are shown.
    """
    title = f"All {rows.of}"
    shown = f"{len(rows):,} of {rows.total:,} {rows.of}"
    if len(rows) < rows.total:
        shown += ", those with findings first; framedex audit --sql gives all"
    help_text = (
        f"Type words to find names, codecs, findings and so on, or conditions such as {EXAMPLES[rows.of]}."
        f" Columns with numbers are {', '.join(column.key for column in rows.columns if column.form == 'number')}."
    )
    text_only = {"autocomplete": "off", "spellcheck": "false", "aria_describedby": "filter-help"}
    controls = element(
        "div",
        element("label", "Filter", for_="filter"),
        element("input", id="filter", type="search", **text_only),
        element("p", "", id="matches", role="status", class_="soft"),
        class_="controls",
    )
    live = element(
        "div",
        controls,
        element("p", help_text, id="filter-help", class_="soft"),
        element("div", id="table", class_="box scroll", tabindex="0", role="region", aria_label=f"{title} (table)"),
        id="live",
        hidden="",
    )
    first = rows.first(PLAIN_ROWS)
    cells = zip(*[column.values for column in first.columns], strict=True)
    plain = table([column.title for column in first.columns], cells, caption=f"The first {rows.of}")
    note = _soft(f"The first {len(first):,}.") if len(first) < len(rows) else None
    return section("all", title, _soft(f"{shown}."), live, element("div", plain, note, id="plain"))


MAX_BYTES = 1_000_000  # maximum size of a page without its pictures. To keep to it, rows of the table are left out


def queries(kind: Kind) -> list[str]:
    """Return texts with the names of all columns of `videos` (index) or `clips` (dataset) that a report uses."""
    return [TABLE_SQL[kind], *OWN_COLUMNS, *(chart.sql for chart in CHARTS[kind]), *COLUMNS]


def write_report(db: Database, found: Audit, path: Path, *, access: Access, pictures: bool) -> Audit:
    """Write the report of an audit, which is an HTML page and a .json file with the same name.

    The same input always gives the same files. Return the audit with a finding for the damage that the decoder met
    while the pictures were drawn.

    Args:
        db: The database of the index or dataset.
        found: The result of the audit.
        path: The .html file.
        access: The rules for which sources may be read.
        pictures: Whether frames of examples are decoded and shown.

    Raises:
        FramedexError: A table cannot be read.
    """
    wanted = pictured(found) if pictures else {}
    identities = list(dict.fromkeys(identity for several in wanted.values() for identity in several))
    drawn = strips(db, identities, access)
    damaged = {identity: strip.reason or "" for identity, strip in drawn.items() if strip.damaged}
    if damaged:
        found = with_damage(db, found, damaged)
        wanted[DAMAGE_MET] = list(damaged)
    shown = Shown(
        found=found,
        charts=histograms(db),
        timeline=timeline(db, found),
        wanted=wanted,
        strips=drawn,
    )
    content, rows = _within_budget(shown, media_table(db, found))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, content)
    facts = as_json(shown, rows) | {"schema_version": db.audited.header["schema_version"]}
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    write_aside(path.with_suffix(".json"), orjson.dumps(facts, option=options, default=str) + b"\n")
    return found


def _within_budget(shown: Shown, rows: MediaTable) -> tuple[bytes, MediaTable]:
    """Return the page, and the rows of the table that fit into MAX_BYTES."""
    different = {picture.jpeg for strip in shown.strips.values() for picture in strip.pictures}
    pictures = sum(len(html.jpeg_uri(jpeg)) for jpeg in different)
    while True:
        content = page(shown, rows)
        excess = len(content) - pictures - MAX_BYTES
        if excess <= 0 or not len(rows):
            return content, rows
        each = len(as_script(rows)) / len(rows)
        rows = rows.first(max(0, len(rows) - int(excess / each) - 1))


def as_json(shown: Shown, rows: MediaTable) -> dict[str, Any]:
    """Return the result of the audit and the numbers of the charts as JSON values."""
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
