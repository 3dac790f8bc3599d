"""The page in Chromium plays clips, filters them, answers SQL, shows data as text, and stays on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framedex import ClipDataset, Index
from tests.support import chromium
from tests.support.audit_reports import HOSTILE
from tests.support.datasets import run, shard_clips
from tests.support.served import Client, served
from tests.support.sounding_media import MEDIA, make


@pytest.fixture(scope="module")
def dataset(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 clips, most of one label; one is padded, and captions are hostile."""
    clips = [
        {"uri": "h264_default.mp4", "frames": [number, number + 4, -1 if number == 2 else number + 8]}
        | {"label": "rare" if number == 7 else "often", "caption": HOSTILE[number % len(HOSTILE)]}
        for number in range(40)
    ]
    return shard_clips(index.path, tmp_path_factory.mktemp("paged") / "D", clips)


@pytest.fixture(scope="module")
def client(dataset: Path) -> Iterator[Client]:
    with served(dataset) as found:
        yield found


CARDS = "document.querySelectorAll('#items .card').length"
POSTERS = "document.querySelectorAll('#items .poster img').length"
# What the canvas shows, as red, green, blue and alpha of each pixel.
PIXELS = """(() => { const canvas = document.getElementById('canvas');
  return [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]; })()"""


def state(page: chromium.Page) -> str:
    return str(page.evaluate("document.getElementById('state').textContent"))


def click(page: chromium.Page, identity: str) -> None:
    page.evaluate(f"document.getElementById('{identity}').click()")


def filter_by(page: chromium.Page, column: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ document.getElementById('column').value = '{column}';"
        f"document.getElementById('value').value = '{value}';"
        "document.getElementById('filter').requestSubmit(); })()"
    )


def open_clip(page: chromium.Page, place: int) -> None:
    page.evaluate(f"document.querySelectorAll('#items .card')[{place}].click()")
    page.wait("document.getElementById('canvas').dataset.place === '0'")


def test_the_list_shows_data_as_text_and_asks_this_machine_alone(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url) as page:
        page.wait(f"{POSTERS} > 5")
        page.wait("document.getElementById('findings-state').textContent.includes('found nothing')")
        assert page.complaints() == []
        assert page.evaluate("window.fired === undefined")
        assert "<script>" in page.evaluate("document.getElementById('items').textContent")
        own = [address.startswith((client.address.url, "blob:")) for address in page.requests()]
        assert len(own) > 8
        assert all(own)
        for width in (1280, 400):
            page.resize(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pages_filters_and_an_empty_result(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url) as page:
        page.wait(f"{CARDS} === 24")
        assert state(page) == "40 clips"
        page.evaluate("document.querySelector('.above .next').click()")
        page.wait(f"{CARDS} === 16")
        filter_by(page, "label", "rare")
        page.wait(f"{CARDS} === 1")
        assert state(page) == "1 clip of 40"
        filter_by(page, "label", "often")
        page.wait(f"{CARDS} === 0")
        assert state(page) == "None of 40 fits."
        page.evaluate("document.querySelector('#active button').click()")
        page.wait(f"{CARDS} === 24")
        assert page.complaints() == []


def test_the_canvas_shows_the_pixels_of_the_dataset(browser: chromium.Browser, client: Client, dataset: Path) -> None:
    clips = ClipDataset(dataset)
    with browser.page(client.address.url) as page:
        page.wait(f"{CARDS} === 24")
        open_clip(page, 3)
        click(page, "step-on")
        page.wait("document.getElementById('canvas').dataset.place === '1'")
        shown = np.array(page.evaluate(PIXELS), np.uint8).reshape(144, 176, 4)
        assert np.array_equal(shown[..., :3], clips[3]["frames"][1])
        assert (shown[..., 3] == 255).all()
        assert "frame 2 of 3 · #7 · 0.280 s" in page.evaluate("document.getElementById('now').textContent")


def test_fit_enlarges_small_pictures_and_keeps_their_proportions(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url, width=1400, height=1000) as page:
        page.wait(f"{CARDS} === 24")
        open_clip(page, 3)
        box = "document.getElementById('canvas').getBoundingClientRect()"
        width, height = page.evaluate(f"[{box}.width, {box}.height]")
        assert (round(height), round(width)) == (500, round(500 * 176 / 144)), "half of the window's height"
        click(page, "fit")
        assert page.evaluate(f"[{box}.width, {box}.height]") == [176, 144]
        click(page, "fit")
        page.resize(400, 800)
        assert page.evaluate(f"{box}.right <= 400 && {box}.width > 300")


def test_texts_of_cards_are_whole_and_the_fold_shows_severities(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url, width=400) as page:
        page.wait(f"{POSTERS} > 3")
        texts = "[...document.querySelectorAll('.card b, .card span')]"
        assert page.evaluate(f"{texts}.every((text) => text.scrollWidth <= text.clientWidth)")
        assert page.evaluate("document.querySelector('.card b').textContent") == "h264_default.mp4"
        page.wait("document.getElementById('findings-state').textContent.includes('found nothing')")
        counts = page.evaluate("document.querySelector('#audit > summary').textContent")
        shown = page.evaluate(
            "['error', 'warning', 'note'].map((name) => document.querySelectorAll(`#findings .mark-${name}`).length)"
        )
        for mark, name, count in zip("✕▲●", ("error", "warning", "note"), shown, strict=True):
            assert (f"{mark} {count} {name}" in counts) == (count > 0), counts


def test_the_header_has_two_columns_on_a_wide_window(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url, width=1400) as page:
        lefts = "[...document.querySelectorAll('body > header > div')].map((part) => part.getBoundingClientRect().left)"
        first, second = page.evaluate(lefts)
        assert first < 100
        assert 600 < second < 800
        page.resize(400, 800)
        assert len(set(page.evaluate(lefts))) == 1


def test_a_clip_plays_in_its_own_time_and_padding_is_marked(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url) as page:
        page.wait(f"{CARDS} === 24")
        open_clip(page, 2)
        click(page, "loop")
        begin = time.monotonic()
        click(page, "play")
        page.wait("document.getElementById('play').textContent === 'Play'")
        assert time.monotonic() - begin > 0.3, "two gaps of 0.16 s"
        assert page.evaluate("document.getElementById('over').textContent") == "padding"
        assert page.evaluate("document.getElementById('canvas').dataset.place") == "2"
        page.press("Home")
        page.wait("document.getElementById('canvas').dataset.place === '0'")
        assert page.evaluate("document.getElementById('over').hidden")
        click(page, "next-item")
        page.wait("document.getElementById('strip').textContent === '#3#7#11'")
        assert page.complaints() == []


def test_a_query_answers_shows_its_clips_and_explains_mistakes(browser: chromium.Browser, client: Client) -> None:
    with browser.page(client.address.url) as page:
        page.wait(f"{CARDS} === 24")
        page.evaluate("document.getElementById('sql').value = 'SELECT nothing FROM clips'")
        click(page, "run")
        page.wait("!document.getElementById('problem').hidden")
        assert 'column "nothing" not found' in page.evaluate("document.getElementById('problem').textContent")
        page.evaluate(
            "document.getElementById('sql').value = 'SELECT clip_id, caption FROM clips WHERE padded_frames > 0'"
        )
        click(page, "run")
        page.wait("!document.getElementById('show-answer').hidden")
        assert page.evaluate("document.getElementById('problem').hidden")
        assert HOSTILE[2].replace("\u202e", "\\u202e") in page.evaluate("document.getElementById('answer').textContent")
        click(page, "show-answer")
        page.wait(f"{CARDS} === 1")
        assert page.evaluate("window.fired === undefined")


def test_sound_plays_beside_the_pictures(browser: chromium.Browser, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    make(MEDIA["aac.mkv"], tmp_path / "media" / "aac.mkv")
    run("index", tmp_path / "media", "--out", tmp_path / "I")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: windows\nframes: 24\nstride: 1\nlast: drop\n")
    run("shard", tmp_path / "I", "--policy", policy, "--audio", "--out", tmp_path / "D")
    with served(tmp_path / "D") as client, browser.page(client.address.url) as page:
        page.wait(f"{POSTERS} > 0")
        page.evaluate(
            "(() => { const Own = Audio; window.Audio = function () { return window.heard = new Own(); }; })()"
        )
        open_clip(page, 0)
        assert not page.evaluate("document.getElementById('hear-box').hidden")
        click(page, "hear")
        page.evaluate("document.getElementById('play').focus()")
        page.press("Enter")  # a browser plays sound only after the user did something
        page.wait("window.heard.currentTime > 0.1 && !window.heard.paused")
        page.wait("Number(document.getElementById('canvas').dataset.place) > 4")
        assert any("/sound?key=0" in address for address in page.requests())
        assert page.complaints() == []
