"""Scanner results on real streams, checks of parameter sets, and the unwrapping of output order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framedex import Index
from framedex.indexer.bitstream import h264, h264_sets, hevc, hevc_sets, nal
from framedex.indexer.bitstream.base import BitstreamError, segments, unwrap_order_counts
from tests.support.flags import CLOSED, LEADING, NON_REFERENCE, OPEN, START


@given(
    st.lists(st.tuples(st.integers(-6, 6), st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(4, 6)
)
def test_unwrapped_counts_are_those_whose_low_bits_were_written(steps: list[tuple[int, bool, bool]], bits: int) -> None:
    """Build counts as an encoder does (each near its anchor, zero at a reset), then keep only the low bits."""
    counts, resets, anchors, anchor = [], [], [], 0
    for number, (step, reset, is_anchor) in enumerate(steps):
        reset = reset or number == 0
        count = 0 if reset else anchor + step
        if reset or is_anchor:
            anchor = count
        counts.append(count)
        resets.append(reset)
        anchors.append(is_anchor)
    truth = np.array(counts)
    found = unwrap_order_counts(truth % (1 << bits), bits, np.array(resets), np.array(anchors))
    assert found.tolist() == truth.tolist()


def test_segments_name_the_start_at_or_before_each_packet() -> None:
    assert segments(np.array([0, 1, 0, 2, 0], np.uint8)).tolist() == [-1, 1, 1, 3, 3]


def _flags(index: Index, name: str) -> np.ndarray:
    (row,) = [row for row in index.videos.to_pylist() if row["uri"] == name]
    return index.packets(row["media_id"]).flags


@pytest.mark.parametrize("name", ["h264_default.mp4", "hevc_closed.mp4", "hevc_radl.mp4", "h264_slices.mov"])
def test_closed_gops_have_closed_starts_alone(packets_index: Index, name: str) -> None:
    flags = _flags(packets_index, name)
    assert np.count_nonzero(flags & CLOSED) >= 3
    assert not (flags & (OPEN | LEADING)).any()


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "h264_open_gop.mkv", "hevc_open_gop.mp4", "hevc_open_gop.mkv"])
def test_open_gops_have_open_starts_and_leading_pictures(packets_index: Index, name: str) -> None:
    flags = _flags(packets_index, name)
    assert flags[0] & START
    assert np.count_nonzero(flags & OPEN) >= 3
    assert np.count_nonzero(flags & LEADING) >= 3


def test_intra_refresh_has_one_start(packets_index: Index) -> None:
    assert np.count_nonzero(_flags(packets_index, "h264_intra_refresh.mp4") & START) == 1


def test_b_pyramid_marks_some_but_not_all_b_pictures_as_non_reference(packets_index: Index) -> None:
    share = np.mean((_flags(packets_index, "h264_b_pyramid.mkv") & NON_REFERENCE) != 0)
    assert 0.3 < share < 0.7


def test_every_picture_of_an_intra_stream_is_a_start(packets_index: Index) -> None:
    assert (_flags(packets_index, "h264_all_intra.mp4") & START).all()


@pytest.mark.parametrize("scanner", [h264.H264Scanner, hevc.HevcScanner])
@pytest.mark.parametrize("configuration", [b"\1", b"\1" * 6, b"\xff" * 40])
def test_a_configuration_record_that_is_none_is_refused(scanner: type[h264.H264Scanner], configuration: bytes) -> None:
    with pytest.raises(BitstreamError):
        scanner(configuration)


@given(st.binary(max_size=80))
def test_parsers_raise_value_error_alone_on_any_bytes(data: bytes) -> None:
    for parse in (
        h264_sets.parse_sps,
        h264_sets.parse_pps,
        hevc_sets.parse_sps,
        hevc_sets.parse_pps,
        hevc_sets.parse_vps,
    ):
        with contextlib.suppress(ValueError):
            parse(b"\x67\x01" + data)
    for parse_configuration in (h264_sets.parse_configuration, hevc_sets.parse_configuration):
        with contextlib.suppress(ValueError):
            parse_configuration(b"\1" + data)
    assert isinstance(nal.sei_payloads(data), list)


def _sps(*parameters: str) -> object:
    """Return the parsed SPS that x264 writes with the given parameters."""
    context = av.CodecContext.create("libx264", "w")
    assert isinstance(context, av.VideoCodecContext)
    context.width, context.height, context.pix_fmt = 64, 48, "yuv420p"
    context.time_base, context.options = Fraction(1, 25), {"x264-params": ":".join(parameters)}
    context.flags |= int(av.codec.context.Flags.global_header)
    context.open()
    units = [
        bytes(context.extradata or b"")[start:end] for start, end in nal.split_annex_b(bytes(context.extradata or b""))
    ]
    return next(h264_sets.parse_sps(unit)[1] for unit in units if unit[0] & 31 == h264_sets.SPS)


def test_a_change_of_colour_is_a_change_of_shape() -> None:
    assert _sps("fullrange=on") != _sps("fullrange=off")
    assert _sps("colormatrix=bt709") != _sps()
    assert _sps("sar=4/3", "colormatrix=bt709") == _sps("colormatrix=bt709")


def test_sei_payloads_longer_than_255_bytes_are_whole() -> None:
    payload = bytes(range(1, 200)) * 2
    unit = b"\6" + b"\5" + b"\xff" + bytes([len(payload) - 255]) + payload + b"\x80"
    assert nal.sei_payloads(unit[1:]) == [(5, payload)]


H264_SETS = bytes.fromhex("000001 67420000f4162e20 000001 68c020")


def test_a_picture_parameter_set_that_outlives_its_sequence_parameter_set_is_refused() -> None:
    idr = bytes.fromhex("000001 658884000020")
    sps, pps = (b"\0\0\1" + unit for unit in H264_SETS.split(b"\0\0\1")[1:])
    changed = bytes.fromhex("000001 67420001f4162e20")  # another level_idc
    for again, refused in ((b"", True), (pps, False)):
        scanner = h264.H264Scanner(b"")
        for packet in (sps + pps + idr, changed + again + idr):
            scanner.feed(packet)
        if refused:
            with pytest.raises(BitstreamError, match="is not repeated"):
                scanner.finish()
        else:
            assert scanner.finish().start.tolist() == [1, 1]


def test_a_start_that_is_no_reference_is_not_dropped() -> None:
    scanner = h264.H264Scanner(b"")
    idr = bytes.fromhex("000001 058884000020")
    for packet in (H264_SETS + idr, idr):
        scanner.feed(packet)
    pictures = scanner.finish()
    assert pictures.start.tolist() == [1, 1]
    assert not pictures.non_reference.any()


@pytest.mark.parametrize(
    ("parse", "unit"),
    [
        (h264_sets.parse_sps, "67420000 0420 f4162e20"),  # id 32
        (h264_sets.parse_pps, "68 0080 c020"),  # id 256
        (h264_sets.parse_pps, "68 8210 20"),  # id 0, refers to SPS 32
        (hevc_sets.parse_pps, "4401 020c 03fe"),  # id 64
        (hevc_sets.parse_sps, "4201010000030000000300000003000000030008a0208105dff084"),  # id 16
    ],
)
def test_ids_out_of_range_are_refused(parse: Callable[[bytes], object], unit: str) -> None:
    with pytest.raises(ValueError, match="parameter_set_id"):
        parse(bytes.fromhex(unit))


@pytest.mark.parametrize("number", range(16))
def test_the_id_of_a_vps_has_four_bits(number: int) -> None:
    for flags in (0b0000, 0b1100, 0b1111):
        assert hevc_sets.parse_vps(bytes([0x40, 1, number << 4 | flags, 0])) == (number, None)


def test_a_sei_unit_of_tiny_payloads_is_read_whole() -> None:
    """Read many payloads: quadratic work would take minutes here, and the fuzzer stops after ten seconds."""
    assert len(nal.sei_payloads(b"\1\0" * 200_000)) == 200_000


def test_parameter_sets_that_change_without_end_are_refused() -> None:
    def change(count: int, facts: Callable[[int], object]) -> None:
        sets = nal.ParameterSets()
        for number in range(count):
            sets.meet((8, number), b"", None)
        for number in range(10_000):
            sets.meet((8, 0), b"%d" % number, facts(number))

    with pytest.raises(BitstreamError, match="change more than"):
        change(1, lambda number: number)
    with pytest.raises(BitstreamError, match="change too often"):
        change(200, lambda number: None)


def test_leading_pictures_of_an_idr_picture_are_dropped() -> None:
    """Skip these pictures: no stream may have them (H.265 7.4.2.2); decoders skip them (8.1.3, NoRaslOutputFlag)."""
    sets = bytes.fromhex("000001 42010100000300000003000000030000000300a0208105dff084 000001 4401c03fe0")
    scanner = hevc.HevcScanner(b"")
    for packet in (sets + bytes.fromhex("000001 2601a803fe"), bytes.fromhex("000001 1201d0a7f8")):
        scanner.feed(packet)
    pictures = scanner.finish()
    assert pictures.leading.tolist() == [False, True]
    assert pictures.skipped.tolist() == [False, True]


def test_order_counts_out_of_range_are_refused() -> None:
    """Use the largest offset in a cycle of one picture: about 65 536 wraps of frame_num would overflow 64 bits."""
    _, sps = h264_sets.parse_sps(H264_SETS[3:-6])
    large = replace(sps, order_count_type=1, ref_frame_offsets=((1 << 31) - 1,))
    pictures = [(number, 0, 0, not number, True) for number in range(3)]
    with pytest.raises(BitstreamError, match="picture order count of 4294967294"):
        h264.order_counts_of_type_1([large], pictures)
