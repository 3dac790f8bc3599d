"""Decode the packets of a clip on the CPU with PyAV, to RGB of 8 or 16 bits or to the stored samples.

Each run of packets gets a new decoder. The rank of a packet is given to the decoder as the packet's presentation
timestamp. The decoder returns this timestamp with the picture, so the rank identifies the picture.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from framedex.core.limits import check_room, pixel_array
from framedex.errors import DecodeError, FramedexError
from framedex.indexer.containers import RANGE_NUMBERS, RunDecoder, native_planes, picture_md5
from framedex.indexer.probing.image_facts import resize_rgb, rgb_md5, rgb_of
from framedex.records.clip import PAD
from framedex.records.medium import IMAGES
from framedex.sharder.clips.clip import Clip, Medium, bits_of
from framedex.sharder.clips.together import JoinedClips
from framedex.sharder.decoding.cutout import Cropper, Cutout, cut_into, whole
from framedex.sharder.decoding.cutout import Part as Rectangle
from framedex.sharder.decoding.rgb import DEEP_PACKED, PACKED, RgbConverter, kept_converter
from framedex.sharder.reading import EncodedClip

Size = tuple[int, int]  # height, width
SHOWN_BY_VERIFY = "framedex verify shows which clips decode"
Convert = Callable[[av.VideoFrame, int, int], NDArray[Any]]  # (picture, height, width) → [height, width, C]
Source = av.VideoFrame | bytes  # a decoded picture of a video, or the file of an image
Dtype = Literal["uint8", "uint16", "raw"]


class PixelForm(NamedTuple):
    """The number of channels and the sample type of an array of pixels.

    Attributes:
        channels: The number of channels.
        type: The type of a sample.
    """

    channels: int
    type: np.dtype[Any]


RGB, DEEP = PixelForm(3, np.dtype(np.uint8)), PixelForm(3, np.dtype(np.uint16))

# FFmpeg crops on the left only to multiples of its alignment, which is at most 64 pixels (STRIDE_ALIGN).
MAX_UNCROPPED = 64
# The codecs for which an index records whether pictures differ in size. Only pictures of these codecs are checked for
# unexpected sizes.
SIZED = frozenset(("h264", "hevc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4", "h263", "h263p"))


def decode_pictures(clip: Clip, encoded: EncodedClip, *, threads: int = 1) -> Iterator[tuple[int, av.VideoFrame]]:
    """Decode a clip. Yield (rank, picture) once for each wanted picture, in the order of the decoder's output.

    Args:
        clip: The clip.
        encoded: The packets of the clip.
        threads: The number of decoder threads.

    Raises:
        DecodeError: A wanted picture is missing, a picture is damaged, or ranks do not ascend.
    """
    # Decoders output ascending ranks, unless the clip is damaged or an edit list hides some pictures of the medium.
    in_order = not (clip.recipe.damaged or clip.medium.hidden_unordered)
    last = -1
    missing = set(clip.recipe.position[clip.recipe.position != PAD].tolist())
    try:
        for frame in _decode_runs(clip, encoded, threads):
            rank = frame.pts
            # Unwanted pictures must not be corrupt either, because wanted pictures may refer to them.
            if frame.is_corrupt and not clip.recipe.damaged:
                raise undecodable(clip, "the decoder marks a picture as corrupt")
            if rank is None:
                continue
            if in_order and rank <= last:
                raise undecodable(clip, "the decoder outputs pictures in another order than planned")
            last = rank
            if rank in missing:
                missing.remove(rank)
                yield rank, frame
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"the decoder fails: {error.strerror}") from error
    if missing:
        raise undecodable(clip, f"the decoder did not output {len(missing)} wanted pictures")


def _decode_runs(clip: Clip, encoded: EncodedClip, threads: int) -> Iterator[av.VideoFrame]:
    """Decode all runs of a clip and yield the pictures. For a clip that is marked as damaged, ignore errors."""
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
    """Return the error for a clip that does not decode, with the reason `what`."""
    return DecodeError(f"clip {clip.clip_id}: {what}", where=clip.medium.path, remedy=SHOWN_BY_VERIFY)


def _sources(clip: Clip, encoded: EncodedClip, threads: int) -> Iterator[tuple[int, Source]]:
    """Yield (rank, picture or image file) once for each wanted picture of a clip. Raises DecodeError."""
    if clip.medium.kind == IMAGES:
        return encoded_images(clip, encoded)
    return decode_pictures(clip, encoded, threads=threads)


def converter_of(medium: Medium, threads: int) -> RgbConverter:
    """Return the calling thread's RGB converter for the pictures of a medium."""
    return kept_converter(medium.color_matrix, RANGE_NUMBERS.get(medium.color_range, 0), threads)


def new_converter(medium: Medium, threads: int) -> RgbConverter:
    """Return a new RGB converter for the pictures of a medium."""
    return RgbConverter(medium.color_matrix, RANGE_NUMBERS.get(medium.color_range, 0), threads=threads)


class ClipFrames:
    """The frames of a clip, which are converted one picture after another.

    Args:
        clip: The clip.
        cutout: The size to which frames are scaled, and the windows that are cut out.
        dtype: The type of the pixels: "uint8" for RGB, "uint16" for RGB in which white is 65535, or "raw" for the
            stored samples, in the form of `raw_form`. Stored samples are not scaled, so `cutout.scaled` must then be
            the medium's size.
        converter: The RGB converter.

    Raises:
        FramedexError: `dtype` is "raw", and the pixel format has no raw form (see `raw_form`).
    """

    def __init__(self, clip: Clip, cutout: Cutout, dtype: Dtype, converter: RgbConverter) -> None:
        self._clip, self._cutout, self._dtype, self._converter = clip, cutout, dtype, converter
        self._form = {"uint8": RGB, "uint16": DEEP}.get(dtype) or raw_form(clip.medium)
        self._cropper, self._box = Cropper(), cutout.box()
        self._places: dict[int, list[int]] = {}  # the indices of the clip's frames that show each picture, by its rank
        for place, rank in enumerate(clip.recipe.position.tolist()):
            self._places.setdefault(rank, []).append(place)
        self._frames: NDArray[Any] | None = None
        # For images of more than 8 bits. Their colours do not depend on the medium.
        self._deep = RgbConverter() if dtype == "uint16" and clip.medium.kind == IMAGES else converter

    def _allocated(self) -> NDArray[Any]:
        # Memory is allocated only after the first picture has confirmed the size that the manifest states.
        if self._frames is None:
            self._frames = _room(self._clip, self._cutout, self._form)
        return self._frames

    @property
    def pixels(self) -> NDArray[Any]:
        """The frames, [F, h, w, C], or [windows, F, h, w, C] if the windows of the cutout are stacked.

        Padding is zeros. Raises DecodeError if the frames need more memory than the machine has.
        """
        return self._allocated()

    def add(self, rank: int, source: Source) -> None:
        """Convert a picture or an image file, and copy it to all frames that show the picture with this rank.

        Raises:
            DecodeError: The picture does not decode, it has another size or format than the medium, or the frames need
                more memory than the machine has.
        """
        first = self._places[rank][0]
        if isinstance(source, av.VideoFrame) and self._dtype == "uint8" and self._cutout.is_whole:
            _check_size(self._clip, source.height, source.width)
            height, width = self._cutout.scaled
            into = self._allocated()[first].reshape(height, 3 * width)
            with _known_matrix(self._clip):
                rows = self._converter.rows(source, height, width, into)
            if not np.shares_memory(into, rows):
                into[...] = rows
        else:
            pixels, shown = self._image(source) if isinstance(source, bytes) else self._picture(source)
            cut_into(self._windows(self._allocated())[:, first], pixels, shown, np)
        self._repeat(rank)

    def copy(self, rank: int, other: ClipFrames, other_rank: int) -> None:
        """Copy a picture from the frames of another clip with the same cutout and type."""
        to, of = self._places[rank][0], other._places[other_rank][0]
        self._windows(self._allocated())[:, to] = self._windows(other._allocated())[:, of]
        self._repeat(rank)

    def _repeat(self, rank: int) -> None:
        """Copy a picture from the first frame that shows it to the others."""
        first, *others = self._places[rank]
        for place in others:
            windows = self._windows(self._allocated())
            windows[:, place] = windows[:, first]

    def _windows(self, frames: NDArray[Any]) -> NDArray[Any]:
        return frames if self._cutout.is_stacked else frames[None]

    def _picture(self, picture: av.VideoFrame) -> tuple[NDArray[Any], Cutout]:
        """Convert a picture of a video, or a part that contains all windows, which may be cropped before.

        Returns:
            The pixels [H, W, C], and the cutout relative to these pixels.
        """
        clip, shown = self._clip, self._cutout
        _check_size(clip, picture.height, picture.width)
        with _known_matrix(clip):
            if shown.part is not None:
                part = _scaled_part(clip, (picture.height, picture.width), shown)
                picture = self._cropper.exact(picture, part) or _converted_part(picture, part, self._converted)
            elif (picture.height, picture.width) == shown.scaled_picture:
                picture, place = self._cropper.part(picture, self._box)
                shown = shown.within(place)
            pixels = self._converted(picture, *shown.scaled_picture)
        if self._dtype == "raw":
            self._check_form(pixels, shown)
        return pixels, shown

    def _converted(self, picture: av.VideoFrame, height: int, width: int) -> NDArray[Any]:
        if self._dtype == "raw":
            return stored_samples(self._clip, picture)
        if self._dtype == "uint16":
            return self._converter.deep(picture, height, width)
        return self._converter.rows(picture, height, width).reshape(height, width, 3)

    def _image(self, data: bytes) -> tuple[NDArray[Any], Cutout]:
        """Decode and scale an image file. Return the pixels [H, W, C], and the cutout."""
        clip, cutout = self._clip, self._cutout
        if self._dtype == "uint16":
            return _deep_image(clip, data, cutout, self._deep), cutout
        if self._dtype == "raw":
            is_deep = _is_deep_png(data)
            samples = stored_samples(clip, _decode_png(clip, data)) if is_deep else _image_rgb(clip, data)
            pixels = samples[..., : self._form.channels]
            self._check_form(pixels, cutout)
            return pixels, cutout
        return _scaled_image(clip, data, cutout), cutout

    def _check_form(self, samples: NDArray[Any], shown: Cutout) -> None:
        """Raise DecodeError if stored samples do not have the size and form of the medium."""
        form = self._form
        shape = (*shown.scaled_picture, form.channels)
        if (samples.shape, samples.dtype) != (shape, form.type):
            found = f"a picture of {samples.dtype} {list(samples.shape)} in a medium of {form.type} {list(shape)}"
            raise _another_form(self._clip, found)


def decode_frames(
    clip: Clip, encoded: EncodedClip, cutout: Cutout | None = None, *, dtype: Dtype = "uint8", threads: int = 1
) -> NDArray[Any]:
    """Decode the frames of a clip, in the clip's order. Padding is zeros.

    Images are read by `image_facts.rgb_of`, and scaled to the medium's size if their size differs. Pictures of videos
    are converted by `rgb.RgbConverter`.

    Args:
        clip: The clip.
        encoded: The packets of the clip.
        cutout: The size, turns and windows of the frames. The conversion to RGB also scales, with an antialiasing
            triangle filter. If None, frames keep the medium's size.
        dtype: The type of the pixels, as for `ClipFrames`.
        threads: The number of decoder threads.

    Returns:
        [F, h, w, C], or [windows, F, h, w, C] if the windows of `cutout` are stacked.

    Raises:
        FramedexError: `dtype` is "raw", and the pixel format has no raw form (see `raw_form`).
        DecodeError: The clip does not decode, or needs more memory than the machine has. With "raw", also if a picture
            has another size or format than the medium.
    """
    cutout = cutout or whole((clip.medium.height, clip.medium.width))
    frames = ClipFrames(clip, cutout, dtype, converter_of(clip.medium, threads))
    for rank, source in _sources(clip, encoded, threads):
        frames.add(rank, source)
    return frames.pixels


def decode_joined(
    group: JoinedClips, encoded: EncodedClip, cutouts: Sequence[Cutout], *, dtype: Dtype = "uint8", threads: int = 1
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Decode the frames of clips that were joined. Pictures are converted once for all clips with the same cutout.

    Args:
        group: The joined clips.
        encoded: The packets of `group.whole`.
        cutouts: The cutout of each clip.
        dtype: The type of the pixels, as for `ClipFrames`.
        threads: The number of decoder threads.

    Yields:
        (the index of a clip, its frames as `decode_frames` returns them), as soon as the clip is complete.

    Raises:
        FramedexError, DecodeError: As for `decode_frames`.
    """
    medium, left = group.whole.medium, collections.Counter(cutouts)
    # libswscale prepares a converter for one size, so each cutout has its own.
    converters: dict[Cutout, RgbConverter] = {}
    frames: dict[int, ClipFrames] = {}

    def take(users: list[tuple[int, int]], source: Source) -> None:
        first: dict[Cutout, tuple[ClipFrames, int]] = {}  # by cutout, a clip that has the picture, with its rank of it
        for number, own_rank in users:
            cutout = cutouts[number]
            if number not in frames:
                if cutout not in converters:
                    converters[cutout] = (new_converter if converters else converter_of)(medium, threads)
                frames[number] = ClipFrames(group.clips[number], cutout, dtype, converters[cutout])
            if cutout in first:
                frames[number].copy(own_rank, *first[cutout])
            else:
                frames[number].add(own_rank, source)
                first[cutout] = frames[number], own_rank

    for number in group.complete(_sources(group.whole, encoded, threads), take):
        left[cutouts[number]] -= 1
        if not left[cutouts[number]]:
            del converters[cutouts[number]]
        yield number, frames.pop(number).pixels


def _room(clip: Clip, cutout: Cutout, form: PixelForm) -> NDArray[Any]:
    """Allocate an array for a clip's frames, with zeros for padding.

    Raises:
        DecodeError: The array needs more memory than the machine has.
    """
    height, width = cutout.size
    shape = (*cutout.leading, len(clip.recipe.position), height, width, form.channels)
    check_room(
        math.prod(shape) * form.type.itemsize,
        f"{math.prod(shape[:-3]):,} frames of {width} × {height}",
        where=f"clip {clip.clip_id} of {clip.medium.path}",
        remedy="make clips with fewer frames, or load the clips with a smaller size=(height, width)",
    )
    frames: NDArray[Any] = pixel_array(shape) if form == RGB else np.empty(shape, form.type)
    # Pixels of windows beyond the frame are never written, so they must also be zeros.
    frames[..., slice(None) if cutout.stands_out else clip.recipe.position == PAD, :, :, :] = 0
    return frames


def _scaled_part(clip: Clip, picture: Sequence[int], cutout: Cutout) -> Rectangle:
    """Return the rows and columns that are scaled, for a picture whose size may differ from the size of its medium.

    Args:
        clip: The clip.
        picture: The height and width of the picture. Further elements are ignored.
        cutout: The part of the medium's pictures that is scaled. If it has no part, the result is the whole picture.
    """
    height, width = picture[:2]
    part = cutout.of_stored((clip.medium.height, clip.medium.width), (height, width), 0).part
    if part is None:
        return slice(0, height), slice(0, width)
    return slice(part[0][0], part[0][0] + part[1][0]), slice(part[0][1], part[0][1] + part[1][1])


def _converted_part(picture: av.VideoFrame, part: Rectangle, convert: Convert) -> av.VideoFrame:
    """Convert a picture without scaling it, and return a part of the result as an RGB picture."""
    pixels = np.ascontiguousarray(convert(picture, picture.height, picture.width)[part])
    return av.VideoFrame.from_ndarray(pixels, format=PACKED if pixels.dtype == np.uint8 else DEEP_PACKED)


@contextlib.contextmanager
def _known_matrix(clip: Clip) -> Iterator[None]:
    """Convert an OSError of libswscale within a `with` block to DecodeError."""
    try:
        yield
    except OSError as error:
        raise undecodable(clip, f"libswscale does not support colour matrix {clip.medium.color_matrix}") from error


def _check_size(clip: Clip, height: int, width: int) -> None:
    """Raise DecodeError if a picture's size differs from the medium's size, unless the index recorded varying sizes.

    Without this check, frames would be scaled to a size that is wrong for the video. Pictures of H.264 may be a little
    wider than the medium, because FFmpeg does not always crop the whole left side (docs/limitations.md).
    """
    medium = clip.medium
    if medium.kind != IMAGES and medium.codec not in SIZED:
        return
    wider = range(MAX_UNCROPPED if medium.codec == "h264" else 1)
    if not medium.varying_shape and (height != medium.height or width - medium.width not in wider):
        raise undecodable(clip, f"a picture of {width} × {height} in a medium of {medium.width} × {medium.height}")


def decode_unique(clip: Clip, encoded: EncodedClip) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Decode each wanted picture once, as `decode_frames` does. Yield (rank, RGB as uint8 [H, W, 3]), one at a time."""
    height, width = clip.medium.height, clip.medium.width
    converter = converter_of(clip.medium, 1)
    for rank, source in _sources(clip, encoded, 1):
        if isinstance(source, bytes):
            yield rank, _scaled_image(clip, source, whole((height, width)))
            continue
        _check_size(clip, source.height, source.width)
        with _known_matrix(clip):
            rows = converter.rows(source, height, width)
        yield rank, np.ascontiguousarray(rows).reshape(height, width, 3)


def encoded_images(clip: Clip, encoded: EncodedClip) -> Iterator[tuple[int, bytes]]:
    """Yield (rank, bytes of the image file) once for each wanted image."""
    data, first = encoded.payload.data, encoded.packet_first.tolist()
    packet_of = np.argsort(clip.recipe.packet_rank).tolist()
    for rank in np.unique(clip.recipe.position[clip.recipe.position != PAD]).tolist():
        packet = packet_of[rank]
        yield rank, bytes(data[first[packet] : first[packet + 1]])


def decode_md5(clip: Clip, encoded: EncodedClip) -> dict[int, str]:
    """Return {rank: MD5 of the picture} for the wanted pictures. The MD5 equals the column `frames.md5` of an index.

    Raises:
        DecodeError: The clip does not decode.
    """
    if clip.medium.kind == IMAGES:
        return {rank: rgb_md5(_image_rgb(clip, data)) for rank, data in encoded_images(clip, encoded)}
    return {rank: picture_md5(picture) for rank, picture in decode_pictures(clip, encoded)}


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_DEPTH_AT = 24  # offset in bytes of the bit depth in a PNG file (ISO/IEC 15948 11.2.2)
# Pixel formats with one plane that contains R, G, B of each pixel in this order, possibly followed by alpha.
INTERLEAVED = frozenset({"rgb24", "rgb48le", "rgb48be", "rgba", "rgba64le", "rgba64be"})


@functools.cache
def _form_of(pixel_format: str) -> PixelForm | None:
    """Return the form of the stored samples of a pixel format, or None if one array cannot contain its planes."""
    shape = av.VideoFormat(pixel_format)
    is_one = len(shape.components) <= 2  # grey, possibly with alpha
    is_known = shape.is_planar or len(shape.components) == 1 or pixel_format in INTERLEAVED
    is_subsampled = not is_one and (shape.chroma_width(16), shape.chroma_height(16)) != (16, 16)
    bits = bits_of(pixel_format)
    if shape.has_palette or shape.is_bit_stream or is_subsampled or not is_known or bits > 16:
        return None
    return PixelForm(1 if is_one else 3, np.dtype(np.uint8 if bits == 8 else np.uint16))


def raw_form(medium: Medium) -> PixelForm:
    """Return the form of the stored samples of a medium. Grey formats have one channel, other formats have three.

    Raises:
        FramedexError: The planes differ in size, the samples are not integers of at most 16 bits, or the pixel format
            is unknown.
    """
    form = _form_of(medium.pixel_format) if medium.pixel_format else None
    if form is None:
        raise FramedexError(
            "one array cannot contain the planes of this pixel format",
            where=medium.path,
            found=medium.pixel_format or "an unknown pixel format",
            allowed="grey, 4:4:4 or RGB in planes, of at most 16 bits",
            remedy="load the clips with dtype='uint16', which converts pictures to RGB of 16 bits",
        )
    return form


def _another_form(clip: Clip, found: str) -> DecodeError:
    return DecodeError(
        f"clip {clip.clip_id}: pictures differ in size or format, and dtype='raw' does not convert them",
        where=clip.medium.path,
        found=found,
        remedy="load the clip with dtype='uint8' or 'uint16'",
    )


def stored_samples(clip: Clip, picture: av.VideoFrame) -> NDArray[Any]:
    """Return the stored samples of a picture, without alpha, as uint8 or uint16 [H, W, C].

    The channels of RGB are in the order R, G, B. The channels of other formats are in the order of the planes.

    Args:
        clip: The clip that shows the picture.
        picture: The picture.

    Raises:
        DecodeError: The pixel format changed within the medium to one without a raw form (see `raw_form`).
    """
    name = picture.format.name
    form = _form_of(name)
    if form is None:
        raise _another_form(clip, f"a picture of {name} in a medium of {clip.medium.pixel_format}")
    stored = form.type.newbyteorder(">" if name.endswith("be") else "<")
    planes = [plane.view(stored) for plane in native_planes(picture)]
    if name in INTERLEAVED:
        samples = planes[0].reshape(picture.height, picture.width, -1)[..., :3]
    elif form.channels == 1:
        per_pixel = planes[0].shape[1] // picture.width  # number of samples per pixel, 2 with alpha
        samples = planes[0][:, ::per_pixel, None]
    else:
        chosen = (2, 0, 1) if picture.format.is_rgb else (0, 1, 2)  # FFmpeg's planes of RGB have the order G, B, R
        samples = np.stack([planes[number] for number in chosen], axis=-1)
    return samples.astype(form.type)


def _deep_image(clip: Clip, data: bytes, cutout: Cutout, converter: RgbConverter) -> NDArray[np.uint16]:
    """Decode an image file to RGB of 16 bits, and scale it. Raises DecodeError if the image does not decode."""
    if _is_deep_png(data):
        picture = _decode_png(clip, data)
        if cutout.part is not None:
            part = _scaled_part(clip, (picture.height, picture.width), cutout)
            picture = _converted_part(picture, part, converter.deep)
        return converter.deep(picture, *cutout.scaled_picture)
    rgb = _image_rgb(clip, data)
    deep = rgb[_scaled_part(clip, rgb.shape, cutout)].astype(np.uint16) * 257  # 255 becomes 65535
    if deep.shape[:2] == cutout.scaled_picture:
        return deep
    return converter.deep(av.VideoFrame.from_ndarray(deep, format=DEEP_PACKED), *cutout.scaled_picture)


def _scaled_image(clip: Clip, data: bytes, cutout: Cutout) -> NDArray[np.uint8]:
    """Decode an image file to 8-bit RGB, and scale it. Raises DecodeError if the image does not decode."""
    rgb = _image_rgb(clip, data)
    _check_size(clip, *rgb.shape[:2])
    return resize_rgb(rgb[_scaled_part(clip, rgb.shape, cutout)], *cutout.scaled_picture)


def _image_rgb(clip: Clip, data: bytes) -> NDArray[np.uint8]:
    """Decode an image file to RGB, uint8 [H, W, 3]. Raises DecodeError if the image does not decode."""
    try:
        return rgb_of(data)
    except (OSError, ValueError) as error:
        raise undecodable(clip, f"an image {error}") from error


def _is_deep_png(data: bytes) -> bool:
    """Return whether an image file is a PNG with 16 bits per sample."""
    return data.startswith(PNG_SIGNATURE) and data[PNG_DEPTH_AT : PNG_DEPTH_AT + 1] == bytes([16])


def _decode_png(clip: Clip, data: bytes) -> av.VideoFrame:
    """Decode a PNG by libavcodec, because Pillow would decode only the high 8 bits of each sample.

    Raises:
        DecodeError: The image does not decode, or the file contains several pictures.
    """
    decoder: Any = av.CodecContext.create("png", "r")
    try:
        pictures = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"an image does not decode: {error.strerror}") from error
    if len(pictures) != 1:
        raise undecodable(clip, f"an image file contains {len(pictures)} pictures")
    picture: av.VideoFrame = pictures[0]
    return picture
