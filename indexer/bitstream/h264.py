"""The scanner of H.264 (ITU-T H.264, ISO/IEC 14496-10).

It finds random access points, fields, the output order and missing pictures. Numbers of annexes, sections and tables
refer to ITU-T H.264.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.base import (
    CLOSED_START,
    HEADER_BYTES,
    NO_START,
    BitColumns,
    BitReader,
    BitstreamError,
    Pictures,
    pictures_of,
    segments,
    shape_facts,
    unwrap_order_counts,
)
from framedex.indexer.bitstream.h264_references import (
    AccessPoints,
    Coded,
    SliceHeader,
    compare_starts,
    false_starts,
    first_start,
    parse_slice,
)
from framedex.indexer.bitstream.h264_sets import (
    IDR,
    MAX_PPS,
    PARTITION_A,
    PPS,
    SEI,
    SLICE,
    SPS,
    Pps,
    Sps,
    parse_configuration,
    parse_pps,
    parse_sps,
)
from framedex.indexer.bitstream.nal import (
    FILM_GRAIN,
    Units,
    distinct,
    heads_at,
    is_other_message,
    sei_payloads,
    unescape,
)
from framedex.indexer.bitstream.scanner import NalScanner, Sorted, marked

TOP_AND_BOTTOM = 3  # the sum of the parities of a top and a bottom field
MAX_ORDER_COUNT = 1 << 31  # exclusive upper limit of the absolute value of a picture order count (8.2.1)

Columns = dict[str, NDArray[np.int64]]  # slice header fields by name, each with one row per slice or per packet


def pair_fields(
    slices: Columns, facts: Columns, count: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Find the packets that hold the second field of a frame, and those whose single field has no counterpart.

    Two fields form a frame (7.4.1.2.4) if they are in consecutive packets, have opposite parity and the same frame_num,
    if both or neither of them are reference fields, and if the second one is not an IDR picture.

    Args:
        slices: the header fields of all slices.
        facts: the header fields of the first slice of each packet, one row per packet.
        count: int64 [packets], the number of slices of each packet.

    Returns:
        `continues` and `damaged` of `Pictures`. Packets count as damaged if they hold a field without its counterpart,
        or if their first slice is missing.

    Raises:
        BitstreamError: if a packet holds several pictures.
    """
    n = len(count)
    begins = slices["first_mb"] == 0
    halves = np.where(slices["parity"][begins] != 0, 1, 2)
    held = np.bincount(slices["packet"][begins], weights=halves, minlength=n)
    if (held > 2).any():
        raise BitstreamError("packing", f"packet {int(np.argmax(held > 2))} holds more than one picture")
    continues, damaged = np.zeros(n, np.bool_), (held == 0) & (count > 0)
    single = np.flatnonzero(held == 1)
    at = 0
    while at < len(single):
        this, after = int(single[at]), int(single[at]) + 1
        paired = (
            at + 1 < len(single)
            and single[at + 1] == after
            and facts["parity"][this] + facts["parity"][after] == TOP_AND_BOTTOM
            and facts["frame_num"][this] == facts["frame_num"][after]
            and not facts["idr"][after]
            and facts["referenced"][this] == facts["referenced"][after]
        )
        (continues if paired else damaged)[after if paired else this] = True
        at += 2 if paired else 1
    return continues, damaged


def missing_before(
    sequences: list[Sps],
    facts: Columns,
    picture: NDArray[np.int64],
    start: NDArray[np.uint8],
    referenced: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return bool [packets]: whether the pictures directly before the packet are missing.

    Decoders conceal missing pictures with other pictures. Unless the stream allows gaps, the frame_num of a picture
    equals that of the preceding reference picture, or is larger by 1 (7.4.3). Any other frame_num shows that pictures
    are missing.

    Args:
        sequences: the sequence parameter sets. `facts["sequence"]` has indices in this list.
        facts: the header fields of the first slice of each packet, one row per packet.
        picture: int64 [pictures], the packets in which pictures begin.
        start: uint8 [packets], as in `Pictures`.
        referenced: bool [packets], whether the packet belongs to a reference picture.
    """
    gaps = np.zeros(len(start), np.bool_)
    begun = picture[picture >= first_start(start)]
    if len(begun) < 2:
        return gaps
    allowed = np.array([sequence.gaps_allowed for sequence in sequences])[facts["sequence"][begun]]
    cycle = 1 << np.array([sequence.frame_num_bits for sequence in sequences])[facts["sequence"][begun]]
    number = facts["frame_num"][begun]
    before = np.maximum.accumulate(np.where(referenced[begun], np.arange(len(begun)), 0))[:-1]
    step = (number[1:] - number[before]) % cycle[1:]
    gaps[begun[1:]] = (step > 1) & (start[begun[1:]] != CLOSED_START) & ~allowed[1:]
    return gaps


def order_counts(
    sequences: list[Sps],
    facts: Columns,
    picture: NDArray[np.int64],
    idr: NDArray[np.bool_],
    referenced: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the output order of pictures within their period (8.2.1), int64 [pictures].

    Args:
        sequences: the sequence parameter sets. `facts["sequence"]` has indices in this list.
        facts: the header fields of the first slice of each packet, one row per packet.
        picture: int64 [pictures], the packets in which pictures begin.
        idr: bool [pictures], whether the picture is an IDR picture.
        referenced: bool [pictures], whether the picture is a reference picture.
    """
    order = np.arange(len(idr), dtype=np.int64)  # decode order, which is the output order for type 2 (8.2.1.3)
    sequence = facts["sequence"][picture]
    counting = [(sps.order_count_type, sps.order_count_bits) for sps in sequences]
    # The type and the number of bits change only at IDR pictures, where picture order counts restart.
    for kind, bits in sorted(set(counting)):
        part = np.array([(kind, bits) == found for found in counting])[sequence]
        chosen = picture[part]
        if kind == 0:
            order[part] = unwrap_order_counts(facts["order_lsb"][chosen], bits, idr[part], referenced[part])
        elif kind == 1:
            rows = (facts[name][chosen].tolist() for name in ("frame_num", "offset_for_ref", "sequence"))
            pictures = zip(*rows, idr[part].tolist(), referenced[part].tolist(), strict=True)
            order[part] = order_counts_of_type_1(sequences, pictures)
    return order


def order_counts_of_type_1(
    sequences: list[Sps], pictures: Iterable[tuple[int, int, int, bool, bool]]
) -> NDArray[np.int64]:
    """Return picture order counts of type 1, which are derived from frame_num (8.2.1.2).

    Args:
        sequences: the sequence parameter sets.
        pictures: (frame_num, delta_pic_order_cnt[0], index in `sequences`, whether the picture is an IDR picture,
            whether the picture is a reference picture) for each picture in decode order.
    """
    counts: list[int] = []
    wraps = previous = 0
    for frame_num, delta, number, idr, referenced in pictures:
        sequence = sequences[number]
        wraps = 0 if idr else wraps + (previous > frame_num)
        previous = frame_num
        cycle = sequence.ref_frame_offsets
        absolute = (wraps << sequence.frame_num_bits) + frame_num if cycle else 0
        absolute -= not referenced and absolute > 0
        expected = 0
        if absolute > 0:
            whole, part = divmod(absolute - 1, len(cycle))
            expected = whole * sum(cycle) + sum(cycle[: part + 1])
        counts.append(expected + (0 if referenced else sequence.non_ref_offset) + delta)
        if abs(counts[-1]) >= MAX_ORDER_COUNT:
            raise BitstreamError(
                "output_order",
                f"a picture has a picture order count of {counts[-1]}, which is out of range",
                damaged=True,
            )
    return np.array(counts, np.int64)


RECOVERY_POINT, USER_DATA_UNREGISTERED = 6, 5  # payloadType (annex D)
SEI_KINDS = (RECOVERY_POINT, USER_DATA_UNREGISTERED, FILM_GRAIN)  # types of SEI messages that are read
INTRA_SLICE_TYPES = (2, 4, 7, 9)  # slice_type of I and SI slices (table 7-6)
ENCODER_VERSION = re.compile(rb"x264 - core (\d{1,9})")
# The last version of x264 with an error in spatial direct prediction. FFmpeg's decoder reproduces this error
# (libavcodec/h264_direct.c). It also reproduces an error in lossless 8x8 blocks of later versions. The profile shows
# whether a stream may have such blocks.
LAST_WRONG_DIRECT = 33


class H264Scanner(NalScanner):
    """A scanner of H.264 packets, as `base.Scanner` describes.

    It collects slice headers, parameter sets and SEI messages.
    """

    set_parsers: ClassVar = {SPS: ("SPS", parse_sps), PPS: ("PPS", parse_pps)}
    header_bytes: ClassVar = 1
    type_bits: ClassVar = (0, 31)
    parse_configuration = staticmethod(parse_configuration)

    def __init__(self, configuration: bytes) -> None:
        super().__init__(configuration)
        self._recovery: set[int] = set()
        # Packets that are not IDR pictures, although picture order counts restart after them (8.2.1). Such packets
        # count as damaged.
        self._resets: set[int] = set()
        self._broken_links: set[int] = set()
        self._encoder_sei: list[bytes] = []
        self._encoder_build: int | None = None
        # Whether some SPS allows lossless coding, and the number of entries of `epochs` that were searched for such an
        # SPS.
        self._lossless, self._judged = False, 0

    def feed(self, data: bytes) -> None:
        number, spans = self._next_packet(data)
        is_coded = False  # whether a slice of the packet precedes the current unit
        for start, end in spans:
            header = data[start]
            kind = header & 31
            if kind in (SLICE, IDR):
                is_coded = True
                head = data[start + 1 : min(end, start + 1 + HEADER_BYTES)]
                self._slices.append(number, header, len(self._sets.epochs) - 1, unescape(head))
            elif kind == SEI:
                self._on_sei(data[start:end], number)
            elif kind == PARTITION_A:
                raise BitstreamError("data_partitioning", f"packet {number} uses data partitioning")
            elif kind in (SPS, PPS):
                self._on_parameter_set(data[start:end], number, late=is_coded)

    def _take(self, nal: bytes) -> None:
        if nal[0] & 31 == SEI:
            self._on_sei(nal, 0)
        else:
            super()._take(nal)

    def _note_change(self, kind: int, set_id: int) -> None:
        """Mark picture parameter sets as `outlived` if the sequence parameter set that they refer to has changed.

        FFmpeg's decoder continues to use a picture parameter set with the sequence parameter set that was current when
        the picture parameter set was received.
        """
        if kind == SPS:
            facts = self._sets.epochs[-1]
            of_it = {key: pps for key, pps in facts.items() if isinstance(pps, Pps) and pps.sps_id == set_id}
            self._sets.renew({key: replace(pps, outlived=True) for key, pps in of_it.items()})

    def _classify_units(self, data: NDArray[np.uint8], units: Units) -> Sorted:
        kind = data[units.start] & 31
        apart = (kind == SPS) | (kind == PPS) | (kind == PARTITION_A)
        sei = np.flatnonzero(kind == SEI)
        begin = units.start[sei] + 1
        apart[sei] = ~is_other_message(heads_at(data, begin, 2), units.end[sei] - begin, SEI_KINDS)
        return (kind == SLICE) | (kind == IDR), apart, np.zeros(len(units.damaged), np.bool_)

    def _on_sei(self, nal: bytes, packet: int) -> None:
        for kind, payload in sei_payloads(nal[1:]):
            if kind == FILM_GRAIN:
                self._carried_over.add(packet)
            # recovery_frame_cnt is an Exp-Golomb code, so its value is 0 if the first bit is set.
            if kind == RECOVERY_POINT and payload and payload[0] & 0x80:
                if payload[0] & 0x20:  # broken_link_flag (D.2.8): leading pictures refer to pictures that were removed
                    self._broken_links.add(packet)
                if payload[0] & 0x40 or not (packet or self._in_middle):  # exact_match_flag
                    self._recovery.add(packet)
            elif kind == USER_DATA_UNREGISTERED and (found := ENCODER_VERSION.search(payload)):
                self._on_encoder(found[1], nal, packet)

    def _on_encoder(self, build: bytes, nal: bytes, packet: int) -> None:
        """Record the x264 version that an SEI message states. FFmpeg's decoder reproduces errors of some versions."""
        if packet == 0:
            self._encoder_build, self._encoder_sei = int(build), [nal]
        elif int(build) != self._encoder_build and (int(build) <= LAST_WRONG_DIRECT or self._encoder_matters()):
            raise BitstreamError("encoder_change", f"packet {packet} states another version of x264 than packet 0")

    def _encoder_matters(self) -> bool:
        """Return whether decoders that start in the middle of the stream need the SEI message with the x264 version."""
        if self._encoder_build is not None and self._encoder_build <= LAST_WRONG_DIRECT:
            return True
        epochs = self._sets.epochs
        while not self._lossless and self._judged < len(epochs):
            facts = epochs[self._judged].values()
            self._lossless = any(isinstance(fact, Sps) and fact.may_be_lossless for fact in facts)
            self._judged += 1
        return self._lossless

    def finish(self) -> Pictures:
        n = self._packets
        slices = self._parse_slices()
        packet = slices["packet"]
        if not len(packet):
            raise BitstreamError("parameter_sets", "the packets contain no slices that can be read", damaged=True)
        count = np.bincount(packet, minlength=n)
        first = np.minimum(np.searchsorted(packet, np.arange(n)), len(packet) - 1)  # each packet's first slice
        facts = {name: np.where(count > 0, column[first], 0) for name, column in slices.items()}
        continues, damaged = pair_fields(slices, facts, count)
        damaged |= marked(self._damaged, n)

        same_field = slices["parity"] == facts["parity"][packet]
        # A slice that differs from the packet's first slice in these fields belongs to another picture (7.4.1.2.4). The
        # packet is then damaged, because it should hold only one picture.
        apart = [slices[name] != facts[name][packet] for name in ("idr", "frame_num", "order_lsb", "referenced")]
        damaged |= np.bincount(packet[same_field & np.logical_or.reduce(apart)], minlength=n) > 0
        intra = marked(INTRA_SLICE_TYPES, 11)[np.minimum(slices["slice_type"], 10)]  # 10 stands for undefined types
        inter = np.bincount(packet[~intra & same_field], minlength=n) > 0
        idr = (np.bincount(packet[slices["idr"] != 0], minlength=n) > 0) & ~continues
        recovery = marked(self._recovery, n) & ~inter & (count > 0) & ~continues
        referenced = np.bincount(packet[slices["referenced"] != 0], minlength=n) > 0
        changes_sets = marked(self._changing | self._carried_over, n)

        picture = np.flatnonzero((count > 0) & ~continues)
        order = np.zeros(n, np.int64)
        order[picture] = order_counts(self._sequences, facts, picture, idr[picture], referenced[picture])
        points = AccessPoints(idr=idr, recovery=recovery, order=order, continues=continues, count=count)
        start, leading = points.starts_without(self._false_recovery_points(slices, points))
        damaged |= marked(self._resets, n)
        segment = segments(start)
        skipped = (leading & (segment == first_start(start))) | (segment < 0) | (count == 0)
        damaged |= missing_before(self._sequences, facts, picture, start, referenced)
        damaged |= (segment < 0) | (leading & ~skipped & (segment >= 0) & marked(self._broken_links, n)[segment])

        encoder_sei = self._encoder_sei if self._encoder_matters() else []
        states, state = self._states(np.flatnonzero(start).tolist(), *encoder_sei)
        used = [self._sequences[number] for number in distinct(slices["sequence"])[0].tolist()]
        # If gaps in frame_num are allowed, FFmpeg fills them with copies of the picture that was decoded last. This can
        # be a picture that no other picture refers to, so no picture counts as droppable.
        conceals = any(sequence.gaps_allowed for sequence in used)
        return pictures_of(
            start,
            non_reference=~referenced & (count > 0) & (start == NO_START) & ~conceals & ~changes_sets,
            leading=leading,
            skipped=skipped,
            field_coded=np.bincount(packet[slices["parity"] != 0], minlength=n) > 0,
            continues=continues,
            damaged=damaged,
            changes_sets=changes_sets,
            period=np.cumsum(idr.astype(np.int64)),
            order=order,
            states=states,
            state=state,
            inband_sets=self._sets.differs,
            inner_start_codes=self._inner_start_codes,
            carries_over=bool(self._carried_over),
            may_hold_fields=not all(sequence.frames_only for sequence in used),
            max_ref_frames=min(sequence.max_ref_frames for sequence in used),
            **shape_facts({sequence.shape for sequence in used}),
        )

    def _parse_slices(self) -> Columns:
        """Return the slice header fields (7.3.3) up to the picture order count, int64 [slices].

        Slices whose parameter sets are missing are left out, because decoders cannot read them. Packets with such
        slices count as damaged.

        Returns:
            The fields by name. `parity` is 0 for a frame, 1 for a top field, 2 for a bottom field. `sequence` is the
            index in `_sequences`.
        """
        slices = self._slices.columns()
        header = slices.header
        bits = BitColumns(slices.heads)
        first_mb, slice_type, pps_id = bits.ue(), bits.ue(), bits.ue()
        sequence = self._sequences_of(slices.epoch, pps_id)

        def of_sequence(value: Callable[[Sps], int]) -> NDArray[np.int64]:
            return np.array([*map(value, self._sequences), 0], np.int64)[sequence]

        bits.u(2 * of_sequence(lambda sps: sps.separate_colour_planes))
        frame_num = bits.u(of_sequence(lambda sps: sps.frame_num_bits))
        field_pic = bits.u(1, where=of_sequence(lambda sps: not sps.frames_only) != 0)
        bottom = bits.u(1, where=field_pic != 0)
        idr = header & 31 == IDR
        bits.ue(where=idr)
        order_lsb = bits.u(of_sequence(lambda sps: sps.order_count_bits))
        columns = {
            "packet": slices.packet,
            "first_mb": first_mb,
            "slice_type": slice_type,
            "frame_num": frame_num,
            "parity": field_pic * (1 + bottom),
            "order_lsb": order_lsb,
            "idr": idr.astype(np.int64),
            "referenced": (header >> 5 & 3 != 0).astype(np.int64),
            "sequence": sequence,
            "offset_for_ref": bits.se(where=of_sequence(lambda sps: sps.deltas_follow) != 0),
            "pps": slices.epoch * (MAX_PPS + 1) + np.minimum(pps_id, MAX_PPS),
            "row": np.arange(len(header)),
            "position": bits.position,
        }
        self._heads = slices
        readable = sequence >= 0
        if readable.all():
            return columns
        self._damaged.update(columns["packet"][~readable].tolist())
        return {name: column[readable] for name, column in columns.items()}

    def _sequences_of(self, epoch: NDArray[np.int64], pps_id: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [slices]: the index in `_sequences` of each slice's SPS, or -1 if the SPS or PPS is missing.

        Args:
            epoch: int64 [slices], the index in `ParameterSets.epochs` of the sets that are current at the slice.
            pps_id: int64 [slices], pic_parameter_set_id.
        """
        self._sequences: list[Sps] = []
        keys, which = distinct(epoch * (MAX_PPS + 1) + np.minimum(pps_id, MAX_PPS))
        numbers = []
        known: dict[Sps, int] = {}
        for age, pps in (divmod(key, MAX_PPS + 1) for key in keys.tolist()):
            facts = self._sets.epochs[age]
            found = facts.get((PPS, pps))
            if isinstance(found, Pps) and found.outlived:
                raise BitstreamError(
                    "parameter_sets",
                    f"picture parameter set {pps} is not repeated after its sequence parameter set changed",
                )
            sps = facts.get((SPS, found.sps_id)) if isinstance(found, Pps) else None
            numbers.append(known.setdefault(sps, len(known)) if isinstance(sps, Sps) else -1)
        self._sequences += known
        return np.array(numbers, np.int64)[which]

    def _false_recovery_points(self, slices: Columns, points: AccessPoints) -> NDArray[np.bool_]:
        """Return bool [packets]: whether the packet is a recovery point that is not a random access point.

        `false_starts` decides this. It compares all entries of reference lists, because headers do not show which
        entries are used.
        """
        candidates = np.flatnonzero(points.recovery)
        first = int(np.argmax(points.idr | points.recovery))
        if not len(candidates) or (candidates[-1] == first and not self._in_middle) or not self._consecutive:
            return np.zeros(len(points.idr), np.bool_)
        starts = compare_starts(
            self._coded_pictures(slices, points, first), set(candidates.tolist()), in_middle=self._in_middle
        )
        return false_starts(starts, points, in_middle=self._in_middle)

    def _coded_pictures(self, slices: Columns, points: AccessPoints, first: int) -> Iterator[Coded]:
        """Yield the frames and fields from packet `first` on, and record those that reset picture order counts."""
        # The arrays below have one entry per frame or field. A packet may hold all slices of one field, followed by all
        # slices of the other field.
        keys = np.stack([slices["packet"], slices["parity"]])
        begins = np.flatnonzero(np.append(True, np.diff(keys, axis=1).any(axis=0)))
        begins = begins[slices["packet"][begins] >= first]
        ends = np.append(begins[1:], len(slices["packet"]))
        picture = np.arange(len(points.order)) - points.continues
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            number = int(slices["packet"][begin])
            sequence = self._sequences[slices["sequence"][begin]]
            try:
                headers = [self._header(slices, row) for row in range(begin, end)]
            except ValueError:
                headers = []
            if headers and headers[0].resets:
                self._resets.add(number)
            yield Coded(
                picture=int(picture[number]),
                parity=int(slices["parity"][begin]),
                frame_num=int(slices["frame_num"][begin]),
                order=int(points.order[picture[number]]),
                idr=bool(slices["idr"][begin]),
                referenced=bool(slices["referenced"][begin:end].any()),
                max_frame_num=1 << sequence.frame_num_bits,
                max_refs=sequence.max_ref_frames,
                slices=headers,
            )

    def _header(self, slices: Columns, row: int) -> SliceHeader:
        """Parse the remaining fields of a slice header.

        Args:
            slices: the header fields of all slices.
            row: the row number of the slice.

        Raises:
            ValueError: if the header has more than `HEADER_BYTES` bytes, or the PPS was not parsed fully.
        """
        epoch, pps_id = divmod(int(slices["pps"][row]), MAX_PPS + 1)
        pps = self._sets.epochs[epoch][PPS, pps_id]
        if not isinstance(pps, Pps) or not pps.plain:
            raise ValueError("the picture parameter set has slice groups, or is truncated")
        bits = BitReader(self._heads.head(int(slices["row"][row])))
        bits.u(int(slices["position"][row]))
        return parse_slice(
            bits,
            self._sequences[slices["sequence"][row]],
            pps,
            kind=int(slices["slice_type"][row]) % 5,
            idr=bool(slices["idr"][row]),
            referenced=bool(slices["referenced"][row]),
            is_field=bool(slices["parity"][row]),
        )
