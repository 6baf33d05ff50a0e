"""Runs that were recorded, taken apart step by step; see ``batchplant why``."""

from . import receipts
from .run import Run, SeenSample, Spike, Spikes, Stretch

__all__ = ["Run", "SeenSample", "Spike", "Spikes", "Stretch", "receipts"]
