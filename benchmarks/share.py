"""What overlapping clips of one video cost if they are decoded together: packets, and processor time of one core.

A policy takes windows of 16 consecutive frames, which begin at every 16th or every 4th frame of a minute of video
(benchmarks/training_videos.py). Consecutive windows are decoded in groups of several sizes.

The fields of a row:
- `format`, `hop`, `clips_timed`: the format of the video, the distance of windows in frames, and the number of windows
  in its first ten seconds.
- `packets`: the number of decoded packets for each picture of the video, by the number of clips in a group. 1 is ideal.
- `seconds`: processor seconds of the windows of the first ten seconds of video at 224×224, by the number of clips in
  a group. 1 is `ClipDataset.__getitem__`, and other numbers are `ClipDataset.__getitems__`.
- `plain_seconds`: processor seconds of decoding the same frames from the beginning to the end with PyAV, and of
  converting each with the same converter.

With `--ranks`, a row has the number of packets in a shuffled order of `ClipSampler(share=32)` over 64 copies of the
video, by the number of ranks, and the mean number of distinct videos in a batch of 16 clips of a rank.

usage: python -m benchmarks.share FOLDER --out RESULTS [--only FORMAT] [--ranks]
       (FOLDER holds the videos of `python -m benchmarks.training_videos FOLDER`; indexes are made in it)
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import environment
from benchmarks.loader_datasets import framedex_command
from benchmarks.row_file import Row, RowFile
from benchmarks.training import BATCH, FRAMES, SIZE
from benchmarks.training_videos import DRAWN_SECONDS, FORMATS, make_minute, video_path
from framedex import ClipDataset, ClipSampler
from framedex.sharder.clips.together import joined
from framedex.sharder.decoding.video import converter_of

HOPS = (16, 4)
GROUPS = (1, 8, 32, 128)
TIMED = (1, 8, 32)
TURNS = 3
# With `--ranks`. The frames of share × window clips of 224×224 take 2 GiB.
VIDEOS, RANKS, SHARE, WINDOW = 64, (1, 8), 32, 27


def minute(folder: Path, name: str) -> Path:
    """Return the minute of video of a format. It is made and indexed first."""
    drawn = video_path(folder, name)
    home = folder / "windows" / drawn.stem
    if not (home / "index").exists():
        home.mkdir(parents=True, exist_ok=True)
        make_minute(drawn, home / drawn.name)
        framedex_command("index", home / drawn.name, "--out", home / "index", "--depth", "packets")
    return home / drawn.name


def windows(video: Path, hop: int) -> ClipDataset:
    """Return the windows of a minute of video."""
    policy = {"policy": "windows", "frames": FRAMES, "stride": 1, "step": hop}
    return ClipDataset.from_index(video.parent / "index", policy, size=SIZE)


def packets(dataset: ClipDataset, group: int) -> float:
    """Return the number of packets that are decoded for each picture, if so many clips are decoded together."""
    clips = [dataset.clip(number) for number in range(len(dataset))]
    decoded = 0
    for first in range(0, len(clips), group):
        found = joined(clips[first : first + group])
        assert found is not None  # the packets of these videos are in decode order
        decoded += len(found.whole.recipe.packet_size)
    return decoded / clips[0].medium.frame_count


class Copies:
    """A dataset of several copies of a video, of which only the media of its clips are known."""

    def __init__(self, clips: int) -> None:
        self._media = np.repeat(np.arange(VIDEOS), clips)

    def __len__(self) -> int:
        return len(self._media)

    def places(self, kind: str) -> NDArray[np.int64]:
        """Return int64 [clips]: the medium of each clip."""
        return self._media


def measure_ranks(video: Path, name: str, hop: int) -> Row:
    """Return the row of a format with `--ranks`."""
    dataset = windows(video, hop)
    clips = [dataset.clip(number) for number in range(len(dataset))]
    copies = Copies(len(clips))

    @functools.cache
    def packets_of(numbers: tuple[int, ...]) -> int:
        found = joined([clips[number] for number in numbers])
        assert found is not None  # the packets of these videos are in decode order
        return len(found.whole.recipe.packet_size)

    packets, media = {}, {}
    for ranks in RANKS:
        decoded = 0
        for rank in range(ranks):
            sampler = ClipSampler(copies, shuffle=True, share=SHARE, window=WINDOW, rank=rank, world_size=ranks)
            visit, done = list(sampler), set()
            for place, first in enumerate(visit):
                if place not in done:
                    later = sampler.decoded_with(place)
                    done |= {index for index, _ in later}
                    group = [first, *(number for _, number in later)]
                    decoded += packets_of(tuple(sorted(number % len(clips) for number in group)))
            media[ranks] = round(sampler.distinct_media(BATCH), 2)
        packets[ranks] = round(decoded / (VIDEOS * clips[0].medium.frame_count), 3)
    return {"format": name, "hop": hop, "packets": packets, "media": media}


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the least processor seconds of several runs."""
    taken = []
    for _ in range(TURNS):
        begun = time.process_time()
        run()
        taken.append(time.process_time() - begun)
    return min(taken)


def plain(dataset: ClipDataset, video: Path, frames: int) -> None:
    """Decode the first frames of the video and convert each one."""
    converter = converter_of(dataset.clip(0).medium, 1)
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        for number, picture in enumerate(container.decode(stream)):
            if number == frames:
                break
            converter.rows(picture, *SIZE).copy()


def measure(video: Path, name: str, hop: int) -> Row:
    """Return the row of a format."""
    dataset = windows(video, hop)
    count = DRAWN_SECONDS * FORMATS[name].fps // hop
    dataset[0]  # imports

    def deliver(group: int) -> None:
        for first in range(0, count, group):
            if group == 1:
                _ = dataset[first]
            else:
                dataset.__getitems__(range(first, min(first + group, count)))

    return {
        "format": name,
        "hop": hop,
        "packets": {group: round(packets(dataset, group), 3) for group in GROUPS},
        "clips_timed": count,
        "seconds": {group: round(processor_seconds(functools.partial(deliver, group)), 3) for group in TIMED},
        "plain_seconds": round(processor_seconds(lambda: plain(dataset, video, (count - 1) * hop + FRAMES)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], choices=list(FORMATS))
    parser.add_argument("--ranks", action="store_true")
    options = parser.parse_args()
    folder = options.folder.absolute()
    setup: dict[str, object] = {"videos": VIDEOS, "share": SHARE, "window": WINDOW, "batch": BATCH}
    if not options.ranks:
        setup = {"frames_a_clip": FRAMES, "size": SIZE, "seconds_of_video": DRAWN_SECONDS, "turns": TURNS}
    rows = RowFile(options.out, environment("av", "numpy"), setup)
    for name in options.only or FORMATS:
        for hop in HOPS:
            if not rows.has(format=name, hop=hop):
                rows.add((measure_ranks if options.ranks else measure)(minute(folder, name), name, hop))


if __name__ == "__main__":
    main()
