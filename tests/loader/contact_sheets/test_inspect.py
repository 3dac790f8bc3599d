"""inspect: sheets show exactly the frames a clip holds, with their numbers and times, whatever the data says."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framedex import ClipDataset, Index
from framedex.errors import FramedexError, OutputError, printable
from framedex.loader.contact_sheets.sheet import (
    Heading,
    Inspector,
    ShownClip,
    ShownFrame,
    Thumbnails,
    html_sheet,
    waveform,
)
from framedex.loader.contact_sheets.sheet_pictures import GROUND, cut_beginning, font, png_sheet, wrapped
from framedex.loader.dataset.manifest import Manifest
from tests.support.datasets import empty_dataset, run, shard_clips
from tests.support.media import read_barcode
from tests.support.served import served
from tests.support.turned import turned_video, widened_video

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></title>&amp;'\x00\u202e\n"]
VOID = {"meta", "img"}


@dataclass
class Node:
    """An element of a page. text: what it and its children hold."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str, class_: str = "") -> list[Node]:
        """Return the elements below of a tag, and of a class."""
        found = [node for child in self.children for node in [child, *child.all("")]]
        return [
            node
            for node in found
            if tag in ("", node.tag) and (not class_ or class_ in (node.attributes.get("class") or "").split())
        ]


class Page(HTMLParser):
    """A page parsed as browsers do, elements balanced."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self._open = [self.root]
        self.feed(content)
        assert [node.tag for node in self._open] == [""], "elements left open"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attributes))
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for node in self._open:
            node.text += data


def clips_of_two_videos() -> list[dict[str, Any]]:
    return [
        {"uri": "h264_default.mp4", "frames": [9, 2, -1, 30], "clip_id": "walk", "caption": "a café", "label": 7},
        {"uri": "h264_vfr.mkv", "frames": [0, 11, 12, 49], "clip_id": "phone", "caption": None, "label": 8},
    ]


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard_clips(index.path, tmp_path_factory.mktemp("inspect") / "D", clips_of_two_videos())


def page_of(dataset: Path, out: Path, *arguments: object, code: int = 0) -> Node:
    run("inspect", dataset, "--out", out, *arguments, code=code)
    return Page(out.read_text(encoding="utf-8")).root


def pixels(image: Node) -> Any:
    """Return the picture of an <img> as uint8 [H, W, 3]."""
    source = image.attributes["src"] or ""
    assert source.startswith("data:image/jpeg;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))))


def shown(inspector: Inspector, **changes: Any) -> ShownClip:
    return replace(inspector.show(0), **changes)


def heading(**changes: Any) -> Heading:
    made = Heading(name="D", shown=1, clips=2, media=2, failures=[], policy="policy: clips\n", settings="policy: clips")
    return replace(made, **changes)


def test_a_page_shows_every_frame_with_its_number_time_and_pixels(dataset: Path, tmp_path: Path) -> None:
    page = page_of(dataset, tmp_path / "s.html", "--sample", 2, "--size", 192)
    clips = ClipDataset(dataset)
    articles = page.all("article")
    assert len(articles) == len(clips) == 2
    for article, number in zip(articles, range(2), strict=True):
        clip = clips.clip(number)
        assert article.all("h2")[0].text == clip.medium.uri, "a file's name says more than the hash of a clip's name"
        assert article.all("p", "soft")[0].text == clip.clip_id
        figures = article.all("figure")
        assert len(figures) == len(clip.frames)
        for figure, frame, seconds, real in zip(figures, clip.frames, clip.seconds, clip.mask, strict=True):
            assert ("padding" in figure.text) == (not real)
            if real:
                assert [node.text for node in figure.all("span", "number")] == [f"#{frame}"]
                assert [node.text for node in figure.all("span", "time")] == [f"{seconds:.3f} s"]
                (image,) = figure.all("img")
                assert image.attributes["alt"] == f"frame {frame}"
                assert read_barcode(pixels(image)) == frame
            else:
                assert not figure.all("img")
                assert figure.all("svg")
    gaps = [node.text for node in articles[1].all("span", "gap")]
    assert gaps == [f"{gap:+.3f} s" for gap in np.diff(clips.clip(1).seconds)]


def test_a_page_tells_labels_source_and_cost(dataset: Path, tmp_path: Path) -> None:
    page = page_of(dataset, tmp_path / "s.html", "--clip", "walk")
    (article,) = page.all("article")
    names, values = ([node.text for node in article.all(tag)] for tag in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    assert names[:2] == ["label", "caption"]
    assert (facts["label"], facts["caption"]) == ("7", "a café")
    assert facts["source"] == "h264 · 176 × 144 · 50 frames · 2 s · 25 fps on average"
    assert facts["clip"] == "4 frames, 1 of them padding · 0.080 to 1.200 s"
    recipe = ClipDataset(dataset).clip(0).recipe
    assert facts["cost"].startswith(f"{len(recipe.packet_rank)} frames decoded for 3 wanted ")
    assert "h264_default.mp4" in article.text
    assert "1 of 2 clips · 2 media" in page.all("header")[0].text
    assert "policy: clips" in page.all("pre")[0].text


def test_clips_that_could_not_be_had_are_counted(index: Index, tmp_path: Path) -> None:
    clips = [*clips_of_two_videos(), {"uri": "h264_default.mp4", "frames": [999], "clip_id": "late"}]
    dataset = shard_clips(index.path, tmp_path / "D", clips, code=3)
    page = page_of(dataset, tmp_path / "s.html", "--sample", 1)
    assert "1 clip could not be loaded (1 request)" in page.all("header")[0].text


def test_a_dataset_that_lacks_its_failures_has_no_sheet(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "D")
    (tmp_path / "D" / "failures.parquet").unlink()
    said = run("inspect", tmp_path / "D", "--sample", 1, "--out", tmp_path / "sheet.html", code=1).output
    assert "a part of the dataset is missing or damaged" in said
    assert "no failures.parquet" in said


def test_what_the_data_says_does_nothing(index: Index, tmp_path: Path) -> None:
    clips = [
        {"uri": "h264_single.mp4", "frames": [0], "clip_id": text, "label": text, "list": [text], text[:-1]: text}
        for text in HOSTILE
    ]
    dataset = shard_clips(index.path, tmp_path / "D", clips)
    page = page_of(dataset, tmp_path / "s.html", "--sample", 3)
    tags = {node.tag for node in page.all("")}
    assert "script" not in tags
    assert not {name for node in page.all("") for name in node.attributes if name.startswith("on")}
    assert [len(page.all(tag)) for tag in ("img", "style", "title")] == [3, 1, 1]
    names = [article.all("p", "soft")[0].text for article in page.all("article")]
    assert names == [printable(text) for text in HOSTILE]
    assert printable(HOSTILE[2]).endswith("'\\x00\\u202e\\n")
    run("inspect", dataset, "--sample", 3, "--out", tmp_path / "s.png")


def test_a_page_is_alone_in_the_world(dataset: Path, tmp_path: Path) -> None:
    page = page_of(dataset, tmp_path / "s.html", "--sample", 2)
    content = (tmp_path / "s.html").read_text(encoding="utf-8")
    own = re.sub(r"base64,[^\"]*|sha256-[^']*", "", content)
    assert not re.search(r"https?:|//|@import|url\(", own)
    (policy,) = [
        node.attributes["content"]
        for node in page.all("meta")
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert not {node.tag for node in page.all("")} & {"script", "link", "iframe", "object", "form"}
    assert all((node.attributes["src"] or "").startswith("data:image/") for node in page.all("img"))
    assert not [node for node in page.all("") if "style" in node.attributes], "the policy would ignore it"


def test_a_page_can_be_walked_by_headings_and_landmarks(dataset: Path, tmp_path: Path) -> None:
    page = page_of(dataset, tmp_path / "s.html", "--sample", 2)
    assert page.all("html")[0].attributes["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "h1", "h2")] == [1, 1, 1, 1, 2]
    identities = [node.attributes["id"] for node in page.all("") if "id" in node.attributes]
    assert len(set(identities)) == len(identities)
    for article in page.all("article"):
        assert article.attributes["aria-labelledby"] in identities
    assert [node.attributes["href"] for node in page.all("a")] == [
        f"#{node.attributes['id']}" for node in page.all("article")
    ]
    assert all(node.attributes["alt"] for node in page.all("img"))


def test_sheets_of_the_same_clips_are_equal(dataset: Path, tmp_path: Path) -> None:
    for ending in ("html", "png"):
        first, again = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
        for out in (first, again):
            run("inspect", dataset, "--sample", 1, "--seed", 4, "--out", out)
        assert first.read_bytes() == again.read_bytes()


def test_clips_come_in_the_order_asked_and_once(dataset: Path, tmp_path: Path) -> None:
    page = page_of(dataset, tmp_path / "s.html", "--clip", "phone", "--clip", "walk", "--clip", "phone")
    assert [node.text for node in page.all("h2")] == ["h264_vfr.mkv", "h264_default.mp4"]
    assert [node.text for node in page.all("nav")[0].all("li")] == ["h264_vfr.mkv phone", "h264_default.mp4 walk"]


def test_a_picture_has_a_row_of_frames_a_clip(dataset: Path, tmp_path: Path) -> None:
    inspector = Inspector(dataset, Thumbnails(longest_side=176))
    clip = replace(inspector.show(0), columns=[], facts=[])
    sheet = np.asarray(Image.open(io.BytesIO(png_sheet(heading(), [clip], 4))))
    assert sheet.shape[1] == 2 * 28 + 4 * 176 + 3 * 10
    found = []
    for place in range(4):
        left = 28 + place * 186
        column = sheet[:, left : left + 176]
        filled = (column != GROUND).any(axis=2).mean(axis=1) > 0.9
        runs = np.flatnonzero(np.convolve(filled, np.ones(144), "valid") >= 143)
        found.append(read_barcode(column[runs[0] : runs[0] + 144]) if len(runs) else None)
    assert found == [9, 2, None, 30]


def test_a_picture_opens_and_grows_with_its_clips(dataset: Path, tmp_path: Path) -> None:
    sizes = []
    for count in (1, 2):
        run("inspect", dataset, "--sample", count, "--columns", 2, "--out", tmp_path / f"{count}.PNG")
        with Image.open(tmp_path / f"{count}.PNG") as image:
            image.load()
            sizes.append(image.size)
    assert sizes[0][0] == sizes[1][0] >= 2 * 160
    assert sizes[1][1] > sizes[0][1] + 2 * 130


def test_padding_by_a_real_frame_is_marked_and_keeps_its_number(dataset: Path) -> None:
    """Its place is told by the mask alone: the frame number is a real one."""
    inspector = Inspector(dataset, Thumbnails(longest_side=160))
    real = inspector.show(0).frames[0]
    again = ShownFrame(frame_index=9, seconds=0.36, gap_seconds=0.0, padding=True, picture=real.picture)
    clip = shown(inspector, frames=[real, again])
    page = Page(html_sheet(heading(), [clip], None).decode()).root
    first, second = page.all("figure")
    assert "padding" not in first.text
    assert "padding" in second.text
    assert "#9" in second.text
    assert second.all("img")[0].attributes["alt"] == "frame 9, padding"
    plain, hatched = (png_sheet(heading(), [shown(inspector, frames=[frame])], None) for frame in (real, again))
    assert plain != hatched


def test_a_clip_that_does_not_decode_is_shown_with_its_reason(index: Index, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_default.mp4", "h264_vfr.mkv"):
        shutil.copy(Path(index.root) / name, videos / name)
    run("index", videos, "--out", tmp_path / "INDEX")
    dataset = shard_clips(tmp_path / "INDEX", tmp_path / "D", clips_of_two_videos())
    (videos / "h264_default.mp4").unlink()
    page = page_of(dataset, tmp_path / "s.html", "--sample", 2, code=3)
    gone, unharmed = page.all("article")
    assert "the source is not the file that was indexed" in gone.all("div", "error")[0].text
    assert not gone.all("img")
    assert len(unharmed.all("img")) == 4
    run("inspect", dataset, "--sample", 2, "--out", tmp_path / "s.png", code=3)
    with Image.open(tmp_path / "s.png") as image:
        assert image.height > 200
    videos.rename(tmp_path / "moved")
    shutil.copy(Path(index.root) / "h264_default.mp4", tmp_path / "moved" / "h264_default.mp4")
    page_of(dataset, tmp_path / "moved.html", "--sample", 2, "--root", tmp_path / "moved")


def test_sound_is_drawn_where_a_clip_has_it(dataset: Path) -> None:
    samples = np.zeros((2, 4800), np.float32)
    samples[1, 2400:] = 0.5
    wave = waveform(samples, 48000)
    assert wave.low.max() == wave.low.min() == 0
    assert np.unique(wave.high[: len(wave.high) // 2]).tolist() == [0]
    assert np.unique(wave.high[-len(wave.high) // 2 + 1 :]).tolist() == [0.5]
    clip = shown(Inspector(dataset, Thumbnails(longest_side=64)), audio=wave)
    page = Page(html_sheet(heading(), [clip], None).decode()).root
    assert "2 channels · 48,000 Hz · 0.100 s" in page.all("figure", "sound")[0].text
    silent = png_sheet(heading(), [replace(clip, audio=None)], None)
    assert Image.open(io.BytesIO(png_sheet(heading(), [clip], None))).height > Image.open(io.BytesIO(silent)).height


def test_sound_of_no_samples_or_of_no_numbers_is_drawn(dataset: Path) -> None:
    clip = shown(Inspector(dataset, Thumbnails(longest_side=64)))
    for samples in (np.zeros((1, 0)), np.full((1, 3), np.nan), np.full((0, 3), 0.0), np.full((1, 3), np.inf)):
        sounding = replace(clip, audio=waveform(samples.astype(np.float32), 8000))
        assert html_sheet(heading(), [sounding], None)
        assert png_sheet(heading(), [sounding], None)


def test_small_pictures_are_enlarged_by_whole_pixels_and_large_ones_bounded(dataset: Path) -> None:
    assert Inspector(dataset, Thumbnails(longest_side=700)).show(0).magnified == 3
    small = Inspector(dataset, Thumbnails(longest_side=64)).show(0)
    assert (small.size, small.magnified) == ((52, 64), 1)
    assert small.frames[0].picture is not None
    assert small.frames[0].picture.shape == (52, 64, 3)


def test_a_picture_too_large_is_refused_before_all_is_decoded(dataset: Path) -> None:
    clip = Inspector(dataset, Thumbnails(longest_side=160)).show(0)
    long = replace(clip, frames=clip.frames * 500)
    seen = []

    def clips() -> Any:
        for number in range(10):
            seen.append(number)
            yield long

    with pytest.raises(OutputError, match=r"too large[\s\S]*\.html"):
        png_sheet(heading(), clips(), None)
    assert len(seen) < 5
    with pytest.raises(OutputError, match="too large"):
        png_sheet(heading(), [replace(clip, frames=clip.frames * 60)], 1)


def test_text_of_any_length_and_script_is_drawn(dataset: Path) -> None:
    clip = shown(
        Inspector(dataset, Thumbnails(longest_side=64)),
        clip_id="x" * 3000,
        uri="",
        columns=[("名前" * 90, "中 é " * 500), ("", "")],
    )
    with Image.open(io.BytesIO(png_sheet(heading(settings="a: 1, " * 500), [clip], None))) as image:
        assert image.width == 760
    (article,) = Page(html_sheet(heading(), [clip], None).decode()).root.all("article")
    assert "中 é 中 é" in article.text


def test_a_dataset_without_clips_is_a_sheet_of_its_facts(index: Index, tmp_path: Path) -> None:
    dataset = empty_dataset(index, tmp_path / "D")
    page = page_of(dataset, tmp_path / "s.html", "--sample", 5)
    assert "0 of 0 clips" in page.all("header")[0].text
    run("inspect", dataset, "--sample", 5, "--out", tmp_path / "s.png")


def test_an_unknown_clip_is_an_error_with_names_like_it(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(FramedexError, match="similar names: walk"):
        Manifest(dataset).find("wall")
    output = run("inspect", dataset, "--clip", "wall", "--out", tmp_path / "s.html", code=1).output
    assert "found:   wall" in output
    assert not (tmp_path / "s.html").exists()


def test_a_clip_is_found_in_any_part(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framedex.sharder.writing.writer.CLIPS_PER_PART", 3)
    clips = [{"uri": "h264_default.mp4", "frames": [number], "clip_id": f"c{number}"} for number in range(8)]
    manifest = Manifest(shard_clips(index.path, tmp_path / "D", clips))
    assert [manifest.find(f"c{number}") for number in range(8)] == list(range(8))
    assert manifest.media_count == 1


@pytest.mark.parametrize("name", ["sheet.pdf", "sheet", "sheet.html.gz"])
def test_an_ending_that_says_nothing_is_an_error_with_what_is_allowed(dataset: Path, tmp_path: Path, name: str) -> None:
    output = run("inspect", dataset, "--sample", 1, "--out", tmp_path / name, code=1).output
    assert "allowed: .html, .png" in output


def test_a_file_that_is_there_is_kept_unless_told(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.html"
    out.write_text("mine")
    assert "--overwrite" in run("inspect", dataset, "--sample", 1, "--out", out, code=1).output
    assert out.read_text() == "mine"
    run("inspect", dataset, "--sample", 1, "--out", out, "--overwrite")
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["s.html"]


def test_clips_are_named_or_sampled_and_not_both(dataset: Path, tmp_path: Path) -> None:
    run("inspect", dataset, "--out", tmp_path / "s.html", code=2)
    run("inspect", dataset, "--clip", "walk", "--sample", 1, "--out", tmp_path / "s.html", code=2)


def test_letters_of_european_languages_are_drawn_and_others_are_escaped() -> None:
    for text in ("3 × 4 · 1.88–2.14 fps …", "café à Zürich", "Łódź", "Αθήνα", "Москва", "e\u0301"):
        assert wrapped(text, 13, 900) == [text]
    assert cut_beginning("café.mp4", 13, 200) == "café.mp4"
    cut = cut_beginning("a long folder/café.mp4", 13, 80)
    assert cut.startswith("…")
    assert cut.endswith("café.mp4"), "names of files differ at their ends"
    assert font(13).getlength(cut) <= 80
    assert wrapped("日", 13, 900) == ["\\u65e5"]


@pytest.mark.parametrize("rotation", ["apply", "stored"])
def test_pictures_are_upright_with_the_proportions_that_players_show(
    rotation: str, medium: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "media").mkdir()
    wide = widened_video(medium("h264_default.mp4"), tmp_path / "wide.mp4", "2/1")
    turned_video(wide, tmp_path / "media" / "turned.mp4", "quarter")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    dataset = shard_clips(tmp_path / "I", tmp_path / "D", [{"uri": "turned.mp4", "frames": [3]}])
    clip = Inspector(dataset, Thumbnails(longest_side=88, rotation=rotation)).show(0)  # type: ignore[arg-type]
    size = (88, 36) if rotation == "apply" else (36, 88)  # 176 × 144 pixels that are twice as wide as high
    assert clip.size == size
    (frame,) = clip.frames
    whole = ClipDataset(dataset, size=size, rotation=rotation)[0]["frames"][0]  # type: ignore[arg-type]
    assert frame.picture is not None
    assert np.array_equal(frame.picture, whole)
    (source,) = (text for name, text in clip.facts if name == "source")
    assert ("turned 90° clockwise" if rotation == "apply" else "not turned 90° clockwise, as players do") in source
    out = tmp_path / "sheet.html"
    run("inspect", dataset, "--sample", 1, "--out", out, "--rotation", rotation)
    assert "turned 90° clockwise" in out.read_text()
    with served(dataset, rotation=rotation) as client, served(tmp_path / "I", rotation=rotation) as media:
        for page in (client, media):
            item = page.get("item", key=page.keys()[0]).json()
            assert (item["width"], item["height"]) == ((144, 352) if rotation == "apply" else (352, 144))
            assert item["scaled"] is None


def test_pictures_of_extreme_proportions_have_a_size(dataset: Path) -> None:
    medium = ClipDataset(dataset).clip(0).medium
    assert max(Thumbnails().size(replace(medium, sample_aspect_ratio=4000.0))) == 1 << 15
