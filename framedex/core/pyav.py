"""Differences between the supported versions of PyAV, and the errors that a medium can cause."""

import contextlib
import os
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Protocol

import av
from av.audio.plane import AudioPlane

from framedex.errors import FramedexError

# The errors that a medium can cause when it is read: framedex's own errors, FFmpeg's, and those of reading its file.
# Any other exception is a bug of framedex.
MEDIUM_ERRORS = (FramedexError, av.error.FFmpegError, OSError, MemoryError)

# Up to PyAV 18, metadata that is not UTF-8 raises an error without this argument. PyAV 19 always decodes metadata with
# `surrogateescape` and no longer accepts the argument.
LENIENT_METADATA: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


# From FFmpeg 9 on, libavformat drops the samples of an MP4's last audio packet after the end of the track.
ENDS_AUDIO_BY_TABLE = av.library_versions["libavformat"][0] >= 63


class _Ratio(Protocol):
    """A `fractions.Fraction`, or PyAV 19's `av.AVRational`."""

    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...


def audio_plane(frame: av.AudioFrame, number: int) -> AudioPlane:
    """Return a plane of an audio frame.

    `frame.planes` fails for eight planes: PyAV 18 counts nine of them, and PyAV 19 refuses them.
    """
    return AudioPlane(frame, number)


def fraction_of(value: _Ratio | None) -> Fraction | None:
    """Return a time base, rate or aspect ratio of PyAV as a Fraction, or None if FFmpeg does not know it.

    Up to PyAV 18 the values are Fractions or None. Since PyAV 19 they are `av.AVRational`, 0/1 or 0/0 where unknown.
    """
    return Fraction(value.numerator, value.denominator) if value and value.denominator else None


def other_major_versions(versions: Iterable[str]) -> list[str]:
    """Return the given FFmpeg versions whose major version differs from PyAV's."""
    return [version for version in versions if _major(version) != _major(ffmpeg_version())]


def _major(version: str) -> str:
    return version.removeprefix("n").split(".")[0]


def ffmpeg_version() -> str:
    """Return the version of the FFmpeg libraries that PyAV contains, such as `8.0.1`."""
    return str(av.ffmpeg_version_info)


def open_encoder(context: av.CodecContext) -> None:
    """Open an encoder and leave the priority of threads as it is.

    If root runs SVT-AV1 (up to 4.1), it gives its own threads and the thread that opens it the realtime priority
    SCHED_FIFO 99. Processes inherit that, so everything else on the machine would wait for them.

    Raises:
        FFmpegError: the encoder refuses its options.
    """
    before = _realtime_threads()
    context.open()
    for thread in _realtime_threads() - before:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _realtime_threads() -> set[int]:
    found = set()
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
            if os.sched_getscheduler(thread) == os.SCHED_FIFO:
                found.add(thread)
    return found
