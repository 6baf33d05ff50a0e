"""Patterns of ``like``: ``%`` stands for any letters, ``_`` for one, a backslash before either for itself.

A pattern consists of the pieces between its ``%``. The first must match at the beginning, the last at the
end, each of the others at its first match behind the piece before it. So a cell is scanned once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ...errors import OptionError

# A regular expression retries a piece at every letter of a cell; longer pieces are searched by bits.
MAX_REGEX_LETTERS = 32
# Search by bits takes as many bits for each letter of a cell.
MAX_WILD_LETTERS = 1 << 14

# (text, start) -> position of the first match, or -1.
Search = Callable[[str, int], int]


class Piece(NamedTuple):
    """Letters of a pattern between two ``%``; None stands for any letter."""

    letters: tuple[str | None, ...]
    search: Search

    def is_at(self, text: str, start: int) -> bool:
        """Return True if a text has the piece at a position."""
        return len(text) - start >= len(self.letters) and all(
            letter is None or letter == actual
            for letter, actual in zip(self.letters, text[start:], strict=False)
        )


class Pattern(NamedTuple):
    """A compiled pattern.

    ``prefix``: bytes that every match begins with. ``is_plain``: the prefix is all of it. ``is_prefix``: only
    ``%`` follows the prefix.
    """

    pieces: tuple[Piece, ...]
    prefix: bytes
    is_plain: bool
    is_prefix: bool
    encoding: str

    def matches(self, cell: bytes) -> bool:
        """Return True if a cell matches."""
        text = cell.decode(self.encoding, "surrogateescape")
        first, *following = self.pieces
        if not following:
            return len(text) == len(first.letters) and first.is_at(text, 0)
        *middle, last = following
        start, end = len(first.letters), len(text) - len(last.letters)
        if start > end or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        for piece in middle:
            position = piece.search(text, start)
            start = position + len(piece.letters)
            if position < 0 or start > end:
                return False
        return True


def pattern_of(text: str, *, letters: bool) -> Pattern:
    """Compile a pattern; ``letters``: ``_`` is a letter of UTF-8, else a byte."""
    encoding = "utf-8" if letters else "latin-1"
    pieces: list[list[str | None]] = [[]]
    prefix, plain = b"", True
    remaining = iter(text)
    for letter in remaining:
        wild = letter in "%_"
        if letter == "\\":
            letter = next(remaining, "\\")
        if wild and letter == "%":
            pieces.append([])
        elif wild:
            pieces[-1].append(None)
        else:
            # A pattern is UTF-8, also where it is compared with bytes.
            pieces[-1] += letter if letters else letter.encode().decode("latin-1")
            prefix += letter.encode() if plain else b""
        plain = plain and not wild
    is_prefix = len(pieces) > 1 and not any(pieces[1:]) and None not in pieces[0]
    compiled = tuple(Piece(tuple(piece), _search_of(piece)) for piece in pieces)
    return Pattern(compiled, prefix, plain, is_prefix, encoding)


def _search_of(piece: list[str | None]) -> Search:
    plain = "".join(letter or "" for letter in piece)
    if None not in piece:
        return lambda text, start: text.find(plain, start)
    if len(piece) <= MAX_REGEX_LETTERS:
        regex = re.compile(
            "".join("." if letter is None else re.escape(letter) for letter in piece), re.DOTALL
        )

        def by_regex(text: str, start: int) -> int:
            match = regex.search(text, start)
            return -1 if match is None else match.start()

        return by_regex
    if len(piece) > MAX_WILD_LETTERS:
        raise OptionError(f"{len(piece):,} letters with _ in a pattern are more than {MAX_WILD_LETTERS:,}")
    return _by_bits(piece)


def _by_bits(piece: list[str | None]) -> Search:
    """Return a search with a bit for each letter of a piece: set if the text ends with the piece so far."""
    any_letter = sum(1 << number for number, letter in enumerate(piece) if letter is None)
    masks: dict[str, int] = {}
    for number, letter in enumerate(piece):
        if letter is not None:
            masks[letter] = masks.get(letter, any_letter) | 1 << number
    complete = 1 << len(piece) - 1

    def search(text: str, start: int) -> int:
        state = 0
        for position in range(start, len(text)):
            state = (state << 1 | 1) & masks.get(text[position], any_letter)
            if state & complete:
                return position - len(piece) + 1
        return -1

    return search


def after(prefix: bytes) -> bytes | None:
    """Return the least bytes greater than all with this prefix; None if there are none."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
