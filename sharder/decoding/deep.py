"""Frames with more than 8 bits per sample: RGB of 16 bits, or the samples of the planes as they are stored."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from framedex.errors import DecodeError, FramedexError
from framedex.indexer.containers.planes import native_planes
from framedex.indexer.images.rgb import rgb_of
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip
from framedex.sharder.clips.medium import Medium, bits_of
from framedex.sharder.decoding.cutout import Cutout
from framedex.sharder.decoding.rgb import RgbConverter
from framedex.sharder.decoding.video import (
    PixelForm,
    collected,
    converter_of,
    cropped_pictures,
    encoded_images,
    known_matrix,
    undecodable,
)
from framedex.sharder.reading.sources import EncodedClip

DEEP = PixelForm(3, np.dtype(np.uint16))
MOST_BITS = 16
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_DEPTH_AT = 24  # bytes before the bit depth in the header of a PNG (ISO/IEC 15948 11.2.2)
# Formats of one plane with the samples R, G, B of each pixel in this order, perhaps with alpha behind them.
INTERLEAVED = frozenset({"rgb24", "rgb48le", "rgb48be", "rgba", "rgba64le", "rgba64be"})


def decode_deep(clip: Clip, encoded: EncodedClip, cutout: Cutout, *, threads: int = 1) -> NDArray[np.uint16]:
    """Return uint16 [F, h, w, 3] or [windows, F, h, w, 3]: RGB of 16 bits, white is 65535, zeros where padded.

    Raises:
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    parts = (
        _image_parts(clip, encoded, cutout) if clip.medium.kind == IMAGES else _parts(clip, encoded, cutout, threads)
    )
    frames: NDArray[np.uint16] = collected(clip, cutout, parts, DEEP)
    return frames


def decode_raw(clip: Clip, encoded: EncodedClip, cutout: Cutout, *, threads: int = 1) -> NDArray[Any]:
    """Return [F, h, w, C] or [windows, F, h, w, C]: the samples as they are stored, zeros where padded.

    Raises:
        FramedexError: The planes differ in size, or `cutout` scales.
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    form = raw_form(clip.medium)
    return collected(clip, cutout, _raw_parts(clip, encoded, cutout, form, threads), form)


@functools.cache
def _form_of(pixel_format: str) -> PixelForm | None:
    """Return how the samples of a pixel format are delivered, or None if its planes are no array."""
    shape = av.VideoFormat(pixel_format)
    is_one = len(shape.components) <= 2  # grey, perhaps with alpha
    is_known = shape.is_planar or len(shape.components) == 1 or pixel_format in INTERLEAVED
    is_subsampled = not is_one and (shape.chroma_width(16), shape.chroma_height(16)) != (16, 16)
    bits = bits_of(pixel_format)
    if shape.has_palette or shape.is_bit_stream or is_subsampled or not is_known or bits > MOST_BITS:
        return None
    return PixelForm(1 if is_one else 3, np.dtype(np.uint8 if bits == 8 else np.uint16))


def raw_form(medium: Medium) -> PixelForm:
    """Return how the stored samples of a medium are delivered: grey has one channel, other formats have three.

    Raises:
        FramedexError: The planes differ in size, or are no integers of at most 16 bits.
    """
    form = _form_of(medium.pixel_format) if medium.pixel_format else None
    if form is None:
        raise FramedexError(
            "the planes of these pictures are no array of samples",
            where=medium.path,
            found=medium.pixel_format or "an unknown pixel format",
            allowed="grey, 4:4:4 or RGB in planes, of at most 16 bits",
            remedy="dtype='uint16', which converts them to RGB of 16 bits",
        )
    return form


def _parts(
    clip: Clip, encoded: EncodedClip, cutout: Cutout, threads: int
) -> Iterator[tuple[int, NDArray[np.uint16], Cutout]]:
    converter = converter_of(clip, threads)
    for rank, picture, shown in cropped_pictures(clip, encoded, cutout, threads):
        with known_matrix(clip):
            rgb = converter.deep(picture, *shown.scaled)
        yield rank, rgb, shown


def _raw_parts(
    clip: Clip, encoded: EncodedClip, cutout: Cutout, form: PixelForm, threads: int
) -> Iterator[tuple[int, NDArray[Any], Cutout]]:
    if clip.medium.kind == IMAGES:
        for rank, data in encoded_images(clip, encoded):
            is_deep = _is_deep_png(data)
            image = stored_samples(_decoded_png(clip, data)) if is_deep else _rgb(clip, data)[..., : form.channels]
            _check_form(clip, image, form, cutout)
            yield rank, image, cutout
        return
    for rank, picture, shown in cropped_pictures(clip, encoded, cutout, threads):
        samples = stored_samples(picture)
        _check_form(clip, samples, form, shown)
        yield rank, samples, shown


def _check_form(clip: Clip, samples: NDArray[Any], form: PixelForm, shown: Cutout) -> None:
    """Raise DecodeError for a picture whose samples or size are not those of the medium."""
    expected = (*shown.scaled, form.channels), form.type
    if (samples.shape, samples.dtype) != expected:
        raise DecodeError(
            f"clip {clip.clip_id}: its pictures are not all alike, and dtype='raw' leaves them as they are",
            where=clip.medium.path,
            found=f"a picture of {samples.dtype} {list(samples.shape)} in a medium of {form.type} {list(expected[0])}",
            remedy="load it with dtype='uint8' or 'uint16'",
        )


def stored_samples(picture: av.VideoFrame) -> NDArray[Any]:
    """Return [H, W, C], uint8 or uint16: the samples of a picture's planes, without alpha. RGB is in this order.

    The picture has a format of which `raw_form` knows how to deliver it.
    """
    name = picture.format.name
    form = _form_of(name)
    assert form is not None
    stored = form.type.newbyteorder(">" if name.endswith("be") else "<")
    planes = [plane.view(stored) for plane in native_planes(picture)]
    if name in INTERLEAVED:
        samples = planes[0].reshape(picture.height, picture.width, -1)[..., :3]
    elif form.channels == 1:
        per_pixel = planes[0].shape[1] // picture.width  # 2 with alpha
        samples = planes[0][:, ::per_pixel, None]
    else:
        chosen = (2, 0, 1) if picture.format.is_rgb else (0, 1, 2)  # FFmpeg's planes are G, B, R
        samples = np.stack([planes[number] for number in chosen], axis=-1)
    return samples.astype(form.type)


def _image_parts(clip: Clip, encoded: EncodedClip, cutout: Cutout) -> Iterator[tuple[int, NDArray[np.uint16], Cutout]]:
    converter = RgbConverter()
    for rank, data in encoded_images(clip, encoded):
        if _is_deep_png(data):
            yield rank, converter.deep(_decoded_png(clip, data), *cutout.scaled), cutout
            continue
        rgb = _rgb(clip, data).astype(np.uint16) * 257
        if rgb.shape[:2] != cutout.scaled:
            rgb = converter.deep(av.VideoFrame.from_ndarray(rgb, format="rgb48le"), *cutout.scaled)
        yield rank, rgb, cutout


def _rgb(clip: Clip, data: bytes) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: an image. Raises DecodeError."""
    try:
        return rgb_of(data)
    except (OSError, ValueError) as error:
        raise undecodable(clip, f"an image {error}") from error


def _is_deep_png(data: bytes) -> bool:
    return data[:8] == PNG_SIGNATURE and data[PNG_DEPTH_AT : PNG_DEPTH_AT + 1] == struct.pack("B", 16)


def _decoded_png(clip: Clip, data: bytes) -> av.VideoFrame:
    """Return a PNG decoded by libavcodec; Pillow reads the high 8 bits alone. Raises DecodeError."""
    decoder: Any = av.CodecContext.create("png", "r")
    try:
        pictures = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"an image does not decode: {error.strerror}") from error
    if len(pictures) != 1:
        raise undecodable(clip, f"an image file holds {len(pictures)} pictures")
    picture: av.VideoFrame = pictures[0]
    return picture
