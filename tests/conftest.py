"""Fixtures: media made once per machine, their indexes and full decodes, and the corpus at its location."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest

from framedex import Index
from framedex.sharder.decoding import rgb
from tests.support import made, media
from tests.support.depth import EXAMPLES
from tests.support.living import Forks
from tests.support.object_datasets import forget_connections
from tests.support.outcomes import NO_CORPUS, NO_FFMPEG_LIBRARIES, Outcomes, skip_but_in_ci
from tests.support.s3 import Bucket, Service, service
from tests.support.warm import start_workers_cold, start_workers_warm

# Machines differ and tests run in parallel, so no test may fail because of its own duration.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("suite")
# Every comparison in this process is with compiled code, too. Processes that tests start are as users have them.
rgb.COMPILED_FROM = 0
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when `datasets` is imported; prevents network access
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of processes that tests start: beginning threads takes 0.1 s
start_workers_warm()

CORPUS = Path(__file__).resolve().parents[1].parent / "shared" / "corpus"


def pytest_configure(config: pytest.Config) -> None:
    """Register the Outcomes plugin, except in worker processes of pytest-xdist. Their main process registers it."""
    if not hasattr(config, "workerinput"):
        command = " ".join(["pytest", *config.invocation_params.args])
        config.pluginmanager.register(Outcomes(command))


@pytest.fixture
def cold_workers() -> Iterator[None]:
    """Workers that import framedex themselves, at every depth."""
    start_workers_cold()
    yield
    start_workers_warm()


@dataclass(frozen=True)
class Truth:
    """The frames that a full in-order decode of a file presents."""

    pts: list[int]
    md5: list[str]


@pytest.fixture(scope="session")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of a session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "media"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def medium() -> Callable[[str], Path]:
    """A function that returns the file of a recipe by its name. Tests that change the file must copy it."""

    def file_of(name: str) -> Path:
        assert name in media.RECIPES
        return made.media() / name

    return file_of


@pytest.fixture(scope="session")
def truth() -> Callable[[str], Truth]:
    """A function that returns the full decode of a recipe's file."""

    def of_medium(name: str) -> Truth:
        frames = made.truth()[name, 0]
        return Truth(pts=[pts for pts, _ in frames], md5=[md5 for _, md5 in frames])

    return of_medium


@pytest.fixture(scope="session")
def all_media() -> Path:
    """A folder of every recipe's file."""
    return made.media()


@pytest.fixture(scope="session")
def index() -> Index:
    """An index of every recipe's file."""
    return made.index("auto")


@pytest.fixture(scope="session")
def packets_index() -> Index:
    """An index of every recipe's file at depth `packets`: every packet was read."""
    return made.index("packets")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of the corpus of hazards. Tests are skipped if it is missing, but fail in CI."""
    if not CORPUS.is_dir():
        skip_but_in_ci(NO_CORPUS)
    return CORPUS


@pytest.fixture(scope="session")
def corpus_index(corpus: Path) -> Index:
    """An index of the corpus of hazards."""
    return made.corpus_index(corpus)


@pytest.fixture(scope="session")
def torchcodec() -> ModuleType:
    """torchcodec's decoders, which need FFmpeg's libraries. Tests are skipped if they are missing, but fail in CI."""
    try:
        return importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        skip_but_in_ci(NO_FFMPEG_LIBRARIES)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(20)


@pytest.fixture(scope="session")
def s3_service() -> Iterator[Service]:
    """An S3 service on this machine."""
    with service() as running:
        yield running


@pytest.fixture
def bucket(s3_service: Service, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket. Environment variables configure access to it, and allow media in it for indexes on a disk."""
    monkeypatch.setenv("FRAMEDEX_ALLOW_REMOTE", "1")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_service.environment.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    return s3_service.bucket()


@pytest.fixture(scope="session")
def long_mp4() -> Path:
    """An MP4 of about 30 MB with sound, with the moov box at the end. `front.mp4` beside it has moov in front."""
    return made.long_mp4()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """A process that runs framedex commands in the test's folder, and kills them on request."""
    found = Forks(tmp_path)
    yield found
    found.close()
