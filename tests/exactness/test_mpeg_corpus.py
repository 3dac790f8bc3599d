"""Scanners on the corpus and on new encodes: order is that of a full decode, and each frame decoded alone is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from framedex.indexer.bitstream.registry import SCANNERS
from tests.support.planes import picture_md5
from tests.support.planned import demux, encode, presented, scan, wrong_frames

ELSEWHERE = {"h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "libvpx", "libvpx-vp9"}
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
pytestmark = pytest.mark.slow


def check(path: Path, oracle: list[Any] | None = None) -> None:
    """Assert that the order and every frame decoded alone match a full decode.

    Args:
        oracle: the frames of the corpus manifest, which the full decode must match. None: no comparison.
    """
    stream = demux(path)
    pictures = scan(stream)
    full = stream.decode(range(len(stream.packets)))
    truth = {number: md5 for number, md5 in full if number is not None and number not in stream.hidden}
    with av.open(str(path)) as container:
        assert [picture_md5(frame) for frame in container.decode(video=0)] == [md5 for _, md5 in full]
    if oracle is not None:
        assert [(frame[3], frame[4]) for frame in oracle] == full
    assert presented(pictures, stream.hidden) == list(truth)
    assert not pictures.damaged.any()
    assert wrong_frames(stream, pictures, truth, seed=5) == []


def test_corpus_frames_decoded_alone_are_those_of_the_oracle(corpus: Path) -> None:
    files = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))["files"]
    seen = set()
    for name, facts in files.items():
        stream = facts.get("streams", {}).get("0")
        if (
            stream
            and stream["codec"] not in ELSEWHERE
            and "damaged" not in facts["tags"]
            and not stream["decode_errors"]
        ):
            check(corpus / name, stream["frames"])
            seen.add(stream["codec"])
    assert seen >= {"mpeg1video", "mpeg2video", "mpeg4", "h263", "flv", "msmpeg4", "wmv2", "theora", "ffv1", "mjpeg"}


@pytest.mark.parametrize("name", ENCODES)
def test_encoded_frames_decoded_alone_are_those_of_a_full_decode(name: str, media_folder: Path) -> None:
    codec, options, pix_fmt, size = ENCODES[name]
    check(encode(media_folder / f"scan_{name}", codec, options, pix_fmt=pix_fmt, size=size, frames=26))


def test_key_frame_codecs_have_several_starts(media_folder: Path) -> None:
    for name, (codec, options, pix_fmt, size) in ENCODES.items():
        stream = demux(encode(media_folder / f"scan_{name}", codec, options, pix_fmt=pix_fmt, size=size, frames=26))
        starts = np.count_nonzero(scan(stream).start)
        if stream.codec in SCANNERS and name != "mpeg4_interlaced.mp4":
            assert starts >= 3, name
