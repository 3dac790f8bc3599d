"""Findings as HTML elements: the meaning, the remedy, examples with pictures, and the SQL of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from framedex.auditor.findings.findings import Audit, Finding
from framedex.auditor.findings.queries import SEVERITIES, Severity
from framedex.auditor.report.pictures import Picture, Strip
from framedex.core.tallies import counted
from framedex.html.elements import coded, drawing, element, folded, jpeg_uri, said, section, table

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
