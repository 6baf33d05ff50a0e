"""What is seen and heard of cells that are no plain images, numbers or texts. Knows nothing of requests.

``sound``, ``video``, ``slices`` and ``statistics`` (of arrays), ``masks``, ``overlays`` (boxes and points on
an image; ``annotations``: what they are read from), ``tokens``, ``tree`` and ``model`` say what to show.
``colours`` and ``png`` make images of numbers, ``recent`` keeps what is asked for again.
"""

from __future__ import annotations
