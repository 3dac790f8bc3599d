"""The run of another loader in a process of its own, with a time limit, and the comparison of its frames with ours.

The process exchanges files in a folder: request.json, progress.jsonl (one line per batch), pictures.npz (thumbnails of
the frames it returned) and errors.txt. So a peer that crashes or hangs does no harm, and its progress is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framedex.bench.peer import PeerClip, PeerOptions
from framedex.bench.peers import PEERS
from framedex.execution.spawning import python_environment

SIDE = 64  # pixels: the side of a thumbnail
PIECES = 16  # of SIDE * SIDE: how many of the most different places of two thumbnails count
DIFFERENT = 16.0  # levels: the next frame's number differs by more than 26, another scaler's same frame by less than 10
FITTED = 200_000  # pixels to which the map of colours is fitted: more of them cost time and hardly change the map
CHECKED_CLIPS = 8  # a peer's first clips, unscaled: scalers may differ by more than consecutive frames do

# By the number of a clip: uint8 [F, SIDE, SIDE, 3].
Thumbnails = dict[int, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    """The result of running a peer.

    Attributes:
        name: the peer's name.
        version: its installed version. If None, it did not load.
        clips: how many clips it delivered, in `seconds` or, if it did not finish, in `seconds_so_far`.
        seconds: time for all clips. If None, it did not finish.
        seconds_so_far: time until its last batch.
        stopped_after: the limit in seconds that ended it, if any. The limit includes startup and checking.
        reason: why it did not finish.
        compared: how many frames were compared with framedex's.
        different: how many of these were other pictures.
    """

    name: str
    version: str | None = None
    clips: int = 0
    seconds: float | None = None
    seconds_so_far: float | None = None
    stopped_after: float | None = None
    reason: str | None = None
    compared: int = 0
    different: int = 0


def thumbnails(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 [F, SIDE, SIDE, 3]: the mean of each box of a grid.

    Args:
        pictures: uint8 [F, H, W, 3]. H and W are at least SIDE.
    """
    values: NDArray[Any] = pictures.astype(np.float32)
    for axis in (1, 2):
        edges = np.linspace(0, pictures.shape[axis], SIDE + 1).astype(np.int64)
        sizes = np.expand_dims(np.diff(edges).astype(np.float32), axis=(0, 3 - axis, 3))
        values = np.add.reduceat(values, edges[:-1], axis=axis) / sizes
    return np.round(values).astype(np.uint8)


def enlarged(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return pictures with every pixel repeated until both sides are at least SIDE."""
    for axis in (1, 2):
        pictures = np.repeat(pictures, -(-SIDE // pictures.shape[axis]), axis=axis)
    return pictures


def differences(ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return float64 [N]: how far apart thumbnails are, in levels of 255.

    Colour does not count: loaders differ in matrix and range, so `theirs` is first mapped to `ours` by the single
    affine map of RGB that fits best. The result is the mean absolute difference over the PIECES most different places,
    so that a small object in another place, or a digit of a frame's number, is detected.

    Args:
        ours: uint8 [N, SIDE, SIDE, 3].
        theirs: uint8 [N, SIDE, SIDE, 3].
    """
    flat, wanted = (pictures.reshape(-1, 3).astype(np.float64) for pictures in (theirs, ours))
    some = slice(None, None, max(1, len(flat) // FITTED))
    known = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
    fit = np.linalg.lstsq(known[some], wanted[some], rcond=None)[0]
    apart = np.abs(known @ fit - wanted).mean(axis=1).reshape(len(ours), -1)
    most: NDArray[np.float64] = np.partition(apart, -PIECES, axis=1)[:, -PIECES:].mean(axis=1)
    return most


def count_different(ours: Thumbnails, theirs: Thumbnails) -> tuple[int, int]:
    """Return (frames compared, how many of them show another picture). All frames of a clip of another length count."""
    compared = sum(len(ours[number]) for number in theirs if number in ours)
    alike = [number for number in theirs if number in ours and len(ours[number]) == len(theirs[number])]
    if not alike:
        return compared, compared
    mine, other = (np.concatenate([side[number] for number in alike]) for side in (ours, theirs))
    return compared, compared - len(mine) + int((differences(mine, other) > DIFFERENT).sum())


def save_thumbnails(path: Path, found: Thumbnails) -> None:
    """Write thumbnails to a temporary file and rename it."""
    aside = path.with_suffix(".tmp.npz")
    arrays: dict[str, Any] = {str(number): pictures for number, pictures in found.items()}
    np.savez(aside, **arrays)
    aside.rename(path)  # a process that ends in the middle leaves no file of which half is missing


def load_thumbnails(path: Path) -> Thumbnails:
    """Return the thumbnails of `save_thumbnails`, or an empty dict without a file."""
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return {int(name): stored[name] for name in stored.files}


def run_peer(
    name: str, clips: Sequence[PeerClip], options: PeerOptions, *, limit_seconds: float, ours: Thumbnails
) -> PeerResult:
    """Run a peer over clips in a process of its own, and compare its first CHECKED_CLIPS clips with ours.

    Args:
        name: a name in PEERS.
        clips: the clips that the peer loads.
        options: how the peer runs.
        limit_seconds: time limit of the process.
        ours: thumbnails of the clips that are compared, unscaled (see `measure.checked_thumbnails`).
    """
    with tempfile.TemporaryDirectory(prefix="framedex-bench-") as scratch:
        folder = Path(scratch)
        request = {"name": name, "clips": [asdict(clip) for clip in clips], "options": asdict(options)}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        code = run_limited("from framedex.bench.compare import serve; serve()", folder, limit_seconds)
        facts: dict[str, Any] = {}
        for line in _read_text(folder / "progress.jsonl").splitlines():
            facts |= json.loads(line)
        compared, different = count_different(ours, load_thumbnails(folder / "pictures.npz"))
        reason = facts.get("error")
        if "seconds" not in facts and reason is None:
            tail = " ".join(_read_text(folder / "errors.txt").split("\n")[-4:]).strip()
            reason = f"past {limit_seconds:g} s" if code is None else f"its process ended with {code}: {tail}"
        return PeerResult(
            name=name,
            version=facts.get("version"),
            clips=int(facts.get("clips", 0)),
            seconds=facts.get("seconds"),
            seconds_so_far=facts.get("so_far"),
            stopped_after=limit_seconds if code is None else None,
            reason=reason,
            compared=compared,
            different=different,
        )


def run_limited(statement: str, folder: Path, limit_seconds: float) -> int | None:
    """Run a Python statement with a folder as its argument. Return its exit code, or None if the limit ended it."""
    with (folder / "errors.txt").open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", statement, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=python_environment(),
            start_new_session=True,
        )
        try:
            return process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # also ends the processes that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def serve() -> None:
    """Handle the request in the folder that the first argument names. This is the other end of `run_peer`."""
    folder = Path(sys.argv[1])
    request, code = json.loads((folder / "request.json").read_text(encoding="utf-8")), 0
    with (folder / "progress.jsonl").open("w", encoding="utf-8", buffering=1) as progress:

        def record(**facts: Any) -> None:
            progress.write(json.dumps(facts) + "\n")

        try:
            _run_request(folder, request, record)
        except ImportError as error:
            record(error=f"not installed: {error}")
        except Exception as error:
            record(error=f"{type(error).__name__}: {str(error).strip()[:500]}")
            traceback.print_exc()
            code = 1
    sys.stderr.flush()
    os._exit(code)  # some peers hang or crash during shutdown


def _run_request(folder: Path, request: dict[str, Any], record: Any) -> None:
    stored = request["options"]
    options = PeerOptions(**stored | {"size": None if stored["size"] is None else tuple(stored["size"])})
    clips = [PeerClip(**clip) for clip in request["clips"]]
    peer = PEERS[request["name"]]
    record(version=peer.version())
    if peer.needs_gpu and options.gpu is None:
        record(error="it decodes on a GPU, and --device is cpu")
        return
    batches, some = peer.open(clips, options), range(min(CHECKED_CLIPS, len(clips)))
    shown = {
        clips[place].number: thumbnails(enlarged(picture.cpu().numpy()))
        for places, pictures in batches(some, None)
        for place, picture in zip(places, pictures, strict=True)
    }
    save_thumbnails(folder / "pictures.npz", shown)
    # Each process of a peer reads a clip before time counts, because it imports its library then.
    for _, pictures in batches([place % len(clips) for place in range(max(len(some), options.workers))], options.size):
        _deliver(pictures, options)
    _wait(options)
    record(warmed_up=True)
    measured = batches(range(len(clips)), options.size)
    done, started = 0, time.perf_counter()
    for places, pictures in measured:
        _deliver(pictures, options)
        done += len(places)
        record(clips=done, so_far=time.perf_counter() - started)
    _wait(options)
    record(seconds=time.perf_counter() - started)


def _deliver(pictures: list[Any], options: PeerOptions) -> Any:
    """Return a batch as a training step takes it: one tensor, or a list of tensors if shapes differ.

    Args:
        pictures: a tensor uint8 [F, H, W, 3] per clip.
        options: the device and type of the result.
    """
    import torch

    if len({picture.shape for picture in pictures}) > 1:
        return [_deliver([picture], options) for picture in pictures]
    batch = torch.stack(pictures)
    if options.gpu is not None:
        batch = batch.to(f"cuda:{options.gpu}")
    return batch.permute(0, 1, 4, 2, 3).float().div_(255) if options.floats else batch


def _wait(options: PeerOptions) -> None:
    if options.gpu is not None:
        import torch

        torch.cuda.synchronize(options.gpu)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
