"""One theme for all pages: its colours are legible, and no page has its own colours or uses undefined variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framedex.html.document import COLOURS, rgb, stylesheet
from tests.support.counted import some

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("auditor", "framedex", "indexer", "loader", "sharder")
PAGES = ("auditor/browser/browser.css", "auditor/page/page.css", "loader/contact_sheets/sheet.css")
SCHEMES = ("light", "dark", "paper")
TEXT = [
    *((ink, ground) for ink in ("ink", "soft") for ground in ("ground", "raised")),
    *((name, "ground") for name in ("link", "error", "warning", "note", "start")),
    *((name, f"{name}-ground") for name in ("error", "warning", "note")),
    ("ink", "error-ground"),
    ("error", "raised"),
]
DRAWN = [(name, "ground") for name in ("bar", "axis", "start", "error")]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("pairs", "least"), [(TEXT, 4.5), (DRAWN, 3.0)], ids=["text", "drawn"])
def test_colours_have_enough_contrast(scheme: str, pairs: list[tuple[str, str]], least: float) -> None:
    """The contrast is at least 4.5 : 1 for text and 3 : 1 for graphics (WCAG 2.2, 1.4.3 and 1.4.11)."""
    contrasts = {}
    for pair in pairs:
        dark, light = sorted(luminance(getattr(COLOURS[name], scheme)) for name in pair)
        contrasts[pair] = (light + 0.05) / (dark + 0.05)
    assert {pair: contrast for pair, contrast in contrasts.items() if contrast < least} == {}
    assert len(contrasts) >= 4


def test_pages_take_their_colours_from_the_theme() -> None:
    rules = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*PAGES, "framedex/html/theme.css")}
    own = {name: re.findall(r"#[0-9a-f]{3,8}\b(?=[;, )])|rgba?\(|hsla?\(", text) for name, text in rules.items()}
    assert {name: colours for name, colours in own.items() if colours} == {}
    used = set(re.findall(r"var\(--([a-z-]+)\)", "".join(rules.values())))
    assert set(COLOURS) <= used, "a colour that no page uses"
    styles = [
        path.relative_to(ROOT).as_posix()
        for path in some((path for room in ROOMS for path in (ROOT / room).rglob("*.css")), 3)
    ]
    assert sorted(styles) == sorted(rules), "another style sheet, which this test does not know"


def test_a_style_sheet_has_the_colours_that_its_page_uses_in_all_schemes() -> None:
    plain = stylesheet(".a { color: var(--ink); }")
    assert "--bar:" not in plain
    style = stylesheet(".a { fill: var(--bar); }")
    assert [style.count(f"--bar: {getattr(COLOURS['bar'], scheme)};") for scheme in SCHEMES[:2]] == [2, 1]
    assert style.count("--bar:") == 3
    assert style.index("prefers-color-scheme: dark") < style.index("@media print"), "print is never dark"


def test_a_variable_that_nobody_defines_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown CSS variables: bra, inkk"):
        stylesheet("a { color: var(--inkk); fill: var(--bra); margin: var(--own); --own: 1px; }")


def test_pictures_have_the_colours_of_the_light_scheme() -> None:
    assert rgb("ground") == (255, 255, 255)
    assert "#{:02x}{:02x}{:02x}".format(*rgb("error")) == COLOURS["error"].light
