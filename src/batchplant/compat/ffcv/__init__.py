"""FFCV 1.0.2's interface to batchplant: change ``from ffcv.loader …`` to ``from batchplant.ffcv.loader …``.

The modules have FFCV's names, argument order and results; :mod:`batchplant.loading`, :mod:`batchplant.ops`
and the registry of formats do the work. ``python -m batchplant.ffcv train.py`` runs a script
that still says ``import ffcv``.
"""

from __future__ import annotations

from .loader import Loader
from .writer import DatasetWriter

# The release that this mirrors.
__version__ = "1.0.2"

__all__ = ["DatasetWriter", "Loader"]
