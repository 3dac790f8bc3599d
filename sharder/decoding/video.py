"""Decoding of a clip's packets on the CPU with PyAV: one session per run; frames are identified by their ranks.

Frames with more than 8 bits per sample: RGB of 16 bits, or the samples of the planes as they are stored.
"""

import contextlib
import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import check_room, pixel_array
from framedex.errors import DecodeError, FramedexError
from framedex.indexer.containers import RANGE_NUMBERS, RunDecoder, native_planes, picture_md5
from framedex.indexer.images.image_facts import resize_rgb, rgb_md5, rgb_of
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium, bits_of
from framedex.sharder.decoding.cutout import Cropper, Cutout, cut_into
from framedex.sharder.decoding.rgb import RgbConverter, kept_converter
from framedex.sharder.reading import EncodedClip

Size = tuple[int, int]  # height, width
SHOWN_BY_VERIFY = "framedex verify shows which clips decode"


class PixelForm(NamedTuple):
    """How pixels are stored: the number of channels, and the type of a sample."""

    channels: int
    type: np.dtype[Any]


RGB = PixelForm(3, np.dtype(np.uint8))

MAX_UNCROPPED = 64  # pixels; the widest alignment of FFmpeg's pictures (STRIDE_ALIGN)
# Codecs for which an index records whether pictures differ in size (`varying_shape`).
SIZED = frozenset(("h264", "hevc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4", "h263", "h263p"))


def decode_pictures(clip: Clip, encoded: EncodedClip, *, threads: int = 1) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield (rank, picture) of every wanted picture once, in the order in which the decoder outputs them.

    Raises:
        DecodeError: A wanted picture is missing or damaged, or pictures come in an order other than that of their
            ranks. No indexed medium has a decoder that reorders in this way, except for pictures that an edit list
            hides.
    """
    in_order = not (clip.recipe.damaged or clip.medium.hidden_unordered)
    last = -1
    missing = set(clip.recipe.position[clip.recipe.position != PAD].tolist())
    try:
        for frame in _decode_runs(clip, encoded, threads):
            rank = frame.pts  # packets were numbered by their ranks
            # Unwanted pictures are decoded because wanted ones refer to them.
            if frame.is_corrupt and not clip.recipe.damaged:
                raise undecodable(clip, "the decoder marks a picture as corrupt")
            if rank is not None:
                if in_order and rank <= last:
                    raise undecodable(clip, "pictures come out of the decoder in another order than planned")
                last = rank
            if rank is not None and rank in missing:
                missing.remove(rank)
                yield rank, frame
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"the decoder stops: {error.strerror}") from error
    if missing:
        raise undecodable(clip, f"{len(missing)} wanted pictures did not come out of the decoder")


def _decode_runs(clip: Clip, encoded: EncodedClip, threads: int) -> Iterator[av.VideoFrame]:
    """Yield the pictures of all runs. Errors are ignored in a damaged clip."""
    payload, first = encoded.payload.data, encoded.packet_first.tolist()
    ranks, damaged = clip.recipe.packet_rank.tolist(), clip.recipe.damaged
    edges = [*clip.recipe.run_first.tolist(), len(ranks)]
    ignored = contextlib.suppress(av.error.FFmpegError) if damaged else contextlib.nullcontext()
    for begin, end in itertools.pairwise(edges):
        decoder = RunDecoder(clip.medium, where=clip.medium.path, threads=threads, keep_damaged=damaged)
        for number in range(begin, end):
            with ignored:
                yield from decoder.decode(payload[first[number] : first[number + 1]], ranks[number])
        with ignored:
            yield from decoder.flush()


def undecodable(clip: Clip, what: str) -> DecodeError:
    """Return the error of a clip that does not decode."""
    return DecodeError(f"clip {clip.clip_id}: {what}", where=clip.medium.path, remedy=SHOWN_BY_VERIFY)


def decode_rgb(
    clip: Clip, encoded: EncodedClip, *, size: Size | None = None, cutout: Cutout | None = None, threads: int = 1
) -> NDArray[np.uint8]:
    """Return RGB of the wanted frames in order, zeros where padded.

    Pixels of images are those of `rgb.rgb_of`; an image whose size differs from the medium's is scaled to it. Pixels of
    videos are those of `rgb.RgbConverter`.

    Args:
        clip: The clip.
        encoded: Its packets.
        size: (height, width) to scale to, in the same step, with an antialiasing triangle filter; None for the medium's
            size.
        cutout: In place of `size`: how frames are scaled and then cut.
        threads: Decoder threads.

    Returns:
        uint8 [F, H, W, 3], or [windows, F, h, w, 3] if the windows of `cutout` are stacked.

    Raises:
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    if cutout is not None and not cutout.is_whole:
        pictures: NDArray[np.uint8] = collected(clip, cutout, _parts_in(clip, encoded, cutout, threads))
        return pictures
    height, width = (size or (clip.medium.height, clip.medium.width)) if cutout is None else cutout.scaled
    places = _places(clip)
    # Made only after a picture has shown that the medium's size is right.
    room = functools.cache(lambda: _room(clip, (), height, width).reshape(-1, height, 3 * width))
    for rank, pixels in _pictures_in(clip, encoded, height, width, threads, lambda rank: room()[places[rank][0]]):
        for place in places[rank]:
            if not np.shares_memory(room()[place], pixels):
                room()[place][...] = pixels
    return room().reshape(-1, height, width, 3)


def collected(
    clip: Clip,
    cutout: Cutout,
    parts: Iterable[tuple[int, NDArray[Any], Cutout]],
    form: PixelForm = RGB,
) -> NDArray[Any]:
    """Return [F, h, w, C] or [windows, F, h, w, C]: the windows of a clip's pictures at their places.

    Args:
        clip: The clip.
        cutout: Its windows.
        parts: (rank, [H, W, C], the windows of these pixels) of each picture, scaled, or of a part of it that holds all
            windows.
        form: Channels and type of the pixels.

    Raises:
        DecodeError: They need more memory than there is; or as `parts`.
    """
    places = _places(clip)
    # Made only after a picture has shown that the medium's size is right.
    room = functools.cache(lambda: _room(clip, cutout.leading, *cutout.size, clear=cutout.stands_out, form=form))
    for rank, pixels, shown in parts:
        windows = room() if cutout.is_stacked else room()[None]
        first, *others = places[rank]
        cut_into(windows[:, first], pixels, shown, np.flip)
        for place in others:
            windows[:, place] = windows[:, first]
    return room()


def _places(clip: Clip) -> dict[int, list[int]]:
    """Return the places in the clip at which each rank is shown."""
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(clip.recipe.position.tolist()):
        places.setdefault(rank, []).append(place)
    return places


def _room(
    clip: Clip, leading: tuple[int, ...], height: int, width: int, *, clear: bool = False, form: PixelForm = RGB
) -> NDArray[Any]:
    """Return memory for a clip's frames, zeros where padded. Raises DecodeError if they need more than there is.

    Args:
        clip: The clip.
        leading: The axes in front of the frames.
        height: Of the frames.
        width: Of the frames.
        clear: Whether all of it is zeros.
        form: Channels and type of the pixels.
    """
    count = len(clip.recipe.position)
    shape = (*leading, count, height, width, form.channels)
    check_room(
        math.prod(shape) * form.type.itemsize,
        f"{math.prod(shape[:-3]):,} frames of {width} × {height}",
        where=f"clip {clip.clip_id} of {clip.medium.path}",
        remedy="make clips of fewer frames, or load them with a smaller size=(height, width)",
    )
    frames: NDArray[Any] = pixel_array(shape) if form == RGB else np.empty(shape, form.type)
    frames[..., slice(None) if clear else clip.recipe.position == PAD, :, :, :] = 0
    return frames


def _parts_in(
    clip: Clip, encoded: EncodedClip, cutout: Cutout, threads: int
) -> Iterator[tuple[int, NDArray[np.uint8], Cutout]]:
    """Yield (rank, uint8 [H, W, 3], its windows) of every wanted picture, scaled, or a part that holds all windows."""
    height, width = cutout.scaled
    if clip.medium.kind == IMAGES:
        for rank, rows in _pictures_in(clip, encoded, height, width, threads):
            yield rank, rows.reshape(height, width, 3), cutout
        return
    converter = converter_of(clip, threads)
    for rank, picture, shown in cropped_pictures(clip, encoded, cutout, threads):
        with known_matrix(clip):
            rows = converter.rows(picture, *shown.scaled)
        yield rank, rows.reshape(*shown.scaled, 3), shown


def cropped_pictures(
    clip: Clip, encoded: EncodedClip, cutout: Cutout, threads: int
) -> Iterator[tuple[int, av.VideoFrame, Cutout]]:
    """Yield (rank, picture, its windows) of every wanted picture, of which only a part is kept if it is not scaled.

    Raises:
        DecodeError: As `decode_pictures`, or a picture has another size than the medium.
    """
    cropper, box = Cropper(), cutout.box()
    for rank, picture in _sized_pictures(clip, encoded, threads):
        if (picture.height, picture.width) == cutout.scaled:
            part, place = cropper.part(picture, box)
            yield rank, part, cutout.within(place)
        else:
            yield rank, picture, cutout


def _pictures_in(
    clip: Clip,
    encoded: EncodedClip,
    height: int,
    width: int,
    threads: int,
    room: Callable[[int], NDArray[np.uint8]] | None = None,
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (rank, uint8 [height, 3 * width]) of every wanted picture at a given size.

    A picture may lie in the array of that shape which `room` returns for its rank. It is called for pictures whose size
    is right.
    """
    if clip.medium.kind == IMAGES:
        for rank, rgb in decode_images(clip, encoded):
            _check_size(clip, *rgb.shape[:2])
            yield rank, resize_rgb(rgb, height, width).reshape(height, 3 * width)
        return
    converter = converter_of(clip, threads)
    for rank, picture in _sized_pictures(clip, encoded, threads):
        with known_matrix(clip):
            rows = converter.rows(picture, height, width, None if room is None else room(rank))
        yield rank, rows


def converter_of(clip: Clip, threads: int) -> RgbConverter:
    """Return the calling thread's converter for the pictures of a clip."""
    return kept_converter(clip.medium.color_matrix, RANGE_NUMBERS.get(clip.medium.color_range, 0), threads)


def _sized_pictures(clip: Clip, encoded: EncodedClip, threads: int) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield as `decode_pictures` does. Raises DecodeError as `_check_size` does, too."""
    for rank, picture in decode_pictures(clip, encoded, threads=threads):
        _check_size(clip, picture.height, picture.width)
        yield rank, picture


@contextlib.contextmanager
def known_matrix(clip: Clip) -> Iterator[None]:
    """Raise DecodeError for libswscale's OSError."""
    try:
        yield
    except OSError as error:
        raise undecodable(clip, f"libswscale does not know colour matrix {clip.medium.color_matrix}") from error


def _check_size(clip: Clip, height: int, width: int) -> None:
    """Raise DecodeError for a picture whose size differs from the medium's, unless the index recorded varying sizes.

    Otherwise its frames would be scaled to a size that it never had. Videos are checked only if an index records
    varying sizes for their codec (`SIZED`). H.264 may be a little wider: on the left, FFmpeg crops only as far as its
    alignment allows (docs/limitations.md).
    """
    medium = clip.medium
    if medium.kind != IMAGES and medium.codec not in SIZED:
        return
    wider = range(MAX_UNCROPPED if medium.codec == "h264" else 1)
    if not medium.varying_shape and (height != medium.height or width - medium.width not in wider):
        raise undecodable(clip, f"a picture of {width} × {height} in a medium of {medium.width} × {medium.height}")


def decode_unique(clip: Clip, encoded: EncodedClip) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (rank, uint8 [H, W, 3] RGB) of every wanted picture once, one at a time, converted as in `decode_rgb`."""
    height, width = clip.medium.height, clip.medium.width
    for rank, pixels in _pictures_in(clip, encoded, height, width, 1):
        yield rank, np.ascontiguousarray(pixels).reshape(height, width, 3)


def decode_images(clip: Clip, encoded: EncodedClip) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (rank, uint8 [H, W, 3]) of every wanted image once, each at its own size. Raises DecodeError."""
    for rank, image in encoded_images(clip, encoded):
        try:
            yield rank, rgb_of(image)
        except (OSError, ValueError) as error:
            raise undecodable(clip, f"an image {error}") from error


def encoded_images(clip: Clip, encoded: EncodedClip) -> Iterator[tuple[int, bytes]]:
    """Yield (rank, the bytes of its file) of every wanted image once."""
    data, first = encoded.payload.data, encoded.packet_first.tolist()
    packet_of = np.argsort(clip.recipe.packet_rank).tolist()
    for rank in np.unique(clip.recipe.position[clip.recipe.position != PAD]).tolist():
        packet = packet_of[rank]
        yield rank, bytes(data[first[packet] : first[packet + 1]])


def decode_md5(clip: Clip, encoded: EncodedClip) -> dict[int, str]:
    """Return the md5 of every wanted picture by its rank, computed as `frames.md5` of an index. Raises DecodeError."""
    if clip.medium.kind == IMAGES:
        return {rank: rgb_md5(rgb) for rank, rgb in decode_images(clip, encoded)}
    return {rank: picture_md5(picture) for rank, picture in decode_pictures(clip, encoded)}


DEEP = PixelForm(3, np.dtype(np.uint16))
MAX_BITS = 16
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
    if shape.has_palette or shape.is_bit_stream or is_subsampled or not is_known or bits > MAX_BITS:
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
