"""Convert clips to rows of the tables `clips` and `recipes`, and check such rows and convert them back.

`schema` defines the allowed values of each column. The checks in this module ensure that the columns of a row are
consistent with each other, because `reading` and `decoding` assume that. Checked without a decoder are: the ranks of a
run are a permutation of the run's packet numbers and ascend with `packet_order`, the wanted frames ascend with their
ranks, and pictures are reordered by no more than the medium's reorder depth. If `packet_order` is null or also wrong, a
row in which two packets of a run have swapped ranks may pass these checks. Decoding detects such rows, because decoders
must output ascending ranks (see `decoding.video`).
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from framedex.core.column_rules import FAR, RowAt, object_bytes
from framedex.core.limits import usual_clip_bytes
from framedex.core.words import size_text
from framedex.errors import FormatError
from framedex.indexer.timeline import reorder_depth_needed
from framedex.records.clip import AUDIO, PAD, AudioFile, AudioRecipe, ClipAudioPlan, ClipRecord, Recipe
from framedex.records.columns import columns_of, plain_value, row_of, values_of_row
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import ByteSource, Clip, Medium

PER_FRAME = tuple(name for name, one in columns_of(ClipRecord).items() if pa.types.is_list(one.kind))


def check_wanted(row: Mapping[str, Any], medium: Medium, at: RowAt) -> None:
    """Check that all lists in a row of `clips` are as long as `frames`, and that the medium has these frames.

    Raises:
        FormatError: A column is inconsistent.
    """
    frames = row["frames"]
    _same_length(row, "frames", PER_FRAME, at)
    if len(frames) and frames.max() >= medium.frame_count:
        raise at.wrong("frames", frames.max(), f"{PAD} to {medium.frame_count - 1}, the frames of its medium")
    if (row["mask"] & (frames == PAD)).any():
        raise at.unlike("mask", "frames", "true for padding")
    if row["multiview_id"] is not None:
        for name, allowed in (("view_name", "the name of a view"), ("view_away_seconds", "a list")):
            if row[name] is None:
                raise at.wrong(name, "null", allowed)
    if row["stretch_first"] is not None:
        first, stop = row["stretch_first"], row["stretch_stop"]
        if stop is None or not first < stop <= medium.frame_count:
            raise at.wrong("stretch_stop", stop, f"{first + 1} to {medium.frame_count}")
    if np.isinf(row["seconds"]).any():
        raise at.wrong("seconds", "an infinite time")


def check_recipe(
    row: Mapping[str, Any], frames: NDArray[np.int64], medium: Medium, source: ByteSource, at: RowAt
) -> None:
    """Check a row of `recipes`.

    Args:
        row: The values of the row, by column.
        frames: int64 [F], the numbers of the clip's frames. -1 for padding.
        medium: The clip's medium.
        source: The file that the byte ranges point into.
        at: The location of the row, for errors.

    Raises:
        FormatError: A column is inconsistent.
    """
    packets = len(row["packet_size"])
    if not packets:
        raise at.wrong("packet_size", "no packet", "one or more")
    _same_length(row, "packet_size", ("packet_rank", "packet_order"), at)
    _same_length(row, "run_first", ("run_open", "run_state"), at)
    _same_length(row, "range_offset", ("range_length", "range_path", "range_crc32"), at)
    _check_ranges(row, "", source.size_bytes, at, whole_files=row["range_path"] is not None)
    if not len(row["range_length"]) or int(row["packet_size"].sum(dtype=np.int64)) != int(row["range_length"].sum()):
        raise at.unlike("packet_size", "range_length", f"{row['packet_size'].sum(dtype=np.int64)} bytes in all")
    if medium.kind == IMAGES and len(row["range_length"]) != packets:
        raise at.unlike("range_length", "packet_size", f"{len(row['range_length'])} ranges of {packets} images")
    if medium.kind == IMAGES and row["range_crc32"] is None:
        raise at.wrong("range_crc32", "null", "the checksum of each image")
    first, state, states = row["run_first"], row["run_state"], medium.states
    if not len(first) or first[0] != 0 or (first[1:] <= first[:-1]).any() or first[-1] >= packets:
        raise at.wrong("run_first", first.tolist(), f"ascending numbers from 0 to below {packets}")
    if state.max() >= len(states):
        raise at.wrong("run_state", state.max(), f"0 to {len(states) - 1}, the states of its medium")
    if state.any():  # `reading` can insert a state before a byte range, but not within a range
        given = first[[len(states[number]) > 0 for number in state.tolist()]]
        begins = np.append(0, np.cumsum(row["packet_size"], dtype=np.int64))[given]
        if not np.isin(begins, np.append(0, np.cumsum(row["range_length"]))).all():
            raise at.unlike("run_first", "range_length", "a run with a state that begins within a range")
    # The ranks of each run must be a permutation of the numbers of its packets.
    rank = row["packet_rank"]
    lengths = np.diff(first, append=packets)
    begin, end = np.repeat(first, lengths), np.repeat(first + lengths, lengths)
    wrong = (rank < begin) | (rank >= end)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise at.wrong("packet_rank", rank[place], f"{begin[place]} to {end[place] - 1} in the run of this packet")
    if (times := np.bincount(rank)).max() > 1:
        raise at.wrong("packet_rank", f"{times.argmax()} twice", "each rank once")
    order = row["packet_order"]
    if order is not None and (np.lexsort((order, begin))[rank] != np.arange(packets)).any():
        raise at.unlike("packet_order", "packet_rank", "packets in another order")
    _check_positions(row, frames, medium, at)


def _check_positions(row: Mapping[str, Any], frames: NDArray[np.int64], medium: Medium, at: RowAt) -> None:
    """Check that ranks ascend with frames, and that the medium's reorder depth allows the order of the packets."""
    position, rank = row["position"], row["packet_rank"]
    if len(position) != len(frames):
        raise at.unlike("position", "frames", f"{len(position)} for {len(frames)} frames")
    if len(position) and position.max() >= len(rank):
        raise at.wrong("position", position.max(), f"{PAD} to {len(rank) - 1}")
    real = frames != PAD
    if (real != (position != PAD)).any():
        raise at.unlike("position", "frames", f"{PAD} at other places")
    wanted, places = frames[real], position[real]
    order = np.argsort(wanted, kind="stable")
    if medium.kind == IMAGES:  # a tar stores images in the order of their first use in the clip, in any order of ranks
        pairs = len(np.unique(np.stack([wanted, places]), axis=1).T)
        if not pairs == len(np.unique(wanted)) == len(np.unique(places)):
            raise at.unlike("position", "frames", "one frame with two ranks, or two frames with one rank")
        return
    if (np.sign(np.diff(wanted[order])) != np.sign(np.diff(places[order]))).any():
        raise at.unlike("position", "frames", "ranks in another order than the frames")
    is_wanted = np.zeros(len(rank), np.bool_)
    is_wanted[places] = True
    decoded = rank[is_wanted[rank]]  # ranks of the wanted packets, in decode order
    if row["damaged"] or (decoded[1:] > decoded[:-1]).all():
        return
    needed = reorder_depth_needed(np.argsort(np.argsort(decoded)))
    if needed > medium.reorder_depth:
        found = f"pictures reordered over {needed} places"
        raise at.wrong("packet_rank", found, f"{medium.reorder_depth}, as in media")


def check_audio_packets(row: Mapping[str, Any], medium: Medium, source: ByteSource, at: RowAt) -> None:
    """Check the audio packets of a row of `recipes`, also against the samples that are planned for the clip's audio.

    Raises:
        FormatError: A column is inconsistent.
    """
    _same_length(row, "audio_packet_size", ("audio_packet_sample",), at)
    _same_length(row, "audio_range_offset", ("audio_range_length",), at)
    _check_ranges(row, "audio_", source.size_bytes, at)
    size, sample = row["audio_packet_size"], row["audio_packet_sample"]
    begin, end = row["audio_begin_sample"], row["audio_end_sample"]
    if int(size.sum(dtype=np.int64)) != int(row["audio_range_length"].sum()):
        raise at.unlike("audio_packet_size", "audio_range_length", f"{size.sum(dtype=np.int64)} bytes in all")
    if (sample[1:] < sample[:-1]).any():
        raise at.wrong("audio_packet_sample", "positions that do not ascend", "ascending positions")
    if end < begin:
        raise at.unlike("audio_end_sample", "audio_begin_sample", f"{end} after {begin}")
    facts = medium.audio
    if len(size) and facts is None:
        raise at.unlike("audio_packet_size", "media.audio_codec", "audio packets of a medium without audio")
    if len(size) and facts is not None:
        if sample[-1] >= min(end, facts.end_sample):
            raise at.unlike("audio_packet_sample", "audio_end_sample", f"a packet at {sample[-1]}, after the end")
        first, rate = row["audio_first"], row["audio_rate"]
        least, most = first * facts.rate // rate, -(-(first + row["audio_count"]) * facts.rate // rate)
        if begin > least or least - begin != end - most:  # the planner adds the same margin on both sides, to resample
            raise at.unlike("audio_count", "audio_end_sample", f"samples {least} to {most} of {begin} to {end}")


def check_audio_file(row: Mapping[str, Any], source: ByteSource, at: RowAt) -> None:
    """Check the audio file of a row of `recipes`.

    Raises:
        FormatError: A column is inconsistent.
    """
    for name in ("audio_range_offset", "audio_range_length"):
        if len(row[name]) != 1:
            raise at.wrong(name, f"{len(row[name])} ranges", "one range, which is the audio file")
    _check_ranges(row, "audio_", source.size_bytes, at)
    present = row["audio_present"]
    turns_back = (present[1:] < present[:-1]).any()
    if len(present) % 2 or turns_back or (len(present) and present[-1] > row["audio_count"]):
        raise at.wrong("audio_present", present.tolist(), f"ascending pairs of numbers up to {row['audio_count']}")


def _check_ranges(
    row: Mapping[str, Any], prefix: str, size_bytes: int, at: RowAt, *, whole_files: bool = False
) -> None:
    """Check that byte ranges are within their file.

    Args:
        row: The values of the row, by column.
        prefix: The prefix of the columns' names.
        size_bytes: The size of the file, or the total size of all files of a folder.
        at: The location of the row, for errors.
        whole_files: Whether each range is a whole file of a folder.
    """
    offset, length = row[f"{prefix}range_offset"], row[f"{prefix}range_length"]
    end = length if whole_files else offset + length
    if len(end) and end.max() > size_bytes:
        raise at.wrong(f"{prefix}range_length", f"a range to byte {end.max()}", f"up to {size_bytes}, the file's size")
    if length.sum(dtype=np.float64) > FAR:
        raise at.wrong(f"{prefix}range_length", f"{length.sum(dtype=np.float64):.3g} bytes in all")


def _same_length(row: Mapping[str, Any], name: str, others: tuple[str, ...], at: RowAt) -> None:
    """Check that the lists in `others` are as long as the list in `name`. Null lists are not checked."""
    expected = len(row[name])
    for other in others:
        if row[other] is not None and len(row[other]) != expected:
            raise at.unlike(other, name, f"{len(row[other])} elements for {expected}")


Row = dict[str, Any]


def clip_row(clip: Clip, *, media_row: int, shard: int | None) -> Row:
    """Return the row of `clips` for a clip.

    Args:
        clip: The clip.
        media_row: The row of the clip's medium in `media`.
        shard: The number of the tar that contains the clip. None if the clip's byte ranges point into the source.
    """
    return row_of(clip) | {"media_row": media_row, "shard": shard} | clip.columns


def recipe_row(clip: Clip) -> Row:
    """Return the row of `recipes` for a clip."""
    row = {"clip_id": clip.clip_id} | row_of(clip.recipe)
    if clip.audio is None:
        return row
    return row | row_of(clip.audio, prefix=AUDIO) | row_of(clip.audio.recipe, prefix=AUDIO)


def clip_from(
    row: pa.RecordBatch,
    recipe: pa.RecordBatch,
    medium: Medium,
    source: ByteSource,
    at: RowAt,
    own: Collection[str],
) -> Clip:
    """Build a clip from its rows of `clips` and `recipes`.

    Args:
        row: The row of `clips`, as a batch of one row.
        recipe: The row of `recipes`, as a batch of one row.
        medium: The clip's medium.
        source: The file that the recipe's byte ranges point into.
        at: The location of the rows, for errors.
        own: The names of the columns of `clips` that framedex defines. All others are the user's columns.

    Raises:
        FormatError: A column has a wrong value.
    """
    wanted = values_of_row(ClipRecord, row, at, names=own)
    check_wanted(wanted, medium, at)
    columns = values_of_row(Recipe, recipe, at)
    check_recipe(columns, wanted["frames"], medium, source, at)
    return Clip(
        **wanted,
        medium=medium,
        columns={name: plain_value(row, name, at) for name in row.schema.names if name not in own},
        recipe=Recipe(**columns),
        source=source,
        audio=_audio(recipe, medium, source, at),
    )


def is_heavy(rows: pa.RecordBatch) -> bool:
    """Return whether a row of `clips` may exceed the memory limit of a clip when converted to Python objects."""
    try:
        return sum(map(object_bytes, rows.columns)) > usual_clip_bytes()
    except (ValueError, TypeError, pa.ArrowException):  # then `check_objects` is called, and raises for the wrong row
        return True


def check_objects(row: pa.RecordBatch, at: RowAt) -> None:
    """Raise FormatError if a row would exceed the memory limit of a clip when converted to Python objects."""
    try:
        sizes = {name: object_bytes(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise FormatError("cannot be read", where=f"{at.file}, row {at.row}", found=error, remedy=at.remedy) from error
    need, most = sum(sizes.values()), usual_clip_bytes()
    if need > most:
        largest = max(sizes, key=sizes.__getitem__)
        raise at.wrong(largest, f"{size_text(need)} of memory for all columns", f"at most {size_text(most)} for a clip")


def _audio(row: pa.RecordBatch, medium: Medium, source: ByteSource, at: RowAt) -> ClipAudioPlan | None:
    """Return the audio plan that a row of `recipes` records, or None if the dataset has no audio."""
    if not any(name.startswith(AUDIO) and not row[name].null_count for name in row.schema.names):
        return None
    plan = values_of_row(ClipAudioPlan, row, at, prefix=AUDIO)
    is_packets = "audio_packet_size" in row.schema.names and not row["audio_packet_size"].null_count
    recipe = values_of_row(AudioRecipe if is_packets else AudioFile, row, at, prefix=AUDIO)
    prefixed = {AUDIO + name: value for name, value in (plan | recipe).items()}
    if is_packets:
        check_audio_packets(prefixed, medium, source, at)
        return ClipAudioPlan(**plan, recipe=AudioRecipe(**recipe))
    check_audio_file(prefixed, source, at)
    return ClipAudioPlan(**plan, recipe=AudioFile(**recipe))
