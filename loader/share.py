"""How much of a batch the CPU decodes beside a GPU: pure functions of a clip's place and a share."""

from __future__ import annotations

# What one core decodes of 720p H.264 in terms of one H200's NVDEC (docs/performance.md).
CORE_IN_NVDECS = 0.12
LEAST_STEP, MOST_SHARE = 0.02, 0.95


def default_share(workers: int) -> float:
    """Return the share of clips that so many workers decode in the time in which NVDEC decodes the others."""
    return min(MOST_SHARE, workers * CORE_IN_NVDECS / (1 + workers * CORE_IN_NVDECS))


def is_on_cpu(place: int, share: float) -> bool:
    """Return whether the clip at a place of an epoch is the CPU's; of any n in a row, n × share are, give or take one."""
    return int((place + 1) * share) > int(place * share)


def adapted(share: float, *, cpu_seconds: float, gpu_seconds: float) -> float:
    """Return the share for the next batch, after one for which the CPU's part was waited for and the GPU's took so long."""
    total = cpu_seconds + gpu_seconds
    if total <= 0:
        return share
    step = LEAST_STEP + 0.1 * abs(cpu_seconds - gpu_seconds) / total
    return min(MOST_SHARE, max(0.0, share - step if cpu_seconds > gpu_seconds else share + step))
