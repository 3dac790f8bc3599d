"""audit --report: one page that needs nothing else, safe whatever the data says, and what a browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from benchmarks.audit_data import write_index, write_many_videos
from framedex.audit.report.histograms import Counted, measured, of_names, of_numbers
from framedex.audit.report.media_table import Column, MediaTable, as_script
from framedex.audit.report.pictures import PictureTask, Strip
from framedex.audit.report.report import MOST_BYTES
from framedex.audit.report.timelines import MOST_FRAMES
from framedex.execution.engine import Outcome
from framedex.indexer.schema import SCHEMA_VERSION, VIDEOS
from tests.loader.contact_sheets.test_inspect import Node, Page
from tests.support import chromium
from tests.support.audited import write_rows
from tests.support.datasets import run, shard_clips
from tests.support.media import read_barcode
from tests.support.outcomes import NO_CHROMIUM, skip_but_in_ci
from tests.support.s3 import Bucket

FIRED = "window.fired=1"
HOSTILE = [
    f"<script>{FIRED}</script>.mp4",
    f'"><img src=x onerror={FIRED}>.mkv',
    "</title></style></script>\u202e&amp;'.mp4",
]
ROWS = 10_000
Report = tuple[Path, Node, dict[str, Any]]


class ReportPage(Page):
    """A page with a form field, which has no end tag."""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attributes)
        if tag == "input":
            self._open.pop()


def written(place: Path | str, out: Path, *options: object, code: int = 0) -> tuple[Node, dict[str, Any]]:
    """Write a report; return its page and its JSON."""
    run("audit", place, "--report", out, *options, code=code)
    return ReportPage(out.read_text(encoding="utf-8")).root, json.loads(out.with_suffix(".json").read_text("utf-8"))


@pytest.fixture(scope="module")
def videos(medium: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of several kinds, some under names that would do harm, and a file that is none."""
    folder = tmp_path_factory.mktemp("report") / "videos"
    for source, name in zip(("h264_default.mp4", "h264_vfr.mkv", "h264_open_gop.mp4"), HOSTILE, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(medium(source), folder / name)
    for source in ("h264_one_gop.mp4", "h264_yuv444.mp4", "h264_single.mp4"):
        shutil.copy(medium(source), folder / source)
    shutil.copy(medium("h264_vfr.mkv"), folder / "copy.mkv")
    (folder / "none.mp4").write_bytes(b"not a video")
    return folder


@pytest.fixture(scope="module")
def index(videos: Path) -> Path:
    out = videos.parent / "INDEX"
    run("index", videos, "--out", out, "--depth", "packets", code=3)
    return out


@pytest.fixture(scope="module")
def report(index: Path) -> Report:
    out = index.parent / "report.html"
    return out, *written(index, out)


@pytest.fixture(scope="module")
def dataset(index: Path) -> Path:
    clips = [
        {"uri": "h264_one_gop.mp4", "frames": [80, 85, 89], "clip_id": HOSTILE[0], "label": "dance", "split": "train"},
        {"uri": "h264_one_gop.mp4", "frames": [5, -1, -1], "clip_id": "padded", "label": HOSTILE[1], "split": "test"},
        {"uri": "h264_yuv444.mp4", "frames": [1, 2, 3], "clip_id": "plain", "label": "dance", "split": "test"},
    ]
    return shard_clips(index, index.parent / "D", clips)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 10 000 videos whose names have 60 characters, most of which no other name shares."""
    out = tmp_path_factory.mktemp("many") / "INDEX"
    write_many_videos(out, ROWS, kinds=300)
    _rename(out, lambda n: f"cameras/{n % 40:02d}/{hashlib.sha256(str(n).encode()).hexdigest()[:44]}.mp4")
    return out


def _rename(index: Path, name: Callable[[int], str]) -> None:
    path = index / "videos" / "part-000000.parquet"
    table = pq.read_table(path)
    names = pa.array([name(number) for number in range(len(table))])
    place = VIDEOS.get_field_index("uri")
    stamped = table.set_column(place, VIDEOS.field(place), names).replace_schema_metadata(
        {"framedex.schema_version": SCHEMA_VERSION}
    )
    pq.write_table(stamped, path)


def scripts(page: Node) -> list[Node]:
    return page.all("script")


def test_a_report_needs_nothing_else(report: Report) -> None:
    path, page, _ = report
    own = re.sub(r"base64,[^\"]*|sha256-[^']*", "", path.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|@import|url\(|innerHTML|eval\(", own)
    assert not {node.tag for node in page.all("")} & {"link", "iframe", "object", "form", "img"}
    (policy,) = [node.attributes["content"] or "" for node in page.all("meta") if "http-equiv" in node.attributes]
    digests = [
        f"'sha256-{base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()}'"
        for node in (page.all("style")[0], scripts(page)[1])
    ]
    assert policy == (
        f"default-src 'none'; img-src data:; style-src {digests[0]}; script-src {digests[1]};"
        " base-uri 'none'; form-action 'none'"
    )
    assert not [node for node in page.all("") if "style" in node.attributes], "the policy would ignore it"
    assert sorted(path.name for path in path.parent.iterdir() if "report" in path.name) == [
        "report.html",
        "report.json",
    ]


def test_what_the_data_says_is_text(report: Report) -> None:
    _, page, _ = report
    assert [node.attributes.get("type") for node in scripts(page)] == ["application/json", None]
    assert not {name for node in page.all("") for name in node.attributes if name.startswith("on")}
    assert [len(page.all("head")[0].all(tag)) for tag in ("title", "style", "meta")] == [1, 1, 3]
    assert "<" not in scripts(page)[0].text
    assert HOSTILE[0] in page.all("main")[0].text
    assert "\u202e" not in page.text
    assert "\\u202e" in page.all("main")[0].text


def test_a_report_can_be_walked_by_headings_landmarks_and_links(report: Report) -> None:
    _, page, _ = report
    assert page.all("html")[0].attributes["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    levels = [int(node.tag[1]) for node in page.all("") if re.fullmatch("h[1-6]", node.tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    identities = [node.attributes["id"] for node in page.all("") if "id" in node.attributes]
    assert len(set(identities)) == len(identities)
    for node in page.all(""):
        for name in ("href", "aria-labelledby", "aria-describedby", "for"):
            value = node.attributes.get(name)
            if value is not None and not value.startswith("data:"):
                assert value.removeprefix("#") in identities, f"{node.tag} {name}={value}"
    assert page.all("a")[0].text == "Skip to the findings"
    assert all(node.attributes.get("aria-label") for node in page.all("svg") if node.attributes.get("role") == "img")


def test_every_finding_has_its_meaning_remedy_examples_and_sql(report: Report) -> None:
    _, page, facts = report
    articles = {node.attributes["id"]: node for node in page.all("article")}
    assert list(articles) == [f"check-{finding['check']}" for finding in facts["findings"]]
    assert {"failed", "variable_rate", "open_gops", "single_frame", "no_nvdec"} <= {
        f["check"] for f in facts["findings"]
    }
    for finding in facts["findings"]:
        article = articles[f"check-{finding['check']}"]
        for said in (finding["title"], finding["means"], finding["remedy"]):
            assert said.replace("`", "") in article.text
        assert article.all("code")[-1].text == finding["sql"]
        assert len(article.all("tbody")[0].all("tr")) == len(finding["examples"])


def test_the_json_has_what_audit_json_has(index: Path, report: Report) -> None:
    _, _, facts = report
    said = json.loads(run("audit", index, "--json").stdout)
    assert {name: facts[name] for name in said} == said
    assert facts["schema_version"] == SCHEMA_VERSION
    assert facts["table"] == {"of": "media", "shown": 8, "total": 8}
    for chart in facts["histograms"].values():
        assert sum(bar["count"] for bar in chart["bars"]) + chart["zeros"] + chart["other_count"] == chart["total"]
    assert facts["histograms"]["durations"]["total"] == 7


def test_the_same_index_gives_the_same_bytes(index: Path, report: Report, tmp_path: Path) -> None:
    path, _, _ = report
    written(index, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()
    assert (tmp_path / "again.json").read_bytes() == path.with_suffix(".json").read_bytes()


def _pixels(image: Node, size: tuple[int, int]) -> Any:
    source = image.attributes["href"] or ""
    assert source.startswith("data:image/jpeg;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).resize(size))


def test_pictures_are_the_frames_that_they_are_called(report: Report) -> None:
    _, page, facts = report
    symbols = {f"#{node.attributes['id']}": node.all("image")[0] for node in page.all("symbol")}
    assert symbols
    shown = 0
    for item in page.all("li"):
        for use in item.all("use"):
            number = int(item.all("span")[0].text.removeprefix("#"))
            assert read_barcode(_pixels(symbols[use.attributes["href"] or ""], (176, 144))) == number
            shown += 1
    assert shown > len(symbols), "findings share pictures"
    assert any(len(strip["frames"]) == 4 for strip in facts["pictures"].values())
    assert len(page.all("figure")) > len(facts["histograms"])


def test_a_report_without_pictures_has_none(index: Path, tmp_path: Path) -> None:
    page, facts = written(index, tmp_path / "r.html", "--no-pictures")
    assert not page.all("image")
    assert facts["pictures"] == {}
    assert (tmp_path / "r.html").stat().st_size < 200_000


def test_what_vanished_or_changed_is_told_in_place_of_a_picture(medium: Callable[[str], Path], tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("h264_vfr.mkv", "h264_vfr.mp4", "h264_24_to_60.mp4"):
        shutil.copy(medium(name), videos / name)
    run("index", videos, "--out", tmp_path / "INDEX")
    (videos / "h264_vfr.mkv").unlink()
    (videos / "h264_vfr.mp4").write_bytes(b"other")
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "variable_rate")
    reasons = {strip["name"]: strip["reason"] for strip in facts["pictures"].values()}
    assert reasons["h264_24_to_60.mp4"] is None
    assert "not the file that was indexed" in reasons["h264_vfr.mkv"]
    assert "not the file that was indexed" in reasons["h264_vfr.mp4"]
    assert page.text.count("No picture: ") == 2, "a picture stands beside them"
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in reasons:
        shutil.copy(medium(name), moved / name)
    _, facts = written(tmp_path / "INDEX", tmp_path / "m.html", "--check", "variable_rate", "--root", moved)
    assert {strip["reason"] for strip in facts["pictures"].values()} == {None}


def test_media_whose_packets_are_scattered_have_pictures(corpus: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(corpus / "cont_h264.ts", videos)
    run("index", videos, "--out", tmp_path / "INDEX")
    _, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "not_addressable")
    (strip,) = facts["pictures"].values()
    assert (len(strip["frames"]), strip["reason"]) == (4, None)


def test_media_in_a_bucket_have_pictures(bucket: Bucket, medium: Callable[[str], Path], tmp_path: Path) -> None:
    bucket.put("videos/phone.mkv", medium("h264_vfr.mkv"))
    bucket.put("videos/grown.mp4", medium("h264_vfr.mp4"))
    run("index", f"{bucket.uri}/videos", "--out", f"{bucket.uri}/INDEX")
    bucket.put("videos/grown.mp4", medium("h264_default.mp4"))
    _, facts = written(f"{bucket.uri}/INDEX", tmp_path / "r.html")
    shown = {strip["name"]: (len(strip["frames"]), strip["reason"]) for strip in facts["pictures"].values()}
    assert shown["phone.mkv"] == (4, None)
    assert shown["grown.mp4"] == (0, "the source is not the file that was indexed")


def test_the_timeline_is_of_the_video_that_most_findings_name(report: Report) -> None:
    _, page, facts = report
    timeline = facts["timeline"]
    assert timeline["frames"] == timeline["shown"] == 50
    assert timeline["start_points"] >= 3
    (section,) = [node for node in page.all("section") if node.attributes["id"] == "timeline"]
    label = section.all("svg")[0].attributes["aria-label"] or ""
    assert label.startswith("50 frames of ")


def test_a_long_video_is_shown_around_its_longest_gap(tmp_path: Path) -> None:
    write_index(tmp_path / "INDEX", 40, seconds=200.0)
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--check", "long_gaps", "--no-pictures")
    timeline = facts["timeline"]
    assert timeline["shown"] == MOST_FRAMES < timeline["frames"]
    assert timeline["longest_gap_seconds"] > 3
    (section,) = [node for node in page.all("section") if node.attributes["id"] == "timeline"]
    assert f"of {timeline['frames']:,}, those around its longest gap" in section.text
    assert any("s without a frame" in node.text for node in section.all("rect", "gap"))


def test_costly_pictures_are_of_start_points_and_few_media_have_any(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framedex.audit.report.pictures.MOST_PIXELS", 0)
    _, facts = written(index, tmp_path / "r.html", "--check", "open_gops")
    (strip,) = facts["pictures"].values()
    assert {frame["frame"] % 12 for frame in strip["frames"]} == {0}, "a GOP has 12 frames"
    monkeypatch.setattr("framedex.audit.report.pictures.MOST_MEDIA", 2)
    _, facts = written(index, tmp_path / "few.html")
    assert len(facts["pictures"]) == 2


def test_a_medium_that_ends_its_decoder_has_no_pictures(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(
        function: object, tasks: list[PictureTask], **options: object
    ) -> Iterator[Outcome[PictureTask, list[Strip]]]:
        yield from (Outcome(item=task, kind="crash", message="the process died") for task in tasks)

    monkeypatch.setattr("framedex.audit.report.pictures.run_local", crashing)
    page, facts = written(index, tmp_path / "r.html", "--check", "open_gops")
    (strip,) = facts["pictures"].values()
    assert (strip["frames"], strip["reason"]) == ([], "crash: the process died")
    assert strip["name"].endswith(".mp4")
    assert not page.all("image")


def test_a_dataset_has_a_report(dataset: Path, tmp_path: Path) -> None:
    page, facts = written(dataset, tmp_path / "r.html")
    assert {"clip_lengths", "spans", "splits", "labels", "decode_cost", "clips_per_video"} <= set(facts["histograms"])
    assert facts["table"] == {"of": "clips", "shown": 3, "total": 3}
    assert {finding["check"] for finding in facts["findings"]} >= {"mostly_padding", "leaked_videos"}
    assert facts["timeline"]["uri"] == "h264_one_gop.mp4"
    assert facts["timeline"]["shown"] == 2
    padded = facts["pictures"]["padded"]
    assert [frame["frame"] for frame in padded["frames"]] == [5]
    assert len(scripts(page)) == 2
    assert not {name for node in page.all("") for name in node.attributes if name.startswith("on")}
    (plain,) = [node for node in page.all("div") if node.attributes.get("id") == "plain"]
    assert len(plain.all("tbody")[0].all("tr")) == 3


def test_clips_that_do_not_decode_are_told_in_place_of_a_picture(dataset: Path, tmp_path: Path) -> None:
    page, facts = written(dataset, tmp_path / "r.html", "--root", tmp_path / "nowhere")
    assert not page.all("image")
    assert "not the file that was indexed" in facts["pictures"]["padded"]["reason"]


def test_an_index_without_media_has_a_report(tmp_path: Path) -> None:
    page, facts = written(write_rows(tmp_path / "INDEX", []), tmp_path / "r.html")
    assert facts["table"] == {"of": "media", "shown": 0, "total": 0}
    assert facts["timeline"] is None
    assert facts["histograms"] == {}
    assert page.all("main")


def test_a_report_is_a_page_or_nothing(index: Path, tmp_path: Path) -> None:
    output = run("audit", index, "--report", tmp_path / "report.pdf", code=2).output
    assert ".html" in output
    assert list(tmp_path.iterdir()) == []


def test_neither_file_of_a_report_is_replaced_unless_asked(index: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("mine")
    assert "there already" in run("audit", index, "--report", tmp_path / "report.html", code=1).output
    assert (tmp_path / "report.json").read_text() == "mine"
    run("audit", index, "--report", tmp_path / "report.html", "--no-pictures", "--overwrite")
    assert json.loads((tmp_path / "report.json").read_text())["kind"] == "index"


def test_ten_thousand_rows_stay_within_a_megabyte(many: Path, tmp_path: Path) -> None:
    page, facts = written(many, tmp_path / "r.html", "--no-pictures")
    assert (tmp_path / "r.html").stat().st_size < MOST_BYTES
    assert facts["table"] == {"of": "media", "shown": ROWS, "total": ROWS}
    assert len(page.all("tr")) < 1000, "the page draws the rest when it is opened"


def test_rows_for_which_there_is_no_room_are_left_out_and_it_says_so(many: Path, tmp_path: Path) -> None:
    shutil.copytree(many, tmp_path / "INDEX")
    _rename(tmp_path / "INDEX", lambda n: hashlib.shake_256(str(n).encode()).hexdigest(90) + ".mp4")
    page, facts = written(tmp_path / "INDEX", tmp_path / "r.html", "--no-pictures")
    assert MOST_BYTES * 0.9 < (tmp_path / "r.html").stat().st_size <= MOST_BYTES
    shown = facts["table"]["shown"]
    assert 3000 < shown < ROWS
    assert f"{shown:,} of 10,000 media, those with findings first" in page.all("main")[0].text


COUNTED = Counted(name="n", title="N", form="numbers", axis="units", of="media", sql="")
NUMBERS = arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1e9) | st.integers(0, 50).map(float))


@given(NUMBERS)
def test_every_number_is_in_one_bar(values: np.ndarray) -> None:
    found = of_numbers(COUNTED, values)
    values = measured(values)
    assert sum(bar.count for bar in found.bars) + found.zeros == len(values) == found.total
    assert len(found.bars) < 60
    for bar in found.bars:
        if bar.low is not None and bar.high is not None:
            assert bar.count == int(
                ((values >= bar.low) & (values < bar.high) & ((values > 0) | (not found.logarithmic))).sum()
            )


def test_an_axis_is_logarithmic_where_numbers_span_more_than_two_decades() -> None:
    assert of_numbers(COUNTED, np.array([1.0, 50, 101])).logarithmic
    assert not of_numbers(COUNTED, np.array([1.0, 50, 100])).logarithmic
    with_zero = of_numbers(COUNTED, np.array([0.0, 0, 1, 1000]))
    assert (with_zero.logarithmic, with_zero.zeros) == (True, 2)


def test_many_names_share_a_last_bar() -> None:
    found = of_names(COUNTED, [f"label {n}" for n in range(40)], list(range(40, 0, -1)))
    assert (len(found.bars), found.others, found.other_count) == (12, 28, sum(range(1, 29)))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=30), st.booleans())
def test_texts_come_out_of_the_script_as_they_went_in(texts: list[str], ascending: bool) -> None:
    values: list[str | None] = sorted(texts) if ascending else list(texts)
    column = Column(key="name", title="Name", form="text", values=[value or None for value in values])
    script = as_script(MediaTable(of="media", total=len(texts), columns=[column]))
    assert not set(script) & set("<>&\u2028\u2029")
    assert _decoded(json.loads(script)["columns"][0]) == column.values


def _decoded(column: dict[str, Any]) -> list[str | None]:
    """Return what page.js makes of a column of texts."""
    if "values" in column:
        return list(column["values"])
    if "words" in column:
        return [None if number < 0 else column["words"][number] for number in column["numbers"]]
    found, before = [], ""
    for same, rest in zip(column["same"], column["rest"], strict=True):
        before = before[:same] + rest
        found.append(before or None)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    """Chromium; in CI its absence is a failure."""
    if not chromium.is_installed():
        skip_but_in_ci(NO_CHROMIUM)
    with chromium.browser() as running:
        yield running


@pytest.fixture(scope="module")
def many_page(many: Path) -> Path:
    out = many.parent / "many.html"
    written(many, out, "--no-pictures")
    return out


def cells(page: chromium.Page, column: int, count: int) -> list[str]:
    """Return the first cells of a column that the table shows."""
    return list(
        page.evaluate(
            f"[...document.querySelectorAll('#table tbody tr:not(.space)')].slice(0, {count})"
            f".map((row) => row.cells[{column}].textContent)"
        )
    )


def click(page: chromium.Page, title: str) -> None:
    page.evaluate(
        "[...document.querySelectorAll('#table th button')]"
        f".find((button) => button.textContent.startsWith({title!r})).click()"
    )


def test_a_page_in_a_browser_is_quiet_and_asks_for_nothing(browser: chromium.Browser, report: Report) -> None:
    path, _, facts = report
    with browser.page(path) as page:
        assert page.complaints() == []
        assert page.requests() == [path.absolute().as_uri()]
        assert page.evaluate("window.fired === undefined")
        assert page.evaluate("document.scripts.length") == 2
        page.wait("document.querySelectorAll('#table tbody tr').length > 5")
        assert HOSTILE[0] in cells(page, 0, 10)
        assert page.evaluate("getComputedStyle(document.getElementById('plain')).display") == "none"
        # Whatever is too wide scrolls by itself; the page does not.
        for width in (1200, 400):
            page.resize(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        stops = "[...document.querySelectorAll('.box')].every((box) => box.tabIndex === 0 || box.scrollWidth <= box.clientWidth)"
        page.wait(stops)  # the page hears of its new width with the next frame
        assert page.evaluate(stops), "what scrolls can be reached by keyboard"
        # Each picture of a strip is drawn with a size.
        shown = "[...document.querySelectorAll('.strip use')].every((use) => use.getBoundingClientRect().width > 20)"
        assert page.evaluate(shown)
    assert facts["pictures"]


def test_a_table_of_ten_thousand_rows_scrolls(browser: chromium.Browser, many_page: Path) -> None:
    with browser.page(many_page) as page:
        assert page.evaluate("document.querySelector('#table table').getAttribute('aria-rowcount')") == str(ROWS + 1)
        assert page.evaluate("document.querySelectorAll('#table tr').length") < 100
        page.evaluate("document.getElementById('table').scrollTop = 1e9")
        page.wait(
            "[...document.querySelectorAll('#table tbody tr')]"
            f".some((row) => row.getAttribute('aria-rowindex') === '{ROWS + 1}')"
        )
        assert page.evaluate("document.querySelectorAll('#table tr').length") < 100
        last = page.evaluate("""(() => {
            const rows = [...document.querySelectorAll('#table tbody tr:not(.space)')];
            const last = rows.at(-1).getBoundingClientRect();
            const box = document.getElementById('table').getBoundingClientRect();
            return last.bottom <= box.bottom + 1 && last.top > box.top;
        })()""")
        assert last, "the last row is in sight"
        frames = page.evaluate("""(async () => {
            const box = document.getElementById('table');
            let longest = 0;
            for (let step = 0; step < 20; step++) {
                box.scrollTop = step * 15000;
                await new Promise((done) => requestAnimationFrame(done));
                const begin = performance.now();
                box.dispatchEvent(new Event('scroll'));
                await new Promise((done) => requestAnimationFrame(done));
                longest = Math.max(longest, performance.now() - begin);
            }
            return longest;
        })()""")
        assert frames < 200, f"{frames} ms for a frame"
        assert page.complaints() == []


def _seconds(text: str) -> float:
    return float(text.replace(",", "").replace("–", "nan"))


def test_a_table_sorts_both_ways_and_filters(browser: chromium.Browser, many_page: Path, many: Path) -> None:
    lengths = pq.read_table(many / "videos" / "part-000000.parquet", columns=["duration_pts"])["duration_pts"]
    seconds = np.sort(lengths.drop_null().to_numpy() / 90_000)
    with browser.page(many_page) as page:
        for direction, expected in (("ascending", seconds[:5]), ("descending", seconds[::-1][:5])):
            click(page, "Seconds")
            shown = [_seconds(text) for text in cells(page, 3, 5)]
            assert shown == pytest.approx(expected.tolist(), rel=1e-4)
            assert page.evaluate("document.querySelector('#table [aria-sort]').getAttribute('aria-sort')") == direction
            assert direction in page.evaluate("document.getElementById('matches').textContent")
        page.evaluate("document.getElementById('filter').focus()")
        page.type("cameras/07 fps>55")
        page.wait("document.getElementById('matches').textContent.startsWith('10,000') === false")
        said = page.evaluate("document.getElementById('matches').textContent")
        assert page.evaluate("document.getElementById('matches').getAttribute('role')") == "status"
        count = int(said.split(" of ")[0])
        assert 0 < count < ROWS / 40
        assert all("cameras/07" in name for name in cells(page, 0, 20))
        assert all(_seconds(rate) > 55 for rate in cells(page, 5, 20))
        page.type(" nosuchvideo")
        page.wait("document.getElementById('matches').textContent.startsWith('0 of 10,000')")
        assert cells(page, 0, 5) == []
        assert page.complaints() == []


def test_a_table_sorts_by_keyboard(browser: chromium.Browser, many_page: Path) -> None:
    with browser.page(many_page) as page:
        page.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
        page.evaluate("document.getElementById('filter').focus()")
        for _ in range(2):  # the table itself, which scrolls, and its first button
            page.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Name"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus is seen"
        page.press("Enter")
        assert {name[:10] for name in cells(page, 0, 20)} == {"cameras/00"}
        page.press("Enter")
        assert {name[:10] for name in cells(page, 0, 20)} == {"cameras/39"}


def test_a_page_has_two_colour_schemes_and_prints(browser: chromium.Browser, report: Report) -> None:
    path, _, _ = report
    with browser.page(path) as page:
        colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        light = page.evaluate(colours)
        page.prefer(dark=True)
        dark = page.evaluate(colours)
        assert light[0] == "rgb(255, 255, 255)"
        assert light != dark
        printed = page.pdf()
        assert printed.startswith(b"%PDF-")
        pages = int(re.findall(rb"/Count (\d+)", printed)[0])
        assert 2 <= pages <= 30
        page.call("Emulation.setEmulatedMedia", media="print", features=[])
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.getElementById('plain')).display") == "block"
        assert page.evaluate("getComputedStyle(document.getElementById('live')).display") == "none"
        page.resize(720, 1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= 720, "nothing is cut off at the right"


def test_a_page_without_javascript_shows_the_first_rows(browser: chromium.Browser, report: Report) -> None:
    path, _, _ = report
    with browser.page(path) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.call("Page.reload")
        page.wait("document.readyState === 'complete' && !document.documentElement.classList.contains('js')")
        assert page.evaluate("document.querySelectorAll('#plain tbody tr').length") == 8
        assert page.evaluate("getComputedStyle(document.getElementById('live')).display") == "none"
