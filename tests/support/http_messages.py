"""HTTP/1.1 messages for the proxy and the servers of the tests: heads, streamed bodies, ranges."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

CHUNK_BYTES = 256 << 10
UNBOUNDED = 1 << 62


def address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    return str(parts.hostname), int(parts.port or 80)


def byte_range(text: str | None) -> tuple[int, int] | None:
    """First byte and end of a Range header; a suffix as (-n, UNBOUNDED)."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        return -int(match[2]), UNBOUNDED
    return int(match[1]), int(match[2]) + 1 if match[2] else UNBOUNDED


@dataclasses.dataclass
class Head:
    """The first line and the headers of a request or an answer."""

    first: str
    fields: list[tuple[str, str]]

    @classmethod
    def read(cls, lines: BinaryIO) -> Head | None:
        """None at the end of the connection. What announces an answer (100) is passed over."""
        while (first := lines.readline().decode("latin-1")).strip():
            fields = []
            while (line := lines.readline().decode("latin-1")).strip():
                name, _, value = line.partition(":")
                fields.append((name, value.strip()))
            if not line:
                return None
            if not first.startswith("HTTP/1.1 1"):
                return cls(first.strip(), fields)
        return None

    @property
    def status(self) -> int:
        return int(self.first.split(" ", 2)[1])

    @property
    def chunked(self) -> bool:
        return (self.get("transfer-encoding") or "").lower() == "chunked"

    @property
    def has_end(self) -> bool:
        return self.chunked or self.get("content-length") is not None

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name.lower()), None)

    def replace(self, headers: dict[str, str | None]) -> None:
        names = {name.lower() for name in headers}
        others = [(name, value) for name, value in self.fields if name.lower() not in names]
        self.fields = others + [(name, value) for name, value in headers.items() if value is not None]

    def bytes(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.fields), "", ""]
        return "\r\n".join(lines).encode("latin-1")


def body(head: Head, lines: BinaryIO, *, ends: bool = False) -> Iterator[Any]:
    """The parts of a body as they come, with frames of chunks; ``ends``: the connection's end may end it."""
    if head.chunked:
        while True:
            size = lines.readline()
            yield size
            yield from _take(lines, int(size.split(b";")[0], 16) + 2)
            if int(size.split(b";")[0], 16) == 0:
                return
    length = head.get("content-length")
    yield from _take(
        lines, int(length) if length is not None else UNBOUNDED if ends else 0, short=length is None
    )


def _take(lines: BinaryIO, size: int, *, short: bool = False) -> Iterator[Any]:
    piece = memoryview(bytearray(min(CHUNK_BYTES, size)))
    while size:
        received = lines.readinto1(piece[: min(CHUNK_BYTES, size)])  # type: ignore[attr-defined]
        if not received:
            if short:
                return
            raise ConnectionResetError("the body is cut off")
        yield piece[:received]
        size -= received
