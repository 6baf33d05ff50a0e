"""What is seen and heard of cells that are no plain pictures, numbers or texts. Knows nothing of requests.

``sound``, ``video``, ``slices`` and ``statistics`` (of arrays), ``masks``, ``overlays`` (boxes and points on
a picture; ``annotations``: what they are read from), ``tokens``, ``tree`` and ``model`` say what to show.
``colours`` and ``png`` make pictures of numbers, ``recent`` keeps what is asked for again.
"""

from __future__ import annotations
