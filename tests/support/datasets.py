"""The command line, and small datasets that it writes, as a user would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from click import Command, Context
from click.testing import CliRunner, Result

from framedex import Index
from framedex.cli import main
from framedex.sharder.writing.writer import DatasetWriter

COMMANDS = tuple(main.list_commands(Context(main)))
IN_THIS_PROCESS = ("index", "shard", "verify")
PROCESSES_MATTER = {"--workers", "--engine", "--compact", "--remove", "--follow", "--timeout", "--memory"}


def attempt(*arguments: object) -> Result:
    """Run `framedex ARGUMENTS`, whatever its exit code will be.

    A command that would start processes gets `--workers 0`, which takes a fraction of the time, unless the arguments
    say where it runs.
    """
    words = [str(argument) for argument in arguments]
    if words and words[0] in IN_THIS_PROCESS and not PROCESSES_MATTER.intersection(words):
        words += ["--workers", "0"]
    return CliRunner().invoke(main, words)


def run(*arguments: object, code: int = 0) -> Result:
    """Run `framedex ARGUMENTS` as `attempt` does, and check its exit code."""
    result = attempt(*arguments)
    if result.exit_code != code and result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def command_of(name: str) -> Command:
    """Return a command of `framedex` with its options."""
    command = main.get_command(Context(main), name)
    assert command is not None
    return command


def write_clips(path: Path, clips: Iterable[dict[str, Any]]) -> Path:
    """Write explicit clips, one JSON line per clip."""
    path.write_text("".join(json.dumps(clip) + "\n" for clip in clips), encoding="utf-8")
    return path


def shard_clips(index: Path, out: Path, clips: Iterable[dict[str, Any]], *options: str, code: int = 0) -> Path:
    """Shard explicit clips of an index into a dataset; return its path.

    Args:
        options: further options of the command.
        code: the expected exit code.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    run("shard", index, "--clips", write_clips(out.with_suffix(".jsonl"), clips), "--out", out, *options, code=code)
    return out


def empty_dataset(index: Index, out: Path) -> Path:
    """Write a dataset without clips, which earlier versions allowed; return its path."""
    with DatasetWriter(out, job={}, user_schema=pa.schema([]), overwrite=False) as writer:
        writer.commit(index=index, resolved={}, facts={})
    return out


def content(folder: Path) -> dict[str, str]:
    """Return the MD5 of every file of an index or a dataset except locks, by relative path.

    The log has the MD5 "", because it has dates.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lock")]
    return {
        str(path.relative_to(folder)): "" if path.name == "log.jsonl" else hashlib.md5(path.read_bytes()).hexdigest()
        for path in files
    }
