"""The habits of language that `tests.support.language` counts become fewer, never more."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import language
from tests.support.language import HABITS, LOWERED, PARTS, Hit, committed, counts, current_sources, excess, hits

NAMES = [habit.name for habit in HABITS]
WHAT, THAT_OF, NONE, SAYS, NO, SUBJECTS = NAMES

SHOWN = [
    (WHAT, "What a policy wants of one medium."),
    (WHAT, "Return what the list says."),
    (WHAT, "Read the file. Yield what a full decode gives."),
    (WHAT, "what a killed run loses at most"),
    (WHAT, "Read a file. Args: medium: what is known of it so far."),
    (WHAT, "Counts of what a verification found."),
    (THAT_OF, "Return the labels of clips: those of all rows."),
    (THAT_OF, "audio: the audio of a clip. None: that of the view that leads."),
    (NONE, "Read clips. size: (height, width). None: as the dataset says."),
    (NONE, "of the largest number in a request"),
    (SAYS, "the tables say that the sample is a start point"),
    (SAYS, "`counts` says how many clips there are"),
    (SAYS, "Check facts that a file says of its frames."),
    (SAYS, "the codec that a decoder is told"),
    (SAYS, "The number of batches tells how far a worker has come."),
    (SAYS, "the meaning that only a demuxer can tell"),
    (NO, "{} is no number of seconds"),
    (NO, "Raise ValueError if it is none."),
    (NO, "the tar holds no video"),
    (NO, "a row of no medium"),
    (NO, "Skip clips that cannot be had."),
    (NO, "Null where nobody asked for audio."),
    (SUBJECTS, "Read a file. Args: uri: of the file. stream: number of the stream."),
    (SUBJECTS, "Scale pictures. Args: picture: The picture. height: Of the result."),
    (SUBJECTS, "Probe a file. Args: read: reads ranges of the file."),
    (SUBJECTS, "Of loose images: the file of each."),
]
NEAR_MISSES = [
    "What does a clip cost to read?",
    "What was expected: the same speed.",
    "What the index records",
    "Decide what to do with it.",
    "Return what is wrong with a file.",
    "what happens to a clip that the end cuts short",
    "Args: uneven: what to do if clips cannot be divided.",
    "Depth maps lose most of what they mean.",
    "Columns that share a name, and those that are nested, are left out.",
    "Frames equal those of the CPU.",
    "Return the parameter sets: those of the record, and those of packets.",
    "None: no limit.",
    "None: as they are stored.",
    "of course, this is slow",
    "The error says which column it is.",
    "`docs/format.md` says more.",
    "Two pictures cannot be told apart.",
    "Hashes tell equal pictures apart.",
    "There is no such file.",
    "The file is no longer there.",
    "This is no faster.",
    "Raise ValueError if there is none.",
    "Of these, three were read.",
    "Of 1920 frames, 0 were others.",
    "Return the names: a list of texts.",
]


@functools.cache
def all_hits() -> list[Hit]:
    """Return the hits of the working copy."""
    return hits(current_sources())


def found_in(path: str, source: str) -> list[tuple[str, int, str]]:
    """Return (habit, line, sentence) of each hit in a file."""
    return [(hit.habit, hit.line, hit.sentence) for hit in hits({path: source})]


def shown_by(text: str) -> list[str]:
    """Return the names of the habits that a docstring shows."""
    return [name for name, _, _ in found_in("loader/a.py", f'"""{text}"""\n')]


def test_habits_do_not_spread() -> None:
    assert list(committed()) == list(PARTS)
    assert len(current_sources()) > 250
    report = excess(all_hits(), committed(), {})
    if report:
        pytest.fail(excess(all_hits(), committed(), language.earlier_sources()), pytrace=False)


def test_gains_are_committed() -> None:
    lower = {part: number for part, number in counts(all_hits()).items() if number < committed()[part]}
    allowed = {part: committed()[part] for part in lower}
    assert not lower, f"the prose has fewer hits than are committed. Found: {lower}. Committed: {allowed}. {LOWERED}."


@pytest.mark.parametrize("name, text", SHOWN)
def test_a_habit_is_found(name: str, text: str) -> None:
    assert name in shown_by(text)


@pytest.mark.parametrize("text", NEAR_MISSES)
def test_plain_sentences_are_not_hits(text: str) -> None:
    assert shown_by(text) == []


def test_each_habit_has_an_example() -> None:
    assert {name for name, _ in SHOWN} == set(NAMES)


def test_code_in_backticks_is_not_prose() -> None:
    assert shown_by("Compare with `x is no number`.") == []


@pytest.mark.parametrize(
    "source, line",
    [
        ('"""Return what a list holds."""\n', 1),
        ('def f():\n    """Read.\n\n    Then return. Return\n    what a list holds.\n    """\n', 4),
        ("x = 1  # the list. Return what a list holds.\n", 1),
        ("x = 1\n# A list of texts. Return\n# what a list holds.\n", 2),
        ('raise ValueError(\n    "Return what "\n    "a list holds."\n)\n', 2),
        ('raise ValueError(f"Return what {a} holds: {b}")\n', 1),
    ],
)
def test_prose_of_modules_is_found_however_it_is_wrapped(source: str, line: int) -> None:
    [(name, found, sentence)] = found_in("loader/a.py", source)
    assert (name, found) == (WHAT, line)
    assert sentence.startswith("Return what")


def test_comments_on_lines_of_code_are_texts_of_their_own() -> None:
    source = "A = 1  # of the first frame\nB = 2  # of the last frame\n"
    assert [(name, line) for name, line, _ in found_in("loader/a.py", source)] == [(NONE, 1), (NONE, 2)]


def test_identifiers_are_not_prose() -> None:
    assert found_in("loader/a.py", "x = row.what_is_told or is_none  # a table\n") == []


def test_blocks_of_code_on_pages_are_skipped() -> None:
    text = "The clock is no view."
    page = f"# Title\n\n```text\n{text}\n```\n\n    {text}\n\n- one item\n- another one:\n  the clock is\n  no view.\n"
    assert found_in("docs/a.md", page) == [(NO, 11, "another one: the clock is no view.")]


def test_cells_of_tables_on_pages_are_texts_of_their_own() -> None:
    page = "| column | what it is |\n|---|---|\n| `path` | Of loose images: the file of each. |\n"
    assert found_in("README.md", page) == [(SUBJECTS, 3, "Of loose images: the file of each.")]


def test_only_stages_and_pages_are_counted() -> None:
    sources = dict.fromkeys(("tests/a.py", "docs/a.py", "configs/a.md", "indexer/a.md"), "# of the first frame\n")
    assert hits(sources) == []


def test_moved_sentences_do_not_change_the_counts_and_are_not_new() -> None:
    earlier = {"loader/a.py": "# of the first frame\n", "loader/b.py": "# of the last frame\n"}
    merged = {"loader/ab.py": "# of the last frame\n\n# of the first\n# frame\n"}
    assert counts(hits(merged)) == counts(hits(earlier))
    assert language.new_hits(hits(merged), hits(earlier)) == []


def test_a_sentence_that_stands_once_more_is_new() -> None:
    earlier = {"loader/a.py": "# of the first frame\n"}
    twice = hits({"loader/a.py": "# of the first frame\n\n# of the first frame\n"})
    assert [hit.line for hit in language.new_hits(twice, hits(earlier))] == [3]


def test_an_excess_is_reported_with_the_new_sentences_and_the_remedy() -> None:
    earlier = {"loader/a.py": "# of the first frame\n"}
    found = hits({"loader/a.py": "# of the first frame\n\n# of the last frame\n"})
    allowed = dict.fromkeys(PARTS, 0) | {"loader": 1}
    report = excess(found, allowed, earlier)
    assert report.startswith("loader has 2 hits, 1 are allowed.")
    assert "`None: …`, `# of …`. Instead, write a whole phrase" in report
    assert report.endswith("\n  loader/a.py:3: of the last frame")
    assert "first frame" not in report
    assert "loader/a.py: 2" in excess(found, allowed, {})
    assert excess(found, allowed | {"loader": 2}, earlier) == ""


def test_the_command_lowers_counts_and_refuses_to_raise_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "language.json"
    monkeypatch.setattr(language, "COUNTS", file)
    monkeypatch.setattr(language, "current_sources", lambda: {"loader/a.py": "# of the first frame\n"})
    monkeypatch.setattr(sys, "argv", ["language", "--write"])
    file.write_text(json.dumps(dict.fromkeys(PARTS, 2)), encoding="utf-8")
    language.main()
    assert json.loads(file.read_text(encoding="utf-8")) == dict.fromkeys(PARTS, 0) | {"loader": 1}
    file.write_text(json.dumps(dict.fromkeys(PARTS, 0)), encoding="utf-8")
    with pytest.raises(SystemExit, match="Counts may only fall"):
        language.main()
    monkeypatch.setattr(sys, "argv", ["language", "--sample", "1", "--seed", "7"])
    language.main()
    assert "loader/a.py:1: " in capsys.readouterr().out


def test_the_counts_of_an_earlier_commit_are_found_in_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    monkeypatch.setattr(language, "COUNTS", tmp_path / "language.json")
    assert language.earlier_sources() == {}
    (tmp_path / "loader").mkdir()
    module = tmp_path / "loader" / "a.py"
    for text in ("first", "second"):
        module.write_text(f"# {text}\n", encoding="utf-8")
        if text == "first":
            (tmp_path / "language.json").write_text("{}", encoding="utf-8")
            subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
        subprocess.run(["git", *who, "commit", "--quiet", "-m", text], cwd=tmp_path, check=True)
    assert language.earlier_sources() == {"loader/a.py": "# first\n"}
