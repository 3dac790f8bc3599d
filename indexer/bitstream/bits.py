"""Readers of bit fields: one string at a time (parameter sets), or a field of many strings at once (slice headers)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 64  # enough for every slice header field read here, up to the reference picture sets
_WORDS = HEADER_BYTES // 8


class BitReader:
    """Reads an RBSP (emulation prevention removed) bit by bit. Raises ValueError past its end."""

    def __init__(self, rbsp: bytes) -> None:
        self._value = int.from_bytes(rbsp, "big")
        self._left = 8 * len(rbsp)

    @property
    def left(self) -> int:
        """Number of bits that follow."""
        return self._left

    def u(self, bits: int) -> int:
        """Read an unsigned integer of `bits` bits."""
        if bits > self._left:
            raise ValueError("the parameter set ends too early")
        self._left -= bits
        return (self._value >> self._left) & ((1 << bits) - 1)

    def flag(self) -> bool:
        """Read one bit."""
        return bool(self.u(1))

    def ue(self) -> int:
        """Read an unsigned Exp-Golomb code (H.264 9.1)."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > 32:
                raise ValueError("an Exp-Golomb code longer than 32 bits")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """Read a signed Exp-Golomb code (H.264 9.1.1)."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)


class BitColumns:
    """Reads the same fields from n bit strings at once: every method returns int64 [n].

    Rows may be at different bit positions, because Exp-Golomb codes differ in length.

    Args:
        heads: the leading bytes of slice NAL units, without NAL header and emulation prevention. Strings are padded
            with zeros to `HEADER_BYTES`; an array is uint8 [n, HEADER_BYTES], already padded.
    """

    def __init__(self, heads: list[bytes] | NDArray[np.uint8]) -> None:
        if isinstance(heads, list):
            padded = b"".join(head[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0") for head in heads)
            heads = np.frombuffer(padded, np.uint8).reshape(len(heads), HEADER_BYTES)
        self._rows = np.arange(len(heads))
        self._position = np.zeros(len(heads), np.int64)
        # One row per word, so that the bits of all strings at one position are neighbours. The last row is padding.
        self._words = np.zeros((_WORDS + 1, len(heads)), np.uint64)
        self._words[:-1] = np.ascontiguousarray(heads).view(">u8").T

    @property
    def position(self) -> NDArray[np.int64]:
        """Position of each row, int64 [n], in bits from its beginning."""
        return self._position

    def _peek(self) -> NDArray[np.uint64]:
        """Return the next 64 bits of each row, left-aligned in uint64 [n], with zeros after the end."""
        word = self._position >> 6
        shift = (self._position & 63).astype(np.uint64)
        first = int(word.min(initial=_WORDS))
        if first < _WORDS and first == int(word.max(initial=0)):
            near, far = self._words[first], self._words[first + 1]
            return _joined(near, far, shift)
        at = np.minimum(word, _WORDS) * len(self._rows) + self._rows
        following = np.minimum(word + 1, _WORDS) * len(self._rows) + self._rows
        words = self._words.reshape(-1)
        return _joined(words[at], words[following], shift)

    def u(self, bits: int | NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read `bits` bits (0 to 32, may differ by row) from the rows in `where`; others read nothing and give 0."""
        count = np.broadcast_to(np.asarray(bits, np.int64), self._position.shape)
        if where is not None:
            count = np.where(where, count, 0)
        shift = (64 - np.maximum(count, 1)).astype(np.uint64)
        values = np.where(count > 0, (self._peek() >> shift).astype(np.int64), 0)
        self._position = self._position + count
        return values

    def ue(self, where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read an unsigned Exp-Golomb code of up to 28 leading zeros from the rows in `where`; other rows give 0."""
        window = self._peek()
        top = (window >> np.uint64(32)).astype(np.float64)
        zeros = np.minimum(np.where(top > 0, 32 - np.frexp(top)[1], 28), 28).astype(np.int64)
        values = (window >> (63 - 2 * zeros).astype(np.uint64)).astype(np.int64) - 1
        length = 2 * zeros + 1
        if where is not None:
            values, length = np.where(where, values, 0), np.where(where, length, 0)
        self._position = self._position + length
        return values

    def se(self, where: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Read a signed Exp-Golomb code from the rows in `where`; other rows give 0."""
        code = self.ue(where)
        return np.where(code % 2, (code + 1) // 2, -(code // 2))


def _joined(word: NDArray[np.uint64], following: NDArray[np.uint64], shift: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the 64 bits that begin `shift` (0 to 63) bits into the first of two words."""
    joined: NDArray[np.uint64] = np.bitwise_or(
        np.left_shift(word, shift), np.right_shift(following >> np.uint64(1), np.uint64(63) - shift)
    )
    return joined
