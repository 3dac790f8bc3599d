"""Benchmark results as Markdown tables. Pure: returns text for a result."""

from __future__ import annotations

from typing import Any


def random_access_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/random_access.py."""
    names = list(result["results"][0]["milliseconds_a_clip"])
    lines = [
        "| " + " | ".join(["milliseconds a clip", *(row["video"] for row in result["results"])]) + " |",
        "| --- " * (1 + len(result["results"])) + "|",
    ]
    for name in names:
        values = [f"{row['milliseconds_a_clip'][name]:.0f}" for row in result["results"]]
        lines.append("| " + " | ".join([name, *values]) + " |")
    best = [f"{row['speedup_over_best']:.2f} ×" for row in result["results"]]
    lines.append("| " + " | ".join(["framedex is faster than the best other by", *best]) + " |")
    packet = [f"{row['framedex_milliseconds_a_packet']:.2f}" for row in result["results"]]
    lines.append("| " + " | ".join(["framedex, milliseconds a decoded packet", *packet]) + " |")
    return "\n".join(lines)


def loader_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/loader.py: seconds per epoch, one row per way and one column per video length."""
    rows = result["results"]
    lengths = sorted({row["video_seconds"] for row in rows})
    found = {(row["way"], row["video_seconds"]): row for row in rows}
    clips = result["setup"]["clips"]
    lines = [
        "| " + " | ".join([f"seconds for {clips} clips", *(f"{length} s of video" for length in lengths)]) + " |",
        "| --- " * (1 + len(lengths)) + "|",
    ]
    order = [*LOADER_WAYS, *(row["way"] for row in rows)]
    for way in sorted({row["way"] for row in rows}, key=order.index):
        cells = [_loader_cell(found.get((way, length))) for length in lengths]
        versions = {row["version"] for row in rows if row["way"] == way and row.get("version")}
        label = " ".join([LOADER_WAYS.get(way, way), *(f"({version})" for version in sorted(versions))])
        lines.append("| " + " | ".join([label, *cells]) + " |")
    return "\n".join(lines)


LOADER_WAYS = {
    "nvdec": "framedex, by reference, NVDEC alone",
    "auto": 'framedex, by reference, `decode="auto"`',
    "cpu": "framedex, by reference, CPU processes alone",
    "images_720p": "framedex, image shards, JPEG of 720p",
    "images_256px": "framedex, image shards, JPEG of 256 px",
    "images_720p_auto": 'framedex, image shards, JPEG of 720p, `decode="auto"`',
    "images_256px_auto": 'framedex, image shards, JPEG of 256 px, `decode="auto"`',
    "dali_decoders_video": "DALI `decoders.video`, whole files",
    "dali_readers_video": "DALI `readers.video`",
    "pynvvideocodec": "PyNvVideoCodec `SimpleDecoder`, 16 threads",
    "opencv": "OpenCV, 16 processes",
    "decord": "decord, 16 processes",
}


def _loader_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row.get("median_seconds") is None:
        reason = str(row.get("reason"))
        if reason.startswith("past"):
            return f"{reason}, {row['clips_done']} clips done" if row.get("clips_done") else reason
        return "not installed" if reason.startswith("not installed") else "failed"
    different = f", {row['different']} of {row['compared']} frames wrong" if row.get("different") else ""
    return f"{row['median_seconds']:.2f}{different}"


def loader_load_table(result: dict[str, Any]) -> str:
    """Return the load of framedex' ways in benchmarks/loader.py, each at its longest video."""
    lines = ["| at the longest video | NVDEC busy | CPU cores busy | decoded by |", "| --- | --- | --- | --- |"]
    rows = {row["way"]: row for row in sorted(result["results"], key=lambda row: row["video_seconds"]) if "load" in row}
    for way, row in rows.items():
        load = row["load"]
        nvdec = "–" if load["nvdec_percent"] is None else f"{load['nvdec_percent']:.0f} %"
        cores = "–" if load["cpu_cores"] is None else f"{load['cpu_cores']:.1f}"
        by = ", ".join(f"{name} {count}" for name, count in row["decoded"].items() if count)
        lines.append(f"| {LOADER_WAYS.get(way, way)} | {nvdec} | {cores} | {by} |")
    return "\n".join(lines)


def loader_slow_sentence(result: dict[str, Any]) -> str:
    """Return a sentence about the times of the slowest other loaders in an earlier run."""
    said = [
        f"{row['seconds'][0]:.0f} s with `{row['name'].split()[1]}` out of {row['video_seconds']} s of video"
        for row in result["results"]
    ]
    return f"In an earlier run on the same kind of machine, DALI took {' and '.join(said)}."


def loader_devices_sentence(result: dict[str, Any]) -> str:
    """Return a sentence about the results of benchmarks/loader.py --devices."""
    rows = result["results"]
    one, most = min(rows, key=lambda row: row["gpus"]), max(rows, key=lambda row: row["gpus"])
    times = most["clips_a_second"] / one["clips_a_second"]
    return (
        f"A process on each of {most['gpus']} GPUs, ranks of one ClipSampler: "
        f"{most['clips_a_second']:.1f} clips a second, "
        f"{times:.2f} × the {one['clips_a_second']:.1f} of one.{_alone(rows, most)}"
    )


def _alone(rows: list[dict[str, Any]], most: dict[str, Any]) -> str:
    """Return the times of each rank alone and beside the others, or nothing if they were not measured."""
    alone = [row["median_seconds"] for row in rows if row["way"].endswith("_alone")]
    if not alone:
        return ""
    together = " and ".join(f"{seconds:.1f}" for seconds in most["seconds_of_ranks"])
    return (
        f" Each rank's clips take {' and '.join(f'{seconds:.1f}' for seconds in alone)} s alone, {together} s at once."
    )


def whole_loader_table(result: dict[str, Any]) -> str:
    """Return the results of benchmarks/random_access.py for the whole ClipLoader, or nothing if it was not measured."""
    rows = [row for row in result["results"] if "whole_loader" in row]
    if not rows:
        return ""
    lines = ["| seconds for all clips | bare decode | whole ClipLoader | ratio |", "| --- | --- | --- | --- |"]
    for row in rows:
        for name, times in row["whole_loader"].items():
            bare, whole = times["bare_decode_seconds"], times["clip_loader_seconds"]
            lines.append(f"| {row['video']}, {name} | {bare:.2f} | {whole:.2f} | {times['ratio']:.2f} |")
    return "\n".join(lines)


def index_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/index.py."""
    columns = [(row, state) for row in result["results"] for state in ("warm", "cold")]
    lines = [
        "| " + " | ".join(["milliseconds", *(f"{row['video']}, {state}" for row, state in columns)]) + " |",
        "| --- " * (1 + len(columns)) + "|",
    ]
    for name in result["results"][0]["warm"]["seconds"]:
        cells = [
            f"{1000 * row[state]['seconds'][name]:,.1f} ({row[state]['times_as_fast_as_ffprobe'][name]:.1f} ×)"
            for row, state in columns
        ]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def gpu_index_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/gpu_index.py."""
    videos = result["results"]
    lines = [
        "| " + " | ".join(["seconds", *(row["video"] for row in videos)]) + " |",
        "| --- " * (1 + len(videos)) + "|",
    ]
    for name in videos[0]["median_seconds"]:
        cells = [f"{row['median_seconds'][name]['seconds']:.3f}" for row in videos]
        lines.append("| " + " | ".join([name.replace("_", " "), *cells]) + " |")
    return "\n".join(lines)


def audio_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/audio_alignment.py."""
    lines = [
        "| medium | codec | exact clips | largest difference | signal to difference | packets a clip |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["results"]:
        exact = row["signal_to_difference_db"] is None
        apart = "0 | – " if exact else f"{row['worst_difference']:.1e} | {row['signal_to_difference_db']:.0f} dB "
        lines.append(
            f"| {row['medium']} | {row['codec']} | {row['exact']} of {row['clips']} "
            f"| {apart}| {row['packets_a_clip']:.0f} |"
        )
    return "\n".join(lines)


def pre_roll_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/audio_alignment.py about less pre-roll than planned."""
    lines = ["| medium | pre-roll | exact clips | largest difference |", "| --- | --- | --- | --- |"]
    for row in result["less_pre_roll"]:
        need = row["pre_roll"]
        words = [f"{need['packets']} packet{'s' * (need['packets'] > 1)}"] if need["packets"] else []
        words += [f"{need['reservoir_bytes']} bytes"] if need["reservoir_bytes"] else []
        words += [f"{1000 * need['seconds']:.0f} ms"] if need["seconds"] else []
        lines.append(
            f"| {row['medium']} | {', '.join(words) or 'none'} | {row['exact']} of {row['clips']} "
            f"| {row['worst_difference']:.1e} |"
        )
    return "\n".join(lines)


def recipes_table(result: dict[str, Any]) -> str:
    """Return the results for the recipes of the suite's media, with one row per group and depth."""
    lines = ["| media, depth | tried | indexed | frames | exact | refused | wrong |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {' | '.join(f'{count:,}' for count in run.values())} |" for name, run in result["runs"].items()
    ]
    return "\n".join(lines)


def mutants_table(result: dict[str, Any]) -> str:
    """Return the outcomes of `fuzz.difference`, with one row per kind of stream and one for all."""
    columns = ("compared", "refused", "wrong", "frames")
    rows = {
        name: [sum(count for what, count in counted.items() if what not in ("frames", "not written"))]
        + [counted.get(column, 0) for column in columns]
        for name, counted in result["codecs"].items()
    }
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = ["| kind of stream | mutants | compared | refused | wrong | frames compared |", "|---|---|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(f'{count:,}' for count in row)} |" for name, row in rows.items()]
    return "\n".join(lines)


def suites_table(runs: list[dict[str, Any]]) -> str:
    """Return the results of the test suite, one row per run."""
    lines = [
        "| Python | PyAV, FFmpeg | numpy, pyarrow, torch | passed | failed "
        "| skipped, for want of | minutes | command |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        libraries, tests = run["libraries"], run["tests"]
        versions = ", ".join(str(libraries.get(name, "–")) for name in ("numpy", "pyarrow", "torch"))
        skips = ", ".join(f"{count} ({reason})" for reason, count in run["skips"].items()) or "0"
        lines.append(
            f"| {run['python']} | {libraries['av']}, {run['ffmpeg']} | {versions} "
            f"| {tests['passed']:,} | {tests.get('failed', 0)} "
            f"| {skips} | {run['seconds'] / 60:.0f} | `{run['command']}` |"
        )
    return "\n".join(lines)


def vorbis_sentence(result: dict[str, Any]) -> str:
    """Return the result of benchmarks/audio_alignment.py for Vorbis."""
    largest = result["vorbis_beside_libvorbis"]["largest_difference"]
    return f"no sample of a file differs by more than {largest:.0e} of full scale"


def packing_tables(result: dict[str, Any]) -> str:
    """Return the tables of benchmarks/pack.py."""
    copying, storing, reading = (result["results"][name] for name in ("copying", "storing", "reading"))
    lines = [
        "| " + " | ".join(["MB a second", *(f"{row['video']}, {row['clips']} clips" for row in copying)]) + " |",
        "| --- " * (1 + len(copying)) + "|",
    ]
    rows = {
        name: [f"{row['megabytes_a_second'][name]:,}" for row in copying] for name in copying[0]["megabytes_a_second"]
    }
    rows |= {
        f"packing in terms of cp, {name}": [f"{100 * row['share_of_cp'][name]:.0f} %" for row in copying]
        for name in copying[0]["share_of_cp"]
    }
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows.items()]
    lines += ["", f"| {storing['images']} images of 720p | images a second |", "| --- | --- |"]
    lines += [f"| {name} | {rate:.1f} |" for name, rate in storing["images_a_second"].items()]
    lines += [
        "",
        f"| reading {reading['clips']} clips of {reading['frames_a_clip']} frames | clips a second | images a second |",
    ]
    lines += ["| --- | --- | --- |"]
    lines += [
        f"| {name} | {rate:.1f} | {reading['images_a_second'][name]:.1f} |"
        for name, rate in reading["clips_a_second"].items()
    ]
    return "\n".join(lines)


def planning_tables(result: dict[str, Any]) -> str:
    """Return the tables of benchmarks/plan.py."""
    lines = ["| clips of a 50-minute video, four times | clips | planned and written a minute |", "| --- | --- | --- |"]
    lines += [f"| {name} | {row['clips']:,} | {row['clips_a_minute']:,} |" for name, row in result["planning"].items()]
    lines += ["", "| clips in one dataset | planned and written a minute | most memory |", "| --- | --- | --- |"]
    lines += [f"| {row['clips']:,} | {row['clips_a_minute']:,} | {row['peak_mb']} MB |" for row in result["memory"]]
    return "\n".join(lines)


def a_packed_clip(row: dict[str, Any]) -> dict[str, float]:
    """Return the megabytes and milliseconds of one clip that benchmarks/pack.py packed and flushed."""
    megabytes = row["bytes"] / row["clips"] / 1e6
    return {"megabytes": megabytes, "milliseconds": 1000 * megabytes / row["megabytes_a_second"]["pack"]}


def hazards_table(rows: list[dict[str, Any]]) -> str:
    """Return the tables of benchmarks/gpu_hazards.py: codec, hazard, where its clips go, and the result."""
    made = [row for row in rows if row["set"] == "made"]
    others = [row for row in rows if row["set"] != "made"]
    shown = {rule for row in made for rule in _rules(row)}
    new = [row for row in others if _rules(row) - shown or any(row[way]["wrong"] for way in ("loader", "cpu"))]
    lines = _hazard_lines(made)
    if others:
        frames = sum(row["loader"]["right"] for row in others)
        wrong = sum(row["loader"]["wrong"] for row in others)
        lines += [
            "",
            f"The corpus itself, {len(others)} media at their own size: {frames:,} frames right, {wrong} wrong.",
        ]
    if new:
        lines += ["What it has beyond the hazards above:", "", *_hazard_lines(new)]
    return "\n".join(lines)


def _rules(row: dict[str, Any]) -> set[str]:
    return {why.split(":")[0] for why in row["gate"]} - {"nvdec", "nvjpeg"}


def _hazard_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| codec | hazard | clips go to | frames through the loader | kept from the GPU, forced there | CPU alone |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        gate = "<br>".join(f"{GPU_DECODERS.get(why, f'CPU: {why}')} ({count})" for why, count in row["gate"].items())
        cells = [
            row["codec"],
            row["hazard"],
            gate,
            _outcome(row["loader"]),
            _forced(row.get("forced")),
            _outcome(row["cpu"]),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


GPU_DECODERS = {"nvdec": "NVDEC", "nvjpeg": "nvJPEG"}


def _outcome(found: dict[str, Any]) -> str:
    parts = [f"{found[name]} {name}" for name in ("right", "wrong", "refused") if found[name]]
    parts += [f"{found['clips_not_seen']} clips missing"] if found["clips_not_seen"] else []
    return ", ".join(parts)


def _forced(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    counts = ", ".join(f"{found[name]} {name}" for name in ("right", "wrong", "refused") if found[name])
    outcome = "" if found["outcome"] in ("right", "wrong", "refused") else found["outcome"]
    return "**" * bool(found["wrong"]) + "; ".join(filter(None, [outcome, counts])) + "**" * bool(found["wrong"])
