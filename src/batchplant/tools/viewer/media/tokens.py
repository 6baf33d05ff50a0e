"""Token numbers, and the pieces of text that they stand for where the tokenizer is given."""

from __future__ import annotations

import os
from typing import Any

from ....codecs.tokenizers import load

# Of one cell.
MOST = 8192


class Tokenizer:
    """A ``tokenizer.json`` of the tokenizers library."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._own = load(path)

    def pieces(self, numbers: list[int]) -> list[str | None]:
        """What each number stands for; None where it stands for nothing."""
        found: list[str | None] = []
        for number in numbers:
            name = self._own.id_to_token(number) if 0 <= number < 1 << 32 else None
            if name is not None:
                # As text where that is whole: alone, a token may be a part of a letter.
                text = self._own.decode([number], skip_special_tokens=False)
                name = text if text and "\N{REPLACEMENT CHARACTER}" not in text else name
            found.append(name)
        return found

    def text(self, numbers: list[int]) -> str:
        known = [one for one in numbers if 0 <= one < 1 << 32 and self._own.id_to_token(one) is not None]
        return str(self._own.decode(known, skip_special_tokens=False))


def told(numbers: list[int], of: int, tokenizer: Any | None) -> dict[str, Any]:
    """A cell of tokens: the first of them, and their pieces."""
    found: dict[str, Any] = {"tokens": numbers, "of": of}
    if tokenizer is not None:
        found |= {"pieces": tokenizer.pieces(numbers), "decoded": tokenizer.text(numbers)}
    return found
