"""Functions that answer the page's requests: ``ROUTES`` of each module maps a path below ``api/`` to one.

A function gets the session and the request, runs in a thread, and returns a job, a response, or a value that
becomes JSON. ``browse`` answers what a page asks for first; ``panels`` and ``media`` import much and are
imported on the first request for them.
"""

from __future__ import annotations

from starlette.responses import Response

CACHED = {"Cache-Control": "private, max-age=600"}


def cached(data: bytes, media_type: str, **headers: str) -> Response:
    """Return an image or an array that a browser may keep for a while."""
    return Response(data, media_type=media_type, headers={**CACHED, **headers})
