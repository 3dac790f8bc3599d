"""The page of an audit: sections, findings, charts and the table as one HTML document without external resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

from framedex.auditor.findings.findings import Audit
from framedex.auditor.findings.queries import SEVERITIES
from framedex.auditor.report.charts import clips_timeline, frames_timeline, histogram
from framedex.auditor.report.findings_html import MARKS, findings, pictures
from framedex.auditor.report.histograms import Histogram
from framedex.auditor.report.media_table import MediaTable, as_script
from framedex.auditor.report.pictures import Strip
from framedex.auditor.report.summary_html import summary
from framedex.auditor.report.timelines import ClipsTimeline, FramesTimeline, Timeline
from framedex.core.quantities import number_text
from framedex.core.version import __version__
from framedex.html.document import Document
from framedex.html.elements import element, folded, markup, said, section, sentence, table, titled

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
