"""H.263 (ITU-T H.263, its annexes included) and Sorenson's variant of it in Flash video: I pictures and sizes."""

from __future__ import annotations

import numpy as np

from framedex.indexer.bitstream.base.anchors import last_where
from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.base.pictures import (
    CLOSED_START,
    NO_START,
    OPEN_START,
    BitstreamError,
    Pictures,
    pictures_of,
)

INTRA, INTER, DISPOSABLE = 0, 1, 2
_HEAD_BYTES = 24
_EXTENDED = 7  # source format that announces PLUSPTYPE
_CUSTOM = 6
_PLUS_P = (1, 2)  # P and improved PB pictures, table 8
_FLV_SIZES = {2: (352, 288), 3: (176, 144), 4: (128, 96), 5: (320, 240), 6: (160, 120)}


class H263Scanner:
    """Scans pictures of H.263, versions 1 to 3, in decode order, which is also their output order."""

    def __init__(self, configuration: bytes) -> None:
        self._kinds: list[int] = []
        self._damaged: list[bool] = []
        self._sizes: set[object] = set()
        self._whole_header: list[bool] = []

    def feed(self, data: bytes) -> None:
        """Read the next packet in decode order.

        Raises:
            BitstreamError: if its picture type is not covered, or the header of packet 0 cannot be read.
        """
        try:
            kind, size, whole = self.parse(data[:_HEAD_BYTES])
        except ValueError as error:
            if not self._kinds:
                raise BitstreamError("damaged", f"packet 0: {error}", damaged=True) from error
            kind, size, whole = INTER, None, False
            self._damaged.append(True)
        else:
            self._damaged.append(False)
        if kind not in (INTRA, INTER, DISPOSABLE):
            raise BitstreamError(
                "picture_type", f"packet {len(self._kinds)} has picture type {kind} (I and P are covered)"
            )
        self._kinds.append(kind)
        self._whole_header.append(whole)
        if size is not None:
            self._sizes.add(size)

    @staticmethod
    def parse(head: bytes) -> tuple[int, object, bool]:
        """Return (picture type, size or None, whether all header fields are present) (5.1). Raises ValueError."""
        bits = BitReader(head)
        if bits.u(22) != 32:
            raise ValueError("no picture start code")
        bits.u(13)
        source = bits.u(3)
        if source != _EXTENDED:
            return bits.u(1), source, True
        extended = bits.u(3)
        size: object = None
        if extended == 1:
            size = bits.u(3)
            bits.u(15)
        kind = bits.u(3)
        bits.u(6)
        if size == _CUSTOM:
            bits.u(1 + 4)  # CPM, which is 0, and the aspect ratio; both change nothing here
            size = bits.u(9), bits.u(1) and bits.u(9)
        return INTER if kind in _PLUS_P else kind if kind == INTRA else kind + DISPOSABLE, size, extended == 1

    def finish(self) -> Pictures:
        """Return the facts of all packets fed."""
        kind = np.array(self._kinds, np.int64)
        n = len(kind)
        start = (kind == INTRA) & np.array(self._whole_header, np.bool_)
        disposable = kind == DISPOSABLE
        # FFmpeg's decoder does not output a disposable picture before it holds two others.
        anchors = np.cumsum(~disposable)
        segment = last_where(start)
        leading = disposable & (last_where(~disposable) == segment) & (segment >= 0)
        orphan = segment < 0
        kinds_of_start = np.where(start, CLOSED_START, NO_START).astype(np.uint8)
        kinds_of_start[segment[leading]] = OPEN_START
        return pictures_of(
            kinds_of_start,
            non_reference=disposable,
            leading=leading,
            skipped=disposable & (anchors < 2) if n else disposable,
            damaged=np.array(self._damaged, np.bool_) | orphan,
            varying_shape=len(self._sizes) > 1,
            chroma_format=1,
        )


class Flv1Scanner(H263Scanner):
    """Scans pictures of Sorenson's H.263 (SWF File Format Specification, H263VIDEOPACKET)."""

    @staticmethod
    def parse(head: bytes) -> tuple[int, object, bool]:
        """Return (picture type, size, True). Raises ValueError."""
        bits = BitReader(head)
        if bits.u(17) != 1:
            raise ValueError("no picture start code")
        bits.u(13)
        code = bits.u(3)
        if code < 2:
            size: object = bits.u(8 << code), bits.u(8 << code)
        else:
            size = _FLV_SIZES.get(code)
        return bits.u(2), size, True
