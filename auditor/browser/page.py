"""The HTML page of `framedex inspect --serve`, with controls, an empty list and a player.

The script of the page (browser.js) fills them with data from the server.
"""

from importlib.resources import files
from xml.etree.ElementTree import Element

from framedex.auditor.browser.selections import OPERATIONS, WITHOUT_VALUE
from framedex.auditor.tables.subject import Kind
from framedex.core.version import __version__
from framedex.html.document import Document, element, folded, markup, titled

SPEEDS = ("0.1", "0.25", "0.5", "1", "2", "4", "8", "16")


def page(*, kind: Kind, name: str, place: str, counts: str, settings: str | None, policy: str | None) -> bytes:
    """Return the page as HTML.

    Args:
        kind: `index` or `dataset`.
        name: The name of the index or dataset.
        place: The path or uri of the index or dataset.
        counts: A text with the number of clips or media.
        settings: The settings of a dataset's policy that differ from their defaults. None for an index.
        policy: The policy of a dataset as YAML. None for an index.
    """
    what = "clips" if kind == "dataset" else "media"
    return Document(
        title=f"{name}: {what}",
        style=_part("browser.css"),
        script=_part("browser.js"),
        served=True,
        before=[
            titled(
                f"framedex browser of {'an index' if kind == 'index' else 'a dataset'}",
                name,
                element("p", element("bdi", place), class_="soft place"),
                element("p", counts, class_="soft"),
                beside=[
                    None if settings is None else element("p", element("bdi", settings), class_="soft"),
                    None if policy is None else folded("All settings of the policy", element("pre", policy)),
                    *_filters(what),
                ],
            )
        ],
        main=[markup(_controls(what)), markup(_list(what)), markup(_player(what))],
        after=[
            element(
                "footer",
                element(
                    "p",
                    f"framedex {__version__} · only this machine can open it · Ctrl-C in the terminal ends it",
                ),
                class_="soft",
            ),
            element("noscript", element("p", "This page needs JavaScript.", class_="error")),
        ],
    ).content()


def _part(name: str) -> str:
    return (files("framedex.auditor.browser") / name).read_text(encoding="utf-8")


def _button(text: str, identity: str, **others: object) -> Element:
    return element("button", text, type="button", id=identity, **others)


def _select(identity: str, label: str, *options: tuple[str, str], **others: object) -> Element:
    choices = [element("option", text, value=value) for value, text in options]
    return element("select", *choices, id=identity, aria_label=label, **others)


def _filters(what: str) -> list[Element]:
    operations = [
        element("option", name, value=name, data_bare="" if name in WITHOUT_VALUE else None) for name in OPERATIONS
    ]
    filters = element(
        "form",
        element("label", "Filter", for_="column"),
        _select("column", "Column"),
        element("select", *operations, id="operation", aria_label="Operation"),
        element("input", id="value", list="values", aria_label="Value", autocomplete="off", spellcheck="false"),
        element("datalist", id="values"),
        element("button", "Add", type="submit"),
        id="filter",
        class_="row",
    )
    sort = element(
        "div",
        element("label", "Sort by", for_="sort"),
        _select("sort", "Column to sort by", ("", f"order of the {what}")),
        element("label", element("input", type="checkbox", id="descending"), " descending"),
        class_="row",
    )
    return [filters, sort]


def _controls(what: str) -> Element:
    found = element(
        "details",
        element("summary", "Findings of the audit ", element("span", "…", id="findings-state", class_="soft")),
        element("ul", id="findings", aria_label="Findings"),
        id="audit",
    )
    sql = element(
        "details",
        element("summary", "SQL"),
        element("p", "", id="sql-help", class_="soft"),
        element("textarea", id="sql", rows="4", spellcheck="false", aria_label="Query", aria_describedby="sql-help"),
        element(
            "div",
            _button("Run", "run"),
            _button("Stop", "stop", disabled=""),
            _button(f"Show these {what}", "show-answer", hidden=""),
            element("p", "", id="sql-state", class_="soft", role="status"),
            class_="row",
        ),
        element("div", id="answer", class_="box", tabindex="0", role="region", aria_label="Answer (table)", hidden=""),
        id="query",
    )
    return element(
        "section",
        found,
        sql,
        element("ul", id="active", class_="chips", aria_label="What is shown"),
        id="controls",
        aria_label="Filters",
    )


def _list(what: str) -> Element:
    def pager(place: str) -> Element:
        return element(
            "div",
            element("button", "‹ Previous", type="button", class_="previous"),
            element(
                "label",
                "Page ",
                element("input", type="number", min="1", value="1", class_="page"),
                element("span", "", class_="pages"),
            ),
            element("button", "Next ›", type="button", class_="next"),
            class_=f"row pager {place}",
            role="navigation",
            aria_label="Pages",
        )

    return element(
        "section",
        element("p", "", id="state", role="status"),
        element("div", id="problem", class_="problem", role="alert", hidden=""),
        element("div", id="found", class_="found", hidden=""),
        pager("above"),
        element("ol", id="items", aria_label=what.capitalize()),
        pager("below"),
        id="list",
        aria_label=what.capitalize(),
    )


def _player(what: str) -> Element:
    one = "clip" if what == "clips" else "medium"
    controls = element(
        "div",
        _button("|‹", "first-frame", aria_label="First frame"),
        _button("‹", "step-back", aria_label="One frame back"),
        _button("Play", "play"),
        _button("›", "step-on", aria_label="One frame on"),
        element("input", type="range", id="seek", min="0", value="0", aria_label="Frame"),
        _select("speed", "Speed", *[(speed, f"{speed} ×") for speed in SPEEDS]),
        element("label", element("input", type="checkbox", id="loop", checked=""), " loop"),
        element("label", element("input", type="checkbox", id="hear"), " sound", id="hear-box", hidden=""),
        element("label", element("input", type="checkbox", id="fit", checked=""), " fit"),
        class_="row",
    )
    part = element(
        "form",
        element("label", "Frames from ", element("input", type="number", id="first", min="0", value="0")),
        element("button", "Show consecutive frames", type="submit"),
        _button("Spread over the whole", "whole"),
        id="part",
        class_="row",
        hidden="",
    )
    screen = element(
        "div",
        element("canvas", id="canvas", role="img"),
        element("p", "", id="over", hidden=""),
        id="screen",
    )
    return element(
        "dialog",
        element(
            "header",
            element("h2", element("bdi", id="name")),
            _button("Close", "close"),
            class_="row",
        ),
        element("p", element("bdi", id="source"), class_="soft"),
        element("div", id="player-problem", class_="problem", role="alert", hidden=""),
        element(
            "div", screen, element("p", "", id="now", class_="now"), controls, element("ol", id="strip"), id="stage"
        ),
        part,
        element("dl", id="facts"),
        element(
            "div",
            _button(f"‹ Previous {one}", "previous-item"),
            _button(f"Next {one} ›", "next-item"),
            element("p", "Space plays, ← and → step, Home and End jump, Esc closes.", class_="soft"),
            class_="row",
        ),
        id="player",
        aria_labelledby="name",
    )
