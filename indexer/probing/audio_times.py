"""Compute the sample position of every audio packet from timestamps and from the numbers of samples in packets.

If packet headers of the codec state the number of samples, they are read. Otherwise packets are decoded. The decoder is
set up only with the parameters that the index records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.codec.context import Flags2
from numpy.typing import NDArray

from framedex.indexer.containers import decode_packet, packet_with
from framedex.records.clip import NO_PTS

# The largest difference between a timestamp and the counted samples that does not count as a gap. There are small
# differences because remuxed audio keeps the rounded timestamps of its earlier container.
TOLERANCE_SECONDS = Fraction(2, 1000)
TOLERANCE_TICKS = 2
# Timestamps are irregular if there are more than FREE_GAPS gaps plus one gap per PACKETS_PER_GAP packets.
PACKETS_PER_GAP, FREE_GAPS = 10, 10


class AudioProblem(ValueError):  # noqa: N818 - the name states the reason for missing audio
    """An error that prevents samples of a medium's audio from being located. The message states the reason."""


def positions(pts: NDArray[np.int64], samples: NDArray[np.int64], time_base: Fraction, rate: int) -> NDArray[np.int64]:
    """Return int64 [packets]: the position of each packet's first decoded sample. Sample n is at n / rate seconds.

    The positions are the timestamps if two conditions hold. First, a tick of the time base is a whole number of samples
    that divides the length of every packet but the last. Second, every packet either begins exactly where the previous
    packet ends or after a gap that is too large to be a rounding error.

    Otherwise, samples are counted: a packet begins where the previous packet ends, unless there is a gap. There is a
    gap where a timestamp differs from this count by more than 2 ticks and 2 ms and the next timestamp does not
    contradict the gap.

    A packet without samples has the position of the next packet with samples.

    Args:
        pts: int64 [packets], the timestamps in `time_base`. NO_PTS where one is missing.
        samples: int64 [packets], the number of samples that each packet decodes to.
        time_base: The unit of timestamps, in seconds.
        rate: The sample rate, in Hz.

    Raises:
        AudioProblem: Timestamps decrease, are too large or too irregular, the first timestamp is missing, or no packet
            has samples.
    """
    giving = np.flatnonzero(samples > 0)
    if not len(giving):
        raise AudioProblem("no audio packet decodes to samples")
    found = _positions(pts[giving], samples[giving], time_base * rate, rate, giving)
    return found[np.minimum(np.searchsorted(giving, np.arange(len(pts))), len(giving) - 1)]


def _positions(
    pts: NDArray[np.int64], samples: NDArray[np.int64], tick: Fraction, rate: int, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the positions of packets that all have samples.

    Args:
        pts: int64 [packets], the timestamps. NO_PTS where one is missing.
        samples: int64 [packets], the number of samples in each packet.
        tick: The unit of timestamps, in samples.
        rate: The sample rate, in Hz.
        numbers: int64 [packets], the number of each packet in the stream, for messages.
    """
    stated = pts != NO_PTS
    if not stated[0]:
        raise AudioProblem("the first audio packet has no timestamp")
    if int(np.abs(pts[stated]).max()) * tick >= 1 << 52:
        raise AudioProblem("timestamps of the audio are too large")
    counted = np.cumsum(samples) - samples
    if tick.denominator == 1 and stated.all() and not (samples[:-1] % tick.numerator).any():
        exact = pts * tick.numerator
        steps = np.diff(exact) - samples[:-1]
        # A smaller step is a rounding error. In Matroska, Opus packets have timestamps in whole milliseconds, but the
        # first packet begins between two milliseconds (CodecDelay, RFC 9559 5.1.4.1.25). MP4 files remuxed from
        # Matroska keep these timestamps.
        if ((steps == 0) | (steps > float(TOLERANCE_SECONDS * rate))).all():
            _check_gaps(int(np.count_nonzero(steps)), len(pts))
            return exact
    # The difference between timestamp and counted position, in samples. A packet without a timestamp has the difference
    # of the last packet with one.
    late = np.where(stated, pts, 0) * float(tick) - counted
    late = late[np.maximum.accumulate(np.where(stated, np.arange(len(pts)), 0))]
    tolerance = max(TOLERANCE_TICKS * float(tick), float(TOLERANCE_SECONDS * rate), 1.0)
    late = _without_outliers(late, tolerance)
    start = np.zeros(len(pts), np.int64)
    first, gaps = 0, 0
    while first < len(pts):
        wrong = np.flatnonzero(np.abs(late[first:] - late[first]) > tolerance)
        end = first + int(wrong[0]) if len(wrong) else len(pts)
        start[first:end] = _first_position(late[first:end], float(tick))
        if first and start[first] < start[first - 1]:
            raise AudioProblem(
                f"timestamps turn back by {(start[first - 1] - start[first]) / rate:.4f} s "
                f"at audio packet {numbers[first]}"
            )
        gaps += first > 0
        _check_gaps(gaps, len(pts))
        first = end
    return counted + start


def _without_outliers(late: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """Return the differences between timestamps and counted positions, with single outliers corrected.

    A packet is an outlier if its difference is unlike that of the packet before, but the packet after it agrees with
    the packet before. The outlier gets the difference of the packet before. libavformat gives such timestamps for
    Vorbis in Ogg if the block size changes at the beginning of a page.

    Args:
        late: float64 [packets], the differences in samples.
        tolerance: The largest change between two packets that is not an outlier, in samples.
    """
    if len(late) < 3:
        return late
    out = (np.abs(late[1:-1] - late[:-2]) > tolerance) & (np.abs(late[2:] - late[:-2]) <= tolerance)
    cleaned = late.copy()
    cleaned[1:-1][out] = late[:-2][out]
    return cleaned


def _check_gaps(gaps: int, packets: int) -> None:
    if gaps > FREE_GAPS + packets // PACKETS_PER_GAP:
        raise AudioProblem(f"timestamps are irregular: at least {gaps} gaps between {packets} audio packets")


def _first_position(late: NDArray[np.float64], tick: float) -> int:
    """Return the number of samples to add to the counted positions of packets between which there are no gaps.

    Rounding to ticks changes a timestamp by at most half a tick. The result is the number closest to the first packet's
    difference that is within half a tick of all differences. If there is no such number, the first packet's difference
    is used. The result is rounded to whole samples.

    Args:
        late: float64 [packets], the differences between timestamps and counted positions, in samples.
        tick: The unit of timestamps, in samples.
    """
    low, high = float(late.max()) - tick / 2, float(late.min()) + tick / 2
    return round(min(max(float(late[0]), low), high) if low <= high + 1e-6 else float(late[0]))


def presented(
    sample: NDArray[np.int64],
    samples: NDArray[np.int64],
    skip: dict[int, tuple[int, int]],
    discarded: NDArray[np.bool_],
    multiplier: int = 1,
) -> tuple[int, int]:
    """Return the interval (first sample, end) that a full decode presents. `end` is exclusive.

    Packets are trimmed as libavcodec trims them.

    Args:
        sample: int64 [packets], the position of each packet's first sample.
        samples: int64 [packets], the number of samples in each packet.
        skip: For some packet numbers, (number of samples to drop from the packet's beginning on, number of samples to
            drop at the packet's end). The first number may extend over several packets.
        discarded: bool [packets]. True for packets that an edit list cuts away. Their samples are part of the samples
            to drop.
        multiplier: The factor by which the first numbers in `skip` are multiplied.

    Raises:
        AudioProblem: All samples are cut away, or some between the first and the last presented sample.
    """
    pieces: list[tuple[int, int, int]] = []
    waiting = 0
    special = set(skip) | set(np.flatnonzero(discarded).tolist())
    trimmed = np.zeros(len(sample), np.bool_)
    last_special = max(special, default=-1)
    for number in range(len(sample)):
        if not waiting and number > last_special:
            break
        if not waiting and number not in special:
            continue
        begin, end = skip.get(number, (0, 0))
        waiting = begin * multiplier or waiting
        count = int(samples[number])
        trimmed[number] = True
        cut = min(waiting, count)
        waiting -= cut
        if not discarded[number] and cut < count:
            left = count - cut - (end if end <= count - cut else 0)
            pieces.append((number, int(sample[number]) + cut, int(sample[number]) + cut + left))
    whole = np.flatnonzero(~trimmed & (samples > 0))
    kept = {number: (begin, end) for number, begin, end in pieces if end > begin}
    numbers = np.union1d(whole, np.array(list(kept), np.int64)).astype(np.int64)
    if not len(numbers):
        raise AudioProblem("the container cuts away all audio samples")
    first, last = int(numbers[0]), int(numbers[-1])
    for number, (begin, end) in kept.items():
        full = int(sample[number]), int(sample[number] + samples[number])
        if (number > first and begin != full[0]) or (number < last and end != full[1]):
            raise AudioProblem(f"the container cuts away samples of audio packet {number} in the middle of the stream")
    inner = np.setdiff1d(np.flatnonzero(samples[first:last] > 0) + first, numbers)
    if len(inner):
        raise AudioProblem(f"the container cuts away audio packet {inner[0]} in the middle of the stream")
    begin = kept[first][0] if first in kept else int(sample[first])
    return begin, kept[last][1] if last in kept else int(sample[last] + samples[last])


# The floating-point decoders of codecs whose canonical name belongs to a fixed-point decoder. FFmpeg's players decode
# MP3 with the floating-point decoder, too. For MP1 and MP2, they use the fixed-point decoder, which is not used here:
# it carries rounding errors from sample to sample, so its output depends on where decoding began.
DECODERS = {"mp1": "mp1float", "mp2": "mp2float", "mp3": "mp3float", "mp3adu": "mp3adufloat"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioCoding:
    """The parameters for the decoder of an audio stream, and the format of its output.

    Attributes:
        codec: FFmpeg's canonical name of the codec.
        codec_tag: The codec tag in the container, or None.
        extradata: The codec configuration in the container, or None.
        rate: The sample rate in Hz.
        layout: FFmpeg's name of the channel layout.
        sample_format: FFmpeg's name of the sample format.
    """

    codec: str
    codec_tag: str | None
    extradata: bytes | None
    rate: int
    layout: str
    sample_format: str | None


def make_decoder(coding: AudioCoding) -> AudioCodecContext:
    """Return a new decoder that does not trim samples.

    Raises:
        av.error.FFmpegError, ValueError: FFmpeg does not have a decoder for the codec.
    """
    context = av.CodecContext.create(DECODERS.get(coding.codec, coding.codec), "r")
    if not isinstance(context, AudioCodecContext):
        raise ValueError(f"{coding.codec} is not an audio codec")
    context.extradata = coding.extradata
    context.sample_rate = coding.rate
    context.layout = coding.layout
    if coding.sample_format:
        context.format = coding.sample_format
    if coding.codec_tag:
        context.codec_tag = coding.codec_tag
    # Without this flag, a new decoder drops the samples that the header skips at the beginning of the stream (Opus'
    # pre-skip), even if decoding begins later in the stream.
    context.flags2 |= Flags2.skip_manual
    context.thread_count = 1
    return context


def count_samples(coding: AudioCoding, packets: Iterable[bytes]) -> list[int]:
    """Return the number of samples that each packet decodes to. A new decoder is used.

    Raises:
        AudioProblem: There is no decoder, a packet does not decode, the sample rate or the number of channels changes,
            or the decoder outputs samples only after the last packet.
    """
    try:
        context = make_decoder(coding)
    except (av.error.FFmpegError, ValueError) as error:
        raise AudioProblem(f"no decoder for {coding.codec}: {error}") from error
    counts: list[int] = []
    try:
        for data in packets:
            counts.append(_samples(coding, len(counts), decode_packet(context, packet_with(data))))
        late = _samples(coding, len(counts), decode_packet(context, None))
    except av.error.FFmpegError as error:
        raise AudioProblem(f"audio packet {len(counts)} does not decode: {error.strerror}") from error
    if late:
        raise AudioProblem(f"the decoder of {coding.codec} outputs {late} samples only after the last packet")
    return counts


def _samples(coding: AudioCoding, number: int, frames: Sequence[av.AudioFrame]) -> int:
    for frame in frames:
        found = (frame.sample_rate, frame.layout.nb_channels)
        if found != (coding.rate, av.AudioLayout(coding.layout).nb_channels):
            raise AudioProblem(f"audio packet {number} has {found[1]} channels at {found[0]} Hz, unlike the first one")
    return sum(frame.samples for frame in frames)


# Codecs in which every packet decodes to the same number of samples. Only the last packet of a lossless stream may
# decode to fewer.
CONSTANT = frozenset({"aac", "aac_latm", "mp1", "mp2", "mp3", "ac3", "alac"})
FLAC_BLOCKS = {1: 192, 2: 576, 3: 1152, 4: 2304, 5: 4608} | {n: 256 << (n - 8) for n in range(8, 16)}  # RFC 9639 9.1.1
EAC3_BLOCKS = (1, 2, 3, 6)  # ETSI TS 102 366 E.1.3.1.5
# Masks of the packet header bits that are the same in all packets of a stream, unless its configuration changes.
FIXED_BITS = {
    # sync word, version, layer, sampling rate (ISO/IEC 11172-3 2.4.2.3)
    **dict.fromkeys(("mp1", "mp2", "mp3"), bytes([0xFF, 0xFE, 0x0C])),
    "ac3": bytes([0xFF, 0xFF, 0, 0, 0xC0, 0, 0xE0]),  # sync word, fscod, acmod (ETSI TS 102 366 4.3)
    "aac": bytes([0xFF, 0xF6, 0xFD, 0xC0]),  # of ADTS: sync word, layer, profile, rate, channels (ISO/IEC 13818-7 6.2)
}


def opus_samples(packet: bytes) -> int:
    """Return the number of samples at 48 kHz in an Opus packet (RFC 6716 3.1, 3.2), or 0 if the packet is malformed."""
    if not packet:
        return 0
    configuration, code = packet[0] >> 3, packet[0] & 3
    if configuration < 12:
        size = (480, 960, 1920, 2880)[configuration & 3]
    elif configuration < 16:
        size = (480, 960)[configuration & 1]
    else:
        size = 120 << (configuration & 3)
    if code < 3:
        return size * (1 if code == 0 else 2)
    return size * (packet[1] & 63) if len(packet) > 1 else 0


def flac_samples(packet: bytes) -> int:
    """Return the number of samples in a FLAC frame (RFC 9639 9.1), or 0 if the packet has no frame header."""
    if len(packet) < 6 or packet[0] != 0xFF or packet[1] & 0xFE != 0xF8:
        return 0
    code = packet[2] >> 4
    if code in FLAC_BLOCKS:
        return FLAC_BLOCKS[code]
    # Byte 4 begins the frame or sample number, which is coded like a UTF-8 character. Its first byte shows its length.
    at = 4 + (1 if packet[4] < 0x80 else max(1, 8 - (packet[4] ^ 0xFF).bit_length()))
    if code == 6:
        return packet[at] + 1 if len(packet) > at else 0
    return int.from_bytes(packet[at : at + 2], "big") + 1 if code == 7 and len(packet) > at + 1 else 0


def eac3_samples(packet: bytes) -> int:
    """Return the number of samples in the first frame of an Enhanced AC-3 packet, or 0 if the packet has no frame."""
    if len(packet) < 6 or packet[:2] != b"\x0b\x77":
        return 0
    rate, blocks = packet[4] >> 6, packet[4] >> 4 & 3
    return 256 * (6 if rate == 3 or packet[5] >> 3 <= 10 else EAC3_BLOCKS[blocks])


HEADERS = {"opus": opus_samples, "flac": flac_samples, "eac3": eac3_samples}


def fixed_header(codec: str, packet: bytes) -> bytes:
    """Return the header bits of a packet that must not change within a stream, or b"" if the codec has no such bits."""
    fixed = bytes(byte & bit for byte, bit in zip(packet, FIXED_BITS.get(codec, b""), strict=False))
    return b"" if codec == "aac" and fixed[:2] != b"\xff\xf0" else fixed  # AAC packets have this header only in ADTS
