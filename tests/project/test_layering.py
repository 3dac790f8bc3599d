"""Data flows from stage to stage, imports form no circle, and heavy libraries are loaded only where they are needed.

A room is a folder of modules with one purpose. Modules that lie beside folders belong to the room of their stage.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.syntax import tree_of

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("indexer", "sharder", "loader", "auditor")
LINKED = {stage: stage for stage in STAGES} | {"bench": "benchmarks/bench"}  # folders that framedex/ links to

FLOOR = (
    "core",
    "errors",
    "execution",
    "files",
    "html",
    "options",
    "records",
    "storage",
)  # of framedex/, below all stages
MAX_ROOMS = 40  # as many as a reader can keep in mind

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROOMS = re.findall(r"^\| `([\w.]+)` \| [^|]+\|$", DESIGN, re.MULTILINE)
# The only rooms in which each library is used.
LIBRARIES = {
    "av": (
        "core indexer indexer.probing indexer.proofs sharder.decoding sharder.packing sharder.planning loader.routing "
        "loader.verification"
    ),
    "PIL": "indexer.probing sharder.packing loader.contact_sheets",
    "nvidia": "loader.dali bench",
    "torch": "loader loader.dali loader.order loader.batches loader.pixels bench",
    "webdataset": "loader loader.streams",
    "pynvml": "bench",
    "cv2": "bench",
    "decord": "bench",
    "torchcodec": "bench",
    "PyNvVideoCodec": "bench",
    "pebble": "execution",
    "ray": "execution",
    "obstore": "storage",
    "duckdb": "auditor.tables",
    "fsspec": "auditor.tables",
    "yaml": "sharder.changing sharder.policies sharder.writing loader.contact_sheets",
    "pydantic": "sharder.configuration",
    "numba": "sharder.decoding",
    "tqdm": "core",
}
PURE = {"__future__", "collections", "dataclasses", "re", "typing", "zlib", "numpy", "framedex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What a module imports.

    Attributes:
        late: the import is inside a function.
        typed: the import is only for type checkers.
        tried: the module works without it.
    """

    name: str
    late: bool
    typed: bool
    tried: bool


def module_files() -> dict[str, Path]:
    """Return the path of every module of the project by its dotted name."""
    found = {}
    linked = {f"framedex.{name}": folder for name, folder in LINKED.items()}
    for top, folder in {"framedex": "framedex", **linked}.items():
        for path in (ROOT / folder).rglob("*.py"):  # rglob does not follow links
            name = ".".join((top, *path.relative_to(ROOT / folder).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = module_files()
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    """Return what a module imports. `from framedex.a import b` imports `framedex.a.b` if b is a module."""
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

    visit(tree_of(MODULES[module]), late=False, typed=False, tried=False)
    return tuple(found)


def raises(node: ast.Try) -> bool:
    """Return whether a failure in a `try` is still raised as an error."""
    return any(isinstance(inner, ast.Raise) for handler in node.handlers for inner in ast.walk(handler))


def room(module: str) -> str:
    """Return the room of a module, without `framedex.`: its folder, or the stage if it lies beside folders."""
    folder = module if module in PACKAGES else module.rpartition(".")[0]
    return folder.removeprefix("framedex.")


def level(module: str) -> int:
    """Return the number of a module's stage: the floor is 0, and commands and public names are above all stages."""
    part = module.split(".")[1] if "." in module else ""
    return 0 if part in FLOOR else STAGES.index(part) + 1 if part in STAGES else len(STAGES) + 1


@functools.cache
def libraries(module: str) -> frozenset[str]:
    """Return the heavy libraries that a module needs to load."""
    found: set[str] = set()
    for one in imports(module):
        if not (one.late or one.typed or one.tried):
            top = one.name.split(".")[0]
            found |= libraries(one.name) if one.name in MODULES else {top} & set(LIBRARIES)
    return frozenset(found)


def test_the_table_has_every_room() -> None:
    filled = {room(module) for module in MODULES if module not in PACKAGES or imports(module)}
    assert len(MODULES) > 180
    assert sorted(ROOMS) == sorted(filled)
    assert len(ROOMS) <= MAX_ROOMS


def test_stages_import_no_later_stage() -> None:
    seen = 0
    for module in MODULES:
        for one in imports(module):
            if one.name.split(".")[0] == "framedex":
                assert one.name in MODULES, f"{module} imports {one.name}"
                assert level(one.name) <= level(module), f"{module} imports {one.name}, of a later stage"
                seen += 1
    assert seen > 1000


def test_imports_form_no_circle() -> None:
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


def test_bitstream_knowledge_is_pure() -> None:
    modules = [module for module in MODULES if module.startswith("framedex.indexer.bitstream")]
    assert len(modules) > 8
    for module in modules:
        for one in imports(module):
            assert one.name.split(".")[0] in PURE, f"{module}: {one.name}"
            assert not one.name.startswith("framedex.") or one.name.startswith("framedex.indexer.bitstream."), module


def test_no_module_is_named_for_nothing() -> None:
    assert not {module.rpartition(".")[2] for module in MODULES} & {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("name", LINKED)
def test_stages_are_folders_at_the_top_and_links_in_the_package(name: str) -> None:
    assert (ROOT / "framedex" / name).is_symlink()
    assert (ROOT / "framedex" / name).resolve() == ROOT / LINKED[name]
    for path in (ROOT / LINKED[name]).rglob("__init__.py"):
        assert not path.read_text(encoding="utf-8"), path
