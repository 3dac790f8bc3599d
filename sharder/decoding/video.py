"""Decode the packets of a clip on the CPU with PyAV, to RGB of 8 or 16 bits or to the samples as they are stored.

Each run of packets has a decoder of its own. Pictures are identified by the rank of their packet, which PyAV passes
through the decoder as a presentation timestamp.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from framedex.sharder.decoding.cutout import Cropper, Cutout, cut_into, whole
from framedex.sharder.decoding.rgb import RgbConverter, kept_converter
from framedex.sharder.reading import EncodedClip

Size = tuple[int, int]  # height, width
SHOWN_BY_VERIFY = "framedex verify shows which clips decode"
Part = tuple[int, NDArray[Any], Cutout]  # rank, pixels [H, W, C], the windows of these pixels


class PixelForm(NamedTuple):
    """The number of channels of pixels, and the type of a sample."""

    channels: int
    type: np.dtype[Any]


RGB, DEEP = PixelForm(3, np.dtype(np.uint8)), PixelForm(3, np.dtype(np.uint16))

# FFmpeg crops on the left only to multiples of its alignment, which is at most 64 pixels (STRIDE_ALIGN).
MAX_UNCROPPED = 64
# Pictures of other codecs are not checked: only for these, an index records whether pictures differ in size.
SIZED = frozenset(("h264", "hevc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4", "h263", "h263p"))


def decode_pictures(clip: Clip, encoded: EncodedClip, *, threads: int = 1) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield (rank, picture) of every wanted picture once, in the order in which the decoder outputs them.

    Raises:
        DecodeError: A wanted picture is missing or damaged, or ranks do not ascend.
    """
    # Decoders of indexed media output ascending ranks, unless pictures are damaged or an edit list hides some.
    in_order = not (clip.recipe.damaged or clip.medium.hidden_unordered)
    last = -1
    missing = set(clip.recipe.position[clip.recipe.position != PAD].tolist())
    try:
        for frame in _decode_runs(clip, encoded, threads):
            rank = frame.pts
            # An unwanted picture must not be corrupt either, because wanted ones may refer to it.
            if frame.is_corrupt and not clip.recipe.damaged:
                raise undecodable(clip, "the decoder marks a picture as corrupt")
            if rank is None:
                continue
            if in_order and rank <= last:
                raise undecodable(clip, "pictures come out of the decoder in another order than planned")
            last = rank
            if rank in missing:
                missing.remove(rank)
                yield rank, frame
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"the decoder stops: {error.strerror}") from error
    if missing:
        raise undecodable(clip, f"{len(missing)} wanted pictures did not come out of the decoder")


def _decode_runs(clip: Clip, encoded: EncodedClip, threads: int) -> Iterator[av.VideoFrame]:
    """Yield the pictures of all runs. In a damaged clip, FFmpeg's errors are ignored."""
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


@dataclass(frozen=True, slots=True)
class _ClipDecoder:
    """A clip, its packets, and the number of decoder threads."""

    clip: Clip
    encoded: EncodedClip
    threads: int = 1

    @property
    def converter(self) -> RgbConverter:
        """The calling thread's converter for the pictures of the clip."""
        medium = self.clip.medium
        return kept_converter(medium.color_matrix, RANGE_NUMBERS.get(medium.color_range, 0), self.threads)

    def rgb_rows(
        self, height: int, width: int, room: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield (rank, uint8 [height, 3 * width]) of every wanted picture, scaled.

        Pixels may lie in the array of that shape which `room` returns for a rank. It is called only for pictures of the
        right size.
        """
        if self.clip.medium.kind == IMAGES:
            for rank, data in encoded_images(self.clip, self.encoded):
                rgb = _image_rgb(self.clip, data)
                _check_size(self.clip, *rgb.shape[:2])
                yield rank, resize_rgb(rgb, height, width).reshape(height, 3 * width)
            return
        converter = self.converter
        for rank, picture in decode_pictures(self.clip, self.encoded, threads=self.threads):
            _check_size(self.clip, picture.height, picture.width)
            with _known_matrix(self.clip):
                rows = converter.rows(picture, height, width, None if room is None else room(rank))
            yield rank, rows

    def rgb_parts(self, cutout: Cutout) -> Iterator[Part]:
        """Yield every wanted picture as uint8 [H, W, 3], scaled, or a part of it that contains all windows."""
        if self.clip.medium.kind == IMAGES:
            size = cutout.scaled_picture
            return ((rank, rows.reshape(*size, 3), cutout) for rank, rows in self.rgb_rows(*size))
        rows_of = self.converter.rows
        return self.parts(
            cutout, lambda picture, height, width: rows_of(picture, height, width).reshape(height, width, 3)
        )

    def parts(self, cutout: Cutout, convert: Callable[[av.VideoFrame, int, int], NDArray[Any]]) -> Iterator[Part]:
        """Yield every wanted picture of a video, converted. Pictures that are not scaled may be cropped before.

        Args:
            cutout: The windows that are wanted.
            convert: Returns [height, width, C] of (picture, height, width).
        """
        cropper, box = Cropper(), cutout.box()
        for rank, picture in decode_pictures(self.clip, self.encoded, threads=self.threads):
            _check_size(self.clip, picture.height, picture.width)
            shown = cutout
            if (picture.height, picture.width) == cutout.scaled_picture:
                picture, place = cropper.part(picture, box)
                shown = cutout.within(place)
            with _known_matrix(self.clip):
                pixels = convert(picture, *shown.scaled_picture)
            yield rank, pixels, shown


def decode_rgb(
    clip: Clip, encoded: EncodedClip, *, size: Size | None = None, cutout: Cutout | None = None, threads: int = 1
) -> NDArray[np.uint8]:
    """Return RGB of the wanted frames in order, zeros where padded.

    Images are read by `image_facts.rgb_of`, and scaled to the medium's size if theirs differs. Pictures of videos are
    converted by `rgb.RgbConverter`.

    Args:
        clip: The clip.
        encoded: Its packets.
        size: (height, width) to scale to, in the same step, with an antialiasing triangle filter. If None, the medium's
            size.
        cutout: How frames are scaled, turned and cut, instead of `size`.
        threads: The number of decoder threads.

    Returns:
        uint8 [F, H, W, 3], or [windows, F, h, w, 3] if the windows of `cutout` are stacked.

    Raises:
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    decoder = _ClipDecoder(clip, encoded, threads)
    cutout = cutout or whole(size or (clip.medium.height, clip.medium.width))
    if not cutout.is_whole:
        return _collect(clip, cutout, decoder.rgb_parts(cutout), RGB)
    height, width = cutout.scaled
    places = _places(clip)
    # Memory is reserved only after a picture has shown that the medium's size is right.
    room = functools.cache(lambda: _room(clip, cutout, RGB).reshape(-1, height, 3 * width))
    for rank, pixels in decoder.rgb_rows(height, width, lambda rank: room()[places[rank][0]]):
        for place in places[rank]:
            if not np.shares_memory(room()[place], pixels):
                room()[place][...] = pixels
    return room().reshape(-1, height, width, 3)


def _collect(clip: Clip, cutout: Cutout, parts: Iterable[Part], form: PixelForm) -> NDArray[Any]:
    """Return [F, h, w, C] or [windows, F, h, w, C]: the windows of a clip's pictures at their places.

    Raises:
        DecodeError: They need more memory than there is; or as `parts`.
    """
    places = _places(clip)
    # Memory is reserved only after a picture has shown that the medium's size is right.
    room = functools.cache(lambda: _room(clip, cutout, form))
    for rank, pixels, shown in parts:
        windows = room() if cutout.is_stacked else room()[None]
        first, *others = places[rank]
        cut_into(windows[:, first], pixels, shown, np)
        for place in others:
            windows[:, place] = windows[:, first]
    return room()


def _places(clip: Clip) -> dict[int, list[int]]:
    """Return the places in the clip at which each rank is shown."""
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(clip.recipe.position.tolist()):
        places.setdefault(rank, []).append(place)
    return places


def _room(clip: Clip, cutout: Cutout, form: PixelForm) -> NDArray[Any]:
    """Return memory for a clip's frames, zeros where padded. Raises DecodeError if there is not enough memory."""
    height, width = cutout.size
    shape = (*cutout.leading, len(clip.recipe.position), height, width, form.channels)
    check_room(
        math.prod(shape) * form.type.itemsize,
        f"{math.prod(shape[:-3]):,} frames of {width} × {height}",
        where=f"clip {clip.clip_id} of {clip.medium.path}",
        remedy="make clips of fewer frames, or load them with a smaller size=(height, width)",
    )
    frames: NDArray[Any] = pixel_array(shape) if form == RGB else np.empty(shape, form.type)
    # Windows that reach beyond the frame leave pixels unwritten, which must be zeros, too.
    frames[..., slice(None) if cutout.stands_out else clip.recipe.position == PAD, :, :, :] = 0
    return frames


@contextlib.contextmanager
def _known_matrix(clip: Clip) -> Iterator[None]:
    """Raise DecodeError for libswscale's OSError."""
    try:
        yield
    except OSError as error:
        raise undecodable(clip, f"libswscale does not know colour matrix {clip.medium.color_matrix}") from error


def _check_size(clip: Clip, height: int, width: int) -> None:
    """Raise DecodeError for a picture whose size differs from the medium's, unless the index recorded varying sizes.

    Otherwise its frames would be scaled to a size that it never had. H.264 may be a little wider, because FFmpeg does
    not crop all of the left side (docs/limitations.md).
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
    for rank, pixels in _ClipDecoder(clip, encoded).rgb_rows(height, width):
        yield rank, np.ascontiguousarray(pixels).reshape(height, width, 3)


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
        return {rank: rgb_md5(_image_rgb(clip, data)) for rank, data in encoded_images(clip, encoded)}
    return {rank: picture_md5(picture) for rank, picture in decode_pictures(clip, encoded)}


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_DEPTH_AT = 24  # bytes before the bit depth in the header of a PNG (ISO/IEC 15948 11.2.2)
# Formats of one plane with the samples R, G, B of each pixel in this order, perhaps with alpha behind them.
INTERLEAVED = frozenset({"rgb24", "rgb48le", "rgb48be", "rgba", "rgba64le", "rgba64be"})


def decode_deep(clip: Clip, encoded: EncodedClip, cutout: Cutout, *, threads: int = 1) -> NDArray[np.uint16]:
    """Return uint16 [F, h, w, 3] or [windows, F, h, w, 3]: RGB of 16 bits, white is 65535, zeros where padded.

    Raises:
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    if clip.medium.kind == IMAGES:
        parts = _deep_images(clip, encoded, cutout)
    else:
        decoder = _ClipDecoder(clip, encoded, threads)
        parts = decoder.parts(cutout, decoder.converter.deep)
    return _collect(clip, cutout, parts, DEEP)


def decode_raw(clip: Clip, encoded: EncodedClip, cutout: Cutout, *, threads: int = 1) -> NDArray[Any]:
    """Return [F, h, w, C] or [windows, F, h, w, C]: the samples as they are stored, zeros where padded.

    Raises:
        FramedexError: The planes differ in size, or `cutout` scales.
        DecodeError: The clip does not decode, or needs more memory than there is.
    """
    form = raw_form(clip.medium)
    if clip.medium.kind == IMAGES:
        parts = _raw_images(clip, encoded, cutout, form)
    else:
        decoder = _ClipDecoder(clip, encoded, threads)
        parts = decoder.parts(cutout, lambda picture, height, width: stored_samples(picture))
    return _collect(clip, cutout, _check_form(clip, parts, form), form)


@functools.cache
def _form_of(pixel_format: str) -> PixelForm | None:
    """Return the form of the samples of a pixel format, or None if its planes do not fit one array."""
    shape = av.VideoFormat(pixel_format)
    is_one = len(shape.components) <= 2  # grey, perhaps with alpha
    is_known = shape.is_planar or len(shape.components) == 1 or pixel_format in INTERLEAVED
    is_subsampled = not is_one and (shape.chroma_width(16), shape.chroma_height(16)) != (16, 16)
    bits = bits_of(pixel_format)
    if shape.has_palette or shape.is_bit_stream or is_subsampled or not is_known or bits > 16:
        return None
    return PixelForm(1 if is_one else 3, np.dtype(np.uint8 if bits == 8 else np.uint16))


def raw_form(medium: Medium) -> PixelForm:
    """Return the form of the stored samples of a medium: grey has one channel, other formats have three.

    Raises:
        FramedexError: The planes differ in size, or are not integers of at most 16 bits.
    """
    form = _form_of(medium.pixel_format) if medium.pixel_format else None
    if form is None:
        raise FramedexError(
            "the planes of these pictures do not fit one array of samples",
            where=medium.path,
            found=medium.pixel_format or "an unknown pixel format",
            allowed="grey, 4:4:4 or RGB in planes, of at most 16 bits",
            remedy="dtype='uint16', which converts them to RGB of 16 bits",
        )
    return form


def _check_form(clip: Clip, parts: Iterable[Part], form: PixelForm) -> Iterator[Part]:
    """Yield the parts. Raise DecodeError for a picture whose form or size differs from the medium's."""
    for rank, samples, shown in parts:
        shape = (*shown.scaled_picture, form.channels)
        if (samples.shape, samples.dtype) != (shape, form.type):
            raise DecodeError(
                f"clip {clip.clip_id}: its pictures differ in size or format, and dtype='raw' does not convert them",
                where=clip.medium.path,
                found=f"a picture of {samples.dtype} {list(samples.shape)} in a medium of {form.type} {list(shape)}",
                remedy="load it with dtype='uint8' or 'uint16'",
            )
        yield rank, samples, shown


def stored_samples(picture: av.VideoFrame) -> NDArray[Any]:
    """Return [H, W, C], uint8 or uint16: the samples of a picture's planes, without alpha, in the order R, G, B.

    Args:
        picture: A picture in a format that `raw_form` accepts.
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


def _raw_images(clip: Clip, encoded: EncodedClip, cutout: Cutout, form: PixelForm) -> Iterator[Part]:
    for rank, data in encoded_images(clip, encoded):
        if _is_deep_png(data):
            yield rank, stored_samples(_decode_png(clip, data)), cutout
        else:
            yield rank, _image_rgb(clip, data)[..., : form.channels], cutout


def _deep_images(clip: Clip, encoded: EncodedClip, cutout: Cutout) -> Iterator[Part]:
    converter = RgbConverter()
    for rank, data in encoded_images(clip, encoded):
        if _is_deep_png(data):
            yield rank, converter.deep(_decode_png(clip, data), *cutout.scaled_picture), cutout
            continue
        rgb = _image_rgb(clip, data).astype(np.uint16) * 257  # 255 becomes 65535
        if rgb.shape[:2] != cutout.scaled_picture:
            rgb = converter.deep(av.VideoFrame.from_ndarray(rgb, format="rgb48le"), *cutout.scaled_picture)
        yield rank, rgb, cutout


def _image_rgb(clip: Clip, data: bytes) -> NDArray[np.uint8]:
    """Return uint8 [H, W, 3]: an image. Raises DecodeError."""
    try:
        return rgb_of(data)
    except (OSError, ValueError) as error:
        raise undecodable(clip, f"an image {error}") from error


def _is_deep_png(data: bytes) -> bool:
    """Return whether an image is a PNG of 16 bits per sample."""
    return data.startswith(PNG_SIGNATURE) and data[PNG_DEPTH_AT : PNG_DEPTH_AT + 1] == bytes([16])


def _decode_png(clip: Clip, data: bytes) -> av.VideoFrame:
    """Return a PNG decoded by libavcodec. Pillow would read the high 8 bits alone. Raises DecodeError."""
    decoder: Any = av.CodecContext.create("png", "r")
    try:
        pictures = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    except av.error.FFmpegError as error:
        raise undecodable(clip, f"an image does not decode: {error.strerror}") from error
    if len(pictures) != 1:
        raise undecodable(clip, f"an image file holds {len(pictures)} pictures")
    picture: av.VideoFrame = pictures[0]
    return picture
