"""The summary of an audit as HTML elements: tiles, facts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from framedex.auditor.findings.findings import Audit, Section
from framedex.auditor.findings.text import legible
from framedex.core.tallies import counted
from framedex.html.elements import element, folded, said, section, sentence, table

SUMMARY_ROWS = 8  # of a table before it is unfolded
MOST_SUMMARY_ROWS = 200
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
    rest = part.rows[SUMMARY_ROWS:MOST_SUMMARY_ROWS]
    made = element("div", element("h3", title), table(part.names, part.rows[:SUMMARY_ROWS], caption=title))
    if rest:
        left = len(part.rows) - MOST_SUMMARY_ROWS
        more = counted(len(part.rows) - SUMMARY_ROWS, "more row")
        note = element("p", f"… and {left:,} more; the .json beside this page has all", class_="soft")
        made.append(folded(more, table(part.names, rest, caption=f"{title}, more"), note if left > 0 else None))
    return made
