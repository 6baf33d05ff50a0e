"""What a key that is not there may have meant. Millions of keys need not be looked through for it."""

from __future__ import annotations

import re
import string

LETTERS = string.ascii_letters + string.digits + "_-./"
# A shorter key is a slip away from everything, and nobody types a longer one.
SHORTEST, LONGEST = 3, 64
# To how many digits a number in a key may be filled up.
DIGITS = range(1, 13)


def forms(key: str) -> list[str]:
    """The same in other forms: letters, folders, suffix, digits."""
    found = [key.strip(), key.lower(), key.upper(), key.replace("\\", "/").removeprefix("./").lstrip("/")]
    found += [key.rpartition("/")[2], key.rpartition(".")[0]]
    parts = re.split(r"(\d+)", key)
    for width in DIGITS:
        # Every other part is a number.
        found.append("".join(one.lstrip("0").zfill(width) if n % 2 else one for n, one in enumerate(parts)))
    return [one for one in dict.fromkeys(found) if one and one != key]


def slips(key: str) -> list[str]:
    """With one letter left out, put in, taken for another, or two in the wrong order."""
    if not SHORTEST <= len(key) <= LONGEST:
        return []
    parts = [(key[:at], key[at:]) for at in range(len(key) + 1)]
    found = [left + right[1:] for left, right in parts if right]
    found += [left + right[1] + right[0] + right[2:] for left, right in parts if len(right) > 1]
    found += [left + one + right[1:] for left, right in parts if right for one in LETTERS]
    found += [left + one + right for left, right in parts for one in LETTERS]
    return [one for one in dict.fromkeys(found) if one != key]
