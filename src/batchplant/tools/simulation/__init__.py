"""Simulate a training run on many machines, without data: bytes, requests, cache hits, samples/s.

``simulate(read_plan("plan.yaml"))`` runs the loader's own parts in virtual time: the orders and their ranks,
the prefetch that decides what is asked for, the pool of blocks, the number of requests in flight. Only the
network, the disk and the decoder are numbers of the plan. `batchplant simulate` prints and draws it.
"""

from __future__ import annotations

from .plan import Plan, example, read_plan
from .results import Epoch, Simulation, hints
from .running import simulate

__all__ = ["Epoch", "Plan", "Simulation", "example", "hints", "read_plan", "simulate"]
