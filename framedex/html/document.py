"""A page as one HTML document without external resources. Its own content security policy forbids loading any."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from framedex.html.elements import Markup, element, markup
from framedex.html.theme import stylesheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A page: a head, and a body with a main part and content before and after it.

    Attributes:
        title: The title in the browser.
        style: The page's own CSS rules. The theme comes before them.
        script: The page's JavaScript, which runs after the body is loaded.
        served: Whether a server of this machine delivers the page, and its script may load data, pictures and sound
            from there. False: the page loads nothing.
        before: Elements before the main part, such as a header.
        main: The main part, in pieces, so that large pages can be built piece by piece.
        after: Elements after the main part, such as a footer.
    """

    title: str
    style: str
    script: str | None = None
    served: bool = False
    before: Iterable[Element | None] = ()
    main: Iterable[Markup]
    after: Iterable[Element | None] = ()

    def content(self) -> bytes:
        """Return the page as UTF-8."""
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
            element("link", rel="icon", href="data:,") if self.served else None,  # else browsers ask for one
            element("style", style),
        )


def _written(parts: Iterable[Element | None]) -> list[bytes]:
    return [markup(part) for part in parts if part is not None]


def _digest(text: str) -> str:
    """Return the hash by which a policy allows a style or a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
