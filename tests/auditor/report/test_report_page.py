"""The page of `audit --report`: it is self-contained, safe for any data, and contains every finding."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path

from framedex.auditor.findings import legible_table
from tests.loader.contact_sheets.test_inspect import Node
from tests.support.audit_reports import HOSTILE, Report, written
from tests.support.audited import write_rows
from tests.support.datasets import run


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


def test_findings_come_before_tables_and_totals_are_in_the_header(report: Report) -> None:
    _, page, _ = report
    sections = [node.attributes["id"] for node in page.all("section")]
    assert sections == ["findings", "summary", "distributions", "timeline", "all"]
    totals = dict(zip(*([node.text for node in page.all("header")[0].all(tag)] for tag in ("dt", "dd")), strict=True))
    assert (totals["media"], totals["failed"]) == ("8", "1")
    assert "refused" in totals
    assert "without video" in totals


def test_durations_are_in_the_unit_that_fits_and_tenths_are_words(index: Path, report: Report) -> None:
    _, page, _ = report
    (section,) = [node for node in page.all("section") if node.attributes["id"] == "summary"]
    titles = [node.text for node in section.all("th")]
    text = run("audit", index).output
    for shown in (titles, re.split(r"  +|\n", text)):
        assert {"duration", "1 in 10 below", "1 in 10 above"} <= set(shown)
        assert not {"hours", "tenth", "nine tenths", "10 %"} & set(shown)
    seconds = [node.text for node in section.all("td") if re.fullmatch(r"[\d.]+ s", node.text)]
    assert seconds
    assert all(each in text for each in seconds)
    names, rows = legible_table(["codec", "hours"], [["h264", 1234.5], ["vp9", 0.0003], ["av1", None]])
    assert (names, rows) == (["codec", "duration"], [["h264", "1,234 h"], ["vp9", "1.08 s"], ["av1", None]])


def test_the_json_has_what_audit_json_has(index: Path, report: Report) -> None:
    _, _, facts = report
    said = json.loads(run("audit", index, "--json").stdout)
    assert {name: facts[name] for name in said} == said
    assert facts["schema_version"] == json.loads((index / "index.json").read_text())["schema_version"]
    assert facts["table"] == {"of": "media", "shown": 8, "total": 8}
    for chart in facts["histograms"].values():
        assert sum(bar["count"] for bar in chart["bars"]) + chart["zeros"] + chart["other_count"] == chart["total"]
    assert facts["histograms"]["durations"]["total"] == 7


def test_the_same_index_gives_the_same_bytes(index: Path, report: Report, tmp_path: Path) -> None:
    path, _, _ = report
    written(index, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()
    assert (tmp_path / "again.json").read_bytes() == path.with_suffix(".json").read_bytes()


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
    assert "exists already" in run("audit", index, "--report", tmp_path / "report.html", code=1).output
    assert (tmp_path / "report.json").read_text() == "mine"
    run("audit", index, "--report", tmp_path / "report.html", "--no-pictures", "--overwrite")
    assert json.loads((tmp_path / "report.json").read_text())["kind"] == "index"
