"""Writes the project's address into its metadata for a release: project URLs into setup.cfg, full links into README.md.

A checkout does not know its address, and PyPI's page of a release does not resolve links relative to the repository.

usage: python .ci/project_urls.py https://github.com/OWNER/NAME v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
RELATIVE = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def with_urls(setup: str, repository: str, tag: str) -> str:
    """Return the text of setup.cfg with the project's URLs."""
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = "".join(f"    {name} = {url}\n" for name, url in urls.items())
    return re.sub(r"(?m)^(license = )", f"project_urls =\n{lines}\\1", setup, count=1)


def with_whole_links(page: str, repository: str, tag: str) -> str:
    """Return a page with full links to files and pictures in the repository at a tag."""
    return RELATIVE.sub(
        lambda link: f"]({repository}/{'raw' if link[1].endswith('.png') else 'blob'}/{tag}/{link[1]})", page
    )


def main() -> None:
    repository, tag = sys.argv[1:]
    for name, rewritten in (("setup.cfg", with_urls), ("README.md", with_whole_links)):
        path = PROJECT / name
        path.write_text(rewritten(path.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")


if __name__ == "__main__":
    main()
