"""Which rank and which worker this process is, as the library webdataset finds it out."""

from __future__ import annotations

from webdataset.pytorch import IterableDataset as IterableDataset  # torch's class, or an empty one without torch
from webdataset.utils import pytorch_worker_info

from framedex.errors import FramedexError


def place_among_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks.

    Args:
        rank: as the user gave it. None: as the environment variables RANK and WORLD_SIZE or torch.distributed say.
        world_size: as for `rank`.

    Raises:
        FramedexError: only one of them was given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise FramedexError("give rank and world_size together, or neither", found=f"{rank!r} and {world_size!r}")
    if rank is None or world_size is None:
        rank, world_size, _, _ = pytorch_worker_info()
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise FramedexError("rank is out of range", found=repr(rank), allowed=f"0 to {world_size} - 1")
    return rank, world_size


def worker_here() -> tuple[int, int]:
    """Return the number of this worker, and how many workers its rank has; (0, 1) without workers."""
    _, _, worker, count = pytorch_worker_info()
    return worker, count


def is_worker() -> bool:
    """Return whether this is a worker process of a torch DataLoader."""
    try:
        from torch.utils.data import get_worker_info
    except ModuleNotFoundError:
        return False
    return get_worker_info() is not None
