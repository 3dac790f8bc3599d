"""A contact sheet as one HTML page that needs no other file, no script and no network."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from xml.etree.ElementTree import Element

from framedex.html.document import Document, drawing, element, folded, jpeg_uri, markup, titled
from framedex.loader.contact_sheets.sheet import Heading, ShownClip, ShownFrame, Waveform, jpeg

JPEG_QUALITY = 82
WAVE_HEIGHT = 48


def html_sheet(heading: Heading, clips: Iterable[ShownClip], columns: int | None) -> bytes:
    """Return a contact sheet as an HTML page.

    Args:
        heading: the dataset.
        clips: the clips to show.
        columns: most frames per line. None: as many as fit.
    """
    articles, names, widest = [], [], 0
    for number, clip in enumerate(clips, 1):
        articles.append(markup(_article(clip, number)))
        names.append(clip.clip_id)
        widest = max(widest, clip.size[1] * clip.magnified)
    style = (files("framedex.loader.contact_sheets") / "sheet.css").read_text(encoding="utf-8")
    if columns:
        style += f"ol.frames {{ max-width: {_line_width(columns, widest)}; }}\n"
    document = Document(
        title=f"{heading.name}: contact sheet", style=style, before=[_header(heading, names)], main=articles
    )
    return document.content()


def _line_width(columns: int, widest: int) -> str:
    """Return a length into which `columns` figures fit, and no more."""
    return f"calc({columns} * max({widest}px, 6.5rem) + {columns - 1} * .5rem)"


def _header(heading: Heading, names: list[str]) -> Element:
    entries = [element("li", element("a", element("bdi", name), href=f"#clip-{n}")) for n, name in enumerate(names, 1)]
    contents = element("nav", folded("Clips", element("ol", *entries)), aria_label="Clips")
    return titled(
        "framedex contact sheet",
        heading.name,
        element("p", heading.counts(), class_="soft"),
        element("p", element("bdi", heading.settings), class_="soft"),
        folded("All settings of the policy", element("pre", heading.policy)),
        contents if len(names) > 1 else None,
    )


def _article(clip: ShownClip, number: int) -> Element:
    facts = element("dl")
    for kind, pairs in (("mine", clip.columns), ("soft", clip.facts)):
        for name, value in pairs:
            facts.append(element("dt", element("bdi", name)))
            facts.append(element("dd", element("bdi", value), class_=kind))
    if clip.error is None:
        body = element("ol", *[element("li", _figure(clip, frame)) for frame in clip.frames], class_="frames")
    else:
        body = element("div", element("strong", "Not decoded"), element("pre", clip.error), class_="error")
    return element(
        "article",
        element("h2", element("bdi", clip.clip_id), id=f"clip-{number}-name"),
        element("p", element("bdi", clip.uri), class_="soft"),
        facts,
        body,
        None if clip.audio is None else _sound(clip.audio),
        id=f"clip-{number}",
        aria_labelledby=f"clip-{number}-name",
    )


def _figure(clip: ShownClip, frame: ShownFrame) -> Element:
    height, width = (side * clip.magnified for side in clip.size)
    picture = element("span", class_="picture" + " padded" * frame.padding + " magnified" * (clip.magnified > 1))
    if frame.picture is not None:
        alt = f"frame {frame.frame_index}{', padding' * frame.padding}"
        picture.append(
            element("img", src=jpeg_uri(jpeg(frame.picture, JPEG_QUALITY)), width=width, height=height, alt=alt)
        )
    if frame.padding:
        picture.append(_hatched(width, height))
        picture.append(element("b", element("span", "padding")))
    caption = element("figcaption")
    if frame.frame_index is not None:
        caption.append(element("span", f"#{frame.frame_index}", class_="number"))
    if frame.seconds is not None:
        caption.append(element("span", f"{frame.seconds:.3f} s", class_="time"))
    if frame.gap_seconds is not None:
        caption.append(
            element("span", f"{frame.gap_seconds:+.3f} s", class_="soft gap", title="since the frame before")
        )
    return element("figure", picture, caption)


def _hatched(width: int, height: int) -> Element:
    lines = "".join(f"M{x} {height}l{height} {-height}" for x in range(-height, width, 10))
    return drawing(
        element("path", d=lines, class_="hatch"), size=(width, height), label=None, width=width, height=height
    )


def _sound(audio: Waveform) -> Element:
    middle = WAVE_HEIGHT / 2
    bounds = zip(audio.low.tolist(), audio.high.tolist(), strict=True)
    lines = "".join(
        f"M{x + 0.5} {middle - high * middle:.1f}V{max(middle - low * middle, middle - high * middle + 1):.1f}"
        for x, (low, high) in enumerate(bounds)
    )
    strip = drawing(
        element("path", d=lines, class_="wave"),
        size=(max(1, len(audio.low)), WAVE_HEIGHT),
        label="waveform",
        preserveAspectRatio="none",
    )
    return element("figure", strip, element("figcaption", element("span", f"audio · {audio.text}")), class_="sound")
