"""Patterns of ``like``: ``%`` stands for any letters, ``_`` for one, a backslash before either for itself.

A pattern is what stands between its ``%``: the first piece at the beginning, the last at the end, each of the
others at the first place behind the one before it. So a cell is looked through once, whatever the pattern.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# One letter of UTF-8, or one byte.
LETTER, BYTE = rb"(?:[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*)", rb"[\x00-\xff]"


class Pattern(NamedTuple):
    """``prefix``: what every match begins with. ``whole``: it has nothing else; ``only``: no letter else."""

    pieces: tuple[re.Pattern[bytes], ...]
    prefix: bytes
    whole: bool
    only: bool

    def matches(self, cell: bytes) -> bool:
        """Whether a cell is like it."""
        first, *others = self.pieces
        at = first.match(cell)
        for piece in others:
            if at is None:
                return False
            at = piece.search(cell, at.end())
        return at is not None


def pattern_of(text: str, *, letters: bool) -> Pattern:
    """The pattern that a text means; ``letters``: ``_`` is one of UTF-8, else a byte."""
    pieces, prefix, plain = [b""], b"", True
    one = iter(text)
    for letter in one:
        wild = letter in "%_"
        if letter == "\\":
            letter = next(one, "\\")
        if wild and letter == "%":
            pieces.append(b"")
        elif wild:
            pieces[-1] += LETTER if letters else BYTE
        else:
            pieces[-1] += re.escape(letter.encode())
            prefix += letter.encode() if plain else b""
        plain = plain and not wild
    first, last = pieces[0], len(pieces) - 1
    made = [re.compile(piece + (rb"\Z" if n == last else b""), re.DOTALL) for n, piece in enumerate(pieces)]
    only = last > 0 and not any(pieces[1:]) and first == re.escape(prefix)
    return Pattern(tuple(made), prefix, plain, only)


def after(prefix: bytes) -> bytes | None:
    """The first that comes after everything with this prefix; None: nothing does."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
