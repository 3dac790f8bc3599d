"""A contact sheet as one HTML page that needs no other file, no script and no network.

Elements are built as a tree, and what comes from data enters it as text or attribute values: escaping is the
serializer's business, and cannot be forgotten in one place.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame, Waveform

JPEG_QUALITY = 82
WAVE_HEIGHT = 48

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2126; --soft: #5a636e; --line: #dde1e6; --ground: #fff; --raised: #f5f6f8; --hatch: #aab2bd;
  --link: #0a5bb0; --bad: #a1201b; --bad-ground: #fdf2f1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e7eb; --soft: #9aa4b0; --line: #343a42; --ground: #16191d; --raised: #1f2328; --hatch: #59626e;
    --link: #7db7f5; --bad: #ff9d94; --bad-ground: #35201f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 120rem; padding: 2rem 1.5rem 4rem;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1 { margin: 0; font-size: 1.6rem; line-height: 1.25; font-weight: 650; }
h2 { margin: 0; font-size: 1.05rem; line-height: 1.35; font-weight: 650; }
p { margin: .25rem 0 0; }
a { color: var(--link); }
.soft, dt { color: var(--soft); }
details { margin-top: .75rem; }
summary { cursor: pointer; width: max-content; color: var(--link); }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
pre { margin: .5rem 0 0; padding: .75rem 1rem; background: var(--raised); border-radius: 6px; white-space: pre-wrap;
  font: 13px/1.5 ui-monospace, monospace; }
nav ol { margin: .5rem 0 0; padding-left: 2.5rem; columns: 24rem; }
article { margin-top: 2rem; padding-top: 1.25rem; border-top: 1px solid var(--line); content-visibility: auto;
  contain-intrinsic-size: auto 24rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1rem; margin: .6rem 0 1rem;
  font-size: .875rem; }
dt { max-width: 14rem; }
dd { margin: 0; }
ol.frames { display: flex; flex-wrap: wrap; gap: .8rem .5rem; margin: 0; padding: 0; list-style: none; COLUMNS }
figure { margin: 0; width: min-content; min-width: 6.5rem; }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: .5rem; margin-top: .2rem;
  font-size: .8rem; line-height: 1.35; }
figcaption span { white-space: nowrap; }
figcaption .gap { flex-basis: 100%; text-align: right; font-size: .7rem; line-height: 1.2; }
.picture { position: relative; display: block; width: max-content; line-height: 0; }
.picture img { display: block; border-radius: 3px; }
.magnified img { image-rendering: pixelated; }
.padded img { opacity: .35; }
.padded svg { display: block; border: 1px dashed var(--hatch); border-radius: 3px; }
.padded img + svg { position: absolute; inset: 0; }
.padded b { position: absolute; inset: 0; display: grid; place-content: center; line-height: 1.3; font-size: .8rem; }
.padded b span { padding: 0 .5em; background: var(--ground); border-radius: 3px; }
.hatch, .wave { fill: none; stroke: var(--hatch); stroke-width: 1; }
.error { padding: .75rem 1rem; border-left: 4px solid var(--bad); background: var(--bad-ground); border-radius: 0 6px 6px 0; }
.error strong { color: var(--bad); }
.error pre { padding: 0; background: none; }
.sound { margin: 1rem 0 0; width: 100%; max-width: 60rem; }
.sound svg { display: block; width: 100%; height: 48px; background: var(--raised); border-radius: 3px; }
.wave { stroke: var(--soft); }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  article { content-visibility: visible; }
  nav { display: none; }
  h2, dl { break-after: avoid; }
  dl, li, .error, .sound { break-inside: avoid; }
}
"""


def html_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return the page. columns: most frames a line; None means as many as fit."""
    articles, names, widest = [], [], 0
    for number, clip in enumerate(clips, 1):
        articles.append(_text(_article(clip, number)).encode())
        names.append(clip.clip_id)
        widest = max(widest, clip.size[1] * clip.magnified)
    style = STYLE.replace("COLUMNS", f"max-width: {_line_width(columns, widest)};" if columns else "")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    head = _element(
        "head",
        _element("meta", charset="utf-8"),
        _element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        ),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("title", f"{heading.name}: contact sheet"),
        _element("style", style),
    )
    begin = ['<!DOCTYPE html>\n<html lang="en">\n', _text(head), "<body>\n", _text(_header(heading, names)), "<main>\n"]
    return b"".join(["".join(begin).encode(), *articles, b"</main>\n</body>\n</html>\n"])


def _line_width(columns: int, widest: int) -> str:
    """Return a length into which `columns` figures fit, and no more."""
    return f"calc({columns} * max({widest}px, 6.5rem) + {columns - 1} * .5rem)"


def _element(tag: str, *content: Element | str | None, **attributes: object) -> Element:
    """Return an element with a text or children; `_` in an attribute's name stands for `-`, and one at its end for nothing."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()})
    for part in content:
        if isinstance(part, Element):
            made.append(part)
        elif part is not None:
            made.text = part
    return made


def _text(element: Element) -> str:
    return tostring(element, encoding="unicode", method="html") + "\n"


def _header(heading: Heading, names: list[str]) -> Element:
    entries = [
        _element("li", _element("a", _element("bdi", name), href=f"#clip-{n}")) for n, name in enumerate(names, 1)
    ]
    contents = _element(
        "nav", _element("details", _element("summary", "Clips"), _element("ol", *entries)), aria_label="Clips"
    )
    return _element(
        "header",
        _element("h1", heading.name),
        _element("p", heading.counts(), class_="soft"),
        _element("details", _element("summary", "Policy"), _element("pre", heading.policy)),
        contents if len(names) > 1 else None,
    )


def _article(clip: ShownClip, number: int) -> Element:
    facts = _element("dl")
    for kind, pairs in (("mine", clip.columns), ("soft", clip.facts)):
        for name, value in pairs:
            facts.append(_element("dt", _element("bdi", name)))
            facts.append(_element("dd", _element("bdi", value), class_=kind))
    if clip.error is None:
        body = _element("ol", *[_element("li", _figure(clip, frame)) for frame in clip.frames], class_="frames")
    else:
        body = _element("div", _element("strong", "Not decoded"), _element("pre", clip.error), class_="error")
    return _element(
        "article",
        _element("h2", _element("bdi", clip.clip_id), id=f"clip-{number}-name"),
        _element("p", _element("bdi", clip.uri), class_="soft"),
        facts,
        body,
        None if clip.audio is None else _sound(clip.audio),
        id=f"clip-{number}",
        aria_labelledby=f"clip-{number}-name",
    )


def _figure(clip: ShownClip, frame: ShownFrame) -> Element:
    height, width = (side * clip.magnified for side in clip.size)
    picture = _element("span", class_="picture" + " padded" * frame.padding + " magnified" * (clip.magnified > 1))
    if frame.picture is not None:
        alt = f"frame {frame.frame_index}{', padding' * frame.padding}"
        picture.append(_element("img", src=_data_uri(frame.picture), width=width, height=height, alt=alt))
    if frame.padding:
        picture.append(_hatched(width, height))
        picture.append(_element("b", _element("span", "padding")))
    caption = _element("figcaption")
    if frame.frame_index is not None:
        caption.append(_element("span", f"#{frame.frame_index}", class_="number"))
    if frame.seconds is not None:
        caption.append(_element("span", f"{frame.seconds:.3f} s", class_="time"))
    if frame.gap_seconds is not None:
        caption.append(
            _element("span", f"{frame.gap_seconds:+.3f} s", class_="soft gap", title="since the frame before")
        )
    return _element("figure", picture, caption)


def _hatched(width: int, height: int) -> Element:
    lines = "".join(f"M{x} {height}l{height} {-height}" for x in range(-height, width, 10))
    return _element("svg", _element("path", d=lines, class_="hatch"), width=width, height=height, aria_hidden="true")


def _sound(audio: Waveform) -> Element:
    middle = WAVE_HEIGHT / 2
    bounds = zip(audio.low.tolist(), audio.high.tolist(), strict=True)
    lines = "".join(
        f"M{x + 0.5} {middle - high * middle:.1f}V{max(middle - low * middle, middle - high * middle + 1):.1f}"
        for x, (low, high) in enumerate(bounds)
    )
    strip = _element(
        "svg",
        _element("path", d=lines, class_="wave"),
        viewBox=f"0 0 {max(1, len(audio.low))} {WAVE_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="waveform",
    )
    return _element("figure", strip, _element("figcaption", _element("span", f"audio · {audio.text}")), class_="sound")


def _data_uri(picture: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(file, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
