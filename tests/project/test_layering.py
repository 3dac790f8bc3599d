"""Data flows one way: rooms import as the table below says, and heavy libraries are loaded where they are needed alone.

A room is a folder of modules. A module that lies beside folders, such as `indexer/schema.py`, is a room of its own.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("indexer", "sharder", "loader", "audit")
MOST_MODULES = 15  # in a folder

# Which rooms each room imports, from the floor to the top. A permission that nobody uses is an error, too.
IMPORTS = {
    "errors": "",
    "indexer.bitstream.audio": "",
    "indexer.bitstream.base": "",
    "indexer.mp4": "",
    "core": "errors",
    "html": "errors",
    "indexer.bitstream.av1_vpx": "indexer.bitstream.base",
    "indexer.bitstream.h26x": "indexer.bitstream.base",
    "indexer.bitstream.intra": "indexer.bitstream.base",
    "indexer.bitstream.mpeg": "indexer.bitstream.base",
    "indexer.timeline": "indexer.bitstream.base",
    "loader.arguments": "errors",
    "loader.order": "errors",
    "sharder.configuration": "errors",
    "storage": "errors",
    "execution": "core errors",
    "files": "core errors storage",
    "indexer.bitstream.registry": (
        "indexer.bitstream.av1_vpx indexer.bitstream.base indexer.bitstream.h26x indexer.bitstream.intra "
        "indexer.bitstream.mpeg"
    ),
    "indexer.schema": "core",
    "indexer.media_rows": "errors indexer.schema",
    "indexer.sources": "core errors files indexer.timeline storage",
    "options": "errors execution storage",
    "sharder.schema": "core indexer.schema",
    "indexer.containers": "core errors files indexer.media_rows storage",
    "indexer.parts": "core errors files indexer.media_rows indexer.schema indexer.sources indexer.timeline storage",
    "sharder.policies": "errors sharder.configuration sharder.schema",
    "indexer.audio": "core indexer.bitstream.audio indexer.containers indexer.mp4 indexer.timeline",
    "indexer.images": (
        "errors files indexer.containers indexer.media_rows indexer.schema indexer.sources indexer.timeline"
    ),
    "sharder.selection": (
        "core errors files indexer.parts indexer.schema indexer.sources sharder.configuration sharder.policies"
    ),
    "indexer.probing": (
        "core errors files indexer.audio indexer.bitstream.base indexer.bitstream.h26x "
        "indexer.bitstream.intra indexer.bitstream.registry indexer.containers indexer.images "
        "indexer.media_rows indexer.mp4 indexer.schema indexer.timeline storage"
    ),
    "sharder.clips": "core errors indexer.audio indexer.parts indexer.schema indexer.timeline sharder.schema storage",
    "indexer.runs": (
        "core errors execution files indexer.containers indexer.images indexer.media_rows indexer.parts "
        "indexer.probing indexer.schema indexer.sources storage"
    ),
    "sharder.reading": "core errors files indexer.schema sharder.clips storage",
    "indexer.cli": (
        "core errors execution indexer.parts indexer.probing indexer.runs indexer.schema indexer.sources "
        "options storage"
    ),
    "sharder.decoding": (
        "core errors indexer.audio indexer.containers indexer.images indexer.parts indexer.schema "
        "indexer.timeline sharder.clips sharder.reading sharder.schema"
    ),
    "sharder.planning": (
        "core errors files indexer.containers indexer.parts indexer.probing indexer.timeline sharder.clips "
        "sharder.configuration sharder.decoding sharder.policies sharder.reading sharder.schema "
        "sharder.selection storage"
    ),
    "audit.tables": (
        "errors files indexer.parts indexer.schema indexer.timeline sharder.clips sharder.planning "
        "sharder.policies sharder.schema storage"
    ),
    "sharder.packing": (
        "core errors execution files indexer.bitstream.h26x indexer.containers indexer.images indexer.parts "
        "indexer.schema indexer.timeline sharder.clips sharder.decoding sharder.planning sharder.reading "
        "sharder.schema storage"
    ),
    "audit.findings": "audit.tables core errors files",
    "loader.dataset": "core errors files indexer.parts sharder.clips sharder.packing sharder.schema storage",
    "loader.routing": (
        "errors indexer.bitstream.h26x indexer.containers indexer.schema loader.arguments sharder.clips "
        "sharder.packing sharder.reading"
    ),
    "sharder.cli_options": "options sharder.clips sharder.decoding sharder.packing",
    "sharder.writing": (
        "errors files indexer.parts sharder.clips sharder.packing sharder.reading sharder.schema "
        "sharder.selection storage"
    ),
    "loader.batches": (
        "core errors indexer.schema indexer.timeline loader.routing sharder.clips sharder.decoding "
        "sharder.reading sharder.schema"
    ),
    "sharder.build": (
        "errors execution indexer.parts indexer.schema sharder.clips sharder.configuration sharder.packing "
        "sharder.planning sharder.policies sharder.schema sharder.selection sharder.writing storage"
    ),
    "loader.dali": "errors loader.batches loader.routing sharder.decoding sharder.schema",
    "sharder.cli": (
        "core errors execution indexer.parts options sharder.build sharder.cli_options sharder.clips "
        "sharder.packing sharder.policies sharder.selection sharder.writing storage"
    ),
    "loader.clip_dataset": (
        "errors loader.batches loader.dali loader.dataset loader.order loader.routing sharder.clips "
        "sharder.decoding sharder.planning sharder.policies sharder.reading storage"
    ),
    "loader.clip_loader": (
        "errors loader.arguments loader.batches loader.clip_dataset loader.dali loader.order loader.routing "
        "sharder.decoding"
    ),
    "loader.contact_sheets": (
        "core errors files loader.clip_dataset loader.order options sharder.clips sharder.decoding "
        "sharder.schema storage"
    ),
    "loader.verification": (
        "errors execution indexer.containers indexer.schema indexer.sources loader.batches "
        "loader.clip_dataset loader.dali loader.dataset loader.order loader.routing sharder.clips "
        "sharder.decoding sharder.packing sharder.reading sharder.schema storage"
    ),
    "audit.report": (
        "audit.findings audit.tables core errors execution files html indexer.parts indexer.schema "
        "loader.contact_sheets sharder.clips sharder.decoding sharder.planning sharder.reading storage"
    ),
    "loader.bench": (
        "core errors indexer.schema loader.arguments loader.clip_dataset loader.clip_loader "
        "loader.contact_sheets loader.order options sharder.clips sharder.decoding sharder.schema storage"
    ),
    "loader.cli": "core errors loader.verification options storage",
    "audit.run": "audit.findings audit.report audit.tables errors storage",
    "audit.cli": "audit.findings audit.run audit.tables core errors options storage",
    # The commands, each imported by its name when it is called, and what users import.
    "cli": "core errors",
    "framedex": "core indexer.parts loader.clip_dataset loader.clip_loader loader.dali loader.order storage",
}
# The rooms in which a library is used, and nowhere else.
LIBRARIES = {
    "av": (
        "core indexer.audio indexer.containers indexer.probing sharder.decoding sharder.packing sharder.planning "
        "loader.routing loader.verification"
    ),
    "PIL": "indexer.images sharder.packing loader.contact_sheets audit.report",
    "nvidia": "loader.dali loader.bench",
    "torch": "loader.dali loader.order loader.batches loader.bench",
    "pynvml": "loader.bench",
    "cv2": "loader.bench",
    "decord": "loader.bench",
    "torchcodec": "loader.bench",
    "PyNvVideoCodec": "loader.bench",
    "pebble": "execution",
    "ray": "execution",
    "obstore": "storage",
    "duckdb": "audit.tables",
    "fsspec": "audit.tables",
    "yaml": "sharder.policies sharder.writing",
    "tqdm": "core",
}
PURE = {"__future__", "collections", "dataclasses", "re", "typing", "numpy", "framedex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What a module imports. late: inside of a function. typed: for type checkers alone. tried: it does without."""

    name: str
    late: bool
    typed: bool
    tried: bool


def module_files() -> dict[str, Path]:
    """Return every module of the project by its dotted name."""
    found = {}
    for top in (*STAGES, "framedex"):
        for path in (ROOT / top).rglob("*.py"):  # which does not follow links
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if top == "framedex" else ("framedex", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = module_files()
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    """Return what a module imports. Of `from framedex.a import b`, that is `framedex.a.b` where b is a module."""
    found = []

    def visit(node: ast.AST, *, late: bool, typed: bool, tried: bool) -> None:
        for child in ast.iter_child_nodes(node):
            names: list[str] = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}: relative import"
                assert child.module is not None
                whole = [f"{child.module}.{alias.name}" for alias in child.names]
                names = [name if name in MODULES else child.module for name in whole]
            found.extend(Import(name=name, late=late, typed=typed, tried=tried) for name in names)
            visit(
                child,
                late=late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
                typed=typed or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)),
                tried=tried or (isinstance(child, ast.Try) and not raises(child)),
            )

    visit(ast.parse(MODULES[module].read_text(encoding="utf-8")), late=False, typed=False, tried=False)
    return tuple(found)


def raises(node: ast.Try) -> bool:
    """Return whether what fails in a `try` is an error all the same."""
    return any(isinstance(inner, ast.Raise) for handler in node.handlers for inner in ast.walk(handler))


def room(module: str) -> str:
    """Return the room of a module."""
    folder = module if module in PACKAGES else module.rpartition(".")[0]
    has_rooms = any(package.startswith(f"{folder}.") for package in PACKAGES)
    own = module if has_rooms and module != folder else folder
    return own.removeprefix("framedex.")


def edges() -> Iterator[tuple[str, str, str, str]]:
    """Yield (module, its room, what it imports of the project, the room of that), of different rooms."""
    for module in MODULES:
        for one in imports(module):
            if one.name.split(".")[0] == "framedex":
                assert one.name in MODULES, f"{module} imports {one.name}"
                if room(one.name) != room(module):
                    yield module, room(module), one.name, room(one.name)


@functools.cache
def libraries(module: str) -> frozenset[str]:
    """Return the heavy libraries without which a module does not load."""
    found: set[str] = set()
    for one in imports(module):
        if not (one.late or one.typed or one.tried):
            top = one.name.split(".")[0]
            found |= libraries(one.name) if one.name in MODULES else {top} & set(LIBRARIES)
    return frozenset(found)


def allowed(of: str) -> set[str]:
    return set(IMPORTS[of].split())


def test_every_module_is_in_a_room_of_the_table() -> None:
    assert len(MODULES) > 250
    filled = {room(module) for module in MODULES if module not in PACKAGES or imports(module)}
    assert filled == set(IMPORTS)


def test_rooms_import_what_the_table_says() -> None:
    seen = 0
    for module, own, imported, other in edges():
        assert other in allowed(own), f"{module} imports {imported}: may {own} import {other}?"
        seen += 1
    assert seen > 500


def test_no_permission_is_unused() -> None:
    used = {(own, other) for _, own, _, other in edges()}
    given = {(own, other) for own in IMPORTS for other in allowed(own)}
    assert given - used == set()


def test_the_table_has_no_circle() -> None:
    lower: set[str] = set()
    for own in IMPORTS:  # from the floor to the top, so that each stands on those before it
        assert allowed(own) <= lower, f"{own} imports rooms that stand below it in the table: {allowed(own) - lower}"
        lower.add(own)


def test_stages_import_no_later_stage() -> None:
    for own in IMPORTS:
        stage = own.split(".")[0]
        later = STAGES[STAGES.index(stage) + 1 :] if stage in STAGES else () if stage in ("cli", "framedex") else STAGES
        assert not [other for other in allowed(own) if other.split(".")[0] in later], own


def test_modules_of_a_room_import_in_no_circle() -> None:
    done: set[str] = set()
    left = dict.fromkeys(MODULES)
    while left:
        free = [module for module in left if {one.name for one in imports(module)} & set(left) <= {module}]
        assert free, f"these import each other: {sorted(left)}"
        done.update(free)
        for module in free:
            del left[module]
    assert done == set(MODULES)


def test_imports_inside_of_functions_spare_a_heavy_library() -> None:
    late = 0
    for module in MODULES:
        for one in imports(module):
            if one.late and one.name in MODULES:
                spared = libraries(one.name) - libraries(module)
                assert spared, f"{module} imports {one.name} inside of a function, which spares nothing"
                late += 1
            assert not one.typed or module == "framedex", f"{module}: an import under TYPE_CHECKING hides a circle"
    assert late > 0


def test_libraries_are_used_in_their_rooms() -> None:
    used: dict[str, set[str]] = {name: set() for name in LIBRARIES}
    for module in MODULES:
        for one in imports(module):
            if (name := one.name.split(".")[0]) in used:
                used[name].add(room(module))
    assert used == {name: set(rooms.split()) for name, rooms in LIBRARIES.items()}


def test_folders_are_small() -> None:
    counts = {package: len(list(MODULES[package].parent.glob("[!_]*.py"))) for package in PACKAGES}
    assert len(counts) > 40
    assert {package: count for package, count in counts.items() if count > MOST_MODULES} == {}


def test_bitstream_knowledge_is_pure() -> None:
    modules = [module for module in MODULES if module.startswith("framedex.indexer.bitstream")]
    assert len(modules) > 25
    for module in modules:
        for one in imports(module):
            assert one.name.split(".")[0] in PURE, f"{module}: {one.name}"
            assert not one.name.startswith("framedex.") or one.name.startswith("framedex.indexer.bitstream."), module


def test_no_module_is_named_for_nothing() -> None:
    assert not {module.rpartition(".")[2] for module in MODULES} & {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_are_folders_at_the_top_and_links_in_the_package(stage: str) -> None:
    assert (ROOT / "framedex" / stage).is_symlink()
    assert (ROOT / "framedex" / stage).resolve() == ROOT / stage
    for path in (ROOT / stage).rglob("__init__.py"):
        assert not path.read_text(encoding="utf-8"), path
