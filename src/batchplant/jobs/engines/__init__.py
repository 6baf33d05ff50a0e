"""Engines: who does the tasks of a job. Threads of this process, processes, ranks of a cluster, Dask, Ray.

A task is a number; what is done for it is a picklable function, and what comes back is small. Samples never
go through an engine. ``convert``, ``verify`` and whoever else has a plan call :func:`run`.
"""

from .base import Engine, run
from .find import NAMES, make

__all__ = ["NAMES", "Engine", "make", "run"]
