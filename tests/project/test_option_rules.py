"""Options without effect in a combination are usage errors: nothing runs, and the message says what is missing."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from framedex import Index
from framedex.options import OptionRule, RuledCommand
from tests.support.datasets import COMMANDS, command_of, run, shard_clips

INDEX = {
    ("--compact", "--workers", "2"): "--workers has no effect with --compact",
    ("--compact", "--dry-run", "--images", "single"): "--images and --dry-run have no effect with --compact",
    ("SOURCE", "--ray-address", "a:1"): "--ray-address needs --engine ray",
    ("SOURCE", "--task", "0/2", "--finish"): "--task has no effect with --finish: run --finish after",
    ("SOURCE", "--task", "0/2", "--dry-run"): "--task has no effect with --dry-run",
    ("SOURCE", "--finish", "--dry-run"): "--finish has no effect with --dry-run",
    ("SOURCE", "--images", "ignore", "--image-fps", "25"): "--image-fps has no effect with --images ignore",
    (
        "SOURCE",
        "--workers",
        "0",
        "--memory",
        "2",
    ): "--memory has no effect with --workers 0: only worker processes can",
    ("SOURCE", "--workers", "0", "--engine", "ray"): "--engine needs --workers 1 or more",
    ("SOURCE", "--verify", "--depth", "tables"): "--depth has no effect with --verify: --verify reads every packet",
}
SHARD = {
    ("--short-side", "64"): "--short-side needs --pack images",
    ("--pack", "clips", "--size", "64x64"): "--size needs --pack images",
    ("--pack", "needed", "--box", "64", "--quality", "90"): "--box needs --pack images or --encode",
    ("--pack", "clips", "--quality", "90", "--image-format", "png"): "--image-format and --quality need --pack images",
    ("--encode", "h264"): "--encode needs --pack clips",
    ("--pack", "needed", "--encode", "av1"): "--encode needs --pack clips",
    ("--pack", "clips", "--crf", "20"): "--crf needs --encode",
    ("--image-format", "jpeg"): "--image-format needs --pack images",
    (
        "--pack",
        "images",
        "--image-format",
        "png",
        "--quality",
        "80",
    ): "--quality has no effect with --image-format png",
    ("--shard-size", "1GB"): "--shard-size needs --pack",
    ("--pack", "clips", "--ray-address", "a:1"): "--ray-address needs --engine ray",
    ("--scratch", "S"): "--scratch needs --out in object storage",
    ("--audio-rate", "16000"): "--audio-rate needs --audio",
    ("--audio-seconds", "1", "--audio-channels", "1"): "--audio-channels and --audio-seconds need --audio",
    ("--audio-format", "wav", "--pack", "clips"): "--audio-format needs --audio",
    ("--audio-format", "wav", "--audio"): "--audio-format needs --pack",
}
OF_DATASETS = {
    ("verify", "--seed", "3"): "--seed needs --sample",
    ("verify", "--workers", "0", "--timeout", "5"): "--timeout has no effect with --workers 0",
    ("inspect", "--clip", "C", "--out", "sheet.html", "--seed", "3"): "--seed needs --sample",
    ("inspect", "--serve", "--out", "sheet.html"): "--out has no effect with --serve",
    ("inspect", "--serve", "--sample", "3", "--columns", "2"): "--sample and --columns have no effect with --serve",
    ("inspect", "--port", "8000", "--no-open"): "--port and --no-open need --serve",
    ("inspect", "--sample", "3"): "give --out for a sheet, or --serve",
    ("bench", "--decode", "cpu"): "--decode needs --device gpu",
    ("bench", "--gpu", "0"): "--gpu needs --device gpu",
    ("bench", "--limit", "5"): "--limit needs --compare or --peer",
    ("bench", "--compare", "--peer", "torchcodec"): "--compare has no effect with --peer: that names what to run",
    ("audit", "--check", "list", "--root", "x"): "--root has no effect with --check list",
    ("audit", "--check", "list", "--overwrite", "--json"): "--json and --overwrite have no effect with --check list",
    ("audit", "--check", "list", "--check", "empty"): "cannot be combined",
    ("audit", "--check", "empty", "--files"): "--files has no effect with a --check that does not look at files",
    ("audit", "--sql", "SELECT 1", "--check", "empty"): "--check has no effect with --sql, --ask and --duckdb",
    ("audit", "--duckdb", "views.duckdb", "--fail-on", "note"): "--fail-on has no effect with --sql",
    ("audit", "--sql", "SELECT 1", "--root", "x"): "--root needs --files or --report with pictures",
    ("audit", "--root", "x"): "--root needs --files or --report with pictures",
    ("audit", "--report", "r.html", "--no-pictures", "--root", "x"): "--root needs --files or --report with pictures",
    ("audit", "--format", "csv"): "--format needs --sql or --ask",
    ("audit", "--ask", "list", "--out", "o.csv"): "--out has no effect with --ask list",
    ("audit", "--no-pictures"): "--no-pictures needs --report",
    ("audit", "--pictures"): "--pictures needs --report",
    ("audit", "--overwrite"): "--overwrite needs --out, --duckdb or --report",
}


@pytest.mark.parametrize(("options", "said"), INDEX.items(), ids=lambda value: " ".join(value) if value else "")
def test_index_refuses_options_without_effect(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    words = [str(tmp_path) if word == "SOURCE" else word for word in options]
    assert said in run("index", *words, "--out", tmp_path / "OUT", code=2).output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "said"), SHARD.items(), ids=lambda value: " ".join(value) if value else "")
def test_shard_refuses_options_without_effect(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("policy: fps\nfps: 1\n")
    words = ("--policy", tmp_path / "policy.yaml", "--out", tmp_path / "OUT", *options)
    assert said in run("shard", tmp_path, *words, code=2).output
    assert [path.name for path in tmp_path.iterdir()] == ["policy.yaml"]


def test_a_choice_of_frames_is_for_explicit_clips(tmp_path: Path) -> None:
    words = ("--policy", "p.yaml", "--out", tmp_path / "OUT", "--choose", "next")
    assert "--choose needs --clips" in run("shard", tmp_path, *words, code=2).output


@pytest.mark.parametrize(("words", "said"), OF_DATASETS.items(), ids=lambda value: " ".join(value) if value else "")
def test_other_commands_refuse_options_without_effect(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    command, *options = words
    output = run(command, tmp_path, *options, code=2).output
    assert said in output
    assert list(tmp_path.iterdir()) == []


def test_options_at_their_defaults_are_refused_only_if_they_are_given(index: Index, tmp_path: Path) -> None:
    clips = [{"uri": "h264_vfr.mp4", "frames": [0]}]
    shard_clips(index.path, tmp_path / "D", clips)
    shard_clips(index.path, tmp_path / "E", clips, "--quality", "90", code=2)
    assert not (tmp_path / "E").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_rules_for_its_options(command: str) -> None:
    found = command_of(command)
    options = [parameter for parameter in found.params if isinstance(parameter, click.Option)]
    assert len(options) == 1 or (isinstance(found, RuledCommand) and found.rules)


def test_all_options_without_effect_are_named_at_once() -> None:
    rules = (
        OptionRule(options=["b"], when=lambda values: values["a"], needs="--a"),
        OptionRule(options=["c", "d"], when=lambda values: not values["a"], beside="--a", why="a is alone"),
    )

    @click.command(cls=RuledCommand, rules=rules)
    @click.option("--a", is_flag=True)
    @click.option("--b", type=int, default=1)
    @click.option("--c/--no-c", default=True)
    @click.option("--d")
    def command(**values: object) -> None:
        click.echo(f"ran {values['b']}")

    def said(*words: str) -> str:
        return CliRunner().invoke(command, words).output.strip().splitlines()[-1]

    assert said() == said("--c", "--d", "x") == said("--a") == "ran 1"
    assert said("--b", "1") == "Error: --b needs --a"
    assert said("--a", "--no-c", "--d", "x") == "Error: --no-c and --d have no effect with --a: a is alone"


def test_a_rule_about_an_option_that_is_not_there_is_a_bug() -> None:
    with pytest.raises(ValueError, match="unknown parameters: \\['no'\\]"):
        RuledCommand("made", rules=[OptionRule(options=["no"], when=lambda values: True, needs="--a")])
