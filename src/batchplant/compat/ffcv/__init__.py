"""The face of FFCV 1.0.2 on batchplant: change ``from ffcv.loader …`` to ``from batchplant.ffcv.loader …``.

The modules have FFCV's names, argument order and results; the work is done by :mod:`batchplant.loading`,
:mod:`batchplant.ops` and the registry of formats. ``python -m batchplant.ffcv train.py`` runs a script
that still says ``import ffcv``.
"""

from __future__ import annotations

from .loader import Loader
from .writer import DatasetWriter

# The release that this mirrors.
__version__ = "1.0.2"

__all__ = ["DatasetWriter", "Loader"]
