"""On a Ray cluster, a run writes the same bytes as on one machine, and a crash costs only the medium that causes it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from framedex import Index, options
from framedex.execution.engine import Calls, Engine
from framedex.execution.ray_engine import RayEngine, _attempt, _pool
from tests.support.counted import some
from tests.support.datasets import content, run
from tests.support.depth import drawn
from tests.support.running import ROOT, environment
from tests.support.s3 import Bucket, Service
from tests.support.sent import process_id

Medium = Callable[[str], Path]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def surroundings() -> dict[str, str]:
    """Return the environment of the cluster and of its drivers, which share a secret."""
    return environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret" * 8, RAY_USAGE_STATS_ENABLED="0")


@pytest.fixture(scope="module")
def cluster(s3_service: Service) -> Iterator[str]:
    """Yield the address of a local cluster of two processors whose workers see this checkout and an S3 service."""
    started = "import ray, time; context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)"
    code = f"{started}; print(context.address_info['gcs_address'], flush=True); time.sleep(3600)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=surroundings() | dict(s3_service.environment),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def ray_command(cluster: str, *words: object, before: str = "") -> list[str]:
    main = f"{before}from framedex.cli import main; main()"
    return [str(word) for word in (sys.executable, "-c", main, *words, "--engine", "ray", "--ray-address", cluster)]


def on_ray(cluster: str, *words: object, code: int = 0, before: str = "") -> str:
    command = ray_command(cluster, *words, before=before)
    done = subprocess.run(command, env=surroundings(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture
def videos(tmp_path: Path, medium: Medium) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(12):
        name = ("h264_default.mp4", "h264_vfr.mkv", "hevc_closed.mp4")[number % 3]
        shutil.copy(medium(name), folder / f"{number:02d}{Path(name).suffix}")
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


def test_an_index_and_datasets_have_the_bytes_of_a_run_on_one_machine(
    cluster: str, videos: Path, tmp_path: Path
) -> None:
    on_ray(cluster, "index", videos, "--out", tmp_path / "RAY", "--max-failures", "1")
    run("index", videos, "--out", tmp_path / "LOCAL", "--max-failures", "1")
    assert content(tmp_path / "RAY") == content(tmp_path / "LOCAL")
    (tmp_path / "p.yaml").write_text("policy: stride\nstride: 3\nframes: 4\n")
    words = ("shard", tmp_path / "LOCAL", "--policy", tmp_path / "p.yaml")
    many_tasks = "import framedex.sharder.slices as p; p.TASKS_AT_FIRST = 1; p.MAX_CLIPS_A_TASK = 120; "
    # Options of each kind of dataset, and what the driver runs first.
    kinds = {"clips": (["--pack", "clips"], ""), "images": (["--pack", "images"], ""), "planned": ([], many_tasks)}
    for kind in drawn("few long cases", kinds, seed=1):
        options, before = kinds[kind]
        on_ray(cluster, *words, *options, "--out", tmp_path / f"{kind}-ray", before=before)
        run(*words, *options, "--out", tmp_path / f"{kind}-local", "--workers", 1)
        assert content(tmp_path / f"{kind}-ray") == content(tmp_path / f"{kind}-local")


def test_a_cluster_indexes_and_packs_a_bucket(cluster: str, bucket: Bucket, medium: Medium, tmp_path: Path) -> None:
    for number in range(3):
        bucket.put(f"v/{number}.mp4", medium("h264_default.mp4"))
    (tmp_path / "p.yaml").write_text("policy: stride\nstride: 3\nframes: 4\n")
    out = ["--policy", tmp_path / "p.yaml", "--pack", "clips", "--out"]
    on_ray(cluster, "index", f"{bucket.uri}/v", "--out", f"{bucket.uri}/RAY")
    on_ray(cluster, "shard", f"{bucket.uri}/RAY", *out, f"{bucket.uri}/D")
    run("index", f"{bucket.uri}/v", "--out", tmp_path / "I")
    run("shard", tmp_path / "I", *out, tmp_path / "D")
    for key in some(content(tmp_path / "D").keys() - {"log.jsonl"}):
        assert bucket.get(f"D/{key}") == (tmp_path / "D" / key).read_bytes(), key


def work(item: tuple[str, str]) -> str:
    """Do what an item's name says, record the attempt in a folder, and return the name in capitals."""
    name, home = item[0], Path(item[1])
    with open(home / "tried.txt", "a") as file:
        file.write(f"{name}\n")
    if name == "raise":
        raise RuntimeError("mine")
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    once = name == "once" and not (home / "once").exists()
    if once:
        (home / "once").touch()
    if name == "poison" or once:
        os.kill(os.getppid(), signal.SIGKILL)  # Ray's own worker
        time.sleep(60)
    return name.upper()


def lose(address: str, home: str) -> None:
    """Run items on a cluster, some of which end what runs them; write what became of each into a folder."""
    names = [f"item{number}" for number in range(20)]
    names[3], names[5], names[7], names[13] = "raise", "crash", "once", "poison"
    calls = Calls(
        function=work,
        items=[(name, home) for name in names],
        timeout_seconds=60,
        together=8,
        passes=lambda item: item[0] == "item10",
    )
    outcomes = RayEngine(address)(calls, workers=2)
    rows = [(outcome.item[0], outcome.result, outcome.kind, outcome.message) for outcome in outcomes]
    Path(home, "rows.json").write_text(json.dumps(rows))


def kill_workers(cluster: str, videos: Path, tmp_path: Path) -> None:
    """A worker that is killed costs the item that kills it."""
    losing = "import sys; from tests.execution.test_ray import lose; lose(*sys.argv[1:])"
    command = [sys.executable, "-c", losing, cluster, str(tmp_path)]
    done = subprocess.run(command, env=surroundings(), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    expected = [[f"item{number}", f"ITEM{number}", None, None] for number in range(20)]
    expected[3] = ["raise", None, "internal_error", "framedex itself failed: RuntimeError: mine"]
    expected[5] = ["crash", None, "crash", "the worker process died (exit code -11)"]
    expected[7][:2], expected[10][1] = ["once", "ONCE"], None
    assert rows[:13] + rows[14:] == expected[:13] + expected[14:]
    assert rows[13][:3] == ["poison", None, "crash"]
    assert rows[13][3].startswith("the Ray task was lost: ")
    tried = (tmp_path / "tried.txt").read_text().splitlines()
    assert tried.count("once") >= 2
    assert tried.count("poison") >= 4, "once, once more, in ever smaller halves, and alone twice"


def kill_the_driver(cluster: str, videos: Path, tmp_path: Path) -> None:
    """A driver that is killed keeps the parts that are written."""
    for number in range(20, 80):
        shutil.copy(videos / "00.mp4", videos / f"{number}.mp4")
    driver, out = tmp_path / "driver.py", tmp_path / "INDEX"
    driver.write_text(
        "import sys\nfrom framedex.cli import main\n"
        "from framedex.indexer.parts import part_pairs\nfrom framedex.indexer.runs import build\n"
        "part_pairs.FILES_A_PART = build.FILES_A_PART = build.FILES_TOGETHER = 4\n"
        "if __name__ == '__main__':\n    main(sys.argv[1:])\n"
    )
    words = ["index", videos, "--out", out, "--max-failures", "1", "--engine", "ray", "--ray-address", cluster]
    command = [str(word) for word in (sys.executable, driver, *words, "--json")]
    process = subprocess.Popen(command, env=surroundings(), cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not len(list((out / "videos").glob("part-*"))) >= 3:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(Index(out).videos)
    assert 12 <= kept < 73
    done = subprocess.run(command, env=surroundings(), cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["unchanged"] >= kept - 1, "the broken one is tried again"
    assert len(Index(out).videos) == 73
    run("index", videos, "--out", tmp_path / "LOCAL", "--max-failures", "1")
    expected = {row["uri"]: row["frame_count"] for row in Index(tmp_path / "LOCAL").videos.to_pylist()}
    assert {row["uri"]: row["frame_count"] for row in Index(out).videos.to_pylist()} == expected


@pytest.mark.parametrize("kill", drawn("kills on a cluster", [kill_workers, kill_the_driver], seed=1))
def test_a_kill_costs_what_it_may(kill: Callable[..., None], cluster: str, videos: Path, tmp_path: Path) -> None:
    kill(cluster, videos, tmp_path)


def test_a_cluster_that_is_not_there_is_an_error(videos: Path, tmp_path: Path) -> None:
    words = ["index", videos, "--out", tmp_path / "INDEX"]
    done = subprocess.run(
        ray_command("127.0.0.1:1", *words), env=surroundings(), cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert "the Ray cluster cannot be reached" in done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_ray_says_beside_a_command_does_not_mix_with_its_output() -> None:
    @click.command(cls=options.RuledCommand, rules=options.ENGINE_RULES)
    @options.engine_options
    @options.workers_option("Processes.")
    def told(engine: Engine, workers: int) -> None:
        del engine, workers
        said = threading.Thread(target=print, args=("(raylet) a worker died",))
        said.start()
        said.join()
        click.echo("the answer")

    result = CliRunner().invoke(told, ["--engine", "ray"])
    assert (result.stdout, result.stderr) == ("the answer\n", "(raylet) a worker died\n")
    assert "needs --engine ray" in CliRunner().invoke(told, ["--ray-address", "a:1"]).output
    refused = CliRunner().invoke(told, ["--engine", "ray", "--workers", "0"])
    assert "--engine needs --workers 1 or more" in refused.output


def calls_of(item: str) -> Calls[str, int]:
    return Calls(function=process_id, items=[item], timeout_seconds=60.0, in_flight=2)


def test_a_process_that_dies_between_two_calls_makes_the_task_one_to_try_again() -> None:
    (outcome,) = _attempt(calls_of("a"), None)
    assert outcome.result is not None
    os.kill(outcome.result, signal.SIGKILL)
    time.sleep(1.0)
    with contextlib.suppress(RuntimeError):  # if no item was running, the whole pool is broken
        assert _attempt(calls_of("b"), None)[0].result != outcome.result
    (outcome,) = _attempt(calls_of("c"), None)
    assert outcome.result is not None
    _pool(None).__exit__(None, None, None)
    _pool.cache_clear()
