"""The documentation's site is complete: links work, nothing is loaded from elsewhere, API and search are there."""

from __future__ import annotations

import functools
import html.parser
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

import framedex
from tests.support.chromium import browser, is_installed
from tests.support.counted import some
from tests.support.outcomes import NO_CHROMIUM, skip_but_in_ci

ROOT = Path(__file__).resolve().parents[2]
LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
}  # elements and attributes that a page loads by itself


class Addresses(html.parser.HTMLParser):
    """Collect what a page loads and links to, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record one element."""
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        if (address := values.get(LOADED.get(tag, ""))) and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(address)
        if tag == "a" and values.get("href"):
            self.linked.append(str(values["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Addresses]:
    """Return each page by its path in the site."""
    found = {}
    for path in some(sorted(site.rglob("*.html")), 40):
        addresses = Addresses()
        addresses.feed(path.read_text(encoding="utf-8"))
        found[path.relative_to(site).as_posix()] = addresses
    return found


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Yield the address where the site is served."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path, pages: dict[str, Addresses]) -> None:
    checked = 0
    for name, page in pages.items():
        for link in page.loaded + page.linked:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            place, anchor = urldefrag(urljoin(f"http://site/{name}", link))
            target = unquote(urlsplit(place).path).lstrip("/") or "index.html"
            assert (site / target).is_file(), f"{name} links to {link}"
            if anchor and target in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[target].anchors, f"{name} links to {link}"
            checked += 1
    assert checked > 2000


def test_pages_load_nothing_from_elsewhere(pages: dict[str, Addresses]) -> None:
    loaded = [address for page in pages.values() for address in page.loaded]
    assert [address for address in some(loaded, 100) if urlsplit(address).netloc] == []


def test_every_public_name_is_documented(pages: dict[str, Addresses]) -> None:
    names = {f"framedex.{name}" for name in framedex.__all__} - {"framedex.__version__", "framedex.FramedexError"}
    assert names <= pages["api.html"].anchors
    assert {"framedex.errors.FramedexError", "framedex.ClipDataset.from_index"} <= pages["api.html"].anchors


def test_pages_open_without_complaints_and_search_finds(address: str, pages: dict[str, Addresses]) -> None:
    if not is_installed():
        skip_but_in_ci(NO_CHROMIUM)
    with browser() as chromium:
        for name in some([name for name in pages if not name.startswith("decisions/")], 15):
            with chromium.page(f"{address}/{name}") as page:
                page.wait("document.querySelector('.md-search__input') !== null")
                assert page.complaints() == [], name
                assert [asked for asked in page.requests() if not asked.startswith(address)] == [], name
        with chromium.page(f"{address}/index.html") as page:
            page.evaluate("document.querySelector('.md-search__input').focus()")
            page.type("ClipSampler")
            # What is typed before the page listens is searched for when the next key comes up.
            page.wait(
                "document.querySelector('.md-search__input').dispatchEvent(new Event('keyup', {bubbles: true})) && "
                "document.querySelectorAll('.md-search-result__item').length > 0"
            )
            links = page.evaluate("[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
            assert any(link.startswith(f"{address}/api.html") for link in links)
