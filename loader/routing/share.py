"""Which clips the CPU decodes beside a GPU if its share is fixed: pure functions of a clip's place in the epoch."""

from __future__ import annotations

from framedex.errors import FramedexError
from framedex.loader.arguments import Decode, Device

Share = float | None


def is_on_cpu(place: int, share: float) -> bool:
    """Return whether the CPU decodes the clip at a place of an epoch.

    Of any n consecutive clips, the CPU decodes n × share, give or take one.
    """
    return int((place + 1) * share) > int(place * share)


def fixed_share(device: Device, decode: Decode, cpu_share: Share, workers: int) -> float | None:
    """Return the share of clips that workers decode beside a GPU. None: each clip goes to whoever finishes it first.

    Raises:
        FramedexError: `cpu_share` is not possible.
    """
    if cpu_share is not None and not (isinstance(cpu_share, int | float) and 0 <= cpu_share <= 1):
        raise FramedexError("cpu_share is out of range", found=repr(cpu_share), allowed="0 to 1, or None")
    if device == "cpu" or decode == "cpu":
        return 1.0
    if decode == "gpu" or (cpu_share is None and not workers):
        return 0.0
    return cpu_share
