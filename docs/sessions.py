"""Runs the shell and Python sessions on documentation pages, and writes their output into the pages.

The test suite checks the output.

The blocks of a page run in order in one folder. `console`: a command after each `$`, then its output. `python`: after
each statement, its output as comments (`# → …`). A block of `python` or `yaml` whose first line names a file
(`# a.py`) is written to it instead.

usage: python -m docs.sessions          (or `make docs`) writes the pages of PAGES again
       python -m docs.sessions --gpu    writes those of GPU_PAGES again, on a machine with a GPU
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import hub

ROOT = Path(__file__).resolve().parents[1]
ROBOT = ROOT / "tests/data/lerobot/v3"  # a LeRobot dataset
PAGES = ("README.md", "docs/python.md", "docs/recipes.md", "docs/frameworks.md")
GPU_PAGES = ("docs/recipes_gpu.md",)
BLOCK = re.compile(r"```(console|python|yaml)\n(.*?)```", re.DOTALL)
PRINTED = "# → "
# Runs statements one by one; prints a list of [last line, what was printed] as JSON.
STATEMENTS = """
import ast, contextlib, io, json, sys
source, names, found = sys.stdin.read(), {"__name__": "__main__"}, []
for node in ast.parse(source).body:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module([node], []), "block", "exec"), names)
    found.append([node.end_lineno, printed.getvalue()])
print(json.dumps(found))
"""


def with_output(page: str, folder: Path) -> str:
    """Return a page with the output of its sessions, which run in a folder. Raises RuntimeError if a command fails."""
    (folder / "examples").symlink_to(ROOT / "examples")
    if "hf://" not in page:
        return _with_output(page, folder, {})
    with hub.running() as running:  # a server that answers as the Hugging Face Hub does
        files = {f"data/{path.name}": path for path in (folder / "videos").iterdir()}
        files |= {f"robot/{path.relative_to(ROBOT)}": path for path in ROBOT.rglob("*") if path.is_file()}
        running.commit({name: path.read_bytes() for name, path in files.items()})
        return _with_output(page, folder, {"HF_ENDPOINT": running.endpoint, "HF_HUB_OFFLINE": "0"})


def _with_output(page: str, folder: Path, more: dict[str, str]) -> str:
    """Return a page with the output of its sessions. `more`: further environment variables."""
    environment = (
        os.environ
        | more
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
    )

    def ran(match: re.Match[str]) -> str:
        kind, content = match[1], match[2]
        if kind == "console":
            content = "".join(
                f"$ {command}\n{_run(command, folder, environment)}"
                for command in re.findall(r"^\$ (.*)$", content, re.MULTILINE)
            )
        elif (named := re.match(r"# (\S+\.(?:py|yaml))\n", content)) is not None:
            (folder / named[1]).write_text(content)
        elif kind == "python":
            content = _python(content, folder, environment)
        return f"```{kind}\n{content}```"

    return BLOCK.sub(ran, page)


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"$ {command}\n{done.stdout}{done.stderr}")
    return done.stdout


def _python(content: str, folder: Path, environment: dict[str, str]) -> str:
    lines = [line for line in content.splitlines() if not line.startswith(PRINTED)]
    command = [sys.executable, "-c", STATEMENTS]
    source = "\n".join(lines)
    done = subprocess.run(
        command, cwd=folder, env=environment, input=source, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{source}\n{done.stderr}")
    printed = dict(json.loads(done.stdout))
    told: list[str] = []
    for number, line in enumerate(lines, 1):
        told += [line, *(PRINTED + text for text in printed.get(number, "").splitlines())]
    return "".join(f"{line}\n" for line in told)


def draw_videos(folder: Path) -> None:
    """Draw the videos of examples/videos.py."""
    subprocess.run([sys.executable, ROOT / "examples" / "videos.py", folder / "videos"], check=True)


def main() -> None:
    for name in GPU_PAGES if "--gpu" in sys.argv[1:] else PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            if name != "README.md":  # README.md draws them itself
                draw_videos(Path(folder))
            path.write_text(with_output(page, Path(folder)), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
