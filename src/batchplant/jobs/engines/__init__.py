"""Engines that run the tasks of a job: threads of this process, processes, ranks of a cluster, Dask, Ray.

A task is a number; a worker calls a picklable function with it and returns something small. Samples never go
through an engine. ``convert``, ``verify`` and other jobs with a plan call :func:`run`.
"""

from __future__ import annotations

from ...errors import OptionError, near
from .base import Engine, Inline, Ranks, run

__all__ = ["NAMES", "Engine", "make", "run"]

NAMES = ("threads", "processes", "ranks", "dask", "ray")


def make(
    name: str | Engine = "threads",
    *,
    workers: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    scheduler: str | None = None,
) -> Engine:
    """Make the engine of that name.

    ``workers``: of processes, dask and ray. ``scheduler``: address for dask or ray. ``rank`` and
    ``world_size``: of ranks, where the environment does not have them.
    """
    if isinstance(name, Engine):
        return name
    if (rank is not None or world_size is not None) and name != "ranks":
        raise OptionError("rank and world_size are for the engine ranks")
    if scheduler is not None and name not in ("dask", "ray"):
        raise OptionError("a scheduler is for the engines dask and ray")
    if workers is not None and name in ("threads", "ranks"):
        raise OptionError("worker processes are for the engines processes, dask and ray")
    if name == "threads":
        return Inline()
    if name == "processes":
        from .processes import Processes

        return Processes(workers)
    if name == "ranks":
        return Ranks(rank, world_size)
    if name == "dask":
        from .on_dask import Dask

        return Dask(scheduler, workers)
    if name == "ray":
        from .on_ray import Ray

        return Ray(scheduler, workers)
    raise OptionError(f"there is no engine {name!r}{near(name, NAMES)}; there are {', '.join(NAMES)}")
