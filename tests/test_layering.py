"""Data flows one way: errors ← indexer ← sharder ← loader ← audit ← cli; heavy libraries stand behind one module each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("indexer", "sharder", "loader")
AUDIT = "framedex/audit/"  # the last stage, which has no folder at the top
# What a stage may import of the stages before it: their contracts, and what those name.
CONTRACTS = {
    "indexer": {
        "schema",
        "index",
        "parts",
        "timeline",
        "discover",
        "engines",
        "fingerprint",
        "opening",
        "pyav",
        "planes",
        "look",
        "rgb",
        "row_checks",
        "sequences",
        "audio_decoding",
        "bitstream",
    },
    "sharder": {
        "schema",
        "rows",
        "clip",
        "media",
        "sources",
        "decoder",
        "conversion",
        "mp4",
        "image_files",
        "clip_audio",
        "plans",
        "local_copies",
        "indexed",
        "spool",
    },
    "loader": {"inspect"},
}
HOMES = {
    "av": {
        "framedex/core/pyav.py",
        "indexer/containers/opening.py",
        "indexer/containers/medium_file.py",
        "indexer/probing/probe.py",
        "indexer/probing/stream_facts.py",
        "indexer/probing/by_packets.py",
        "indexer/probing/full_decode.py",
        "indexer/containers/planes.py",
        "indexer/audio/probe_audio.py",
        "indexer/audio/audio_decoding.py",
        "sharder/decoding/video.py",
        "sharder/decoding/rgb.py",
        "sharder/packing/mux.py",
        "sharder/planning/spools.py",
        "sharder/decoding/audio.py",
        "sharder/decoding/audio_files.py",
        "loader/verification/verify.py",
        "loader/verification/verify_gpu.py",
        "loader/routing/full_range.py",
    },
    "nvidia": {"loader/dali/pipelines.py", "loader/bench/peers.py"},
    "torch": {
        "loader/dali/cuda.py",
        "loader/order/sampler.py",
        "loader/batches/tensors.py",
        "loader/dali/gpu.py",
        "loader/bench/measure.py",
        "loader/bench/compare.py",
        "loader/bench/peers.py",
    },
    "pynvml": {"loader/bench/machine_load.py"},
    "cv2": {"loader/bench/peers.py"},
    "decord": {"loader/bench/peers.py"},
    "torchcodec": {"loader/bench/peers.py"},
    "PyNvVideoCodec": {"loader/bench/peers.py"},
    "PIL": {
        "indexer/images/rgb.py",
        "indexer/images/image_facts.py",
        "sharder/packing/image_files.py",
        "loader/contact_sheets/sheet_html.py",
        "loader/contact_sheets/sheet_png.py",
        "audit/report/pictures.py",
    },
    "pebble": {"indexer/engines.py"},
    "ray": {"framedex/execution/ray_engine.py"},
    "obstore": {"framedex/storage/stores.py"},
    "duckdb": {"audit/tables/database.py"},
    "fsspec": {"audit/tables/table_files.py"},
    "yaml": {"sharder/policies/reading.py", "sharder/writing/writer.py"},
}
FILES = sorted(
    path
    for stage in (*STAGES, "framedex")
    for path in (ROOT / stage).rglob("*.py")
    if "framedex/" not in str(path.relative_to(ROOT)) or path.parent.name in ("framedex", "storage", "audit")
)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_stages_import_upstream_contracts_alone(path: Path) -> None:
    stage = "audit" if name(path).startswith(AUDIT) else name(path).split("/")[0]
    for module in imports(path):
        parts = module.split(".")
        assert parts[0] not in STAGES, f"{name(path)} imports {module} past the framedex namespace"
        if parts[0] != "framedex" or len(parts) < 2 or parts[1] not in STAGES or stage == "framedex":
            continue
        downstream = stage != "audit" and STAGES.index(parts[1]) > STAGES.index(stage)
        assert not downstream, f"{name(path)} imports {module} from downstream"
        if parts[1] != stage:
            assert parts[2] in CONTRACTS[parts[1]], f"{name(path)} imports {module}, which is no contract"


def test_audits_are_asked_by_the_command_alone() -> None:
    for path in FILES:
        asks = any(module.startswith("framedex.audit") for module in imports(path))
        assert not asks or name(path).startswith(AUDIT), name(path)


def test_storage_knows_nothing_of_video() -> None:
    for path in (ROOT / "framedex" / "storage").glob("*.py"):
        own = {module for module in imports(path) if module.startswith("framedex")}
        assert all(module == "framedex.errors" or module.startswith("framedex.storage.") for module in own), name(path)


def test_contracts_say_so_and_are_used_downstream() -> None:
    used = {
        module for path in FILES for module in imports(path) if module.split(".")[1:2] != [name(path).split("/")[0]]
    }
    for stage, modules in CONTRACTS.items():
        for module in sorted(modules - {"bitstream"}):
            assert f"framedex.{stage}.{module}" in used, f"{stage}/{module}.py is no contract of anybody's"
            assert (ROOT / stage / f"{module}.py").read_text().startswith('"""CONTRACT: '), f"{stage}/{module}.py"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_heavy_libraries_stand_behind_their_modules(path: Path) -> None:
    for module in imports(path):
        homes = HOMES.get(module.split(".")[0])
        assert homes is None or name(path) in homes, f"{name(path)} imports {module}"


def test_the_bottom_imports_nothing_of_the_project() -> None:
    assert not [module for module in imports(ROOT / "framedex/errors.py") if module.startswith("framedex")]


def test_bitstream_knowledge_is_pure() -> None:
    allowed = {"__future__", "collections.abc", "dataclasses", "re", "typing", "numpy", "numpy.typing"}
    for path in (ROOT / "indexer/bitstream").glob("*.py"):
        for module in imports(path):
            assert module in allowed or module.startswith("framedex.indexer.bitstream."), f"{name(path)}: {module}"


def test_no_module_is_named_for_nothing() -> None:
    for path in FILES:
        assert path.stem not in {"utils", "helpers", "common", "misc"}


def test_stage_packages_are_links_and_empty() -> None:
    for stage in STAGES:
        assert (ROOT / "framedex" / stage).is_symlink()
        assert not (ROOT / stage / "__init__.py").read_text()
