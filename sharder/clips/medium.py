"""A medium of a dataset, one row of `media`."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass

from framedex.records.medium import MediumRecord
from framedex.sharder.clips.audio import AudioFacts, audio_facts
from framedex.sharder.clips.byte_source import ByteSource
from framedex.sharder.schema import AUDIO_COLUMNS
from framedex.storage.ranges import ByteRange
from framedex.storage.uris import medium_name

# Names of FFmpeg's pixel formats. Most end in the bits per sample and the byte order (libavutil/pixdesc.c).
BITS_AT_END = re.compile(r"(9|10|12|14|16|32)(?:msb)?[bl]e$")
BITS_BY_NAME = (
    (re.compile(r"(?:(?:rgb|bgr|xv)48|(?:rgba|bgra|ayuv)64)[bl]e"), 16),
    (re.compile(r"(?:rgb96|rgba128)[bl]e"), 32),
    (re.compile(r"xv36[bl]e"), 12),
    (re.compile(r"(?:xv30|v30x|nv20)[bl]e"), 10),
)


LOG = logging.getLogger("framedex.loader")


@functools.cache  # once in a process
def tell_unproven(where: str, codecs: tuple[str, ...]) -> None:
    """Warn that clips were planned from media whose frames an earlier version had not counted by decoding them.

    Args:
        where: the dataset, or the tars.
        codecs: the codecs of these media.
    """
    LOG.warning(
        "%s: clips of %s were planned by an earlier version of framedex, which counted frames by packets and tried "
        "none of them. To be sure of their frames, index the videos again and make the dataset again.",
        where,
        " and ".join(codecs),
    )


@functools.cache
def bits_of(pixel_format: str | None) -> int:
    """Return the number of bits of a pixel format's largest sample, at least 8; 8 if the format is unknown."""
    name = pixel_format or ""
    by_name = next((bits for pattern, bits in BITS_BY_NAME if pattern.fullmatch(name)), None)
    at_end = BITS_AT_END.search(name)
    return by_name or (8 if at_end is None else int(at_end[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium(MediumRecord):
    """A medium, and where its source lies now: `path` is a file, or the folder of loose images."""

    path: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return medium_name(self.uri, self.member)

    @property
    def part(self) -> ByteRange | None:
        """Where the video is in its file. None: it is the whole file, or a cell."""
        if self.member_offset is None or self.member_bytes is None:
            return None
        return ByteRange(offset=self.member_offset, size_bytes=self.member_bytes)

    @property
    def cell(self) -> str | None:
        """The name of the value of a compressed column of a Parquet file that the video is. None: it is none."""
        return self.member if self.member_offset is None and self.member_bytes is not None else None

    @property
    def bits(self) -> int:
        """Bits per sample of its pictures."""
        return bits_of(self.pixel_format)

    @property
    def audio(self) -> AudioFacts | None:
        """Its audio stream; None if it has no usable audio."""
        return audio_facts({name: getattr(self, name) for name in AUDIO_COLUMNS})

    @property
    def source(self) -> ByteSource:
        """The file that was indexed."""
        return ByteSource(
            path=self.path, size_bytes=self.size_bytes, mtime_ns=self.mtime_ns, fingerprint=self.fingerprint
        )
