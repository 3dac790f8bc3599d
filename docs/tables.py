"""Benchmark results as Markdown tables. Pure: a result in, text out."""

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


def gpu_table(result: dict[str, Any]) -> str:
    """Return the table of benchmarks/gpu_loader.py."""
    lines = [
        "| "
        + " | ".join(
            [f"seconds for {result['results'][0]['clips']} clips", *(row["video"] for row in result["results"])]
        )
        + " |",
        "| --- " * (1 + len(result["results"])) + "|",
    ]
    for name in result["results"][0]["seconds"]:
        values = [f"{row['seconds'][name]:.1f}" for row in result["results"]]
        lines.append("| " + " | ".join([name, *values]) + " |")
    whole = [
        f"{row['dali_whole_file']['seconds'] / row['dali_whole_file']['clips'] * row['clips']:.0f} (from {row['dali_whole_file']['clips']} clips)"
        if "dali_whole_file" in row
        else "–"
        for row in result["results"]
    ]
    lines.append("| " + " | ".join(["DALI `decoders.video`, whole file as input", *whole]) + " |")
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
            f"| {row['medium']} | {row['codec']} | {row['exact']} of {row['clips']} | {apart}| {row['packets_a_clip']:.0f} |"
        )
    return "\n".join(lines)


def pre_roll_table(result: dict[str, Any]) -> str:
    """Return the table of what less pre-roll than planned gives, of benchmarks/audio_alignment.py."""
    lines = ["| medium | pre-roll | exact clips | largest difference |", "| --- | --- | --- | --- |"]
    for row in result["less_pre_roll"]:
        need = row["pre_roll"]
        words = [f"{need['packets']} packet{'s' * (need['packets'] > 1)}"] if need["packets"] else []
        words += [f"{need['reservoir_bytes']} bytes"] if need["reservoir_bytes"] else []
        words += [f"{1000 * need['seconds']:.0f} ms"] if need["seconds"] else []
        lines.append(
            f"| {row['medium']} | {', '.join(words) or 'none'} | {row['exact']} of {row['clips']} | {row['worst_difference']:.1e} |"
        )
    return "\n".join(lines)


def vorbis_sentence(result: dict[str, Any]) -> str:
    """Return what benchmarks/audio_alignment.py finds of Vorbis."""
    found = result["vorbis_beside_libvorbis"]
    share, largest = found["share_of_samples_off_by_1e_4"], found["largest_difference"]
    return f"{100 * share:.1f} % of a file's samples were off, by up to {largest:.2f} of full scale"


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
    """Return megabytes and milliseconds of one clip that benchmarks/pack.py packed and flushed."""
    megabytes = row["bytes"] / row["clips"] / 1e6
    return {"megabytes": megabytes, "milliseconds": 1000 * megabytes / row["megabytes_a_second"]["pack"]}
