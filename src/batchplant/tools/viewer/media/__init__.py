"""Rendering of media cells for the page; knows nothing of requests.

``sound``, ``video``, ``arrays``, ``masks`` and ``tree`` render one kind of cell each. ``overlays`` finds
annotations (boxes, points, polygons) that belong onto images. ``colours`` turns numbers into images.
"""

from __future__ import annotations
