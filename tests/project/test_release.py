"""A release writes the repository's address, which a checkout does not know, into the project's metadata."""

from __future__ import annotations

import configparser
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY, TAG = "https://example.org/owner/name", "v0.1.0"


@pytest.fixture(scope="module")
def project_urls() -> ModuleType:
    spec = importlib.util.spec_from_file_location("project_urls", ROOT / ".ci" / "project_urls.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_names_its_repository(project_urls: ModuleType) -> None:
    before, after = configparser.ConfigParser(), configparser.ConfigParser()
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    before.read_string(text)
    after.read_string(project_urls.with_urls(text, REPOSITORY, TAG))
    urls = dict(line.split(" = ") for line in after["metadata"].pop("project_urls").strip().splitlines())
    assert urls.keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    assert {name: dict(part) for name, part in after.items()} == {name: dict(part) for name, part in before.items()}


def test_every_link_of_a_releases_page_is_whole_and_leads_to_a_file(project_urls: ModuleType) -> None:
    page = project_urls.with_whole_links((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, TAG)
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) > 20
    for link in links:
        assert link.startswith((f"{REPOSITORY}/blob/{TAG}/", f"{REPOSITORY}/raw/{TAG}/")), link
        assert (ROOT / link.split(f"/{TAG}/")[1].split("#")[0]).exists(), link
    assert f"{REPOSITORY}/raw/{TAG}/docs/sheet.png" in links


def test_the_citation_has_the_packages_version() -> None:
    version = re.search(
        r'__version__ = "([^"]+)"', (ROOT / "framedex" / "core" / "version.py").read_text(encoding="utf-8")
    )
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
