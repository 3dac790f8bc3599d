"""Plan the audio of clips from their frames, decode the audio with PyAV, mix its channels and convert its sample rate.

The decoded samples equal those of a full decode of the medium. A sample has the same value in all clips that contain
the sample. Mixing and resampling use only NumPy. This module also encodes audio as FLAC and WAV files and decodes them.
"""

import functools
import io
import math
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec.context import Flags
from numpy.typing import NDArray

from framedex.core.limits import check_room
from framedex.core.pyav import audio_plane
from framedex.errors import DecodeError, PolicyError
from framedex.indexer.containers import decode_packet, packet_with
from framedex.indexer.probing.audio_times import DECODERS, make_decoder
from framedex.records.clip import NO_PTS, AudioFile, AudioRecipe, ClipAudioPlan
from framedex.records.medium import AudioPackets
from framedex.sharder.clips.clip import AudioFacts, AudioOptions, Clip, plan_audio
from framedex.sharder.reading import HeldBytes, SourceFiles

# Options of decoders. AC-3 decoders fill coefficients without bits with noise (dither). By default, the noise comes
# from a generator that runs from the beginning of the stream. With `cons_noisegen` (as in `ffmpeg -cons_noisegen 1`),
# it depends only on the packet. Both kinds of noise are correct, because ATSC A/52 7.3.4 prescribes no generator.
OPTIONS = {"ac3": {"cons_noisegen": "1"}, "eac3": {"cons_noisegen": "1"}}
# By packed sample type: the value of silence, and the factor 2^-(bits - 1), which scales samples to full scale 1.
# FFmpeg shifts samples that have fewer bits than their type (24 of 32) to the high bits, so the type's factor applies.
INTEGERS = {"u8": (128, 2.0**-7), "s16": (0, 2.0**-15), "s32": (0, 2.0**-31), "s64": (0, 2.0**-63)}
SAMPLE_TYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}


def decode_audio(
    facts: AudioFacts, recipe: AudioRecipe, payload: bytes | memoryview
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Decode the samples of a recipe's interval, at the medium's sample rate.

    Args:
        facts: The properties of the medium's audio stream.
        recipe: The recipe.
        payload: The recipe's packets, joined.

    Returns:
        The samples, float32 [channels, samples], and the mask, bool [samples]. Where the medium presents no audio
            (before a late start, after an early end, in gaps), samples are zero and the mask is False. 32-bit integers
            are rounded to float32. All other samples are exact.

    Raises:
        DecodeError: The audio does not decode.
    """
    count = recipe.end_sample - recipe.begin_sample
    samples, mask = np.zeros((facts.channels, count), np.float32), np.zeros(count, np.bool_)
    low, high = max(recipe.begin_sample, facts.first_sample), min(recipe.end_sample, facts.end_sample)
    data, edges = memoryview(payload), np.append(0, np.cumsum(recipe.packet_size, dtype=np.int64)).tolist()
    if edges[-1] != len(data):
        raise _undecodable(f"{len(data)} bytes were read for packets of {edges[-1]} bytes")
    av.logging.set_level(None)
    try:
        context = make_decoder(facts)
    except (av.error.FFmpegError, ValueError, TypeError, OverflowError) as error:
        raise _undecodable(f"the decoder refuses the parameters in the index: {error}") from error
    bits = facts.bits_per_coded_sample
    context.options = OPTIONS.get(facts.codec, {}) | ({"bits_per_coded_sample": str(bits)} if bits else {})
    starts = recipe.packet_sample.tolist()
    for number, start in enumerate(starts):
        # Packets before the wanted samples may fail to decode, because they refer to earlier data that was not read.
        discarded = number + 1 < len(starts) and starts[number + 1] <= low
        position = start
        for frame in _decode(context, data[edges[number] : edges[number + 1]], start, facts, discarded):
            position = position if frame.pts is None else frame.pts
            first, stop = max(position, low), min(position + frame.samples, high)
            if first < stop:
                coding = len(frame.layout.channels), frame.sample_rate
                if coding != (facts.channels, facts.rate):
                    found = f"{coding[0]} channels at {coding[1]} Hz at sample {frame.pts}"
                    raise _undecodable(f"{found} instead of {facts.channels} channels at {facts.rate} Hz")
                place = slice(first - recipe.begin_sample, stop - recipe.begin_sample)
                samples[:, place] = as_float(frame)[:, first - position : stop - position]
                mask[place] = True
            position += frame.samples
    return samples, mask


def _decode(
    context: AudioCodecContext, data: memoryview, start: int, facts: AudioFacts, discarded: bool
) -> list[AudioFrame]:
    """Decode one packet and return its frames.

    Args:
        context: The decoder.
        data: The bytes of the packet.
        start: The number of the packet's first sample.
        facts: The properties of the medium's audio stream.
        discarded: Whether the frames will be discarded. If so, errors of the decoder are ignored.

    Raises:
        DecodeError: The packet does not decode, and its frames will not be discarded.
    """
    packet = packet_with(data)
    packet.pts, packet.time_base = start, Fraction(1, facts.rate)
    try:
        return decode_packet(context, packet)
    except av.error.FFmpegError as error:
        if discarded:
            return []
        raise _undecodable(f"the decoder fails at sample {start}: {error.strerror}") from error


def as_float(frame: AudioFrame) -> NDArray[np.float32]:
    """Convert a decoded frame to float32 [channels, samples], in which full scale is 1."""
    kind, channels = frame.format.packed.name, len(frame.layout.channels)
    planes, wide = (channels, 1) if frame.format.is_planar else (1, channels)
    # A plane may have padding after its samples.
    values = np.concatenate(
        [
            np.frombuffer(audio_plane(frame, number), SAMPLE_TYPES[kind])[: frame.samples * wide].reshape(-1, wide).T  # type: ignore[call-overload, unused-ignore]  # of some numpy versions
            for number in range(planes)
        ]
    )
    if kind in INTEGERS:
        zero, scale = INTEGERS[kind]
        return ((values.astype(np.float64) - zero) * scale).astype(np.float32)
    return values.astype(np.float32)


def _undecodable(what: str) -> DecodeError:
    return DecodeError(f"audio: {what}", remedy="index the medium again")


# The channel layout for each number of channels, from 1, as in FLAC (RFC 9639 9.1.3).
LAYOUTS_BY_CHANNELS = ("mono", "stereo", "3.0", "quad", "5.0", "5.1", "6.1", "7.1")
FRAME_SAMPLES = 4096  # samples per frame for encoders that accept any number, such as PCM; bounds the memory of a frame
# With bitexact, muxer and encoder do not write their versions. Without the second option, FLAC files would reserve
# 8 KiB for tags.
CONTAINER_OPTIONS = {"fflags": "+bitexact", "metadata_header_padding": "0"}


def flac_bits(facts: AudioFacts) -> int:
    """Return the bits per sample of a FLAC file that stores a medium's decoded samples without mixing or resampling.

    Integers of up to 16 bits get 16 bits. All other samples get 24 bits, for example the floats that AAC decoders
    output. (Mixed or resampled samples get 24 bits, too.)
    """
    integers = (facts.sample_format or "").rstrip("p") in {"u8", "s16"} and facts.codec not in DECODERS
    return 16 if integers else 24


def encode_flac(samples: NDArray[np.float32], rate: int, bits: int) -> bytes:
    """Encode samples as a FLAC file. The same samples give the same bytes, unless the library's version changes.

    Args:
        samples: float32 [channels, samples], in which full scale is 1.
        rate: The sample rate in Hz.
        bits: The bits per sample of the file, 16 or 24. Samples that are multiples of 2^-(bits - 1) are stored
            exactly. Other samples are rounded. Samples beyond full scale are clipped.

    Raises:
        PolicyError: The number of bits is neither 16 nor 24, or there are more than 8 channels.
    """
    if bits not in {16, 24}:
        raise PolicyError("FLAC files must have 16 or 24 bits per sample", found=bits)
    full = 2 ** (bits - 1)
    scaled = np.rint(samples.astype(np.float64) * full).clip(-full, full - 1)
    integers = scaled.astype(np.int16) if bits == 16 else scaled.astype(np.int32) << 8
    return _encoded(integers, rate, "flac", "flac", "s16" if bits == 16 else "s32")


def encode_wav(samples: NDArray[np.float32], rate: int) -> bytes:
    """Encode samples as a WAV file of float32 samples, without loss.

    Args:
        samples: float32 [channels, samples].
        rate: The sample rate in Hz.

    Raises:
        PolicyError: There are more than 8 channels.
    """
    return _encoded(samples.astype(np.float32), rate, "wav", "pcm_f32le", "flt")


def _encoded(values: NDArray[np.generic], rate: int, container: str, codec: str, sample_format: str) -> bytes:
    """Encode samples as an audio file.

    Args:
        values: [channels, samples], in the type of `sample_format`.
        rate: The sample rate in Hz.
        container: FFmpeg's name of the container format.
        codec: FFmpeg's name of the codec.
        sample_format: FFmpeg's name of the packed sample format.
    """
    if not 1 <= len(values) <= len(LAYOUTS_BY_CHANNELS):
        raise PolicyError(
            "an audio file has too many channels", found=len(values), allowed=f"1 to {len(LAYOUTS_BY_CHANNELS)}"
        )
    layout, buffer = LAYOUTS_BY_CHANNELS[len(values) - 1], io.BytesIO()
    with av.open(buffer, "w", format=container, container_options=CONTAINER_OPTIONS) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)  # the callers pass encoders of audio
        stream.codec_context.format = sample_format
        stream.codec_context.flags |= Flags.bitexact
        stream.codec_context.thread_count = 1
        stream.codec_context.open(False)
        out.start_encoding()  # writes the header even if there are no samples
        step = stream.codec_context.frame_size or FRAME_SAMPLES
        for first in range(0, values.shape[1], step):
            interleaved = np.ascontiguousarray(values[:, first : first + step].T).reshape(1, -1)
            frame = AudioFrame.from_ndarray(interleaved, format=sample_format, layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, first, Fraction(1, rate)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def decode_file(data: bytes, *, channels: int, count: int, rate: int) -> NDArray[np.float32]:
    """Decode a FLAC or WAV file to float32 [channels, samples].

    Args:
        data: The bytes of the file.
        channels: The expected number of channels.
        count: The expected number of samples. Decoding stops with an error as soon as the file has more samples.
        rate: The expected sample rate in Hz.

    Raises:
        DecodeError: The file does not decode, or has another sample rate, number of channels or number of samples.
    """
    found = 0
    try:
        with av.open(io.BytesIO(data), "r", format="flac" if data.startswith(b"fLaC") else "wav") as container:
            if not container.streams.audio:
                raise DecodeError("an audio file has no audio", found=f"{len(data)} bytes")
            context = container.streams.audio[0].codec_context
            samples = np.zeros((channels, count), np.float32)
            if (context.layout.nb_channels, context.sample_rate) != (channels, rate):
                raise _another(f"{context.layout.nb_channels} channels at {context.sample_rate} Hz")
            for frame in container.decode(container.streams.audio[0]):
                if found + frame.samples > count:
                    raise _another(f"more than {count:,} samples")
                samples[:, found : found + frame.samples] = as_float(frame)
                found += frame.samples
    except av.error.FFmpegError as error:
        raise DecodeError(f"an audio file does not decode: {error.strerror}", found=f"{len(data)} bytes") from error
    if found != count:
        raise _another(f"{found:,} samples instead of {count:,}")
    return samples


def _another(found: str) -> DecodeError:
    return DecodeError("a clip's audio file does not belong to the clip", found=found)


HALF = math.sqrt(0.5)  # -3 dB, the weight of the centre and the surrounds in the downmix of ITU-R BS.775 table 2
LEFT = {"FL": 1.0, "FC": HALF, "BL": HALF, "SL": HALF, "BC": 0.5}
RIGHT = {"FR": 1.0, "FC": HALF, "BR": HALF, "SR": HALF, "BC": 0.5}
# The channels of FFmpeg's layouts, in FFmpeg's order.
LAYOUTS = {
    name: channels.split()
    for name, channels in {
        "2.1": "FL FR LFE", "3.0": "FL FR FC", "3.0(back)": "FL FR BC", "3.1": "FL FR FC LFE", "4.0": "FL FR FC BC",
        "4.1": "FL FR FC LFE BC", "quad": "FL FR BL BR", "quad(side)": "FL FR SL SR", "5.0": "FL FR FC BL BR",
        "5.0(side)": "FL FR FC SL SR", "5.1": "FL FR FC LFE BL BR", "5.1(side)": "FL FR FC LFE SL SR",
        "6.0": "FL FR FC BC SL SR", "6.1": "FL FR FC LFE BC SL SR", "7.0": "FL FR FC BL BR SL SR",
        "7.1": "FL FR FC LFE BL BR SL SR",
    }.items()
}  # fmt: skip
STOPBAND_DB = 100.0  # attenuation of aliases in dB, which puts aliases below the quantization noise of 16 bits (98 dB)
# The end of the passband, as a fraction of the lower of the two Nyquist frequencies (source and output). Full
# attenuation begins at this Nyquist frequency. A greater fraction needs a longer filter.
PASSBAND = 0.91


def mix_matrix(layout: str, source: int, channels: int) -> NDArray[np.float64]:
    """Return float64 [channels, source]: the weight of each of the medium's channels in each output channel.

    - If the numbers of channels are equal, channels stay unchanged.
    - A single output channel is the mean of all channels.
    - If the medium has a single channel, each output channel is a copy of this channel.
    - More than two channels are mixed to two by the downmix of ITU-R BS.775 for the layout. Front channels keep
        their level. The centre and the surrounds are attenuated by 3 dB, and a single back channel by 6 dB.
        Low-frequency effects are dropped. The result is not scaled, so a sum can exceed 1.

    Args:
        layout: FFmpeg's name of the medium's channel layout.
        source: The number of the medium's channels.
        channels: The number of output channels.

    Raises:
        PolicyError: None of the four rules applies.
    """
    if channels == source:
        return np.eye(source)
    if channels == 1:
        return np.full((1, source), 1 / source)
    if source == 1:
        return np.ones((channels, 1))
    names = LAYOUTS.get(layout, [])
    if channels == 2 and len(names) == source:
        return np.array([[side.get(name, 0.0) for name in names] for side in (LEFT, RIGHT)])
    raise PolicyError(
        f"{source} channels ({layout}) cannot be mixed to {channels} channels",
        allowed="1 channel, as many channels as the medium has, or 2 channels if the layout is known",
    )


def remix(samples: NDArray[np.float32], layout: str, channels: int) -> NDArray[np.float32]:
    """Mix float32 [source channels, samples] to float32 [channels, samples] by `mix_matrix`. Raises PolicyError."""
    matrix = mix_matrix(layout, len(samples), channels)
    return samples if len(samples) == channels else (matrix @ samples.astype(np.float64)).astype(np.float32)


def margin(rate: int, out_rate: int) -> int:
    """Return the number of additional source samples that resampling from `rate` to `out_rate` needs on each side."""
    return 0 if rate == out_rate else _half_taps(rate, out_rate) + 1


def resample(
    samples: NDArray[np.float32],
    mask: NDArray[np.bool_],
    first_sample: int,
    rate: int,
    out_rate: int,
    begin: int,
    count: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Convert the sample rate. Return the samples, float32 [channels, count], and their mask, bool [count].

    Source sample k is at k / rate seconds, and output sample k at k / out_rate seconds. The filter is a sinc with a
    Kaiser window, and attenuates frequencies above the lower Nyquist frequency by `STOPBAND_DB`. Except for the
    rounding of float64, an output sample has the same value in all clips that contain the sample.

    Args:
        samples: float32 [channels, n], the source samples from `first_sample` on. They must extend beyond the interval
            of the output samples by `margin(rate, out_rate)` samples on both sides.
        mask: bool [n], whether each source sample is presented. An output sample is presented if the last source sample
            at or before its time is presented. Other output samples are zero.
        first_sample: The number of the first source sample.
        rate: The sample rate of the source, in Hz.
        out_rate: The sample rate of the output, in Hz.
        begin: The number of the first output sample.
        count: The number of output samples.

    Raises:
        ValueError: The source samples do not have the margin.
    """
    if rate == out_rate:
        here = slice(begin - first_sample, begin - first_sample + count)
        if here.start < 0 or here.stop > len(mask):
            raise ValueError(
                f"samples {begin} to {begin + count} are not in {first_sample} to {first_sample + len(mask)}"
            )
        return samples[:, here], mask[here]
    divisor = math.gcd(rate, out_rate)
    up, down = out_rate // divisor, rate // divisor
    half = _half_taps(rate, out_rate)
    bank = _filter_bank(rate, out_rate)
    out, out_mask = np.zeros((len(samples), count), np.float32), np.zeros(count, np.bool_)
    if not count:
        return out, out_mask
    under = (np.arange(begin, begin + count, dtype=np.int64) * down) // up - first_sample
    if under[0] - half + 1 < 0 or under[-1] + half >= len(mask):
        raise ValueError(f"resampling needs {half} samples on both sides of {under[0]} to {under[-1]}, of {len(mask)}")
    out_mask[:] = mask[under]
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), 2 * half, axis=1)
    for number in range(min(up, count)):
        # Output samples whose numbers differ by a multiple of `up` lie at the same phase between two source samples, so
        # one filter serves all of them.
        taps = bank[(begin + number) * down % up]
        start, stop = int(under[number]) - half + 1, int(under[number + (count - 1 - number) // up * up]) - half + 2
        out[:, number::up] = windows[:, start:stop:down] @ taps
    out[:, ~out_mask] = 0
    return out, out_mask


TEMPORARIES = 9  # number of arrays of the filter bank's size that exist at the same time while the bank is computed


def filter_bytes(rate: int, out_rate: int) -> int:
    """Return the number of bytes of memory that the computation of the filters between two rates needs."""
    up = out_rate // math.gcd(rate, out_rate)
    return 0 if rate == out_rate else up * 2 * _half_taps(rate, out_rate) * 8 * TEMPORARIES


def _half_taps(rate: int, out_rate: int) -> int:
    """Return half the length of the filter, in source samples, by Kaiser's formula for a given transition band."""
    transition = (1 - PASSBAND) * 0.5 * min(1.0, out_rate / rate)  # width of the band as a fraction of the source rate
    return math.ceil((STOPBAND_DB - 7.95) / (2.285 * 2 * math.pi * transition) / 2)


@functools.lru_cache(maxsize=4)
def _filter_bank(rate: int, out_rate: int) -> NDArray[np.float64]:
    """Return float64 [phases, taps]: the filter for each position of an output sample between two source samples.

    Tap t is the weight of source sample s + t - half + 1. s is the last source sample at or before the output sample.
    """
    half, up = _half_taps(rate, out_rate), out_rate // math.gcd(rate, out_rate)
    distance = np.arange(up)[:, None] / up - (np.arange(2 * half) - half + 1)[None, :]
    # The cutoff is the middle of the transition band, as a fraction of the source's Nyquist frequency.
    cutoff = 0.5 * (1 + PASSBAND) * min(1.0, out_rate / rate)
    beta = 0.1102 * (STOPBAND_DB - 8.7)
    window = np.i0(beta * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, None))) / np.i0(beta)
    bank: NDArray[np.float64] = cutoff * np.sinc(cutoff * distance) * window
    bank /= bank.sum(axis=1, keepdims=True)  # so that a constant signal keeps its value
    bank.flags.writeable = False
    return bank


SAMPLE_BYTES = 4  # bytes per sample (float32)
RATE_OF_SILENCE = 48_000  # default sample rate in Hz for media without audio, the usual rate in video files


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAudio:
    """The decoded audio of a clip.

    Attributes:
        samples: float32 [channels, samples], zero where the medium presents no audio.
        mask: bool [samples], False where the medium presents no audio.
        rate: The sample rate in Hz.
        first: The number of the first sample. Sample k is at k / `rate` seconds on the medium's clock.
    """

    samples: NDArray[np.float32]
    mask: NDArray[np.bool_]
    rate: int
    first: int


def clip_interval(
    pts: NDArray[np.int64], end_pts: int, frames: NDArray[np.int64], time_base: Fraction
) -> tuple[Fraction, Fraction]:
    """Return the begin of the earliest and the end of the latest wanted frame, in seconds.

    A frame ends when the next frame of the video begins.

    Args:
        pts: int64 [presented], the timestamps of the video's frames, in presentation order.
        end_pts: The end of the video's last frame.
        frames: int64 [wanted], the numbers of the wanted frames, in any order. Negative numbers are padding.
        time_base: The unit of timestamps, in seconds.

    Raises:
        PolicyError: A required timestamp is not known, or all frames are padding.
    """
    real = frames[frames >= 0]
    if not len(real):
        raise PolicyError("a clip that consists only of padding has no audio", found=f"{len(frames)} padded frames")
    first, last = int(real.min()), int(real.max())
    begin, end = int(pts[first]), int(pts[last + 1]) if last + 1 < len(pts) else end_pts
    if NO_PTS in (begin, end):
        raise PolicyError("the audio of a clip needs timestamps", found=f"frames {first} to {last} have none")
    return begin * time_base, max(begin, end) * time_base


def plan_clip_audio(
    facts: AudioFacts, packets: AudioPackets, begin_seconds: Fraction, end_seconds: Fraction, options: AudioOptions
) -> ClipAudioPlan:
    """Plan the audio of an interval of time.

    Output sample k is at k / rate seconds on the medium's clock. The audio consists of all output samples from the
    begin (inclusive) to the end (exclusive) of the interval. With `options.seconds`, it instead consists of
    round(seconds × rate) samples from the begin on, so that clips of equal duration can be stacked.

    Args:
        facts: The properties of the medium's audio stream.
        packets: All audio packets of the medium.
        begin_seconds: The begin of the interval, on the medium's clock.
        end_seconds: The end of the interval, on the medium's clock.
        options: The wanted form of the audio.

    Raises:
        PolicyError: The channels cannot be mixed as wanted, or the samples cannot be planned (see `plan_audio`).
    """
    rate, channels = options.rate or facts.rate, options.channels or facts.channels
    mix_matrix(facts.layout, facts.channels, channels)  # raises PolicyError if the channels cannot be mixed as wanted
    first, count = _on_grid(begin_seconds, end_seconds, rate, options)
    recipe = plan_audio(packets, facts, Fraction(first, rate), Fraction(first + count, rate), margin(facts.rate, rate))
    return ClipAudioPlan(recipe=recipe, rate=rate, channels=channels, first=first, count=count)


def plan_silence(begin_seconds: Fraction, end_seconds: Fraction, options: AudioOptions) -> ClipAudioPlan:
    """Plan silence for a clip whose medium has no audio. The silence is as long as audio would be."""
    rate = options.rate or RATE_OF_SILENCE
    first, count = _on_grid(begin_seconds, end_seconds, rate, options)
    nothing = np.zeros(0, np.int64)
    ranges = {"range_offset": nothing, "range_length": nothing, "packet_sample": nothing}
    recipe = AudioRecipe(**ranges, packet_size=np.zeros(0, np.int32), begin_sample=0, end_sample=0)
    return ClipAudioPlan(recipe=recipe, rate=rate, channels=options.channels or 1, first=first, count=count)


def _on_grid(begin_seconds: Fraction, end_seconds: Fraction, rate: int, options: AudioOptions) -> tuple[int, int]:
    """Return (number of the first sample, count of samples) for an interval. Sample k is at k / `rate` seconds."""
    first = math.ceil(begin_seconds * rate)
    return first, math.ceil(end_seconds * rate) - first if options.seconds is None else round(options.seconds * rate)


def read_audio(clip: Clip, sources: SourceFiles | HeldBytes) -> ClipAudio | None:
    """Read and decode the audio of a clip. Return None if the dataset has no audio.

    Raises:
        StaleError: The source is missing or changed.
        DecodeError: The audio does not decode, or needs more memory than is available.
    """
    return None if clip.audio is None else read_planned_audio(clip, clip.audio, sources)


def read_planned_audio(clip: Clip, plan: ClipAudioPlan, sources: SourceFiles | HeldBytes) -> ClipAudio:
    """Read and decode the audio of a clip as `plan` requires. Raises the errors of `read_audio`."""
    check_room(audio_bytes(clip), audio_text(plan), where=f"clip {clip.clip_id}")
    source = clip.source if clip.audio_source is None else clip.audio_source
    if isinstance(plan.recipe, AudioFile):
        file = sources.read_ranges(source, plan.recipe.range_offset, plan.recipe.range_length)
        samples = decode_file(file.tobytes(), channels=plan.channels, count=plan.count, rate=plan.rate)
        mask = np.zeros(plan.count, np.bool_)
        for begin, end in plan.recipe.present.reshape(-1, 2).tolist():
            mask[begin:end] = True
        return ClipAudio(samples=samples, mask=mask, rate=plan.rate, first=plan.first)
    facts = clip.medium.audio
    if facts is None or not len(plan.recipe.packet_size):
        silence = np.zeros((plan.channels, plan.count), np.float32)
        return ClipAudio(samples=silence, mask=np.zeros(plan.count, np.bool_), rate=plan.rate, first=plan.first)
    payload = sources.read_ranges(source, plan.recipe.range_offset, plan.recipe.range_length)
    return decode_clip_audio(facts, plan, plan.recipe, payload.data)


def audio_bytes(clip: Clip) -> int:
    """Return the number of bytes of memory that reading and decoding the audio of a clip needs."""
    plan, facts = clip.audio, clip.medium.audio
    if plan is None:
        return 0
    delivered = plan.count * (plan.channels * SAMPLE_BYTES + 1)  # the mask has one byte per sample
    if isinstance(plan.recipe, AudioFile):
        return delivered + int(plan.recipe.range_length.sum())
    if facts is None or not len(plan.recipe.packet_size):
        return delivered
    per_sample = (facts.channels + plan.channels) * SAMPLE_BYTES + 1  # samples before and after mixing, and the mask
    decoded = (plan.recipe.end_sample - plan.recipe.begin_sample) * per_sample
    packets = int(plan.recipe.packet_size.sum(dtype=np.int64))
    return delivered + decoded + packets + filter_bytes(facts.rate, plan.rate)


def audio_text(plan: ClipAudioPlan) -> str:
    """Describe the audio of a clip, for error messages about memory."""
    return f"{plan.count:,} samples of {plan.channels} channels at {plan.rate} Hz"


def stretches(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64 [2 × stretches]: the begin and the end (exclusive) of each contiguous stretch of True values."""
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))).astype(np.int64)


def decode_clip_audio(
    facts: AudioFacts, plan: ClipAudioPlan, recipe: AudioRecipe, payload: bytes | memoryview
) -> ClipAudio:
    """Decode, mix and resample the audio of a clip.

    Args:
        facts: The properties of the medium's audio stream.
        plan: The plan of the clip's audio.
        recipe: The recipe of the plan.
        payload: The recipe's packets, joined.

    Raises:
        DecodeError: The audio does not decode, or the recipe has too few samples for the plan.
    """
    samples, mask = decode_audio(facts, recipe, payload)
    mixed = remix(samples, facts.layout, plan.channels)
    try:
        resampled, presented = resample(mixed, mask, recipe.begin_sample, facts.rate, plan.rate, plan.first, plan.count)
    except ValueError as error:  # the recipe in a manifest may have too few packets for the planned samples
        raise DecodeError("the recipe of the audio does not contain all samples of the clip", found=error) from error
    return ClipAudio(samples=resampled, mask=presented, rate=plan.rate, first=plan.first)
