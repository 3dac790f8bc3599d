"""An option with one meaning in several commands is declared once and has the same help in all of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import click
import pytest

from framedex import options
from tests.support.counted import some
from tests.support.datasets import COMMANDS, command_of
from tests.support.syntax import tree_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("framedex", "indexer", "sharder", "loader", "auditor", "benchmarks/bench")
# Options that have the same name but different meanings: the number of declarations, and each meaning.
OTHER_MEANINGS = {
    "--out": (3, "the folder of an index or a dataset; a sheet; an answer"),
    "--root": (2, "what uris are recorded relative to; where the sources lie now"),
    "--memory": (2, "of a process that probes; of a query"),
    "--policy": (2, "what to plan by; what to compare an index with"),
    "--clips": (2, "a file of explicit clips; a number of clips"),
    "--size": (3, "of stored images; of a sheet's pictures; of what a loader returns"),
    "--decode": (2, "what verify checks; what a loader decodes with"),
}


def declared() -> list[str]:
    """Return the names of all declared options, one entry per declaration."""
    found = []
    for path in some(path for top in FOLDERS for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.append(str(first.value))
    return found


def options_of(name: str) -> dict[str, click.Option]:
    return {option.opts[0]: option for option in command_of(name).params if isinstance(option, click.Option)}


def test_an_option_is_declared_once_unless_it_means_something_else() -> None:
    counts = Counter(declared())
    assert len(counts) > 40
    several = {name: count for name, count in counts.items() if count > 1}
    assert several == {name: count for name, (count, _) in OTHER_MEANINGS.items()}


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("--json", ["index", "shard", "bench"]),
        ("--root", ["verify", "inspect", "bench"]),
        ("--allow-remote", ["shard", "verify", "inspect", "bench"]),
        ("--seed", ["verify", "inspect"]),
        ("--timeout", ["index", "verify"]),
        ("--engine", ["index", "shard"]),
        ("--ray-address", ["index", "shard"]),
    ],
)
def test_the_same_option_has_the_same_help(name: str, commands: list[str]) -> None:
    assert len({options_of(command)[name].help for command in commands}) == 1


def test_help_of_every_option_is_a_sentence() -> None:
    helps = {(name, option): found.help or "" for name in COMMANDS for option, found in options_of(name).items()}
    assert len(helps) > 70
    assert {place: text for place, text in helps.items() if not re.fullmatch(r"[A-Z].*[.\]]", text)} == {}


def test_options_stand_in_the_help_in_the_order_given() -> None:
    @click.command()
    @options.together(click.option("--first"), options.sample_options("Show so many."), click.option("--last"))
    def command(**values: object) -> None: ...

    assert [parameter.name for parameter in command.params] == ["first", "sample", "seed", "last"]


def test_help_names_the_options_that_are_needed() -> None:
    @click.command()
    @options.together(options.access_options(beside="--files"), options.seed_option("the draw"))
    def command(**values: object) -> None: ...

    root, allow_remote, seed = command.params
    assert isinstance(root, click.Option)
    assert isinstance(allow_remote, click.Option)
    assert (allow_remote.help or "").startswith("With --files: also read sources")
    assert isinstance(seed, click.Option)
    assert root.help == "With --files: new location of the sources, if the sources were moved."
    assert seed.help == "Seed of the draw."


@pytest.mark.parametrize(("text", "size"), [("224x320", (224, 320)), (" 1X99999 ", (1, 99999))])
def test_a_frame_size_is_height_and_width(text: str, size: tuple[int, int]) -> None:
    assert options.FRAME_SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["224", "0x5", "5x0", "-1x5", "224x320x3", "100000x1", "x", ""])
def test_what_is_no_frame_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a height and width; write for example 224x320"):
        options.FRAME_SIZE.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "count"), [("512MB", 512_000_000), ("1.5GiB", 3 << 29), ("100000", 100_000), ("1k", 1000), ("2 kib", 2048)]
)
def test_a_number_of_bytes_may_have_a_unit(text: str, count: int) -> None:
    assert options.BYTE_COUNT.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["0", "0.1", "-5", "5XB", "MB", ""])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        options.BYTE_COUNT.convert(text, None, None)
