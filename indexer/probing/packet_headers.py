"""Read only the headers of packets, and not the whole packets, of length-prefixed H.264 and HEVC.

Indexing with depth `tables` parses the packet headers of random access points and of a few other packets. The headers
of other packets are parsed when a clip that needs them is planned. Reading begins at the random access point before the
clip's first frame. Reading ends when the position of the clip's last frame in output order is certain.

In files on this machine, indexing also reads the first bytes of every NAL unit. These bytes show which samples have
parameter sets, or other units whose content a decoder keeps for later pictures.
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

# The scanners of codecs whose packet headers can be read without the rest of the packet.
SCANNERS: dict[str, NalScanners] = {"h264": H264Scanner, "hevc": HevcScanner}
CHEAP_BYTES = 4096  # mean packet size in bytes up to which whole packets are read, because that is faster
MAX_AT_ONCE = 64 << 20  # up to this total size in bytes, packets are read whole in one read
FIRST_BYTES = 192  # size in bytes of the first read of a packet; most first slice headers end within it
SLICE_BYTES = 80  # number of bytes kept of each slice; the NAL header and all parsed slice header fields fit
MAX_WHOLE_BYTES = 1 << 15  # number of bytes kept of each slice if the slice is searched for start codes
# The largest size in bytes of a unit that is not a slice. A larger unit is probably several units after one length
# field.
MAX_UNIT_BYTES = 1 << 16


def condense(
    read: Read,
    offset: int,
    size: int,
    length_size: int,
    is_slice: Callable[[int], bool],
    slice_bytes: int = SLICE_BYTES,
) -> bytes:
    """Read a packet of length-prefixed NAL units with all slices cut off after their headers. Other bytes are skipped.

    Args:
        read: The function that reads byte ranges of the file.
        offset: The offset of the packet in the file.
        size: The packet's size in bytes.
        length_size: The number of bytes of each length field.
        is_slice: The function that takes a NAL unit's first byte and returns whether the unit is a coded slice.
        slice_bytes: The number of bytes to keep of each slice.

    Raises:
        BitstreamError: A unit that is not a slice is larger than MAX_UNIT_BYTES.
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
            return window  # units do not fill the packet exactly, and the scanner will report this as damage
        unit = head[length_size : length_size + length]
        if len(unit) < length and not is_slice(unit[0]):
            if length > MAX_UNIT_BYTES:
                raise BitstreamError("large_unit", f"a NAL unit that is not a slice is too large ({length} bytes)")
            unit = read(at + length_size, length)
        parts.append(len(unit).to_bytes(length_size, "big") + unit)
        at += length_size + length
    return b"".join(parts)


# For each codec, a function that takes a NAL unit's first byte and returns whether the unit is a slice (H.264 table
# 7-1, HEVC table 7-1).
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
    """Return the properties of the pictures in some packets, from packet headers.

    Small packets that are stored close together are read whole, because one larger read is faster.

    Args:
        read: The function that reads byte ranges of the file.
        codec: FFmpeg's canonical name of the codec.
        configuration: The decoder's configuration record.
        offset: int64 [packets], the offset of each packet in the file.
        size: int64 [packets], in bytes.
        more: bool [packets]. Where True, up to `MAX_WHOLE_BYTES` of each slice are read, otherwise only headers. None
            stands for False everywhere.
        state: The parameter sets that a decoder needs before the first packet.
        in_middle: Whether the first packet is a random access point in the middle of the stream.
        consecutive: Whether no packets are left out between the first packet and the last packet.

    Raises:
        BitstreamError: The scanner rejects a packet, or packet headers of the codec cannot be read.
    """
    if codec not in SCANNERS:
        raise BitstreamError("codec", f"packet headers of {codec} cannot be read")
    scanner = SCANNERS[codec](configuration)
    if not scanner.length_size:
        raise BitstreamError("codec", "the NAL units of the stream are not length-prefixed")
    scanner.begin_with(state, in_middle=in_middle, consecutive=consecutive)
    begin, end = int(offset[0]), int((offset + size)[-1])
    if end - begin <= min(len(size) * CHEAP_BYTES, MAX_AT_ONCE) and (offset[1:] >= (offset + size)[:-1]).all():
        data = np.frombuffer(read(begin, end - begin), np.uint8)
        if len(data) == end - begin:
            scanner.feed_many(data, offset - begin, size)
            return scanner.finish()
    if isinstance(read, ObjectReader):  # concurrent requests are faster than one request after the other
        read.prepare(offset, np.minimum(size, FIRST_BYTES))
    slices = np.where(False if more is None else more, MAX_WHOLE_BYTES, SLICE_BYTES)
    rows = zip(offset.tolist(), size.tolist(), np.broadcast_to(slices, len(size)).tolist(), strict=True)
    condensed = [condense(read, at, length, scanner.length_size, IS_SLICE[codec], kept) for at, length, kept in rows]
    lengths = np.array([len(data) for data in condensed], np.int64)
    scanner.feed_many(np.frombuffer(b"".join(condensed), np.uint8), np.cumsum(lengths) - lengths, lengths)
    return scanner.finish()


def ends_sequence(read: Read, codec: str, configuration: bytes, end: int) -> bool:
    """Return whether the last unit of a packet is an HEVC unit that ends a sequence. Such a unit is two bytes long.

    Args:
        read: The function that reads byte ranges of the file.
        codec: FFmpeg's canonical name of the codec.
        configuration: The decoder's configuration record.
        end: The offset of the packet's end in the file.
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
        pictures: The properties of the random access points.
        inband_sets: Whether, according to the index, packets may carry other parameter sets than the configuration
            record has.

    Raises:
        BitstreamError: The random access points have a feature that, according to the index, the stream does not have.
    """
    done = {
        "carry other parameter sets than the header of the file": pictures.inband_sets and not inband_sets,
        "need a different decoder state": len(pictures.states) > 1,
        "have several units after one length field": pictures.inner_start_codes,
        "differ in size or format": pictures.varying_shape,
        "may hide pictures": pictures.may_hide,
        "drop their leading pictures": pictures.drops_leading,
        "follow the end of a sequence": bool(pictures.forgets.any()),
    }
    if found := [what for what, is_so in done.items() if is_so]:
        raise BitstreamError("promise", f"random access points {' and '.join(found)}")


def flags_of(pictures: Pictures, known: Flags, pts: NDArray[np.int64], *, at_first_start: bool) -> Flags:
    """Return the flags of consecutive packets that begin with a random access point, as int32 [packets].

    Args:
        pictures: The properties of the packets' pictures.
        known: int32 [packets], the flags that are known already. Only `HIDDEN` is taken from them.
        pts: int64 [packets], the timestamps.
        at_first_start: Whether the first packet is the first random access point of the stream. The leading pictures of
            the stream's first random access point are never output.

    Raises:
        BitstreamError: The pictures contradict the sample tables: they are output in another order, or some pictures
            are not output. BitstreamError is a subclass of ValueError.
    """
    if pictures.carries_over:
        raise BitstreamError("promise", "packets carry film grain parameters or parameter sets of other layers")
    flags = packet_flags(pictures, (known & HIDDEN) != 0)
    if not at_first_start:
        # A decoder drops the leading pictures only if it starts at this random access point. In a full decode, they are
        # output.
        flags[pictures.leading & (np.cumsum(pictures.start != 0) <= 1)] &= ~SKIPPED
        # Decoders may drop a damaged picture, but the index has already counted the picture as a frame.
        flags[(flags & DAMAGED) != 0] &= ~SKIPPED
        if ((flags & SKIPPED) != 0).any():
            raise BitstreamError("output_order", "a picture in the middle of the stream is not output")
    if not flags[0] & START:
        raise BitstreamError("no_start", "a sync sample of the tables is not a random access point")
    shown = np.flatnonzero((flags & SKIPPED) == 0)
    by_bitstream = shown[np.lexsort((pictures.order[shown], pictures.period[shown]))]
    if not np.array_equal(by_bitstream, shown[np.argsort(pts[shown], kind="stable")]) and not pictures.damaged.any():
        raise BitstreamError("output_order", "timestamps contradict the order in which pictures are output")
    return flags


def _table_of_types(scanner: type[NalScanner], types: Container[int]) -> NDArray[np.bool_]:
    """Return bool [256], indexed by the first byte of a NAL unit: whether the unit has one of the types."""
    return np.array([scanner.unit_type(header) in types for header in range(256)])


SEI = {"h264": _table_of_types(H264Scanner, {H264_SEI}), "hevc": _table_of_types(HevcScanner, {PREFIX_SEI})}
ENDING = {"h264": np.zeros(256, np.bool_), "hevc": _table_of_types(HevcScanner, SEQUENCE_ENDS)}
# Units that change how later pictures are decoded: parameter sets and units that end a sequence.
LASTING = {codec: _table_of_types(scanner, scanner.set_parsers) | ENDING[codec] for codec, scanner in SCANNERS.items()}
# The number of units of a sample that are searched. A sample with more units is reported as if it had a lasting unit.
# This limits the time for malicious files.
MAX_UNITS = 4096
SPARSE_BYTES = 64 << 10  # mean sample size in bytes above which single pages are read instead of mapping the file


def find_lasting(
    file: ProbedFile, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool [samples]: whether a sample changes how later pictures are decoded, or follows the end of a sequence.

    In HEVC, the slices of each sample are counted, too, because FFmpeg's decoder reports no error if a slice is
    missing.

    The file may be memory-mapped. If the file is truncated during the call, this process ends with SIGBUS. The caller
    treats this like any crash of a worker process.

    Args:
        file: The open file.
        codec: `h264` or `hevc`.
        length_size: The number of bytes of each length field.
        offset: int64 [samples], the offset of each sample in the file. All samples must end before the file does.
        size: int64 [samples], in bytes.

    Raises:
        UntrustedTables: Samples differ in their number of slices.
    """
    if size.mean() > SPARSE_BYTES:
        heads = functools.partial(_read_apart, file)
    else:
        # A page of a mapped file is read when it is accessed for the first time.
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

    All offsets are passed to the kernel before the first read, so that the disk can serve the reads concurrently.
    """
    places = offset.tolist()
    for at in places:
        os.posix_fadvise(file.descriptor, file.begin + at, count, os.POSIX_FADV_WILLNEED)
    data = b"".join(file.read(at, count).ljust(count, b"\0") for at in places)
    return np.frombuffer(data, np.uint8).reshape(len(places), count)


MAX_BYTES = 16 << 20  # number of bytes up to which consecutive GOPs are read in one read; limits the memory


def settled(pts: NDArray[np.int64], targets: NDArray[np.int64], reorder_depth: int) -> NDArray[np.int64]:
    """Return where reading packet headers may end, so that the position of each target in output order is certain.

    A target is a packet whose position is needed. If timestamps are wrong, a picture P that is decoded after the target
    may be output before the target. Of the pictures that are decoded before P, at most `reorder_depth` are output after
    P (H.264 E.2.1, HEVC 7.4.3.2.1 num_reorder), and the target is one of these pictures. So P cannot be far behind the
    target, and reading can end after `reorder_depth` packets whose timestamps are later than the target's timestamp.

    Args:
        pts: int64 [packets], the timestamps.
        targets: int64 [targets], the numbers of the target packets.
        reorder_depth: The number of pictures that a decoder holds back.

    Returns:
        int64 [targets], the number of the packet after the last packet to read.
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
    """Yield the ranges of packets (first packet, end) to read. Needed ranges in consecutive GOPs are joined.

    A joined range has up to MAX_BYTES, and includes the packets between the needed ranges. Reading these packets takes
    less time than a second read.

    Args:
        unread: (number of the GOP, first packet, end) of each needed range, ascending.
        offset: int64 [packets], the offsets in the file.
    """
    before, begin, until = unread[0]
    for gop, first, end in unread[1:]:
        if gop > before + 1 or offset[end - 1] - offset[begin] > MAX_BYTES:
            yield begin, until
            begin = first
        before, until = gop, max(until, end)
    yield begin, until


class UnreadHeaders:
    """The packets of one medium, whose flags are read from packet headers on demand.

    Args:
        packets: The packets, as indexed.
        coded: The codec parameters.
        coding: The record with the decoder states of random access points.
        read: The function that takes an offset and a length, and returns bytes of the source.
        where: The source, for error messages.
    """

    def __init__(
        self, packets: Packets, coded: Coded, coding: CodingFacts | MediumRecord, read: Read, *, where: str
    ) -> None:
        self._coded, self._coding, self._where = coded, coding, where
        self.packets = packets
        self._starts = np.flatnonzero(packets.flags & START)
        self._read = read

    def read(self, targets: NDArray[np.int64]) -> bool:
        """Read the flags that are needed to plan clips of some packets. Return whether any of these flags were unread.

        For a leading picture, the flags of the previous GOP are needed, too. They are read in a second step, because
        only the header of a picture shows whether it is a leading picture.

        Args:
            targets: int64, the numbers of the packets.
        """
        new = self._fill(targets, starts_back=1)
        return self._fill(targets[(self.packets.flags[targets] & LEADING) != 0], starts_back=2) or new

    def read_between(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
        """Read the flags of ranges of packets, and return whether any of these flags were unread.

        Args:
            begin: int64 [ranges], the number of each range's first packet, which is a random access point.
            end: int64 [ranges], the number of each range's last packet, which is included.
        """
        starts = self._starts
        new = False
        for first, last in zip(begin.tolist(), end.tolist(), strict=True):
            inside = starts[(starts > first) & (starts <= last)]
            new |= self._fill(np.append(inside - 1, last), starts_back=1)
        return new

    def _fill(self, targets: NDArray[np.int64], *, starts_back: int) -> bool:
        """Read flags until the position of each target in output order is certain.

        Args:
            targets: int64, the numbers of the target packets.
            starts_back: 1 if reading begins at the last random access point up to each target, 2 if reading begins at
                the random access point before it.

        Returns:
            Whether any of the flags were unread.
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
        assert packets.offset is not None  # sample tables always state the offsets of samples
        for first, end in _join_gops(unread, packets.offset):
            self._read_flags(first, end, packets.offset, at_first_start=first == starts[0])
        self._starts = np.flatnonzero(self.packets.flags & START)
        if isinstance(self._read, ObjectReader):
            self._read.forget()  # the bytes are not needed again, because the flags are kept
        return True

    def _read_flags(self, first: int, end: int, offset: NDArray[np.int64], *, at_first_start: bool) -> None:
        """Read the headers of the packets from `first` to before `end`, and set the flags of these packets.

        Args:
            first: The number of a random access point.
            end: The number of the packet after the last packet to read.
            offset: int64 [packets], the offsets in the file.
            at_first_start: Whether the first packet is the stream's first random access point.

        Raises:
            PolicyError: The headers contradict the index.
        """
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
            # The index numbered the frames by the tables, so headers must not change which packets present a frame.
            if ((found ^ packets.flags[part]) & UNSHOWN).any():
                raise ValueError("the headers and the sample tables disagree about which samples present a frame")
        except ValueError as error:
            raise PolicyError(
                f"the pictures contradict the sample tables: {error}",
                where=self._where,
                found=f"packets {first} to {end - 1}",
                remedy="index the file again with --depth packets",
            ) from error
        packets.flags[part], packets.read[part] = found, True  # in place, because `_fill` has copied these arrays
