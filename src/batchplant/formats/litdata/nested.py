"""Lists and dicts as LitData packs them: ``json`` cells that are no JSON text, made such text.

Little-endian. A value is a byte that says its type, and then: u32 length and JSON text (0); u32 count and as
many texts (1), int64 (2), float64 (3) or bytes of 0 or 1 (4); u32 count and as many keys, each a text, with
values (5); u32 rows, u32 keys, the keys, and for each row a tagged value for each key (6); a text (7), an
int64 (8), a float64 (9), a byte of 0 or 1 (10), nothing (11). A text is u32 length and UTF-8. In rows the
tags are 16 (nothing), 17 (text), 18 (int64), 19 (float64), 20 (bool). JSON text begins with a byte above 32.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from ...errors import DecodeError
from ...storage import NOTE_ERRORS, limits, parse

# A byte up to this is a tag; JSON text begins with another.
TAGS = 0x20
# In memory, a value of Python takes up to this.
OBJECT = 64

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_IN_ROWS = {16: 11, 17: 7, 18: 8, 19: 9, 20: 10}


def text_of(data: bytes) -> bytes:
    """The JSON text of a packed value."""
    reader = _Packed(data)
    try:
        value = reader.value()
        if reader.at != len(data):
            raise ValueError(f"{len(data) - reader.at} bytes are left over")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (*NOTE_ERRORS, struct.error) as error:
        raise DecodeError(f"not a list or dict as LitData packs them: {error}") from None


class _Packed:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        result = self.data[self.at : self.at + size]
        if len(result) != size:
            raise ValueError(f"{size} bytes are needed at byte {self.at}")
        self.at += size
        return result

    def count(self, width: int) -> int:
        """A number of parts that take at least so many bytes each."""
        count: int = _U32.unpack(self.take(4))[0]
        if count * width > len(self.data) - self.at:
            raise ValueError(
                f"{count} parts at byte {self.at}, and {len(self.data) - self.at} bytes are left"
            )
        # One byte can become an object of Python.
        limits.check("a list", OBJECT * count, len(self.data))
        return count

    def text(self) -> str:
        return self.take(self.count(1)).decode()

    def value(self) -> Any:
        return self.tagged(self.take(1)[0])

    def tagged(self, tag: int) -> Any:
        if tag in (2, 3):
            values = self.take(8 * self.count(8))
            return np.frombuffer(values, "<i8" if tag == 2 else "<f8").tolist()
        if tag == 4:
            return [byte != 0 for byte in self.take(self.count(1))]
        if tag in (8, 9):
            return (_I64 if tag == 8 else _F64).unpack(self.take(8))[0]
        return self.of_parts(tag)

    def of_parts(self, tag: int) -> Any:
        if tag == 0:
            return parse(self.take(self.count(1)), finite=False)
        if tag == 1:
            return [self.text() for _ in range(self.count(4))]
        if tag == 5:
            return {self.text(): self.value() for _ in range(self.count(5))}
        if tag == 6:
            return self.rows()
        if tag == 7:
            return self.text()
        if tag == 10:
            return self.take(1) != b"\0"
        if tag == 11:
            return None
        raise ValueError(f"there is no type {tag}, at byte {self.at}")

    def rows(self) -> list[dict[str, Any]]:
        count, names = _U32.unpack(self.take(4))[0], self.count(4)
        keys = [self.text() for _ in range(names)]
        if not keys or count * names > len(self.data) - self.at:
            raise ValueError(f"{count} rows of {names} values, and {len(self.data) - self.at} bytes are left")
        # Every row has all keys again in its text.
        limits.check("a list of rows", count * (OBJECT * names + sum(map(len, keys))), len(self.data))
        return [{key: self.tagged(_IN_ROWS.get(self.take(1)[0], -1)) for key in keys} for _ in range(count)]
