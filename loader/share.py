"""How much of a batch the CPU decodes beside a GPU: pure functions of a clip's place and a share."""

from __future__ import annotations

# What one core decodes of 720p H.264 in terms of one H200's NVDEC (docs/performance.md).
CORE_IN_NVDECS = 0.12
MOST_SHARE = 0.95
STEP = 0.03  # of an adapting share, a batch
WAITING = 0.05  # of a batch's time, spent waiting for workers, is too much


def default_share(workers: int) -> float:
    """Return the share of clips that so many workers decode in the time in which NVDEC decodes the others."""
    return min(MOST_SHARE, workers * CORE_IN_NVDECS / (1 + workers * CORE_IN_NVDECS))


def is_on_cpu(place: int, share: float) -> bool:
    """Return whether the clip at a place of an epoch is the CPU's; of any n in a row, n × share are, give or take one."""
    return int((place + 1) * share) > int(place * share)


def adapted(share: float, *, waited: float, decoding: float) -> float:
    """Return the share for the next batch, after one for which the GPU decoded so long and workers were waited for after it."""
    if waited > WAITING * (waited + decoding):
        return max(0.0, share - STEP)
    return min(MOST_SHARE, share + STEP)
