"""Bytes as players ask for them: a part at a time (HTTP Range)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...schema.columns import U8

# Of one answer; players ask on from where it ends.
PART = 4 << 20
KEPT = {"Cache-Control": "private, max-age=600", "Accept-Ranges": "bytes"}


def ranged(request: Request, data: U8 | memoryview, media_type: str) -> Response:
    size = len(data)
    asked = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", request.headers.get("range", "").strip())
    if asked is None or not any(asked.groups()):
        headers = {**KEPT, "Content-Length": str(size)}
        return StreamingResponse(_parts(data), media_type=media_type, headers=headers)
    first, last = asked.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1 if first and last else size)
    if start >= stop:
        return Response(status_code=416, headers={**KEPT, "Content-Range": f"bytes */{size}"})
    stop = min(stop, start + PART)
    headers = {**KEPT, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return Response(bytes(data[start:stop]), 206, media_type=media_type, headers=headers)


def _parts(data: U8 | memoryview) -> Iterator[bytes]:
    return (bytes(data[at : at + PART]) for at in range(0, len(data), PART))
