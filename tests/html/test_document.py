"""Pages are single files. Data appears in them only as text, and their policy blocks external resources."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from framedex.html.document import Document, drawing, element, jpeg_uri, markup, section, stylesheet, table, titled

HOSTILE = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;\x1b\u202e"
SHOWN = "\\x1b\\u202e"


def page(**parts: object) -> str:
    given: dict[str, object] = {"title": "T", "style": "", "main": []} | parts
    return Document(**given).content().decode()  # type: ignore[arg-type]


class Seen(HTMLParser):
    """A parser that collects the tags, the attribute values and the text of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attributes]

    def handle_data(self, data: str) -> None:
        self.text += data


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(content: str) -> str:
    (found,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', content)
    return str(found)


def test_what_data_says_is_text_wherever_it_enters() -> None:
    content = page(
        title=HOSTILE,
        before=[titled(HOSTILE, HOSTILE), None],
        main=[markup(section("a", HOSTILE, table([HOSTILE], [[HOSTILE]], caption=HOSTILE)))],
        after=[drawing(element("text", HOSTILE), size=(1, 2), label=HOSTILE, class_=HOSTILE)],
    )
    seen = Seen(content)
    assert set(seen.tags) & {"script", "img"} == set()
    assert (seen.tags.count("style"), seen.tags.count("title")) == (1, 1)
    assert not set(content) & set(HOSTILE[-2:])
    assert seen.text.count(HOSTILE[:-2] + SHOWN) == 8
    assert sum(value.count(HOSTILE[:-2] + SHOWN) for value in seen.values) == 3


def test_a_page_lets_in_only_its_own_style_and_script() -> None:
    rules, script = "a { color: var(--link); }", "'use strict'; 1 < 2 && 3;"
    content = page(style=rules, script=script)
    assert policy(content) == (
        f"default-src 'none'; img-src data:; style-src {digest(stylesheet(rules))}; script-src {digest(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    assert content.count(f"<script>{script}</script>") == 1
    assert f"<style>{stylesheet(rules)}</style>" in content
    assert "script" not in page(style=rules)


def test_parts_stand_in_their_order() -> None:
    parts = [markup(element("p", name)) for name in ("two", "three")]
    content = page(before=[element("p", "one")], main=iter(parts), after=[element("p", "four")])
    assert re.findall(r"<p>(\w+)</p>|(</?main>)", content) == [
        ("one", ""), ("", "<main>"), ("two", ""), ("three", ""), ("", "</main>"), ("four", ""),
    ]  # fmt: skip
    assert content.startswith('<!DOCTYPE html>\n<html lang="en">\n<head>')
    assert content.endswith("</body>\n</html>\n")


def test_a_drawing_says_what_it_is_or_nothing() -> None:
    told = drawing(size=(20, 10), label="a line", preserveAspectRatio="none")
    assert told.attrib == {
        "viewBox": "0 0 20 10", "role": "img", "aria-label": "a line", "preserveAspectRatio": "none",
    }  # fmt: skip
    ornament = drawing(size=(20, 10), label=None, width=40)
    assert ornament.attrib == {"viewBox": "0 0 20 10", "aria-hidden": "true", "width": "40"}


@pytest.mark.parametrize("jpeg", [b"", b"\xff\xd8\xff"])
def test_a_picture_stands_in_its_address(jpeg: bytes) -> None:
    head, _, rest = jpeg_uri(jpeg).partition(",")
    assert (head, base64.b64decode(rest)) == ("data:image/jpeg;base64", jpeg)
