"""Functions that build self-contained HTML pages: elements, the theme, and whole documents.

A page is built as a tree of elements. So text from data can only become text or attribute values, never markup. The
content security policy of a page forbids loading external resources. The theme consists of colours for light mode, dark
mode and print, and of a style sheet that all pages share (theme.css).
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NewType
from xml.etree.ElementTree import Element, tostring

from framedex.errors import printable

Markup = NewType("Markup", bytes)  # serialized HTML in UTF-8; only the function `markup` creates such values
LONGEST = 160  # number of characters of a value that are shown; a longer value would make a table wider than the page
RAW = ("script", "style")  # elements whose content browsers do not parse as HTML, so it must not be escaped


def element(tag: str, *content: Element | str | None, **attributes: object) -> Element:
    """Return an element with texts and child elements. Contents and attributes that are None are left out.

    Control characters and changes of text direction are escaped, except for line ends.

    Args:
        tag: The name of the element.
        content: The texts and child elements, in order.
        attributes: Name → value of the attributes. In a name, `_` stands for `-`. A trailing `_` is removed, as in
            `class_`.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    built = Element(tag, {name.rstrip("_").replace("_", "-"): safe(str(value)) for name, value in given.items()})
    for part in content:
        if isinstance(part, Element):
            built.append(part)
        elif part is not None:
            text = part if tag in RAW else safe(part)
            if len(built):  # ElementTree stores text that follows a child in the attribute `tail` of the child
                built[-1].tail = (built[-1].tail or "") + text
            else:
                built.text = (built.text or "") + text
    return built


def safe(text: str) -> str:
    """Escape all unprintable characters of a text except line ends."""
    return printable(text, lines=True)


def markup(tree: Element) -> Markup:
    """Return an element as HTML, followed by a line end."""
    return Markup(f"{tostring(tree, encoding='unicode', method='html')}\n".encode())


def said(value: object, *, longest: int = LONGEST) -> str:
    """Return a value of a column as text for a page.

    Args:
        value: The value.
        longest: The maximum number of characters. A longer text is cut at its beginning, since file names mostly
            differ at their end.
    """
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
    """Split a text at backticks, and return its parts. The parts between backticks are `code` elements."""
    return [element("code", part) if place % 2 else part for place, part in enumerate(text.split("`")) if part]


def sentence(name: str) -> str:
    """Return the name of a column with spaces instead of underscores."""
    return name.replace("_", " ")


def table(names: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str, class_: str = "") -> Element:
    """Return a table in a box that scrolls horizontally if the page is narrow.

    Args:
        names: The names of the columns.
        rows: The values of each row.
        caption: The description of the table for screen readers.
        class_: Further CSS classes of the box.
    """
    kept = [list(row) for row in rows]
    right = ["number" if kept and all(_is_number(row[place]) for row in kept) else None for place in range(len(names))]
    head = [element("th", sentence(name), scope="col", class_=side) for name, side in zip(names, right, strict=True)]
    body = [
        element("tr", *[element("td", _value(value), class_=side) for value, side in zip(row, right, strict=True)])
        for row in kept
    ]
    inner = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return element("div", inner, class_=f"box {class_}".strip(), role="group", aria_label=f"{caption} (table)")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _value(value: object) -> Element | str:
    return element("bdi", said(value)) if isinstance(value, str) else said(value)


def folded(title: str, *content: Element | None, class_: str | None = None) -> Element:
    """Return a `details` element, whose content is hidden until the reader opens it.

    Args:
        title: The text that is always visible.
        content: The hidden content.
        class_: The CSS class.
    """
    return element("details", element("summary", title), *content, class_=class_)


def section(identity: str, title: str, *content: Element | None) -> Element:
    """Return a section of a page.

    Args:
        identity: The `id` of the section, to which links refer.
        title: The headline.
        content: The content after the headline.
    """
    return element(
        "section",
        element("h2", title, id=f"{identity}-title"),
        *content,
        id=identity,
        aria_labelledby=f"{identity}-title",
    )


def titled(kind: str, name: str, *content: Element | None, beside: Sequence[Element | None] = ()) -> Element:
    """Return the header of a page. On a wide window, it has two columns.

    Args:
        kind: The kind of page, such as "Audit of an index".
        name: The name of the subject of the page, such as the path of the index. It is the main headline.
        content: Further content of the left column, below the name.
        beside: The content of the right column.
    """
    title = element("div", element("p", kind, class_="soft"), element("h1", element("bdi", name)), *content)
    return element("header", title, element("div", *beside) if any(part is not None for part in beside) else None)


def drawing(
    *content: Element | None, size: tuple[float, float], label: str | None, class_: str | None = None, **others: object
) -> Element:
    """Return an SVG drawing that scales to the available width.

    Args:
        content: The elements of the drawing.
        size: The width and height of the drawing, in the units of its coordinates.
        label: The description of the drawing for screen readers. If None, the drawing is decorative, and screen readers
            skip it.
        class_: The CSS class.
        others: Further attributes of the SVG element, such as its width and height in pixels.
    """
    spoken = {"aria_hidden": "true"} if label is None else {"role": "img", "aria_label": label}
    return element("svg", *content, viewBox=f"0 0 {size[0]} {size[1]}", class_=class_, **spoken, **others)


def jpeg_uri(jpeg: bytes) -> str:
    """Return a JPEG file as a data URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour in each of the three colour schemes. The values have the form `#rrggbb`.

    Attributes:
        light: The colour in light mode.
        dark: The colour in dark mode, which browsers select by `prefers-color-scheme`.
        paper: The colour in print.
    """

    light: str
    dark: str
    paper: str


# Name → colour of the theme. The contrast with the background is at least 4.5 : 1 for text and 3 : 1 for drawings
# (tests/html/test_theme.py).
COLOURS = {
    "ink": Colour("#1d2126", "#e4e7eb", "#000000"),  # text
    "soft": Colour("#57606b", "#a0a9b5", "#444444"),  # less important text
    "line": Colour("#dde1e6", "#343a42", "#bbbbbb"),  # lines between parts of the page
    "ground": Colour("#ffffff", "#16191d", "#ffffff"),
    "raised": Colour("#f5f6f8", "#1f2328", "#f3f3f3"),  # the background of boxes
    "link": Colour("#0a5bb0", "#7db7f5", "#000000"),
    "error": Colour("#a1201b", "#ff9d94", "#a1201b"),
    "error-ground": Colour("#fdf0ef", "#351f1e", "#ffffff"),
    "warning": Colour("#7a4f00", "#efbd5f", "#7a4f00"),
    "warning-ground": Colour("#fdf5e3", "#33290f", "#ffffff"),
    "note": Colour("#40566f", "#a9bfd8", "#40566f"),
    "note-ground": Colour("#eef2f7", "#212a35", "#ffffff"),
    "bar": Colour("#3d6fb4", "#6fa0e0", "#3d6fb4"),  # bars of charts
    "bar-rest": Colour("#97a3b3", "#5d6875", "#97a3b3"),
    "axis": Colour("#6b7480", "#8a95a2", "#555555"),
    "grid": Colour("#e6e9ed", "#2b3037", "#dddddd"),
    "start": Colour("#b8430f", "#ff9a63", "#b8430f"),  # a random access point
    "gap": Colour("#f6dfb5", "#4c3d1c", "#f6dfb5"),  # a time span without a frame
    "hatch": Colour("#aab2bd", "#59626e", "#aab2bd"),  # hatching that marks padding
}


def rgb(name: str) -> tuple[int, int, int]:
    """Return the light-mode value of a colour as (red, green, blue) from 0 to 255, for drawing into pictures."""
    red, green, blue = bytes.fromhex(COLOURS[name].light.removeprefix("#"))
    return red, green, blue


def stylesheet(own: str) -> str:
    """Return the style sheet of a page: the colours that the page uses, the shared rules, and the rules of the page.

    Args:
        own: The CSS rules of the page. They refer to colours of the theme as CSS variables, such as `var(--ink)`.

    Raises:
        ValueError: A rule uses a CSS variable that neither the theme nor the page defines.
    """
    rules = (files("framedex.html") / "theme.css").read_text(encoding="utf-8") + own
    used, defined = set(re.findall(r"var\(--([a-z-]+)\)", rules)), set(re.findall(r"--([a-z-]+):", rules))
    if unknown := used - defined - set(COLOURS):
        raise ValueError(f"unknown CSS variables: {', '.join(sorted(unknown))}")
    return _variables([name for name in COLOURS if name in used]) + rules


def _variables(names: list[str]) -> str:
    """Return the CSS rules that define the colours with these names in light mode, dark mode and print."""

    def block(scheme: str) -> str:
        values = " ".join(f"--{name}: {getattr(COLOURS[name], scheme)};" for name in names)
        return f":root {{ {values} }}"

    return (
        f"{block('light')}\n"
        f"@media (prefers-color-scheme: dark) {{ {block('dark')} }}\n"
        f"@media print {{ {block('paper')} }}\n"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An HTML page with a main part, and with further elements before and after the main part.

    Attributes:
        title: The title in the browser.
        style: The CSS rules of the page. They come after the rules of the theme, and so override them.
        script: The JavaScript of the page, which runs after the body is loaded. None if the page has no script.
        served: Whether a local web server delivers the page. If True, the script of the page may load data, pictures
            and sound from this server. If False, the page does not load anything.
        before: The elements before the main part, such as a header.
        main: The main part, in pieces, so that a large page can be built piece by piece.
        after: The elements after the main part, such as a footer.
    """

    title: str
    style: str
    script: str | None = None
    served: bool = False
    before: Iterable[Element | None] = ()
    main: Iterable[Markup]
    after: Iterable[Element | None] = ()

    def content(self) -> bytes:
        """Return the page as HTML in UTF-8."""
        script = None if self.script is None else element("script", self.script)
        return b"".join(
            [
                b'<!DOCTYPE html>\n<html lang="en">\n',
                markup(self._head()),
                b"\n<body>\n",
                *_written(self.before),
                b"<main>\n",
                *self.main,
                b"</main>\n",
                *_written([*self.after, script]),
                b"</body>\n</html>\n",
            ]
        )

    def _head(self) -> Element:
        style = stylesheet(self.style)
        allowed = {"default-src": "'none'", "img-src": "data:", "style-src": _digest(style)}
        if self.script is not None:
            allowed["script-src"] = _digest(self.script)
        if self.served:
            allowed |= {"img-src": "data: blob:", "connect-src": "'self'", "media-src": "blob:"}
        policy = allowed | {"base-uri": "'none'", "form-action": "'none'"}
        return element(
            "head",
            element("meta", charset="utf-8"),
            element(
                "meta",
                http_equiv="Content-Security-Policy",
                content="; ".join(f"{name} {sources}" for name, sources in policy.items()),
            ),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", self.title),
            element("link", rel="icon", href="data:,") if self.served else None,  # so that browsers request no icon
            element("style", style),
        )


def _written(parts: Iterable[Element | None]) -> list[bytes]:
    return [markup(part) for part in parts if part is not None]


def _digest(text: str) -> str:
    """Return the hash of a style or a script, in the form in which a content security policy allows it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
