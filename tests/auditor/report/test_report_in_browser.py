"""A report in a browser prints no errors, and it scrolls, sorts, filters, prints, and works without scripts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support import chromium
from tests.support.audit_reports import HOSTILE, ROWS, Report, written


@pytest.fixture(scope="module")
def many_page(many: Path) -> Path:
    out = many.parent / "many.html"
    written(many, out, "--no-pictures")
    return out


def cells(page: chromium.Page, column: int, count: int) -> list[str]:
    """Return the first `count` cells of a column that the table shows."""
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
        # Elements that are too wide scroll by themselves; the page does not.
        for width in (1200, 400):
            page.resize(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        stops = (
            "[...document.querySelectorAll('.box')]"
            ".every((box) => box.tabIndex === 0 || box.scrollWidth <= box.clientWidth)"
        )
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
        made = page.evaluate("""(async () => {
            const box = document.getElementById('table');
            const made = [];
            const observer = new MutationObserver((changes) => {
                for (const change of changes) made[made.length - 1] += change.addedNodes.length;
            });
            observer.observe(box, {childList: true, subtree: true});
            for (let step = 1; step <= 20; step++) {
                made.push(0);
                box.scrollTop = step * 15000;
                box.dispatchEvent(new Event('scroll'));
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            }
            return made;
        })()""")
        assert min(made) > 0, made
        assert max(made) < ROWS / 10, made  # the work of a frame does not grow with the table
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
