"""Habits of language that the project's prose drops step by step.

Prose is the docstrings, comments and string literals of the stages, and the Markdown pages. Each habit is a regular
expression over paragraphs with single spaces, so how a sentence is wrapped or in which file it stands makes no
difference. `tests/project/language.json` has the number of hits that each part of the project may have. It may only
fall; delete the file before `--write` if a pattern changes.

    python -m tests.support.language                         # counts by part and habit
    python -m tests.support.language --write                 # writes counts that have fallen
    python -m tests.support.language --sample 50 --seed 7    # draws hits for a review of the patterns
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import re
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from tests.support.syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("framedex", "indexer", "sharder", "loader", "auditor")
BENCH = "benchmarks/bench"  # counts to the loader, which it measures
PARTS = (*STAGES, "docs")
COUNTS = ROOT / "tests" / "project" / "language.json"
LOWERED = "Run `make habits`, which writes the lower counts, and commit tests/project/language.json"

ENTRY = r"(?<=[.:?)] )[a-z_]\w*: "  # the name of an argument or attribute in a docstring
MARKER = re.compile(r"^(?:[-*+>]|\d+\.|#+) ")  # of a list item, quotation or heading
FENCE = re.compile(r"```|~~~")
CODE = re.compile(r"`[^`]*`")
SENTENCE_END = re.compile(r"(?<=[.;!?]) (?!None: )(?=[A-Z`\"{]|[a-z_]\w*: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A habit of language.

    Attributes:
        name: the name in reports.
        instead: the remedy in reports.
        pattern: the expression that matches each hit. The characters of words inside backticks are all `x`.
    """

    name: str
    instead: str
    pattern: re.Pattern[str]


def habit(name: str, instead: str, *patterns: str) -> Habit:
    """Return a habit that any of some patterns shows."""
    return Habit(name=name, instead=instead, pattern=re.compile("|".join(patterns)))


HABITS = (
    habit(
        "`what` for a thing",
        'name the thing: not "what decoders are told" but "the codec parameters"',
        r"^What (?!was\b|follows\b)(?=[^?]*\.)",
        r"(?:^|(?<=[.;] ))(?:Return|Yield|Take|Release|Write)s? what (?!to\b|is wrong)",
        r"^what (?!happens\b)(?=(?:\S+ ){4})(?=[^?:]*$)",
        ENTRY + r"what (?!to\b|is wrong)",
        r"(?<!ost )(?<!ome )(?<!ittle )(?<!uch )\bof what (?!to\b|is wrong)",
    ),
    habit(
        "`that of` after a colon",
        'repeat the noun, or make one phrase: not "the labels: those of a dataset" but "the labels of a dataset"',
        r": (?:that|those) (?:of|that)\b(?![^.;]* (?:and|or) (?:that|those)\b)",
    ),
    habit(
        "`None: …`, `# of …`",
        'write a whole phrase: "If None, …" or "Defaults to …"; "maximum size of a request", and why this number',
        r"\bNone: (?:it|they|there|these|as(?! (?:it is |they are )?stored\b)|those|that|nothing|none)\b",
        r"^of (?!course\b|which\b)(?=\w+ \w)",
    ),
    habit(
        "says, tells, told",
        'only people and messages say something: "the index records", "the column holds", "is passed to the decoder"',
        r"\b(?:index|indexes|lists?|listings?|policy|policies|containers?|headers?|rows?|columns?|bitstream"
        r"|dataset|argument|option|stages|tables?|tags?|keys?|stream|framing|structure) (?:say|says|said)\b"
        r"(?! (?:otherwise\b|[A-Z]))",
        r"`[^`/]*` (?:say|says) (?:which|how many|where|when)\b",
        r"\b(?:says?|said) of\b",
        r"\b(?:is|are|be|was|were) told\b(?! (?:apart|to|not to)\b)",
        r"\btells\b(?! \w+ to\b)(?![^.;]* (?:apart|from)\b)",
        r"\b(?:can|cannot|could|would) tell\b(?![^.;]* (?:apart|from)\b)",
    ),
    habit(
        "no X",
        'negate the verb: not "is no number", "holds no video" but "is not a number", "does not contain a video"',
        r"(?<!here )\b(?:is|are|was|were) no "
        r"(?!(?:longer|more|less|need|way|reason|different|better|worse|faster|slower|larger|smaller|higher|lower)\b)",
        r"(?<!here )\b(?:is|are) none\b(?! of (?:these|them|those)\b)",
        r"\b(?:holds?|names?) no (?!longer|more)",
        r"\bof no \w|\bof which no\b",
        r"\bcannot be had\b",
        r"\b[Nn]obody (?:asked|can tell|expects|knows|looked|named|tried|waits)\b",
    ),
    habit(
        "missing subjects",
        'begin with a noun or a verb in the imperative: not "uri: of the file", "Of images: …" but "uri: URI of the '
        'file", "For images, …"',
        ENTRY + r"[oO]f \w",
        ENTRY + r"(?:reads|decodes) \w",
        r"(?:^|(?<=[.;] ))Of (?!these|those|the|any|every|each|all|equal|many|pictures that|\d)\w(?=[^.;]*[,:] \S)",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph of prose.

    Attributes:
        line: the number of its first line in the file.
        raw: the paragraph with its line breaks.
        text: the paragraph with single spaces.
    """

    line: int
    raw: str
    text: str

    def line_at(self, place: int) -> int:
        """Return the line that contains the character of `text` at `place`."""
        word = self.text.count(" ", 0, place)
        begin = next(islice(re.finditer(r"\S+", self.raw), word, None)).start()
        return self.line + self.raw.count("\n", 0, begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a habit shows."""

    part: str
    path: str
    line: int
    habit: str
    sentence: str


def paragraphs(line: int, text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of a text, which blank lines separate."""
    for match in re.finditer(r"\S.*?(?=\n\s*\n|\s*$)", text, re.DOTALL):
        first = line + text.count("\n", 0, match.start())
        yield Paragraph(line=first, raw=match[0], text=" ".join(match[0].split()))


def strings(source: str) -> Iterator[Paragraph]:
    """Yield the string literals of a module, docstrings included, with `{}` for the values in f-strings."""
    tree = parsed(source)
    inside: set[int] = set()  # the constants that are parts of f-strings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(value) for value in node.values)
            texts = (str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
            yield from paragraphs(node.lineno, "".join(texts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield from paragraphs(node.lineno, node.value)


def comments(source: str) -> Iterator[Paragraph]:
    """Yield the comments of a module. Comments on consecutive lines of their own are one text."""
    block: list[str] = []
    begin = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#")
        alone = not token.line[: token.start[1]].strip()
        if alone and block and token.start == (begin[0] + len(block), begin[1]):
            block.append(text)
            continue
        yield from paragraphs(begin[0], "\n".join(block))
        block, begin = [text], token.start if alone else (token.start[0], -1)
    yield from paragraphs(begin[0], "\n".join(block))


def page_paragraphs(source: str) -> Iterator[Paragraph]:
    """Yield the paragraphs, list items, headings and table cells of a Markdown page, without its blocks of code."""
    begin, block = 0, ""
    fenced = False
    for number, line in enumerate([*source.split("\n"), ""], 1):
        text = line.strip()
        fence = FENCE.match(text)
        code = fenced or fence or (not block and line.startswith("    "))
        fenced ^= fence is not None
        if code or not text or text.startswith("|") or MARKER.match(text):
            yield from paragraphs(begin, block)
            block = ""
        if text.startswith("|") and not code:
            for cell in text.split("|"):
                yield from paragraphs(number, cell)
        elif text and not code:
            if not block:
                begin, text = number, MARKER.sub("", text)
            block += f"{text}\n"


def part_of(path: str) -> str | None:
    """Return the part of the project to which the prose of a file counts, None for other files."""
    top = "loader" if path.startswith(BENCH) else path.split("/")[0]
    if path.endswith(".py") and top in STAGES:
        return top
    return "docs" if path.endswith(".md") and ("/" not in path or top == "docs") else None


def hits(sources: dict[str, str]) -> list[Hit]:
    """Return all hits in files, by their path in the repository."""
    found = []
    for path, source in sorted(sources.items()):
        part = part_of(path)
        if part is None:
            continue
        texts = page_paragraphs(source) if part == "docs" else (*strings(source), *comments(source))
        for paragraph in texts:
            prose = CODE.sub(lambda code: re.sub(r"\w", "x", code[0]), paragraph.text)
            for one in HABITS:
                for match in one.pattern.finditer(prose):
                    line = paragraph.line_at(match.start())
                    sentence = sentence_at(paragraph.text, match.start())
                    found.append(Hit(part=part, path=path, line=line, habit=one.name, sentence=sentence))
    return found


def sentence_at(text: str, place: int) -> str:
    """Return the sentence of a text that contains the character at `place`."""
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text) + 1]
    return next(text[begin : end - 1] for begin, end in pairwise(ends) if place < end)


def counts(found: Iterable[Hit]) -> dict[str, int]:
    """Return the number of hits of each part of the project."""
    number = Counter(hit.part for hit in found)
    return {part: number[part] for part in PARTS}


def committed() -> dict[str, int]:
    """Return the number of hits that each part may have."""
    return dict(json.loads(COUNTS.read_text(encoding="utf-8")))


def current_sources() -> dict[str, str]:
    """Return the files of the working copy that contain prose."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for stage in (*STAGES, BENCH):
        files += (ROOT / stage).rglob("*.py")  # rglob does not follow the links in framedex/
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def earlier_sources() -> dict[str, str]:
    """Return the files of the commit that last changed the committed counts; nothing without a git repository."""
    git = ("git", "-C", str(ROOT))
    try:
        log = (*git, "log", "-1", "--format=%H", "--", str(COUNTS))
        commit = subprocess.check_output(log, text=True, stderr=subprocess.DEVNULL).strip()
        packed = subprocess.check_output((*git, "archive", commit), stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return {}
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and part_of(member.name) else None
            if file is not None:
                sources[member.name] = file.read().decode("utf-8")
    return sources


def new_hits(now: Iterable[Hit], before: Iterable[Hit]) -> list[Hit]:
    """Return the hits that are not among earlier ones. Moving a sentence to another file does not make it new."""
    left = Counter((hit.part, hit.habit, hit.sentence) for hit in before)
    new = []
    for hit in now:
        key = (hit.part, hit.habit, hit.sentence)
        if not left[key]:
            new.append(hit)
        left[key] -= left[key] > 0
    return new


def listed(found: Iterable[Hit]) -> list[str]:
    """Return lines that list hits by habit, each habit with its remedy."""
    by_habit: dict[str, list[str]] = {}
    for hit in found:
        by_habit.setdefault(hit.habit, []).append(f"  {hit.path}:{hit.line}: {hit.sentence}")
    shown = [one for one in HABITS if one.name in by_habit]
    return [line for one in shown for line in (f"{one.name}. Instead, {one.instead}:", *by_habit[one.name])]


def excess(found: list[Hit], allowed: dict[str, int], earlier: dict[str, str]) -> str:
    """Return a report on the parts with more hits than are allowed, empty if there are no such parts.

    Args:
        found: all hits.
        allowed: the committed counts.
        earlier: the files as they were when the counts were committed. The report then shows the new hits. If there
            are no earlier files, or no new hits, it shows the number of hits of each file.
    """
    higher = {part: number for part, number in counts(found).items() if number > allowed[part]}
    if not higher:
        return ""
    numbers = [f"{part} has {number} hits, {allowed[part]} are allowed." for part, number in higher.items()]
    concerned = [hit for hit in found if hit.part in higher]
    new = new_hits(concerned, hits(earlier)) if earlier else []
    if new:
        title = "Rewrite these sentences, which are new since the counts were committed."
        return "\n".join([*numbers, title, *listed(new)])
    files = [f"{path}: {number}" for path, number in Counter(hit.path for hit in concerned).most_common()]
    return "\n".join([*numbers, "Rewrite sentences of the files that you changed. Hits of each file:", *files])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Count the habits of language that the project's prose drops.")
    parser.add_argument("--write", action="store_true", help="write counts that have fallen")
    parser.add_argument("--sample", type=int, metavar="N", help="print N hits that are drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    options = parser.parse_args()
    found = hits(current_sources())
    if options.sample:
        print(*listed(random.Random(options.seed).sample(found, options.sample)), sep="\n")
    elif options.write:
        now = counts(found)
        if problem := excess(found, committed() if COUNTS.exists() else now, earlier_sources()):
            raise SystemExit(f"Counts may only fall.\n{problem}")
        COUNTS.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    else:
        for (part, name), number in sorted(Counter((hit.part, hit.habit) for hit in found).items()):
            print(f"{part:10} {number:5} {name}")


if __name__ == "__main__":
    main()
