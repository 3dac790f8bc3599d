"""Find the samples that bring what decoders keep, or end a sequence, by reading the header of every NAL unit in a file.

Samples of HEVC are also counted by slices, because FFmpeg's decoder says nothing where a picture lacks one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Container

import numpy as np
from numpy.typing import NDArray

from framedex.indexer.bitstream.h26x.h264 import H264Scanner
from framedex.indexer.bitstream.h26x.h264_sets import SEI as H264_SEI
from framedex.indexer.bitstream.h26x.hevc import PREFIX_SEI, SEQUENCE_ENDS, HevcScanner, is_slice
from framedex.indexer.bitstream.h26x.scanner import NalScanner
from framedex.indexer.bitstream.h26x.sei import FILM_GRAIN, heads_at, is_other_message
from framedex.indexer.containers.medium_file import ProbedFile
from framedex.indexer.mp4.boxes import UntrustedTables
from framedex.indexer.probing.packet_headers import SCANNERS


def _by_header(scanner: type[NalScanner], types: Container[int]) -> NDArray[np.bool_]:
    """Return bool [256]: which first bytes of a NAL unit state one of these types."""
    return np.array([scanner.unit_type(header) in types for header in range(256)])


SEI = {"h264": _by_header(H264Scanner, {H264_SEI}), "hevc": _by_header(HevcScanner, {PREFIX_SEI})}
ENDING = {"h264": np.zeros(256, np.bool_), "hevc": _by_header(HevcScanner, SEQUENCE_ENDS)}
# All units that change how later pictures are decoded: those above, and parameter sets.
LASTING = {codec: _by_header(scanner, scanner.set_parsers) | ENDING[codec] for codec, scanner in SCANNERS.items()}
MOST_UNITS = 4096  # in a sample; a sample with more counts as found
SPARSE_BYTES = 64 << 10  # mean sample size; of larger samples, single pages are read concurrently

Heads = Callable[[NDArray[np.int64], int], NDArray[np.uint8]]  # (offsets [n], bytes) → uint8 [n, bytes]


def find_lasting(
    file: ProbedFile, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool [samples]: samples that change how later pictures are decoded, or that follow the end of a sequence.

    A file that is truncated during the call ends this process (SIGBUS), like any crash of a worker.

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
        return _find(lambda at, count: _read_apart(file, at, count), codec, length_size, offset, size)
    data = _mapped(file)
    return _find(
        lambda at, count: heads_at(data, at, count),
        codec,
        length_size,
        offset,
        size,
    )


def _mapped(file: ProbedFile) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: the bytes of the medium, which the kernel reads where they are used."""
    page = file.begin % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(file.descriptor, page + file.size_bytes, prot=mmap.PROT_READ, offset=file.begin - page)
    return np.frombuffer(mapped, np.uint8)[page:]


def _read_apart(file: ProbedFile, offset: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Read `count` bytes at each offset.

    The kernel is told all offsets first, so that a disk seeks them concurrently.
    """
    places = offset.tolist()
    for at in places:
        os.posix_fadvise(file.descriptor, file.begin + at, count, os.POSIX_FADV_WILLNEED)
    data = b"".join(file.read(at, count).ljust(count, b"\0") for at in places)
    return np.frombuffer(data, np.uint8).reshape(len(places), count)


def _find(
    heads: Heads, codec: str, length_size: int, offset: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.bool_]:
    found, ended = np.zeros(len(offset), np.bool_), np.zeros(len(offset), np.bool_)
    slices = np.zeros(len(offset), np.int64)
    sample, at, end = np.arange(len(offset)), offset, offset + size
    for _ in range(MOST_UNITS):
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
