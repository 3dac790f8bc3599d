"""The exceptions that a medium can cause in PyAV, and functions that hide differences between versions of PyAV."""

import contextlib
import os
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Protocol

import av
from av.audio.plane import AudioPlane

from framedex.errors import FramedexError

# The exceptions that reading or decoding a medium may raise because of its content or its file. Any other exception is
# a bug of framedex.
MEDIUM_ERRORS = (FramedexError, av.error.FFmpegError, OSError, MemoryError)

# Arguments of `av.open` that allow metadata that is not UTF-8. Up to PyAV 18, such metadata raises an error without the
# argument. PyAV 19 always decodes metadata with `surrogateescape` and no longer accepts the argument.
LENIENT_METADATA: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


# Whether libavformat drops audio samples after the end of an MP4's audio track, as FFmpeg does from version 9 on. Such
# samples exist because the last audio packet may be longer than the rest of the track.
ENDS_AUDIO_BY_TABLE = av.library_versions["libavformat"][0] >= 63


class _Ratio(Protocol):
    """A `fractions.Fraction`, or PyAV 19's `av.AVRational`."""

    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...


def audio_plane(frame: av.AudioFrame, number: int) -> AudioPlane:
    """Return a plane of an audio frame.

    This function also works for frames with eight planes, for which `frame.planes` fails: PyAV 18 counts nine planes,
    and PyAV 19 raises an error.
    """
    return AudioPlane(frame, number)


def fraction_of(value: _Ratio | None) -> Fraction | None:
    """Return a time base, rate or aspect ratio from PyAV as a Fraction, or None if the value is unknown.

    Up to PyAV 18, such a value is a Fraction, or None if unknown. Since PyAV 19, it is an `av.AVRational`. An unknown
    value is then 0/1 or 0/0.
    """
    return Fraction(value.numerator, value.denominator) if value and value.denominator else None


def other_major_versions(versions: Iterable[str]) -> list[str]:
    """Return the given FFmpeg versions whose major version differs from PyAV's."""
    return [version for version in versions if _major(version) != _major(ffmpeg_version())]


def _major(version: str) -> str:
    return version.removeprefix("n").split(".")[0]


def ffmpeg_version() -> str:
    """Return the version of the FFmpeg libraries that PyAV uses, such as `8.0.1`."""
    return str(av.ffmpeg_version_info)


def open_encoder(context: av.CodecContext) -> None:
    """Open an encoder without giving threads a realtime priority.

    If the process runs as root and the encoder is SVT-AV1 (up to version 4.1), the encoder gives its threads and the
    calling thread the realtime priority SCHED_FIFO 99. Child processes inherit the priority, and all other processes of
    the machine would have to wait for these threads. This function therefore resets the priority after the encoder is
    open.

    Raises:
        FFmpegError: The encoder refuses the options.
    """
    before = _realtime_threads()
    context.open()
    for thread in _realtime_threads() - before:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _realtime_threads() -> set[int]:
    found = set()
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):  # the thread may have ended since it was listed
            if os.sched_getscheduler(thread) == os.SCHED_FIFO:
                found.add(thread)
    return found
