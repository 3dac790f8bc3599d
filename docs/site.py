"""A hook of mkdocs that adds files outside of docs/ to the site, if pages link to them. README.md is the first page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": None, "CONTRIBUTING.md": None, "SECURITY.md": None}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/."""
    for name, place in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place or name, content=LINK.sub(_from_root, text)))
    for name in ("examples", "configs"):
        for path in sorted((ROOT / name).iterdir()):
            if path.suffix in (".py", ".yaml", ".json"):
                files.append(File.generated(config, f"{name}/{path.name}", abs_src_path=str(path)))
    for name in ("CODE_OF_CONDUCT.md", "LICENSE"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links to files outside of docs/ so that they lead into the site, where these files are at the top."""
    return markdown if "/" in page.file.src_uri else markdown.replace("](../", "](")


def _from_root(match: re.Match[str]) -> str:
    target = match[2]
    if target.startswith("docs/"):
        target = target.removeprefix("docs/")
    elif target == "README.md":
        target = "index.md"
    return match[1] + target + match[3]
