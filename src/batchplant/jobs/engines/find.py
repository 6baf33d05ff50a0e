"""Engines by their names."""

from __future__ import annotations

from ...errors import OptionError, near
from .base import Engine
from .inline import Inline
from .ranks import Ranks

NAMES = ("threads", "processes", "ranks", "dask", "ray")


def make(
    name: str | Engine = "threads",
    *,
    workers: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    scheduler: str | None = None,
) -> Engine:
    """The engine of that name. ``workers``: of processes, dask and ray; ``scheduler``: that of dask or ray.

    ``rank`` and ``world_size``: of ranks, where the environment does not say it.
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
