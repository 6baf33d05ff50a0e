"""A dataset in candidate formats, measured on this machine: size, speeds, memory, bytes over the network.

``measure.formats(reader)`` gives a :class:`Measurement` for each; `batchplant bench formats` prints them, and
`batchplant advise --prove` checks its predictions with them. A user of open, create and the Loader.
"""

from __future__ import annotations

from .choice import Candidate, candidates, refusals
from .comparison import Measurement, formats, pareto

__all__ = ["Candidate", "Measurement", "candidates", "formats", "pareto", "refusals"]
