"""Motion JPEG (ITU-T T.81) and JPEG-LS (ITU-T T.87): tables of pictures, and comments that FFmpeg's decoder acts on."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator

from framedex.indexer.bitstream.intra.tables import TableScanner, Uses

SOI, EOI, SOS, DHT, DQT, APP0, APP14, COM, LSE = (
    0xD8,
    0xD9,
    0xDA,
    0xC4,
    0xDB,
    0xE0,
    0xEE,
    0xFE,
    0xF8,
)  # markers, T.81 table B.1
FRAME_HEADERS = frozenset({*range(0xC0, 0xD0), 0xF7}) - {DHT, 0xC8, 0xCC}  # SOFn, and JPEG-LS's (T.87 C.1.1)
PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
NEXT_MARKER = re.compile(rb"\xff[\x80-\xcf\xd8-\xfe]")  # in coded data, where bytes are stuffed and restarts stand
# Comments and application data by which FFmpeg's decoder (libavcodec/mjpegdec.c) recognises encoders whose pictures it
# flips, pairs or converts in another way from then on.
TELLING_COMMENTS = (b"Intel(R) JPEG Library", b"Metasoft MJPEG Codec", b"CS=ITU601", b"AVID", b"MULTISCOPE II")
TELLING_DATA = (b"AVI1", b"LJIF", b"Adobe")
PREFIX_BYTES = 32  # of a comment or application data


def markers(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (marker, payload) of the segments of a packet, up to where it is damaged.

    The packet holds one or two JPEG pictures.
    """
    at = data.find(b"\xff\xd8")
    while 0 <= at < len(data) - 1:
        if data[at] != 0xFF:
            found = NEXT_MARKER.search(data, at)
            if found is None:
                return
            at = found.start()
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in (SOI, EOI) or marker < 0xC0 or 0xD0 <= marker < SOI:
            yield marker, b""
            at += 2
            continue
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 2:
            return
        yield marker, data[at + 4 : at + 2 + size]
        at += 2 + size
        if marker == SOS:
            found = NEXT_MARKER.search(data, at)
            at = -1 if found is None else found.start()


class MjpegScanner(TableScanner):
    """Scans JPEG pictures, one or two fields per packet. A decoder keeps their tables: T.81 B.5 calls that abbreviated.

    A stream that never brings Huffman tables relies on the typical ones (K.3), which a decoder has from the beginning.
    """

    @staticmethod
    def uses(data: bytes) -> Uses:
        """Return the tables that a packet brings and lacks, and as traits its shape and the comments that matter."""
        found = Uses(doubtful=True)
        quantisation: dict[int, int] = {}  # of the picture's components
        frame = 0  # its header's marker
        behind: set[Hashable] = set()  # tables behind the first picture, which a decoder reads of field pairs alone
        for marker, payload in markers(data):
            if marker in (DQT, DHT):
                tables = _quantisation_tables(payload) if marker == DQT else _huffman_tables(payload)
                (found.brings if found.doubtful else behind).update((marker, table) for table in tables)
            elif marker in FRAME_HEADERS and len(payload) >= 6:
                frame = marker
                components = [payload[at : at + 3] for at in range(6, len(payload) - 2, 3)]
                quantisation = {component[0]: component[2] for component in components}
                found.traits.append((marker, payload[:6], *(component[:2] for component in components)))
            elif marker == SOS and payload:
                for table in _scan_tables(payload, quantisation, progressive=frame in PROGRESSIVE):
                    if table not in behind:
                        found.use(table)
            elif marker == EOI:
                found.doubtful = False
            elif _tells(marker, payload):
                found.traits.append((marker, payload[:PREFIX_BYTES] if marker == COM else payload))
        if behind:
            found.traits.append(frozenset(behind))
        return found


class JpegLsScanner(TableScanner):
    """Scans JPEG-LS pictures. FFmpeg's decoder keeps coding parameters and palettes (LSE, T.87 C.2.4)."""

    @staticmethod
    def uses(data: bytes) -> Uses:
        """Return the parameters that a packet brings as traits, without any tables."""
        kept = (LSE, *FRAME_HEADERS)
        traits = [(marker, payload) for marker, payload in markers(data) if marker in kept or _tells(marker, payload)]
        return Uses(traits=list(traits), doubtful=True)  # parameters of which an encoder did not know


def _tells(marker: int, payload: bytes) -> bool:
    """Return whether a comment or application data changes how FFmpeg's decoder continues."""
    if marker == COM:
        return payload.startswith(TELLING_COMMENTS)
    return APP0 <= marker < APP0 + 16 and payload.startswith(TELLING_DATA)


def _scan_tables(payload: bytes, quantisation: dict[int, int], *, progressive: bool) -> Iterator[Hashable]:
    """Yield the tables that a scan uses (B.2.3).

    Args:
        payload: the scan header.
        quantisation: number of the quantisation table of each component.
        progressive: whether the frame is progressive.
    """
    end = 1 + 2 * payload[0]
    spectrum = payload[end : end + 3].ljust(3, b"\0")  # Ss, Se, Ah and Al
    first, again = spectrum[0], spectrum[2] >> 4
    for at in range(1, min(end, len(payload) - 1), 2):
        yield DQT, quantisation.get(payload[at], 0)
        if not progressive or (first == 0 and not again):
            yield DHT, payload[at + 1] >> 4
        if not progressive or first:
            yield DHT, 0x10 | payload[at + 1] & 15


def _quantisation_tables(payload: bytes) -> Iterator[int]:
    """Yield the numbers of the tables that a DQT segment defines (B.2.4.1), up to the first invalid one."""
    at = 0
    while at < len(payload):
        precision, table = payload[at] >> 4, payload[at] & 15
        at += 1 + 64 * (1 + precision)
        if precision > 1 or table > 3 or at > len(payload):
            return
        yield table


def _huffman_tables(payload: bytes) -> Iterator[int]:
    """Yield the tables that a DHT segment defines (B.2.4.2), up to the first invalid one.

    Each table is the byte that holds its class and number.
    """
    at = 0
    while at + 17 <= len(payload):
        table, end = payload[at], at + 17 + sum(payload[at + 1 : at + 17])
        if end > len(payload) or table & 0xEC:
            return
        yield table
        at = end
