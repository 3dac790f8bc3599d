"""References in H.264 slice headers (ITU-T H.264 7.3.3.1 to 7.3.3.3): lists, weights, marking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from framedex.indexer.bitstream.base.bits import BitReader
from framedex.indexer.bitstream.h26x.h264_sets import Pps

P, B, SP = 0, 1, 3  # slice_type modulo 5, table 7-6
MOST_OPERATIONS = 66  # of one list, or of marking: twice 32 fields, and the end code


class Slice(NamedTuple):
    """The reference information of a slice header.

    Attributes:
        kind: slice_type modulo 5.
        lists: (active entries, [(operation, value)]) of list 0 and 1.
        marking: [(operation, first value, second value)] of adaptive marking (table 7-9); None for the sliding window.
        long_idr: whether it is an IDR picture that becomes a long-term reference.
    """

    kind: int
    lists: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    marking: tuple[tuple[int, int, int], ...] | None
    long_idr: bool

    @property
    def resets(self) -> bool:
        """Whether all references are dropped and counting starts again (memory_management_control_operation 5)."""
        return self.marking is not None and any(operation == 5 for operation, _, _ in self.marking)


def parse_slice(
    bits: BitReader,
    pps: Pps,
    *,
    kind: int,
    idr: bool,
    referenced: bool,
    is_field: bool,
    order_type: int,
    deltas: bool,
    chroma: bool,
) -> Slice:
    """Return the rest of a slice header, after pic_order_cnt_lsb or delta_pic_order_cnt[0]. Raises ValueError.

    Args:
        bits: reader at that position.
        pps: picture parameter set of the slice.
        kind: slice_type modulo 5.
        idr: whether the picture is an IDR picture.
        referenced: whether the picture is a reference.
        is_field: whether the picture is a field.
        order_type: pic_order_cnt_type.
        deltas: whether delta_pic_order_cnt is present.
        chroma: whether chroma planes are present.
    """
    if pps.bottom_order and not is_field and (order_type == 0 or (order_type == 1 and deltas)):
        bits.se()
    if pps.redundant:
        bits.ue()
    if kind == B:
        bits.u(1)
    lists = []
    if kind in (P, B, SP):
        active = list(pps.default_active)
        if bits.flag():
            active = [bits.ue() + 1, bits.ue() + 1 if kind == B else 0]

        count = 2 if kind == B else 1
        lists = [(active[number], tuple(_operations(bits)) if bits.flag() else ()) for number in range(count)]
        if (pps.weighted and kind != B) or (pps.weighted_b and kind == B):
            _skip_weights(bits, [entries for entries, _ in lists], chroma)
    marking, long_idr = None, False
    if referenced:
        if idr:
            bits.u(1)
            long_idr = bits.flag()
        elif bits.flag():
            marking = tuple(_marking(bits))
    return Slice(kind, tuple(lists), marking, long_idr)


def _operations(bits: BitReader) -> Iterator[tuple[int, int]]:
    for _ in range(MOST_OPERATIONS):
        operation = bits.ue()
        if operation == 3:
            return
        yield operation, bits.ue()
    raise ValueError("a list of references is modified without end")


def _marking(bits: BitReader) -> Iterator[tuple[int, int, int]]:
    for _ in range(MOST_OPERATIONS):
        operation = bits.ue()
        if not operation:
            return
        first = bits.ue() if operation in (1, 2, 3, 4, 6) else 0
        yield operation, first, bits.ue() if operation == 3 else 0
    raise ValueError("references are marked without end")


def _skip_weights(bits: BitReader, active: list[int], chroma: bool) -> None:
    """Skip pred_weight_table() (7.3.3.2)."""
    bits.ue()
    if chroma:
        bits.ue()
    for entries in active:
        for _ in range(entries):
            if bits.flag():
                bits.se(), bits.se()
            if chroma and bits.flag():
                bits.se(), bits.se(), bits.se(), bits.se()
