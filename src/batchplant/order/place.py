"""Which process this is among many: as the caller says, as torch.distributed knows, or as a launcher told.

Nothing is remembered: a trainer may start its processes, or its process group, after a loader was made.
"""

from __future__ import annotations

import os
import sys

from ..errors import OptionError

WORLD, RANK = "WORLD_SIZE", "RANK"
# Among the processes of one node, and among nodes; torchrun says group where others say node.
LOCAL_RANK, LOCAL_WORLD = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
NODE_RANK, NODES = ("NODE_RANK", "GROUP_RANK"), ("GROUP_WORLD_SIZE", "NNODES")
# The variables of launchers that always set both: the rank and the number of processes.
PAIRS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def place(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """(rank, world) of this process now; what is given counts, the rest is found."""
    if rank is None or world is None:
        found_rank, found_world = of_group() or _of_environment(world)
        world = found_world if world is None else world
        rank = found_rank if rank is None else rank
    if world > 1 and rank is None:
        raise OptionError(
            f"there are {world} processes, and nothing says which of them this is: set {RANK} beside {WORLD} "
            f"(or {LOCAL_RANK} and {NODE_RANK[0]}), initialise torch.distributed, or give rank and world"
        )
    rank = 0 if rank is None else rank
    if world < 1:
        raise OptionError(f"world is at least 1, not {world}")
    if not 0 <= rank < world:
        raise OptionError(f"rank must be from 0 to {world - 1}, not {rank}")
    return rank, world


def of_group() -> tuple[int, int] | None:
    """What torch.distributed knows, where somebody has imported and initialised it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def default_threads() -> int:
    """Threads for this process: the cores it may use, divided among the processes that share them.

    A launcher such as torchrun tells how many processes it started on this machine (LOCAL_WORLD_SIZE).
    """
    return max(1, len(os.sched_getaffinity(0)) // local_world())


def local_world() -> int:
    """How many processes share this machine, as a launcher tells."""
    return max(1, _number(LOCAL_WORLD) or 1)


def _of_environment(world: int | None) -> tuple[int | None, int]:
    """What the launcher says; without a rank where it says none. ``world``: as the caller said."""
    launched, pairs = _number(WORLD), _pairs()
    if launched is None and pairs:
        return pairs[0]
    if (launched is None or launched == 1) and world is None:
        return 0, 1
    rank = _rank_here()
    if rank is None:
        # Only who counts the same processes can say which of them this is.
        rank = next((one for one, size in pairs if size == launched), None)
    return rank, 1 if launched is None else launched


def _pairs() -> list[tuple[int, int]]:
    found = [(_number(rank), _number(size)) for rank, size in PAIRS]
    found.append((_number("SLURM_PROCID"), _slurm_tasks()))
    return [(rank, size) for rank, size in found if rank is not None and size is not None]


def _slurm_tasks() -> int | None:
    """The tasks of the step that srun started; a batch script is one process, however many its job has."""
    step = _number("SLURM_STEP_NUM_TASKS")
    return _number("SLURM_NTASKS") if step is None and "SLURM_JOB_ID" not in os.environ else step


def _rank_here() -> int | None:
    """The rank that torchrun, Lightning and the like tell."""
    rank, local = _number(RANK), _number(LOCAL_RANK)
    if rank is not None or local is None:
        return rank
    node, of_node = _first(NODE_RANK) or 0, _number(LOCAL_WORLD)
    world, nodes = _number(WORLD), _first(NODES)
    if of_node is None and world and nodes and world % nodes == 0:
        of_node = world // nodes
    if node and of_node is None:
        return None
    return local + node * (of_node or 0)


def _first(names: tuple[str, ...]) -> int | None:
    return next((found for found in map(_number, names) if found is not None), None)


def _number(variable: str) -> int | None:
    said = os.environ.get(variable, "").strip()
    try:
        return int(said) if said else None
    except ValueError:
        raise OptionError(f"the environment variable {variable} is {said!r}, not a number") from None
