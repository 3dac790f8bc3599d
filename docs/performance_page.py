"""docs/performance.md: the results of the speed benchmarks, and what was expected."""

from __future__ import annotations

from typing import Any

from docs.cameras_page import cameras_section
from docs.columns_page import columns_section
from docs.conversion_page import conversion_section
from docs.encoded_page import encoded_section
from docs.framing_page import framing_section
from docs.one_core_page import one_core_section
from docs.orders_page import orders_section
from docs.results import NOTE, load, made_by
from docs.storage_tables import storage_section
from docs.streams_page import streams_section
from docs.tables import (
    a_packed_clip,
    gpu_index_table,
    index_table,
    loader_devices_sentence,
    loader_load_table,
    loader_slow_sentence,
    loader_table,
    packing_tables,
    planning_tables,
    random_access_table,
    whole_loader_table,
)
from docs.tars_page import tars_section
from docs.training_page import training_section


def whole_loader_section(result: dict[str, Any]) -> str:
    """Return the results of benchmarks/random_access.py for the whole ClipLoader, or nothing if it was not measured."""
    table = whole_loader_table(result)
    if not table:
        return ""
    return f"""The whole ClipLoader (manifest, reading, decoding, batches) beside nothing but PyAV decoding the same \
planned
packets from memory into the same RGB, in equally many processes:

{table}

"""


def proofs_section() -> str:
    """Return the results of benchmarks/proofs.py."""
    result = load("proofs.json")
    scanned = [row for row in result["rows"] if "packets" in row["seconds"]]
    proven = [row for row in result["rows"] if "packets" not in row["seconds"]]
    asked = ("auto", "auto, --prove 4", "packets", "packets, --prove 4", "decode", "decode, md5", "--verify")
    table = _proofs_table(scanned, asked, ("--verify", "decode, md5"))
    proven_table = _proofs_table(proven, ("auto", "decode", "decode, md5", "--verify"), ("auto", "decode"))
    most = {"closed": 0.0, "open": 0.0}
    for row in scanned:
        most[row["starts"]] = max(most[row["starts"]], row["seconds"]["--verify"] / row["seconds"]["decode, md5"])
    most_proven = max(row["seconds"]["auto"] / row["seconds"]["decode"] for row in proven)
    return f"""### What a proof costs

Seconds to probe a file of 640×360 at 30 frames a second, of one minute and of ten (the same packets again and \
again), in one process.
`decode` reads every packet, decodes in one thread and hashes each picture as a proof does; `decode, md5` computes
the MD5 of each, too, which `--verify` stores. The last columns are the times of `--verify`, divided by those of
`decode, md5`. ([What is proved](exactness.md#the-proof).)

{table}

What was expected: a proof decodes everything once more, and half of it again for pictures that are reached alone, and
compares all pictures: up to 2.2 times a decode for closed GOPs and 3.2 for open ones, whose leading pictures are
reached from further back. It is {most["closed"]:.2f} times at most for closed ones and {most["open"]:.2f} for open
ones. `--prove 4` decodes from the beginning where a video has no earlier start points; its cost does not grow with the
length of the file.

[Codecs that are not parsed](exactness.md#two-kinds-of-codecs) are proven at every depth. The last columns are the
times of `auto`, divided by those of `decode`:

{proven_table}

What was expected: 1 for the full decode, 1 for each GOP from its own start point, and where B pictures can be left
out, 0.8 more, because all other pictures are decoded three times: with the one half of them, with the other, and with
none. (Two of them can bring the same header, which makes all three necessary.) Of open GOPs, the first picture is
decoded once more for the leading ones. It is {most_proven:.2f} times at most, more than was expected.
On top comes the memory of pictures of the first runs, which is kept so that a decoder that leaves a part of a picture
unwritten shows it.

{made_by(result)}

"""


def _proofs_table(rows: list[dict[str, Any]], asked: tuple[str, ...], ratio: tuple[str, str]) -> str:
    """Return a table of times, with those of the first contender of `ratio` divided by those of the second one."""
    lines = [f"| video | minutes | {' | '.join(asked)} | times decode | CPU time |", "| --- " * (len(asked) + 4) + "|"]
    for row in rows:
        above, below = ratio
        ratios = [row[kind][above] / row[kind][below] for kind in ("seconds", "cpu_seconds")]
        figures = " | ".join(f"{row['seconds'][name]:.2f}" for name in asked)
        name = row["video"].replace("_", " ")
        lines.append(f"| {name} | {row['minutes']} | {figures} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return "\n".join(lines)


def loader_section(result: dict[str, Any], several: dict[str, Any], slow: dict[str, Any]) -> str:
    """Return the part of docs/performance.md about loading with one GPU and with several."""
    setup = result["setup"]
    return f"""
## Loading on a GPU

{setup["clips"]} clips of {setup["frames_a_clip"]} frames at 1 fps from random places of 720p60 H.264 with x264's \
default settings, in
batches of {setup["batch_size"]}, delivered at {setup["size"][0]}×{setup["size"][1]} as float FCHW on the GPU. \
framedex: the median of {setup["epochs_measured"]} epochs after one warm-up epoch,
reading included, from the page cache. The others: one epoch after {setup["warm_up_clips_of_others"]} clips, opening \
the file for each clip.
Of every way, the frames of some clips were compared with what the CPU decodes; where some were others, it says so. \
What has no
figure was not measured in that run: DALI takes minutes for long files. {loader_slow_sentence(slow)}

{loader_table(result)}

{loader_load_table(result)}

What was expected: NVDEC is the bottleneck by reference, so the length of the video does not matter, and CPU cores \
add what they
decode; image shards cost JPEG decoding alone.

{made_by(result)}

{loader_devices_sentence(several)} What was expected: twice as many, since
nothing is shared but the page cache and the driver. Before a run decodes its first movie, DALI asks the driver what \
it can decode, once for
each movie, about 8 ms each, one after the other on the whole machine. This was measured before the driver's answers \
were cached
([decision 24](decisions/0024-nvdec-cache.md)). The second of two runs that share a GPU began at least a third of a \
run after the
first. Before, when batches of 64 were runs that began together, NVDEC was idle
meanwhile, and two GPUs gave 1.74 times one.

{made_by(several)}

{picture_sizes_section()}
"""


def picture_sizes_section() -> str:
    """Return the part about clips of 16 frames with several picture sizes."""
    result, many, uncached, again = (load(f"nvdec{which}.json") for which in ("", "_many", "_uncached", "_sizes_again"))
    rows = [
        f"| {name} | "
        + " | ".join(f"{by[decode]['warm']:.2f}" if decode in by else "–" for decode in ("gpu", "auto", "cpu"))
        + " |"
        for one in (result, many)
        for name, by in one["epochs"].items()
    ]
    table = "\n".join(["| video | NVDEC alone | `auto` | CPU alone |", "| --- | --- | --- | --- |", *rows])
    slow = uncached["epochs"]["340x256"]["gpu"]["warm"]
    return f"""### Clips of 16 frames, by picture size

Seconds of a warm epoch of 128 clips of 16 frames in a row (`1 fps`: a second apart), in batches of 16, delivered at \
224×224 on the
GPU; 4 workers for NVDEC alone, 16 otherwise. 1080p60 and 720p60 have a GOP of 60 pictures, 340×256 and 454×256 one of \
30. `many sizes`
has 320 clips of 80 videos, in 40 sizes and two codecs; its first epoch on NVDEC took \
{many["epochs"]["many sizes"]["gpu"]["first"]:.1f} s, because decoders are created for
each format. What has no figure was not measured in that run.

{table}

DALI looks for a decoder that it created before by the size of the coded picture, and stores it by the size of what is \
shown. Where
these differ (1920×1080 is coded as 1920×1088, 340×256 as 352×256), it would create one for every movie, and destroy \
another. So
framedex writes movies without cropping, and cuts out what is shown after decoding. A cache in front of the video \
driver spares the
rest ([decision 24](decisions/0024-nvdec-cache.md)). Without it, 340×256 takes {slow:.2f} s.

Milliseconds per movie of 16 frames, in runs of 16. Each size that is coded with more than is shown stands beside the \
size that shows
all of it. What was expected: a ratio of 1.0. The last column is the ratio of another run, on an equal machine, before \
decoders were
cached.

{_sizes_table(result["milliseconds_a_movie"], again["milliseconds_a_movie"])}

{made_by(result)} `many sizes`, 340×256 without the cache, and the last column come from these runs:

{made_by(many)}

{made_by(uncached)}

{made_by(again)}"""


def _sizes_table(found: dict[str, float], again: dict[str, float]) -> str:
    pairs = [
        ("454x256", "464x256"),
        ("340x256", "352x256"),
        ("640x360", "640x368"),
        ("1920x1080", "1920x1088"),
    ]
    lines = ["| codec | cropped | ms | all shown | ms | ratio | again |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for codec in ("h264", "hevc"):
        for cropped, whole in pairs:
            one, other = f"{codec} {cropped}", f"{codec} {whole}"
            ratios = [times[one] / times[other] for times in (found, again)]
            lines.append(
                f"| {codec} | {cropped} | {found[one]:.2f} | {whole} | {found[other]:.2f} "
                f"| {ratios[0]:.2f} | {ratios[1]:.2f} |"
            )
    return "\n".join(lines)


def planning_processes(result: dict[str, Any]) -> str:
    """Return how many clips are planned a minute by one process, and by several."""
    rows = result["rows"]
    [clips] = {row["clips"] for row in rows}
    same = "the same bytes" if len({row["digest"] for row in rows}) == 1 else "other bytes"
    lines = ["| processes | seconds | clips a minute | times as fast as one |", "| --- | --- | --- | --- |"]
    for row in rows:
        faster = rows[0]["seconds"] / row["seconds"]
        lines.append(f"| {row['workers']} | {row['seconds']:.0f} | {row['clips_a_minute']:,} | {faster:.2f} |")
    table = "\n".join(lines)
    return f"""With several processes (`--workers`), clips of 16 frames in a row by reference, out of an index of \
synthetic videos, {clips:,} clips in {same}:

{table}

What was expected: nearly twice as fast with two processes on two cores. One process alone shares its interpreter \
with the thread that writes Parquet.

{made_by(result)}"""


def performance_page() -> str:
    """Return the content of docs/performance.md."""
    access, manifest = load("random_access.json"), load("manifest.json")
    index, rows, gpu_index = load("index.json"), load("index_rows.json"), load("gpu_index.json")
    pack, plan = load("pack.json"), load("plan.json")
    stored, asked = load("object_storage.json"), load("object_requests.json")
    planning, dataset = manifest["planning"], manifest["dataset"]
    low, high = index["results"]
    small = a_packed_clip(pack["results"]["copying"][0])
    return f"""{NOTE}
# Performance

Every figure comes from a JSON file in `benchmarks/results/`, which names the command, the machine and the versions.
Timings of shared machines are noisy; ratios within one run are what to read.

## Random access on one core

Clips of 16 frames at 1 fps from random places of a 720p60 x264 video with default settings (GOP 250): `v60.mp4` is one
minute, `v3000.mp4` fifty. Every contender opens the file again for each clip and returns the same frames as RGB.

{random_access_table(access)}

What was expected: x264's defaults make about half the pictures non-reference, so leaving them out should bring nearly a
factor of two wherever decoding dominates, and nothing else should matter on a short file. On a long file the others
also pay for opening it: reading its index, or scanning it. Converting to RGB takes more here than elsewhere: chroma is
interpolated and sums are rounded, so that CPU and GPU agree.

{whole_loader_section(access)}{made_by(access)} Videos by `python -m benchmarks.make_video OUT --seconds 60` and \
`--seconds 3000`.

{one_core_section()}
{training_section()}
{conversion_section()}
## Indexing

One MP4 of {low["size_bytes"] / 1e6:,.0f} MB with 180 000 packets of low bit rate, and one of \
{high["size_bytes"] / 1e6:,.0f} MB
of high bit rate. Warm: from the page cache; cold: dropped from it before each turn. In brackets: how many times as \
fast as
ffprobe in the same run.

{index_table(index)}

Depth `tables` reads {low["bytes_read"]["tables"] / 1e6:.1f} MB of the first file and \
{high["bytes_read"]["tables"] / 1e6:.1f} MB
of the second ({100 * high["bytes_read"]["tables"] / high["size_bytes"]:.2f} %), sample tables and fingerprint \
included. It does
not grow with the bit rate; the tables themselves take about ten bytes a packet, which is much only where packets are \
tiny. Not
counted is the look at the header of each NAL unit where samples are small: the file is mapped for it, and the kernel \
reads a page or more for
each sample ([why](decisions/0021-lasting-state.md)). That look is most of the time that `tables` takes.

What was expected: reading `moov` costs a few bytes a packet, so tables should be tens of times as fast where packets \
are
many, and as much faster as the file is larger where they are few. Depth `packets` reads every byte, as ffprobe does; it
saves the work that a demuxer does for each packet, which is all there is at low bit rates. At high ones it searches \
every
byte for start codes inside of units, which ffprobe does not.

{made_by(index)} {index["environment"]["ffprobe"]}.

On a GPU machine, DALI's own ways to a first and a last frame, opening the file included, beside framedex's probe and a
clip of the last frame out of an index:

{gpu_index_table(gpu_index)}

{made_by(gpu_index)}

{proofs_section()}
### The index on disk

| what | figure |
| --- | --- |
| bytes a frame in `frames`, real clips (`make demo`'s) | {rows["real_bytes_a_frame"]["all"]:.1f} |
| bytes a frame in `frames`, {rows["synthetic"]["frames"]:,} synthetic frames | {rows["synthetic"]["all"]:.1f} |
| open that index | {rows["synthetic"]["open_ms"]:.1f} ms |
| one video's row out of it, median | {rows["synthetic"]["median_row_ms"]:.1f} ms |
| … 99th percentile | {rows["synthetic"]["p99_row_ms"]:.1f} ms |

{made_by(rows)}

## Planning and reading manifests on one core

| what | figure |
| --- | --- |
| plan a 16-frame clip of a 180 000-frame video and build its movie, index row in hand | \
{planning["median_ms_planner_plan_and_movie"]:.2f} ms |
| … of which the plan alone, once the video's timeline is known | {planning["median_ms_plan_alone"]:.2f} ms |
| open a dataset of {dataset["clips"]:,} clips | {dataset["open_ms"]:.2f} ms |
| fetch one clip's recipe, shuffled, median | {dataset["median_ms_fetch_a_clip"]:.2f} ms |
| … 99th percentile | {dataset["p99_ms_fetch_a_clip"]:.2f} ms |
| memory that the open dataset keeps after 4 000 of them | {dataset["resident_mb_kept"]:.0f} MB |
| clips planned and written a minute | {dataset["clips_planned_and_written_a_minute"]:,} |
| manifest size | {dataset["manifest_bytes_a_clip"]:.0f} bytes a clip |

{made_by(manifest)}

What `framedex shard` does, from an index in hand, for 16-frame clips of a video of 180 000 packets; at depth \
`tables` the
headers that the plans need are read from the file. And memory over synthetic videos, each dataset in a process of \
its own:

{planning_tables(plan)}

What was expected: planning is a few numpy calls a clip, so well above 20 000 clips a minute; memory is that of \
Python, of one
part of the manifest and of one video's packets, whatever the number of clips.

{made_by(plan)}

{planning_processes(load("plan_workers.json"))}

## Packing

`street.mp4` is a 720p60 x264 video of two minutes with default settings (1.8 Mbit/s, 3.6 KB a frame), `mid.mp4` its \
first half minute as
`ffmpeg -i street.mp4 -frames:v 1800 -c:v libx264 -preset ultrafast -crf 23 -g 120` makes it (5 Mbit/s), `high.mp4` \
the second video of
`benchmarks.index` (1 GB in 30 s), each taken often enough to make 4 GB. Clips of 250 frames; tiny files by copying \
packets, against `cp`
of the same tars on the same disk:

{packing_tables(pack)}

What was expected: 70 % of `cp` or more, both flushed. What keeps packing from it are bytes that are spread over many \
frames: a
clip of `street.mp4` has {small["megabytes"]:.1f} MB and takes {small["milliseconds"]:.1f} ms, of which planning, \
headers, JSON and the
manifest take about as much of a processor as copying does ([decision 16](decisions/0016-packing-beside-planning.md)).

The plain loop decodes each video from its beginning in one process with PyAV and writes the same JPEGs with Pillow.

{made_by(pack)}
{storage_section(stored, asked, (made_by(stored), made_by(asked)))}\
{tars_section(load("tars.json"), load("tar_requests.json"))}\
{encoded_section(load("encoded_shards.json"), load("encoded_shards_gpu.json"))}\
{streams_section(load("streams.json"))}\
{cameras_section(load("lerobot_cameras.json"))}\
{orders_section(load("orders.json"))}\
{columns_section(load("columns.json"))}\
{framing_section(load("framing_gpu.json"), load("framing.json"))}\
{loader_section(load("loader.json"), load("loader_two_gpus.json"), load("loader_slow.json"))}"""
