"""Audio as small files in memory: FLAC and WAV."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec.context import Flags
from numpy.typing import NDArray

from framedex.errors import DecodeError, PolicyError
from framedex.indexer.audio.audio_decoding import DECODERS
from framedex.sharder.clips.audio import AudioFacts
from framedex.sharder.decoding.audio import as_float

LAYOUTS = (
    "mono",
    "stereo",
    "3.0",
    "quad",
    "5.0",
    "5.1",
    "6.1",
    "7.1",
)  # by number of channels, as in FLAC (RFC 9639 9.1.3)
FRAME_SAMPLES = 4096
# Bit-exact: neither the muxer nor the encoder writes its version. FLAC would reserve 8 KiB for tags.
CONTAINER_OPTIONS = {"fflags": "+bitexact", "metadata_header_padding": "0"}


def flac_bits(facts: AudioFacts) -> int:
    """Return the bits per sample of a FLAC file for a medium's own samples.

    Integers of up to 16 bits get 16 bits; all other samples get 24, including those of decoders that output floats.
    Mixed or resampled samples have 24 bits, too.
    """
    integers = (facts.sample_format or "").rstrip("p") in {"u8", "s16"} and facts.codec not in DECODERS
    return 16 if integers else 24


def encode_flac(samples: NDArray[np.float32], rate: int, bits: int) -> bytes:
    """Return a FLAC file of float32 [channels, samples]. The same library always gives the same bytes.

    Args:
        bits: 16 or 24. Integers of up to that many bits, scaled by 2^-(bits - 1), are restored bit for bit. Other
            values are rounded to the nearest, and values beyond full scale are clipped.

    Raises:
        PolicyError: Another number of bits, or more than 8 channels.
    """
    if bits not in {16, 24}:
        raise PolicyError("FLAC of other than 16 or 24 bits", found=bits)
    scaled = np.rint(samples.astype(np.float64) * 2 ** (bits - 1)).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    integers = scaled.astype(np.int16) if bits == 16 else scaled.astype(np.int32) << 8
    return _encoded(integers, rate, "flac", "flac", "s16" if bits == 16 else "s32")


def encode_wav(samples: NDArray[np.float32], rate: int) -> bytes:
    """Return a WAV file of float32 [channels, samples], with exact samples.

    Raises:
        PolicyError: There are more than 8 channels.
    """
    return _encoded(samples.astype(np.float32), rate, "wav", "pcm_f32le", "flt")


def _encoded(values: NDArray[np.generic], rate: int, container: str, codec: str, sample_format: str) -> bytes:
    """Return a file of [channels, samples] in the sample format's type."""
    if not 1 <= len(values) <= len(LAYOUTS):
        raise PolicyError("an audio file of too many channels", found=len(values), allowed=f"1 to {len(LAYOUTS)}")
    layout, buffer = LAYOUTS[len(values) - 1], io.BytesIO()
    with av.open(buffer, "w", format=container, container_options=CONTAINER_OPTIONS) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)
        stream.codec_context.format = sample_format
        stream.codec_context.flags |= Flags.bitexact
        stream.codec_context.thread_count = 1
        stream.codec_context.open(False)
        out.start_encoding()  # a file without samples has a header, too
        step = stream.codec_context.frame_size or FRAME_SAMPLES
        for first in range(0, values.shape[1], step):
            interleaved = np.ascontiguousarray(values[:, first : first + step].T).reshape(1, -1)
            frame = AudioFrame.from_ndarray(interleaved, format=sample_format, layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, first, Fraction(1, rate)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def decode_file(data: bytes, *, channels: int, count: int, rate: int) -> NDArray[np.float32]:
    """Return float32 [channels, samples] of an audio file.

    Raises:
        DecodeError: The file does not decode, or has another rate, or other than `count` samples of `channels`,
            which is found before a longer file is decoded further.
    """
    found = 0
    try:
        with av.open(io.BytesIO(data), "r", format="flac" if data.startswith(b"fLaC") else "wav") as container:
            if not container.streams.audio:
                raise DecodeError("an audio file without audio", found=f"{len(data)} bytes")
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
    return DecodeError("a clip's audio file is another one", found=found)
