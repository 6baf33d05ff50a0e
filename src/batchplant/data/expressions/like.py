"""Patterns of ``like``: ``%`` stands for any letters, ``_`` for one, a backslash before either for itself.

A pattern is what stands between its ``%``: the first piece at the beginning, the last at the end, each of the
others at the first place behind the one before it. So a cell is looked through once, whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ...errors import OptionError

# A regular expression tries a piece anew at every letter of a cell. Longer pieces are searched otherwise.
MAX_REGEX_LETTERS = 32
# For each letter of a cell the longest piece takes a step of so many bits.
MAX_WILD_LETTERS = 1 << 14

# Where a piece is found in a text from a position on, or -1.
Search = Callable[[str, int], int]


class Piece(NamedTuple):
    """Letters of a pattern between two ``%``; None stands for any letter."""

    letters: tuple[str | None, ...]
    search: Search

    def is_at(self, text: str, at: int) -> bool:
        """Whether a text has it at a position."""
        return len(text) - at >= len(self.letters) and all(
            letter is None or letter == other for letter, other in zip(self.letters, text[at:], strict=False)
        )


class Pattern(NamedTuple):
    """``prefix``: what every match begins with. ``whole``: it has nothing else; ``only``: no letter else."""

    pieces: tuple[Piece, ...]
    prefix: bytes
    whole: bool
    only: bool
    encoding: str

    def matches(self, cell: bytes) -> bool:
        """Whether a cell is like it."""
        text = cell.decode(self.encoding, "surrogateescape")
        first, *others = self.pieces
        if not others:
            return len(text) == len(first.letters) and first.is_at(text, 0)
        *middle, last = others
        at, end = len(first.letters), len(text) - len(last.letters)
        if at > end or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        for piece in middle:
            found = piece.search(text, at)
            at = found + len(piece.letters)
            if found < 0 or at > end:
                return False
        return True


def pattern_of(text: str, *, letters: bool) -> Pattern:
    """The pattern that a text means; ``letters``: ``_`` is one of UTF-8, else a byte."""
    encoding = "utf-8" if letters else "latin-1"
    pieces: list[list[str | None]] = [[]]
    prefix, plain = b"", True
    one = iter(text)
    for letter in one:
        wild = letter in "%_"
        if letter == "\\":
            letter = next(one, "\\")
        if wild and letter == "%":
            pieces.append([])
        elif wild:
            pieces[-1].append(None)
        else:
            # A pattern is UTF-8, also where it is compared with bytes.
            pieces[-1] += letter if letters else letter.encode().decode("latin-1")
            prefix += letter.encode() if plain else b""
        plain = plain and not wild
    only = len(pieces) > 1 and not any(pieces[1:]) and None not in pieces[0]
    made = tuple(Piece(tuple(piece), _search_of(piece)) for piece in pieces)
    return Pattern(made, prefix, plain, only, encoding)


def _search_of(piece: list[str | None]) -> Search:
    plain = "".join(letter or "" for letter in piece)
    if None not in piece:
        return lambda text, at: text.find(plain, at)
    if len(piece) <= MAX_REGEX_LETTERS:
        regex = re.compile("".join("." if one is None else re.escape(one) for one in piece), re.DOTALL)

        def by_regex(text: str, at: int) -> int:
            found = regex.search(text, at)
            return -1 if found is None else found.start()

        return by_regex
    if len(piece) > MAX_WILD_LETTERS:
        raise OptionError(f"{len(piece):,} letters with _ in a pattern are more than {MAX_WILD_LETTERS:,}")
    return _by_bits(piece)


def _by_bits(piece: list[str | None]) -> Search:
    """Search with a bit for each letter of a piece: set where the text so far ends with the piece so far."""
    any_letter = sum(1 << number for number, letter in enumerate(piece) if letter is None)
    masks: dict[str, int] = {}
    for number, letter in enumerate(piece):
        if letter is not None:
            masks[letter] = masks.get(letter, any_letter) | 1 << number
    whole = 1 << len(piece) - 1

    def search(text: str, at: int) -> int:
        state = 0
        for place in range(at, len(text)):
            state = (state << 1 | 1) & masks.get(text[place], any_letter)
            if state & whole:
                return place - len(piece) + 1
        return -1

    return search


def after(prefix: bytes) -> bytes | None:
    """The first that comes after everything with this prefix; None: nothing does."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
