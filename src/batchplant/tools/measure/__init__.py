"""A dataset in candidate formats, measured on this machine: size, speeds, memory, bytes over the network.

``measure.formats(reader)`` gives a :class:`Measured` for each; `batchplant bench formats` prints them, and
`batchplant advise --prove` checks its predictions with them. A user of open, create and the Loader.
"""

from __future__ import annotations

from .choice import Candidate, candidates, refusals
from .measured import Measured, pareto
from .running import formats

__all__ = ["Candidate", "Measured", "candidates", "formats", "pareto", "refusals"]
