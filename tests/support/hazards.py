"""Recipes of media that no encoder writes as they are. Each once silently gave other frames than a full decode."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support import bitstream_edits, h26x_edits, mpeg_edits, still_edits
from tests.support.bitstream_edits import Coded
from tests.support.media import Recipe, encode, read_packets, x264, x265

_OPEN_265 = x265(keyint=25, min_keyint=25, open_gop=1, bframes=4, scenecut=0)
_B_264 = x264(keyint=25, min_keyint=25, scenecut=0, bframes=3, b_adapt=0, b_pyramid="none")
_PYRAMID = x264(keyint=30, min_keyint=30, scenecut=0, bframes=5, b_adapt=0, b_pyramid="normal", direct="spatial", ref=4)
_LATE_INTRA = {"keyint": 250, "min_keyint": 120, "scenecut": 60, "bframes": 0}
_PLAIN_OPEN = {"open_gop": 1, "cabac": 0, "weightp": 0, "weightb": 0, "b_pyramid": "none", "b_adapt": 0, "scenecut": 0}
# A negative cpu-used is a fixed speed; with a positive one, libvpx adapts to the time that it has.
_VP8 = {"g": "30", "keyint_min": "30", "auto-alt-ref": "0", "deadline": "realtime", "cpu-used": "-4"}
_MPEG = {"g": "12", "bf": "2", "sc_threshold": "1000000000", "qmin": "6"}
_JPEG = {"huffman": "default"}
_VC2 = {"b": "8000000000", "wavelet_type": "haar"}  # bits for 90 000 pictures

_P_8 = {"g": "8", "bf": "0", "sc_threshold": "1000000000"}
_16_BITS = {"format": "jp2"}, "mkv", "gray16le", 8
_J2K, _LOSSLESS = {"format": "j2k", "g": "1"}, {"strict": "-2"}


def _packets_of(
    codec: str, options: dict[str, str], suffix: str, pix_fmt: str = "yuv420p", frames: int = 50
) -> list[Coded]:
    """Return the packets of another stream of the same pictures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"other.{suffix}"
        encode(Recipe(name=path.name, codec=codec, options=options, pix_fmt=pix_fmt, frames=frames), path)
        return read_packets(path)[1]


HAZARDS = {
    recipe.name: recipe
    for recipe in (
        *(Recipe(name=f"hevc_{name}.{suffix}", codec="libx265", options=options, frames=75, edit=edit)
          for suffix in ("mp4", "mkv", "ts")
          for name, options, edit in (
              ("sequence_ends_before_cra", _OPEN_265, h26x_edits.end_of_sequence()),
              ("bitstream_ends_before_cra", _OPEN_265, h26x_edits.end_of_sequence(h26x_edits.END_OF_BITSTREAM)),
              ("sequence_ends_before_idr", x265(keyint=25, open_gop=0, bframes=4), h26x_edits.end_of_sequence()),
              ("set_in_droppable_picture", _OPEN_265, h26x_edits.hevc_set(0, 2, 4, 6, 8)),
              ("set_in_reference_picture", _OPEN_265, h26x_edits.hevc_set(1)),
              ("sps_changes_in_gop", _OPEN_265, h26x_edits.hevc_sequence(h26x_edits.HEVC_SPS, after=30)),
              ("vps_changes_in_gop", _OPEN_265, h26x_edits.hevc_sequence(h26x_edits.HEVC_VPS, after=30)),
              ("sps_changes_at_cra", _OPEN_265,
               h26x_edits.hevc_sequence(h26x_edits.HEVC_SPS, after=20, at_start=True)),
              ("set_in_leading_picture", _OPEN_265, h26x_edits.hevc_set(8, 9, behind=24)),
          )),
        Recipe(name="hevc_short_sequence.mkv", codec="libx265", options=_OPEN_265, frames=75,
               edit=h26x_edits.short_sequence),
        Recipe(name="mjpeg_cut_off.avi", codec="mjpeg", pix_fmt="yuvj420p", options=_JPEG, frames=20,
               edit=bitstream_edits.cut_off(7, 12)),
        Recipe(name="hevc_end_in_packet_of_cra.mp4", codec="libx265", options=_OPEN_265, frames=75,
               edit=h26x_edits.end_of_sequence(in_front=True)),
        *(Recipe(name=f"h264_{name}.{suffix}", options=options, frames=75, edit=edit)
          for suffix in ("mp4", "mkv", "ts")
          for name, options, edit in (
              ("set_in_droppable_picture", _B_264, h26x_edits.h264_set(referenced=False)),
              ("set_in_reference_picture", _B_264, h26x_edits.h264_set(referenced=True)),
              ("set_in_small_picture", _B_264, h26x_edits.h264_set(referenced=False, behind=45)),
              ("old_x264", _PYRAMID, h26x_edits.old_x264),
          )),
        *(Recipe(name=f"h264_{name}.{suffix}", options=x264(**_LATE_INTRA | options), frames=75, scenes=True,
                 edit=h26x_edits.lying_recovery)
          for suffix in ("mp4", "mkv", "ts")
          for name, options in (
              ("recovery_lies", {"ref": 3}),
              ("recovery_lies_b", {"ref": 4, "bframes": 3, "b_adapt": 0, "b_pyramid": "normal"}),
              ("recovery_lies_interlaced", {"ref": 3, "bframes": 2, "tff": 1}),
              ("recovery_true", {"ref": 1}),
          )),
        *(Recipe(name=f"h264_{name}.{suffix}", options=x264(**_PLAIN_OPEN | options), edit=edit)
          for suffix in ("mp4", "mkv")
          for name, options, edit in (
              *((f"long_reference_{number}", {"ref": ref, "bframes": bframes, "keyint": keyint},
                 h26x_edits.KEPT_FOR_LONG)
                for number, (ref, bframes, keyint) in enumerate([(4, 2, 12), (5, 2, 15), (3, 1, 15)])),
              ("references_reset", {"ref": 3, "bframes": 2, "keyint": 12}, h26x_edits.reset_at(13)),
              ("references_reset_early", {"ref": 3, "bframes": 2, "keyint": 12}, h26x_edits.reset_at(1)),
          )),
        *(Recipe(name=f"mjpeg_{name}.{suffix}", codec="mjpeg", pix_fmt="yuvj420p", options=_JPEG, frames=20,
                 edit=edit)
          for suffix in ("avi", "mov")
          for name, edit in (
              ("tables_seldom", still_edits.chroma_tables_seldom),
              ("turned_from_the_middle",
               still_edits.with_segment(still_edits.COM, b"Intel(R) JPEG Library, version 1,5,4\0", 7)),
              ("turned_by_the_first", still_edits.with_segment(still_edits.COM, b"Metasoft MJPEG Codec\0", 0)),
              ("range_from_the_middle", still_edits.with_segment(still_edits.COM, b"CS=ITU601\0", 7)),
          )),
        Recipe(name="jpegls_parameters.avi", codec="jpegls", pix_fmt="gray", options={}, frames=12,
               edit=still_edits.with_segment(still_edits.LSE, still_edits.THRESHOLDS, 0)),
        Recipe(name="jpegls_wrong_parameters.avi", codec="jpegls", pix_fmt="gray", options={}, frames=12,
               edit=still_edits.with_segment(still_edits.LSE, still_edits.WRONG_THRESHOLDS, 0)),
        Recipe(name="png_palette_once.avi", codec="png", pix_fmt="rgb24", options={}, frames=12,
               edit=still_edits.palette_once),
        Recipe(name="png_palette_once.mov", codec="png", pix_fmt="rgb24", options={}, frames=12,
               edit=still_edits.palette_once),
        *(Recipe(name=f"vp8_lost_packet_{number}.webm", codec="libvpx", options=_VP8, frames=90,
                 edit=bitstream_edits.without(number)) for number in (5, 35, 50)),
        Recipe(name="vp8_lost_packet_resilient.webm", codec="libvpx", options=_VP8 | {"error-resilient": "1"},
               frames=90, edit=bitstream_edits.without(35)),
        *(Recipe(name=f"mpeg2_matrix_behind_{name}.mkv", codec="mpeg2video", options=_MPEG,
                 edit=mpeg_edits.mpeg_unit(mpeg_edits.STEEP_MATRIX, kind, after=after, behind=True))
          for name, kind, after in (
              ("slices", mpeg_edits.MPEG_P, 15),
              ("droppable_slices", mpeg_edits.MPEG_B, 15),
              ("leading_slices", mpeg_edits.MPEG_B, 24),
              ("start_slices", mpeg_edits.MPEG_I, 20),
          )),
        *(Recipe(name=f"mpeg1_encoder_mark_in_droppable_picture.{suffix}", codec="mpeg1video", options=_MPEG,
                 edit=mpeg_edits.mpeg_unit(mpeg_edits.TMPGENC, mpeg_edits.MPEG_B, after=15))
          for suffix in ("mkv", "ts")),
        *(Recipe(name=f"mpeg4_{name}.{suffix}", codec="mpeg4", options=_MPEG | {"bf": bf},
                 edit=bitstream_edits.with_flipped_bit(number, byte, bit))
          for suffix in ("mkv", "mp4")
          for name, bf, number, byte, bit in (
              ("time_increment_in_doubt", "2", 26, 4, 5),
              ("lost_marker", "0", 18, 5, 6),
          )),
        Recipe(name="ffv1_lost_packet.mkv", codec="ffv1", options={"g": "12"}, edit=bitstream_edits.without(27)),
        Recipe(name="ffv1_lost_packet_checksums.mkv", codec="ffv1",
               options={"g": "12", "level": "3", "slicecrc": "1"}, edit=bitstream_edits.without(27)),
        Recipe(name="speedhq_flipped_bit.nut", codec="speedhq", options={}, frames=20,
               edit=bitstream_edits.with_flipped_bit(12, 1)),
        *(Recipe(name=f"hevc_set_of_another_layer{where}.{suffix}", codec="libx265", options=_OPEN_265, frames=75,
                 edit=h26x_edits.other_layer(number))
          for suffix in ("mp4", "mkv") for where, number in (("", 0), ("_in_gop", 31))),
        *(Recipe(name=f"hevc_film_grain.{suffix}", codec="libx265", options=_OPEN_265, frames=75,
                 edit=h26x_edits.film_grain(bytes([39 << 1, 1]), "1", 0)) for suffix in ("mp4", "mkv")),
        *(Recipe(name=f"h264_film_grain.{suffix}", options=_B_264, frames=75,
                 edit=h26x_edits.film_grain(bytes([6]), "010", 31)) for suffix in ("mp4", "mkv")),
        *(Recipe(name=f"h264_sets_behind_start.{suffix}", options=x264(keyint=20, bframes=2), frames=60,
                 edit=h26x_edits.sets_behind(15)) for suffix in ("mp4", "ts")),
        *(Recipe(name=f"mpeg1_behind_mpeg2.{suffix}", codec="mpeg2video", options=_P_8 | {"alternate_scan": "1"},
                 edit=bitstream_edits.alternating(lambda: _packets_of("mpeg1video", _P_8, "mpg")))
          for suffix in ("ts", "mkv")),
        Recipe(name="h263_behind_h263_plus.avi", codec="h263p", options=_P_8 | {"flags": "+loop"},
               edit=bitstream_edits.alternating(lambda: _packets_of("h263", _P_8, "avi"))),
        *(Recipe(name=f"msmpeg4v3_trailing_bytes.{suffix}", codec="msmpeg4", options=_P_8,
                 edit=bitstream_edits.with_trailing(5)) for suffix in ("avi", "mkv")),
        *(Recipe(name=f"mpeg4_old_mark.{suffix}", codec="mpeg4", options=_P_8 | {"bf": "2"},
                 edit=bitstream_edits.with_prefix(b"\0\0\1\xb2XviD0001", 21)) for suffix in ("avi", "mp4")),
        *(Recipe(name=f"mpeg4_mark_in_two_droppable_pictures.{suffix}", codec="mpeg4", options={"g": "15", "bf": "2"},
                 edit=bitstream_edits.with_prefix(b"\0\0\1\xb2XviD0050", 2, 3)) for suffix in ("avi", "mp4")),
        *(Recipe(name=f"jpeg2000_changes.{suffix}", codec="jpeg2000", pix_fmt="gray", options=_J2K, frames=8,
                 edit=bitstream_edits.alternating(lambda: _packets_of("jpeg2000", *_16_BITS)))
          for suffix in ("mov", "mkv")),
        Recipe(name="wmv2_skipped_pictures.avi", codec="wmv2", options=_P_8,
               edit=bitstream_edits.replaced_by(bytes([0xA3, 0xFF, 0xFF, 0, 0]), 3, 12, 13)),
        *(Recipe(name=f"{name}_cut_off.{suffix}", codec=codec, pix_fmt=pix_fmt, options=_LOSSLESS, frames=20,
                 edit=bitstream_edits.cut_off(7, 12))
          for name, codec, pix_fmt, suffix in (
              ("huffyuv", "huffyuv", "yuv422p", "avi"),
              ("ffvhuff", "ffvhuff", "yuv420p", "avi"),
              ("magicyuv", "magicyuv", "gbrp", "avi"),
              ("exr", "exr", "gbrpf32le", "mov"),
              ("prores", "prores_ks", "yuv422p10le", "mov"),
          )),
        Recipe(name="vc2_haar.mkv", codec="vc2", pix_fmt="yuv422p10le", options=_VC2, frames=12, size=(200, 120)),
    )
}  # fmt: skip
