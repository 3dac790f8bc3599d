"""Codecs whose packets are not parsed: every frame of a clip is that of a full decode, from one of many start points.

The streams are those of FFmpeg's encoders, and edited ones with hazards that no encoder here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import av
import pytest

from benchmarks.exactness import Tried, try_folder
from tests.support.bitstream_edits import Coded
from tests.support.flags import CLOSED, LEADING, NON_REFERENCE, OPEN, START
from tests.support.media import rewrite
from tests.support.planned import encode
from tests.support.probed import probed

pytestmark = pytest.mark.xdist_group("proven codecs")

QCIF = (176, 144)
SMALL = (128, 64)
G8 = {"g": "8"}
BF2 = {"g": "9", "bf": "2"}
FREE = {"sc_threshold": "1000000000"}
STRICT = {"strict": "-2"}
# file → encoder, encoder options, pixel format, size
ENCODES: dict[str, tuple[str, dict[str, str], str, tuple[int, int]]] = {
    "mpeg1.mpg": ("mpeg1video", BF2, "yuv420p", QCIF),
    "mpeg1_b4.m1v": ("mpeg1video", {"g": "12", "bf": "4"}, "yuv420p", QCIF),
    "mpeg2.ts": ("mpeg2video", BF2, "yuv420p", QCIF),
    "mpeg2.mkv": ("mpeg2video", {"g": "12", "bf": "3"}, "yuv420p", QCIF),
    "mpeg2.mov": ("mpeg2video", BF2, "yuv420p", QCIF),
    "mpeg2_422.mpg": ("mpeg2video", BF2 | {"intra_vlc": "1"}, "yuv422p", QCIF),
    "mpeg2_closed.m2v": ("mpeg2video", BF2 | FREE | {"flags": "+cgop"}, "yuv420p", QCIF),
    "mpeg2_interlaced.mp4": ("mpeg2video", BF2 | {"flags": "+ilme+ildct"}, "yuv420p", QCIF),
    "mpeg2_low_delay.mkv": ("mpeg2video", {"g": "9", "bf": "0", "flags": "+low_delay"}, "yuv420p", QCIF),
    "mpeg2_intra.mov": ("mpeg2video", {"g": "1"}, "yuv420p", QCIF),
    "mpeg4.mp4": ("mpeg4", BF2, "yuv420p", QCIF),
    "mpeg4.ts": ("mpeg4", BF2, "yuv420p", QCIF),
    "mpeg4.m4v": ("mpeg4", BF2, "yuv420p", QCIF),
    "mpeg4_qpel.avi": ("mpeg4", {"g": "12", "bf": "3", "flags": "+qpel"}, "yuv420p", QCIF),
    "mpeg4_closed.mkv": ("mpeg4", BF2 | FREE | {"flags": "+cgop"}, "yuv420p", QCIF),
    "mpeg4_four_vectors.mov": ("mpeg4", BF2 | {"flags": "+mv4+aic", "mpeg_quant": "1"}, "yuv420p", QCIF),
    "mpeg4_partitions.mkv": ("mpeg4", BF2 | {"data_partitioning": "1", "ps": "500"}, "yuv420p", QCIF),
    "mpeg4_interlaced.mp4": ("mpeg4", BF2 | {"flags": "+ilme+ildct"}, "yuv420p", QCIF),
    "h263.3gp": ("h263", G8, "yuv420p", QCIF),
    "h263p.avi": ("h263p", G8 | {"umv": "1", "obmc": "1"}, "yuv420p", QCIF),
    "h263p_slices.avi": ("h263p", G8 | {"aiv": "1", "structured_slices": "1", "ps": "300"}, "yuv420p", QCIF),
    "flv1.flv": ("flv", G8, "yuv420p", QCIF),
    "msmpeg4v2.avi": ("msmpeg4v2", G8, "yuv420p", QCIF),
    "msmpeg4v3.mkv": ("msmpeg4", G8, "yuv420p", QCIF),
    "wmv1.asf": ("wmv1", G8, "yuv420p", QCIF),
    "wmv2.asf": ("wmv2", G8, "yuv420p", QCIF),
    "ffv1_0.avi": ("ffv1", G8 | {"level": "0", "coder": "0"}, "yuv420p", SMALL),
    "ffv1_1.mkv": ("ffv1", G8 | {"level": "1", "context": "1", "coder": "1"}, "yuv420p", SMALL),
    "ffv1_3.mkv": ("ffv1", G8 | {"level": "3", "slices": "4", "slicecrc": "1"}, "yuv422p", SMALL),
    "mjpeg.avi": ("mjpeg", {"huffman": "optimal"}, "yuvj420p", SMALL),
    "mjpeg_444.mkv": ("mjpeg", {}, "yuvj444p", SMALL),
    "ljpeg.avi": ("ljpeg", STRICT, "bgr24", SMALL),
    "prores.mov": ("prores_ks", {"profile": "2"}, "yuv422p10le", SMALL),
    "prores_4444.mkv": ("prores_ks", {"profile": "4"}, "yuva444p10le", SMALL),
    "dnxhr.mov": ("dnxhd", {"profile": "dnxhr_sq"}, "yuv422p", (256, 128)),
    "huffyuv.avi": ("huffyuv", {}, "yuv422p", SMALL),
    "ffvhuff_adaptive.avi": ("ffvhuff", STRICT | {"context": "1"}, "yuv420p", SMALL),
    "utvideo.avi": ("utvideo", {}, "yuv420p", SMALL),
    "magicyuv.avi": ("magicyuv", {}, "gbrp", SMALL),
    "dv.avi": ("dvvideo", {}, "yuv420p", (720, 576)),
    "jpeg2000.mov": ("jpeg2000", {}, "rgb24", SMALL),
    "cljr.avi": ("cljr", {}, "yuv411p", SMALL),
    "jpegls.avi": ("jpegls", {}, "bgr24", SMALL),
    "png.mov": ("png", {}, "rgba", SMALL),
    "png.avi": ("png", {}, "rgb24", SMALL),
    "tiff.mov": ("tiff", {}, "rgb24", SMALL),
    "targa.mov": ("targa", {}, "bgr24", SMALL),
    "raw.avi": ("rawvideo", {}, "yuv420p", SMALL),
    "raw.mov": ("rawvideo", {}, "uyvy422", SMALL),
    "v210.mov": ("v210", {}, "yuv422p10le", SMALL),
    "v410.mov": ("v410", {}, "yuv444p10le", SMALL),
    "r210.mov": ("r210", {}, "gbrp10le", SMALL),
    "cfhd.mov": ("cfhd", {}, "yuv422p10le", SMALL),
    "anim.gif": ("gif", {}, "rgb8", SMALL),
    "anim.apng": ("apng", {}, "rgba", SMALL),
    "qtrle.mov": ("qtrle", {}, "argb", SMALL),
    "svq1.mov": ("svq1", {}, "yuv410p", QCIF),
    "msvideo1.avi": ("msvideo1", {}, "rgb555le", SMALL),
    "zmbv.avi": ("zmbv", {}, "bgr0", SMALL),
    "flashsv.flv": ("flashsv", {}, "bgr24", SMALL),
    "snow.avi": ("snow", STRICT | G8, "yuv420p", SMALL),
    "rv10.rm": ("rv10", G8, "yuv420p", QCIF),
    "h261.avi": ("h261", G8, "yuv420p", QCIF),
}
if "v410" not in av.codecs_available:  # FFmpeg 9 has neither the encoder nor the decoder
    del ENCODES["v410.mov"]
SCANNED = {"dv.avi", "utvideo.avi", "v210.mov", "r210.mov"}  # decoded from nothing but their own packets
# Codecs whose pictures all need the one before, or whose decoders keep what changes them.
ONE_START = {"anim.gif", "qtrle.mov", "msvideo1.avi", "mpeg4_interlaced.mp4", "zmbv.avi", "ljpeg.avi", "rv10.rm"}


def tried(folder: Path) -> dict[str, Tried]:
    """Return what becomes of each medium in a folder: its frames are asked for in shuffled order."""
    return {medium.uri: medium for medium in try_folder(folder, workers=0)}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoded")
    for name, (codec, options, pix_fmt, size) in ENCODES.items():
        encode(folder / name, codec, options, pix_fmt=pix_fmt, size=size, frames=26)
    return folder


def test_frames_of_every_encoder_are_those_of_a_full_decode(encoded: Path) -> None:
    found = tried(encoded)
    searched = {name for name in ENCODES if not name.endswith(".rm")}  # RealMedia has to be named
    assert found.keys() == searched
    for name, medium in found.items():
        assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames), name
        assert medium.frames >= 25


def test_most_codecs_have_several_starts_and_a_proof_of_every_frame(encoded: Path) -> None:
    for name in ENCODES:
        video, _ = probed(encoded / name)
        assert (video.get("proof") == "every_frame") == (name not in SCANNED)
        assert name in ONE_START or video["keyframe_count"] >= 3, name


def frames_flags(path: Path) -> list[int]:
    """Return the flags of each packet of a file."""
    return [int(flag) for flag in probed(path)[1]["flags"]]


def remade(source: Path, path: Path, change: Callable[[bytes, list[Coded]], Sequence[bytes]]) -> Path:
    """Copy a video with other packets, a fortieth of a second apart, in decode order."""

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        step = packets[1].dts - packets[0].dts if packets[0].dts is not None and packets[1].dts is not None else 1
        return [
            Coded(data=data, pts=number * step, dts=number * step, key=not number)
            for number, data in enumerate(change(configuration, packets))
        ]

    rewrite(source, path, edit)
    return path


VOP = b"\0\0\1\xb6"


@pytest.fixture
def mpeg4(media_folder: Path) -> Path:
    """Return MPEG-4 with B-VOPs, whose headers are in the extradata."""
    return encode(media_folder / "hazards.mp4", "mpeg4", BF2, pix_fmt="yuv420p", size=QCIF, frames=30)


def lone_vop(kind: int, increment: int) -> bytes:
    """Return a VOP that is not coded; at 25 frames per second, the increment has 5 bits."""
    bits = f"{kind:02b}01{increment:05b}1001111111"[:16]
    return VOP + int(bits, 2).to_bytes(2, "big")


@pytest.mark.parametrize("at", [5, 14, 30])
@pytest.mark.parametrize("count", [1, 2])
def test_vops_that_are_not_coded_give_no_picture_but_at_the_end(
    mpeg4: Path, at: int, count: int, tmp_path: Path
) -> None:
    lone = [lone_vop(1, at % 25)] * count

    def with_lone(_: bytes, packets: list[Coded]) -> list[bytes]:
        data = [packet.data for packet in packets]
        return [*data[:at], *lone, *data[at:]]

    remade(mpeg4, tmp_path / "lone.avi", with_lone)
    (medium,) = tried(tmp_path).values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)
    assert 28 <= medium.frames <= 31  # a B-VOP next to it may lie at an impossible time


def packed(configuration: bytes, packets: list[Coded]) -> list[bytes]:
    """Return packets with B-VOPs packed as XviD does it: [P B] [B] [placeholder, with a time increment]."""
    found: list[bytes] = []
    waiting = False
    for data in [*(packet.data for packet in packets), None]:
        is_b = data is not None and data[data.find(VOP) + 4] >> 6 == 2
        if data is not None and is_b and not waiting:
            found[-1] += data
            waiting = True
        elif data is not None and is_b:
            found.append(data)
        else:
            found += [lone_vop(1, 0)] * waiting
            waiting = False
            found += [data] if data is not None else []
    return [configuration + b"\0\0\1\xb2DivX503b1393p" + found[0], *found[1:]]


def test_no_packet_of_packed_b_vops_is_left_out(mpeg4: Path, tmp_path: Path) -> None:
    path = remade(mpeg4, tmp_path / "packed.avi", packed)
    (medium,) = tried(tmp_path).values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)
    assert not any(flag & NON_REFERENCE for flag in frames_flags(path))


def test_disposable_pictures_of_flash_video_may_be_dropped(media_folder: Path, tmp_path: Path) -> None:
    path = encode(media_folder / "hazards.flv", "flv", {"g": "10"}, pix_fmt="yuv420p", size=QCIF, frames=30)

    def disposable(_: bytes, packets: list[Coded]) -> list[bytes]:
        data = [packet.data for packet in packets]
        for number in (5, 16, 25):
            value = int.from_bytes(data[number], "big")
            shift = 8 * len(data[number]) - 33 - 2  # after a size that takes a 3-bit code alone
            data[number] = (value ^ (3 << shift)).to_bytes(len(data[number]), "big")
        return data

    remade(path, tmp_path / "disposable.flv", disposable)
    (medium,) = tried(tmp_path).values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)


def test_leading_pictures_are_decoded_from_the_start_point_before(media_folder: Path) -> None:
    whole = encode(media_folder / "leading.m2v", "mpeg2video", BF2, pix_fmt="yuv420p", size=QCIF, frames=30)
    flags = frames_flags(whole)
    starts = [number for number, flag in enumerate(flags) if flag & START]
    assert [flags[number] & START for number in starts] == [CLOSED, *[OPEN] * (len(starts) - 1)]
    for number in starts[1:]:
        assert [flag & (LEADING | NON_REFERENCE) for flag in flags[number + 1 : number + 3]] == [12, 12]


@pytest.mark.parametrize("name", ["uneven.mp4", "uneven.mkv", "uneven.avi"])
@pytest.mark.parametrize("late", [range(9, 15), range(6, 30)])
def test_interlaced_mpeg4_of_uneven_times_is_exact(name: str, late: range, tmp_path: Path) -> None:
    """FFmpeg's decoder scales field vectors of B-VOPs by the distance of the first one that a session decodes."""
    options = {"g": "60", "bf": "1", "flags": "+ilme+ildct"}
    encode(tmp_path / name, "mpeg4", options, pix_fmt="yuv420p", size=QCIF, frames=41, late=late)
    (medium,) = tried(tmp_path).values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)
    assert medium.frames >= 40


def with_matrix(data: bytes, weight: int) -> bytes:
    """Put a quantiser matrix extension for non-intra blocks before the first slice of an MPEG-2 picture."""
    bits = f"{0xB5:08b}0011" + "01" + f"{weight:08b}" * 64 + "00"
    extension = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    at = data.find(b"\0\0\1\1")
    assert at > 0
    return data[:at] + b"\0\0\1" + extension + data[at:]


@pytest.mark.parametrize("name", ["matrix.m2v", "matrix.mkv", "matrix.ts"])
def test_b_pictures_that_set_and_restore_a_matrix_are_not_left_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    options = {"g": "16", "bf": "3"} | FREE
    given = encode(tmp_path / name, "mpeg2video", options, pix_fmt="yuv420p", size=QCIF, frames=40)

    def edit(configuration: bytes, packets: list[Coded]) -> list[Coded]:
        header = b"\0\0\1\0"
        kinds = [packet.data[packet.data.find(header) + 5] >> 3 & 7 for packet in packets]
        droppable = [number for number, kind in enumerate(kinds) if kind == 3]
        weights = dict(zip(droppable[3:6], (40, 16, 16), strict=True))  # the flat matrix is what the encoder used
        return [
            replace(packet, data=with_matrix(packet.data, weights[number])) if number in weights else packet
            for number, packet in enumerate(packets)
        ]

    rewrite(given, tmp_path / "m" / name, edit)
    (medium,) = tried(tmp_path / "m").values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)
    assert not any(flag & NON_REFERENCE for flag in frames_flags(tmp_path / "m" / name))


@pytest.mark.parametrize("second", [{"g": "9", "bf": "2"}, {"g": "9", "bf": "0", "flags": "+low_delay"}])
def test_streams_that_change_their_size_or_delay_are_exact_or_refused(
    second: dict[str, str], media_folder: Path, tmp_path: Path
) -> None:
    width = 160 if "flags" in second else 176
    first = encode(media_folder / "first.m2v", "mpeg2video", BF2, pix_fmt="yuv420p", size=(160, 128), frames=15)
    other = encode(media_folder / f"{width}.m2v", "mpeg2video", second, pix_fmt="yuv420p", size=(width, 128), frames=15)
    (tmp_path / "both.m2v").write_bytes(first.read_bytes() + other.read_bytes())
    (medium,) = tried(tmp_path).values()
    assert medium.wrong == []
    assert medium.status != "ok" or medium.exact >= 14


@pytest.mark.parametrize(("pix_fmt", "bits"), [("rgb565le", 16), ("rgb555le", 16), ("bgra", 32)])
def test_raw_pictures_with_bit_fields_stand_as_a_player_shows_them(pix_fmt: str, bits: int, tmp_path: Path) -> None:
    """FFmpeg's decoder turns them by the codec's tag, which is the number 3 here."""
    (tmp_path / "m").mkdir()
    whole = encode(tmp_path / "whole.avi", "rawvideo", {}, pix_fmt=pix_fmt, size=SMALL, frames=12)
    content = bytearray(whole.read_bytes())
    header = content.find(b"strf") + 8
    content[header + 14 : header + 20] = bits.to_bytes(2, "little") + (3).to_bytes(4, "little")  # BI_BITFIELDS
    (tmp_path / "m" / "fields.avi").write_bytes(content)
    (medium,) = tried(tmp_path / "m").values()
    assert (medium.status, medium.frames, medium.wrong, medium.exact) == ("ok", 12, [], 12)


def test_theora_that_begins_between_key_frames_is_decoded_from_packet_0(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with av.open(str(corpus / "theora.ogv")) as given, av.open(str(tmp_path / "m" / "late.mkv"), "w") as out:
        stream = out.add_stream_from_template(given.streams.video[0], opaque=True)
        for packet in [packet for packet in given.demux(given.streams.video[0]) if packet.size][5:]:
            packet.stream = stream
            out.mux(packet)
    (medium,) = tried(tmp_path / "m").values()
    assert (medium.status, medium.wrong, medium.exact) == ("ok", [], medium.frames)
    assert medium.frames > 0


def test_a_medium_of_which_clips_are_images_alone_says_so(tmp_path: Path) -> None:
    real = encode(tmp_path / "a.rm", "rv20", G8, pix_fmt="yuv420p", size=QCIF, frames=20)
    video, _ = probed(real)
    assert (video["status"], video["error_kind"]) == ("ok", "unpackable")
    assert "--pack images" in video["error_message"]
