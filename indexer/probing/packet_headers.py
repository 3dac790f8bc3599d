"""Read packet headers instead of whole packets, for length-prefixed H.264 and HEVC.

An index of depth `tables` has the headers of random access points only. A plan reads further headers when it needs
them: from a random access point to the last target, and on until the target's place in output order is certain.
Indexing itself reads the header of every NAL unit in a file, to find the samples with parameter sets and other units
that decoders keep.
"""

import functools
import mmap
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framedex.errors import PolicyError
from framedex.indexer.bitstream.base import BitstreamError, Pictures
from framedex.indexer.bitstream.h264 import H264Scanner
from framedex.indexer.bitstream.h264_sets import SEI as H264_SEI
from framedex.indexer.bitstream.hevc import PREFIX_SEI, SEQUENCE_ENDS, HevcScanner, is_slice
from framedex.indexer.bitstream.nal import FILM_GRAIN, heads_at, is_other_message
from framedex.indexer.bitstream.scanner import NalScanner
from framedex.indexer.containers import Coded, ProbedFile
from framedex.indexer.facts import CodingFacts
from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.parts.packets import Packets
from framedex.indexer.timeline import DAMAGED, HIDDEN, LEADING, SKIPPED, START, UNSHOWN, Flags, packet_flags
from framedex.records.medium import MediumRecord
from framedex.storage.reader import ObjectReader, Read

NalScanners = type[H264Scanner] | type[HevcScanner]

# The codecs whose packets can be read in part.
SCANNERS: dict[str, NalScanners] = {"h264": H264Scanner, "hevc": HevcScanner}
CHEAP_BYTES = 4096  # up to this mean packet size, whole packets cost less to read than their headers
MAX_AT_ONCE = 64 << 20
FIRST_BYTES = 192  # read first from each packet; most have their first slice's header within so many bytes
SLICE_BYTES = 80  # kept of each slice: the NAL header and all slice header fields that are read here fit
MAX_WHOLE_BYTES = 1 << 15  # kept of a slice instead if start codes are searched in it
MAX_UNIT_BYTES = 1 << 16  # a larger unit that is not a slice has several units behind one length


def condense(
    read: Read,
    offset: int,
    size: int,
    length_size: int,
    is_slice: Callable[[int], bool],
    slice_bytes: int = SLICE_BYTES,
) -> bytes:
    """Return a length-prefixed packet with slices cut to their headers. Little more than the headers is read.

    Args:
        read: reads ranges of the file.
        offset: the packet's first byte.
        size: the packet's size in bytes.
        length_size: bytes of each unit's length.
        is_slice: returns whether a NAL unit is a coded slice, by its first byte.
        slice_bytes: bytes to keep of each slice.

    Raises:
        BitstreamError: a unit that is not a slice is larger than MAX_UNIT_BYTES.
    """
    window, begin = read(offset, min(FIRST_BYTES, size)), offset
    parts: list[bytes] = []
    at, end = offset, offset + size
    while at < end:
        wanted = min(at + length_size + slice_bytes, end)
        if wanted > begin + len(window):
            window, begin = read(at, min(max(FIRST_BYTES, length_size + slice_bytes), end - at)), at
        head = window[at - begin : at - begin + length_size + slice_bytes]
        length = int.from_bytes(head[:length_size], "big")
        if at + length_size + length > end or len(head) <= length_size:
            return window  # the lengths do not tile the packet, so the scanner reports damage
        unit = head[length_size : length_size + length]
        if len(unit) < length and not is_slice(unit[0]):
            if length > MAX_UNIT_BYTES:
                raise BitstreamError("large_unit", f"a unit of {length} bytes is not a slice")
            unit = read(at + length_size, length)
        parts.append(len(unit).to_bytes(length_size, "big") + unit)
        at += length_size + length
    return b"".join(parts)


# Functions that return whether a NAL unit is a slice, by its first byte (H.264 table 7-1, HEVC table 7-1).
IS_SLICE: dict[str, Callable[[int], bool]] = {
    "h264": lambda header: 1 <= header & 31 <= 5,
    "hevc": lambda header: header >> 1 & 63 <= 31,
}


def scan(
    read: Read,
    codec: str,
    configuration: bytes,
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    more: NDArray[np.bool_] | None = None,
    state: bytes = b"",
    in_middle: bool = False,
    consecutive: bool = True,
) -> Pictures:
    """Return the facts of some packets. Small packets that lie together are read whole, because that is cheaper.

    Args:
        read: reads ranges of the file.
        codec: FFmpeg's canonical name of the codec.
        configuration: the decoder's configuration record.
        offset: int64 [packets], where each packet begins in the file.
        size: int64 [packets], in bytes.
        more: bool [packets], packets of whose slices `MAX_WHOLE_BYTES` are read. If None, only headers are read.
        state: the parameter sets that a decoder needs before the first packet.
        in_middle: whether the first packet is a random access point after others.
        consecutive: whether the packets follow each other without a gap.

    Raises:
        BitstreamError: the scanner rejects a packet, or packets of the codec cannot be read in part.
    """
    if codec not in SCANNERS:
        raise BitstreamError("codec", f"packets of {codec} are not read in part")
    scanner = SCANNERS[codec](configuration)
    if not scanner.length_size:
        raise BitstreamError("codec", "the stream is not length-prefixed")
    scanner.begin_with(state, in_middle=in_middle, consecutive=consecutive)
    begin, end = int(offset[0]), int((offset + size)[-1])
    if end - begin <= min(len(size) * CHEAP_BYTES, MAX_AT_ONCE) and (offset[1:] >= (offset + size)[:-1]).all():
        data = np.frombuffer(read(begin, end - begin), np.uint8)
        if len(data) == end - begin:
            scanner.feed_many(data, offset - begin, size)
            return scanner.finish()
    if isinstance(read, ObjectReader):  # concurrent requests are cheaper than one after the other
        read.prepare(offset, np.minimum(size, FIRST_BYTES))
    slices = np.where(False if more is None else more, MAX_WHOLE_BYTES, SLICE_BYTES)
    rows = zip(offset.tolist(), size.tolist(), np.broadcast_to(slices, len(size)).tolist(), strict=True)
    condensed = [condense(read, at, length, scanner.length_size, IS_SLICE[codec], kept) for at, length, kept in rows]
    lengths = np.array([len(data) for data in condensed], np.int64)
    scanner.feed_many(np.frombuffer(b"".join(condensed), np.uint8), np.cumsum(lengths) - lengths, lengths)
    return scanner.finish()


def ends_sequence(read: Read, codec: str, configuration: bytes, end: int) -> bool:
    """Return whether the last unit of the packet that ends at byte `end` ends an HEVC sequence.

    Such a unit is two bytes long.
    """
    if codec != "hevc":
        return False
    length_size = HevcScanner(configuration).length_size
    tail = read(end - length_size - 2, length_size + 2)
    length, unit = int.from_bytes(tail[:length_size], "big"), tail[length_size:]
    return length == len(unit) == 2 and HevcScanner.unit_type(unit[0]) in SEQUENCE_ENDS


def check_promises(pictures: Pictures, *, inband_sets: bool) -> None:
    """Check that random access points whose headers were not read at index time agree with the index.

    Args:
        pictures: facts of the random access points.
        inband_sets: whether packets carry parameter sets of their own, according to the index.

    Raises:
        BitstreamError: they have a feature that the index excludes.
    """
    done = {
        "carry parameter sets of their own": pictures.inband_sets and not inband_sets,
        "need another state of the decoder": len(pictures.states) > 1,
        "have several units behind one length": pictures.inner_start_codes,
        "differ in size or format": pictures.varying_shape,
        "may hide pictures": pictures.may_hide,
        "drop their leading pictures": pictures.drops_leading,
        "follow the end of a sequence": bool(pictures.forgets.any()),
    }
    found = [what for what, is_so in done.items() if is_so]
    if found:
        raise BitstreamError("promise", f"random access points {' and '.join(found)}")


def flags_of(pictures: Pictures, known: Flags, pts: NDArray[np.int64], *, at_first_start: bool) -> Flags:
    """Return the flags, int32 [packets], of consecutive packets, the first of which is a random access point.

    Args:
        pictures: facts of the packets.
        known: int32 [packets], the flags known so far, of which `HIDDEN` stays.
        pts: int64 [packets].
        at_first_start: whether the first packet is the stream's first random access point, whose leading pictures are
            never output.

    Raises:
        BitstreamError: a ValueError. The pictures contradict the tables: their order differs, or some are not output.
    """
    if pictures.carries_over:
        raise BitstreamError("promise", "decoders keep film grain or parameter sets of other layers")
    flags = packet_flags(pictures, (known & HIDDEN) != 0)
    if not at_first_start:
        # A decoder that starts here drops the leading pictures; one that started before does not.
        first_leading = pictures.leading & (np.cumsum(pictures.start != 0) <= 1)
        flags[first_leading] &= ~SKIPPED
        # The tables gave a frame number even to a picture that is not output because of damage.
        flags[(flags & DAMAGED) != 0] &= ~SKIPPED
        if ((flags & SKIPPED) != 0).any():
            raise BitstreamError("output_order", "a picture in the middle of the stream is not output")
    if not flags[0] & START:
        raise BitstreamError("no_start", "a sync sample of the tables is no random access point")
    shown = np.flatnonzero((flags & SKIPPED) == 0)
    by_bitstream = shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]
    if not np.array_equal(by_bitstream, shown[np.argsort(pts[shown], kind="stable")]) and not pictures.damaged.any():
        raise BitstreamError("output_order", "timestamps contradict the order in which pictures are output")
    return flags


def _table_of_types(scanner: type[NalScanner], types: Container[int]) -> NDArray[np.bool_]:
    """Return bool [256], true for each first byte of a NAL unit that states one of the types."""
    return np.array([scanner.unit_type(header) in types for header in range(256)])


SEI = {"h264": _table_of_types(H264Scanner, {H264_SEI}), "hevc": _table_of_types(HevcScanner, {PREFIX_SEI})}
ENDING = {"h264": np.zeros(256, np.bool_), "hevc": _table_of_types(HevcScanner, SEQUENCE_ENDS)}
# Parameter sets, and units that end a sequence: they change how later pictures are decoded.
LASTING = {codec: _table_of_types(scanner, scanner.set_parsers) | ENDING[codec] for codec, scanner in SCANNERS.items()}
MAX_UNITS = 4096  # a sample with more units counts as found, which limits the time for malicious files
SPARSE_BYTES = 64 << 10  # of samples with a larger mean size, single pages are read concurrently


def find_lasting(
    file: ProbedFile, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool [samples]: samples that change how later pictures are decoded, or that follow the end of a sequence.

    Slices of HEVC are counted, too, because FFmpeg's decoder reports nothing if a picture lacks one. A file that is
    truncated during the call ends this process (SIGBUS), like any crash of a worker.

    Args:
        file: the open file.
        codec: `h264` or `hevc`.
        length_size: bytes of each unit's length.
        offset: int64 [samples], where each sample begins. All samples lie within the file.
        size: int64 [samples], in bytes.

    Raises:
        UntrustedTables: pictures differ in the number of their slices.
    """
    if size.mean() > SPARSE_BYTES:
        heads = functools.partial(_read_apart, file)
    else:
        # The kernel reads mapped pages where they are used.
        page = file.begin % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file.descriptor, page + file.size_bytes, prot=mmap.PROT_READ, offset=file.begin - page)
        heads = functools.partial(heads_at, np.frombuffer(mapped, np.uint8)[page:])
    found, ended = np.zeros(len(offset), np.bool_), np.zeros(len(offset), np.bool_)
    slices = np.zeros(len(offset), np.int64)
    sample, at, end = np.arange(len(offset)), offset, offset + size
    for _ in range(MAX_UNITS):
        whole = at + length_size < end
        sample, at, end = sample[whole], at[whole], end[whole]
        if not len(sample):
            break
        head = heads(at, length_size + 2)
        length = np.zeros(len(at), np.int64)
        for byte in range(length_size):
            length = length << 8 | head[:, byte]
        header = head[:, length_size]
        some = length > 0
        found[sample[LASTING[codec][header] & some]] = True
        ended[sample[ENDING[codec][header] & some]] = True
        sei = np.flatnonzero(SEI[codec][header] & some)
        if len(sei):
            behind = SCANNERS[codec].header_bytes
            message = heads(at[sei] + length_size + behind, 2)
            found[sample[sei[~is_other_message(message, length[sei] - behind, (FILM_GRAIN,))]]] = True
        if codec == "hevc":
            slices[sample] += (length > 1) & is_slice(header.astype(np.int64) << 8 | head[:, length_size + 1])
        at = at + length_size + length
    found[sample] = True
    if len(np.unique(slices[slices > 0])) > 1:
        raise UntrustedTables("pictures differ in the number of their slices")
    found[1:] |= ended[:-1]
    return found


def _read_apart(file: ProbedFile, offset: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Return uint8 [offsets, count], the bytes at each offset.

    All offsets are announced to the kernel first, so that a disk seeks them concurrently.
    """
    places = offset.tolist()
    for at in places:
        os.posix_fadvise(file.descriptor, file.begin + at, count, os.POSIX_FADV_WILLNEED)
    data = b"".join(file.read(at, count).ljust(count, b"\0") for at in places)
    return np.frombuffer(data, np.uint8).reshape(len(places), count)


MAX_BYTES = 16 << 20  # GOPs that follow each other are read together up to this size, which limits the memory


def settled(pts: NDArray[np.int64], targets: NDArray[np.int64], reorder_depth: int) -> NDArray[np.int64]:
    """Return the packet after the last one to read for each target, so that its place in output order is certain.

    The timestamp of a picture that is decoded after a target and output before it may be wrong. Of the pictures decoded
    before such a picture, at most reorder_depth are output after it (H.264 E.2.1, HEVC 7.4.3.2.1 num_reorder), and the
    target is one of them. So such a picture cannot come after reorder_depth others that are presented after the target.

    Args:
        pts: int64 [packets].
        targets: int64 [targets], numbers of packets.
        reorder_depth: pictures that a decoder holds back.

    Returns:
        int64 [targets].
    """
    ends = np.full(len(targets), len(pts), np.int64)
    left, width = np.arange(len(targets)), reorder_depth + 16
    while len(left):
        wanted = targets[left]
        after = wanted[:, None] + np.arange(width + 1)
        later = (after >= len(pts)) | (pts[np.minimum(after, len(pts) - 1)] > pts[wanted][:, None])
        enough = np.cumsum(later, axis=1) >= reorder_depth
        ends[left] = np.minimum(wanted + np.argmax(enough, axis=1) + 1, len(pts))
        left, width = left[~enough[:, -1]], width * 4
    return ends


def _join_gops(unread: list[tuple[int, int, int]], offset: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) packets of (GOP, first, end), joined where GOPs follow each other, up to MAX_BYTES.

    The rest of a GOP between two stretches is read as well, which costs less than two reads.
    """
    before, begin, until = unread[0]
    for gop, first, end in unread[1:]:
        if gop > before + 1 or offset[end - 1] - offset[begin] > MAX_BYTES:
            yield begin, until
            begin = first
        before, until = gop, max(until, end)
    yield begin, until


class UnreadHeaders:
    """The packets of one medium, with flags that are read when they are needed.

    Args:
        packets: the packets, as indexed.
        coded: the codec parameters.
        coding: the decoder states of random access points.
        read: (offset, length) → bytes of the source.
        where: the source, for messages.
    """

    def __init__(
        self, packets: Packets, coded: Coded, coding: CodingFacts | MediumRecord, read: Read, *, where: str
    ) -> None:
        self._coded, self._coding, self._where = coded, coding, where
        self.packets = packets
        self._starts = np.flatnonzero(packets.flags & START)
        self._read = read

    def read(self, targets: NDArray[np.int64]) -> bool:
        """Read the flags that planning needs for some packets, and return whether any were unread before.

        A leading picture also needs the GOP before its own. Only its header shows that it is a leading picture.
        """
        new = self._fill(targets, starts_back=1)
        leading = targets[(self.packets.flags[targets] & LEADING) != 0]
        return self._fill(leading, starts_back=2) or new

    def read_between(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
        """Read the flags of stretches from random access points on, and return whether any were unread before."""
        starts = self._starts
        new = False
        for first, last in zip(begin.tolist(), end.tolist(), strict=True):
            inside = starts[(starts > first) & (starts <= last)]
            new |= self._fill(np.append(inside - 1, last), starts_back=1)
        return new

    def _fill(self, targets: NDArray[np.int64], *, starts_back: int) -> bool:
        """Read flags up to where each target's place is certain, and return whether any were unread before.

        Args:
            targets: int64, numbers of packets.
            starts_back: Number of random access points before the target at which reading begins.
        """
        packets = self.packets
        starts = self._starts
        number = np.maximum(np.searchsorted(starts, targets, side="right") - starts_back, 0)
        last = np.full(len(starts), -1)
        np.maximum.at(last, number, settled(packets.pts, targets, self._coded.reorder_depth) - 1)
        unread = [
            (gop, int(starts[gop]), int(last[gop]) + 1)
            for gop in np.unique(number).tolist()
            if not packets.read[starts[gop] : last[gop] + 1].all()
        ]
        if not unread:
            return False
        self.packets = replace(packets, flags=packets.flags.copy(), read=packets.read.copy())
        assert packets.offset is not None  # sample tables always say where samples lie
        for first, end in _join_gops(unread, packets.offset):
            self._read_flags(first, end, packets.offset, at_first_start=first == starts[0])
        self._starts = np.flatnonzero(self.packets.flags & START)
        if isinstance(self._read, ObjectReader):
            self._read.forget()  # the bytes are not needed again, since the flags are kept
        return True

    def _read_flags(self, first: int, end: int, offset: NDArray[np.int64], *, at_first_start: bool) -> None:
        """Read the headers of packets, check them against the index, and set their flags."""
        packets, part = self.packets, slice(first, end)
        codec, extradata = self._coded.codec, self._coded.extradata or b""
        size = packets.size
        try:
            state = self._coding.states[packets.state[first]]
            pictures = scan(
                self._read, codec, extradata, offset[part], size[part], state=state, in_middle=not at_first_start
            )
            if not packets.read[part][(packets.flags[part] & START) != 0].all():
                check_promises(pictures, inband_sets=self._coding.inband_parameter_sets)
                if first and ends_sequence(self._read, codec, extradata, int(offset[first - 1] + size[first - 1])):
                    raise ValueError(f"a sequence ends before packet {first}")
            found = flags_of(pictures, packets.flags[part], packets.pts[part], at_first_start=at_first_start)
            # Frames were numbered by the tables, which must stay true.
            if ((found ^ packets.flags[part]) & UNSHOWN).any():
                raise ValueError("some samples present no picture of their own")
        except ValueError as error:
            raise PolicyError(
                f"the pictures contradict the sample tables: {error}",
                where=self._where,
                found=f"packets {first} to {end - 1}",
                remedy="index it again with --depth packets",
            ) from error
        packets.flags[part], packets.read[part] = found, True  # `_fill` copied these arrays
