"""HTML elements, built as a tree. Text from data becomes text or attribute values, never markup."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, NewType
from xml.etree.ElementTree import Element, tostring

from framedex.errors import printable

Markup = NewType("Markup", bytes)  # UTF-8 that browsers parse; only `markup` creates it
LONGEST = 160  # characters of a value
RAW = ("script", "style")  # browsers do not parse the content of these elements; it must not contain their end tag


def element(tag: str, *content: Element | str | None, **attributes: object) -> Element:
    """Return an element with texts and child elements. None is left out, both as content and as an attribute value.

    In an attribute's name, `_` stands for `-`, and a trailing `_` is dropped. Control characters and changes of text
    direction become escapes, except for line ends.
    """
    made = Element(
        tag,
        {
            name.rstrip("_").replace("_", "-"): safe(str(value))
            for name, value in attributes.items()
            if value is not None
        },
    )
    for part in content:
        if isinstance(part, Element):
            made.append(part)
        elif part is not None:
            _add_text(made, part if tag in RAW else safe(part))
    return made


def _add_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def safe(text: str) -> str:
    """Return text with all unprintable characters except line ends escaped."""
    return printable(text, lines=True)


def markup(made: Element) -> Markup:
    """Return an element as HTML on a line of its own."""
    return Markup(f"{tostring(made, encoding='unicode', method='html')}\n".encode())


def said(value: object, *, longest: int = LONGEST) -> str:
    """Return a value as text. A long text is cut at its beginning, since names differ at their end."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, bytes):
        return value[: longest // 2].hex()
    text = str(value)
    return text if len(text) <= longest else "…" + text[1 - longest :]


def coded(text: str) -> list[Element | str]:
    """Return the parts of a text, with names in backticks as `code` elements."""
    return [element("code", part) if place % 2 else part for place, part in enumerate(text.split("`")) if part]


def sentence(name: str) -> str:
    """Return the name of a column as words."""
    return name.replace("_", " ")


def table(names: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str, class_: str = "") -> Element:
    """Return a table in a box that scrolls on narrow pages. `caption` is its description for screen readers."""
    kept = [list(row) for row in rows]
    right = ["number" if kept and all(_is_number(row[place]) for row in kept) else None for place in range(len(names))]
    head = [element("th", sentence(name), scope="col", class_=side) for name, side in zip(names, right, strict=True)]
    body = [
        element("tr", *[element("td", _value(value), class_=side) for value, side in zip(row, right, strict=True)])
        for row in kept
    ]
    made = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return element("div", made, class_=f"box {class_}".strip(), role="group", aria_label=f"{caption} (table)")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _value(value: object) -> Element | str:
    return element("bdi", said(value)) if isinstance(value, str) else said(value)


def folded(title: str, *content: Element | None, class_: str | None = None) -> Element:
    """Return content that is hidden until the reader unfolds it."""
    return element("details", element("summary", title), *content, class_=class_)


def section(identity: str, title: str, *content: Element | None) -> Element:
    """Return a section of a page with a headline."""
    return element(
        "section",
        element("h2", title, id=f"{identity}-title"),
        *content,
        id=identity,
        aria_labelledby=f"{identity}-title",
    )


def titled(kind: str, name: str, *content: Element | None) -> Element:
    """Return the header of a page: the kind of page, the name of its subject, and further content."""
    return element("header", element("p", kind, class_="soft"), element("h1", element("bdi", name)), *content)


def drawing(
    *content: Element | None, size: tuple[float, float], label: str | None, class_: str | None = None, **others: object
) -> Element:
    """Return an SVG drawing that scales to the available width.

    Args:
        content: The elements of the drawing.
        size: Width and height, in the drawing's own units.
        label: A description for screen readers. None: the drawing is an ornament and is hidden from them.
        class_: The CSS class.
        others: Further attributes, such as the width and height in pixels.
    """
    heard = {"aria_hidden": "true"} if label is None else {"role": "img", "aria_label": label}
    return element("svg", *content, viewBox=f"0 0 {size[0]} {size[1]}", class_=class_, **heard, **others)


def jpeg_uri(jpeg: bytes) -> str:
    """Return a JPEG file as a data URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
