"""Text in other encodings than UTF-8: which one it is, and the same text as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

import numpy as np

from ...errors import DamagedError, OptionError
from ...schema.columns import U8

# The longer ones first: that of UTF-32 begins like that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Python's own, which are no encodings of text files.
NO_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape")
# What an error says to whoever has such a file.
HINT = "where it is text of another encoding, name it: encoding='cp1252', 'utf-16' …"


def normalize_encoding(encoding: str | None) -> str | None:
    """The usual name of an encoding; None for UTF-8, and if none is given."""
    if encoding is None:
        return None
    try:
        # What Python calls codecs are also rot13, zip and base64; these are refused here.
        "a".encode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, TypeError, ValueError):
        name = NO_FILES[0]
    if name in NO_FILES:
        raise OptionError(f"encoding is one such as 'cp1252', 'shift_jis' or 'utf-16', not {encoding!r}")
    return None if name in ("utf-8", "utf-8-sig", "ascii") else name


def marked(head: bytes) -> str | None:
    """The encoding that the byte order mark at the beginning of a file tells; None: UTF-8, or no mark."""
    return next((name for mark, name in MARKS if head.startswith(mark)), None)


def to_utf8(pieces: Iterable[U8], encoding: str) -> Iterator[U8]:
    """The same text as UTF-8; DamagedError with the byte where it is not in that encoding."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    done = 0
    try:
        for piece in pieces:
            done += len(piece)
            yield np.frombuffer(decoder.decode(piece.tobytes()).encode(), dtype=np.uint8)
        yield np.frombuffer(decoder.decode(b"", True).encode(), dtype=np.uint8)
    except UnicodeDecodeError as error:
        # It is about what was left over from before, and the piece.
        position = max(0, done - len(error.object) + error.start)
        raise DamagedError(
            f"the bytes are not {encoding}; choose another with encoding=", offset=position
        ) from None
    except UnicodeError:
        raise DamagedError(f"the text does not fit {encoding}; choose another with encoding=") from None
