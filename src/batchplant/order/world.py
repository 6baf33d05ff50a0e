"""The rank of this process and the number of processes: as the caller, torch.distributed or a launcher says.

Nothing is cached: a trainer may start its processes, or its process group, after a loader was made.
"""

from __future__ import annotations

import os
import sys

from ..errors import OptionError

WORLD_SIZE, RANK = "WORLD_SIZE", "RANK"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
# torchrun says group where others say node.
NODE_RANK, NODES = ("NODE_RANK", "GROUP_RANK"), ("GROUP_WORLD_SIZE", "NNODES")
# (rank, world size) of launchers that always set both.
LAUNCHER_PAIRS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return (rank, world size) of this process now; detects the arguments that are None."""
    if rank is None or world_size is None:
        detected_rank, detected_size = process_group_rank() or _environment_rank(world_size)
        world_size = detected_size if world_size is None else world_size
        rank = detected_rank if rank is None else rank
    if world_size > 1 and rank is None:
        raise OptionError(
            f"there are {world_size} processes, and nothing says which of them this is: set {RANK} beside "
            f"{WORLD_SIZE} (or {LOCAL_RANK} and {NODE_RANK[0]}), initialise torch.distributed, or give rank "
            "and world_size"
        )
    rank = 0 if rank is None else rank
    if world_size < 1:
        raise OptionError(f"world_size is at least 1, not {world_size}")
    if not 0 <= rank < world_size:
        raise OptionError(f"rank must be from 0 to {world_size - 1}, not {rank}")
    return rank, world_size


def process_group_rank() -> tuple[int, int] | None:
    """Return (rank, world size) in torch.distributed; None if it is not imported or not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def default_threads() -> int:
    """Return the threads of this process: the cores it may use, divided among the processes that share them.

    A launcher such as torchrun tells how many processes it started on this machine (LOCAL_WORLD_SIZE).
    """
    # Storage imports this module.
    from ..storage.platform import cpu_count

    return max(1, cpu_count() // local_world_size())


def local_world_size() -> int:
    """Processes on this machine, as a launcher tells."""
    return max(1, _number(LOCAL_WORLD_SIZE) or 1)


def _environment_rank(world_size: int | None) -> tuple[int | None, int]:
    """Return (rank, world size) that a launcher set; the rank is None if it set none.

    ``world_size``: as the caller said.
    """
    launched, pairs = _number(WORLD_SIZE), _launcher_pairs()
    if launched is None and pairs:
        return pairs[0]
    if (launched is None or launched == 1) and world_size is None:
        return 0, 1
    rank = _torchrun_rank()
    if rank is None:
        # A launcher that counts other processes cannot say which of them this is.
        rank = next((pair_rank for pair_rank, size in pairs if size == launched), None)
    return rank, 1 if launched is None else launched


def _launcher_pairs() -> list[tuple[int, int]]:
    pairs = [(_number(rank), _number(size)) for rank, size in LAUNCHER_PAIRS]
    pairs.append((_number("SLURM_PROCID"), _slurm_tasks()))
    return [(rank, size) for rank, size in pairs if rank is not None and size is not None]


def _slurm_tasks() -> int | None:
    """Tasks of the step that srun started; a batch script is one process, however many its job has."""
    step = _number("SLURM_STEP_NUM_TASKS")
    return _number("SLURM_NTASKS") if step is None and "SLURM_JOB_ID" not in os.environ else step


def _torchrun_rank() -> int | None:
    """Return the rank that torchrun, Lightning and the like set, directly or by node and local rank."""
    rank, local_rank = _number(RANK), _number(LOCAL_RANK)
    if rank is not None or local_rank is None:
        return rank
    node, node_size = _first_number(NODE_RANK) or 0, _number(LOCAL_WORLD_SIZE)
    world_size, nodes = _number(WORLD_SIZE), _first_number(NODES)
    if node_size is None and world_size and nodes and world_size % nodes == 0:
        node_size = world_size // nodes
    if node and node_size is None:
        return None
    return local_rank + node * (node_size or 0)


def _first_number(variables: tuple[str, ...]) -> int | None:
    return next((number for number in map(_number, variables) if number is not None), None)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise OptionError(f"the environment variable {variable} is {text!r}, not a number") from None
