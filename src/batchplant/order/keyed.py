"""Keyed randomness: every draw is a hash of a counter, so there is no state and no memory."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..columns import I64
from ..errors import OptionError

U64 = npt.NDArray[np.uint64]

# The longest order; the products below stay within 64 bits up to here.
LONGEST = 2**48
# Numbers worked on at a time: the temporaries stay in the processor's cache.
CHUNK = 1 << 14
_GOLDEN = 0x9E3779B97F4A7C15


def whole(name: str, value: Any, least: int, most: int = LONGEST) -> int:
    """The value, if it is an integer of that range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise OptionError(f"{name} must be from {least} to {most}, not {number}")
    return number


def mix(x: U64) -> U64:
    """The finaliser of splitmix64, in place."""
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    return x


def key_of(seed: int, epoch: int, purpose: int) -> U64:
    """The key of an epoch; ``purpose`` tells its uses apart.

    It is an array of one, for the arithmetic of arrays wraps around without a warning.
    """
    key = np.zeros(1, dtype=np.uint64)
    for name, value in (("seed", seed), ("epoch", epoch), ("purpose", purpose)):
        key = mix(key + whole(name, value, 0, 2**64 - 1) + _GOLDEN)
    return key


def derive(key: U64, numbers: I64) -> U64:
    """A key of its own for each number."""
    return mix(key + (numbers.astype(np.uint64) + 1) * _GOLDEN)


def uniform(key: U64, numbers: I64) -> npt.NDArray[np.float64]:
    """A draw from [0, 1) for each number."""
    return (derive(key, numbers) >> 11).astype(np.float64) * 2.0**-53


def permute(at: I64, count: I64, key: U64) -> I64:
    """Where each number of [0, count) goes in the permutation that the key chooses.

    ``count`` and ``key`` have one element for all numbers, or one for each.
    """
    out = np.empty(len(at), dtype=np.int64)
    for start in range(0, len(at), CHUNK):
        here = slice(start, start + CHUNK)
        x, sizes, keys = at[here].astype(np.uint64), _pick(count, here).astype(np.uint64), _pick(key, here)
        # In a small rectangle it takes more rounds until two numbers of one row have surely parted.
        tier = np.broadcast_to(np.digitize(sizes, (64, 1024)), x.shape)
        for number, rounds in enumerate((32, 16, 8)):
            which = np.flatnonzero(tier == number)
            if len(which):
                out[start + which] = _walk(x[which], _pick(sizes, which), _pick(keys, which), rounds)
    return out


def _walk(x: U64, count: U64, key: U64, rounds: int) -> U64:
    """Permute the cells of a rectangle just over ``count``; who leaves [0, count) walks on until back."""
    # An even width: rotations of rows of odd length are all even, and reach half of the permutations.
    width = (2 * np.ceil(np.sqrt(count) / 2)).astype(np.uint64)
    height = (count + width - 1) // width
    x = _rotate(x, width, height, key, rounds)
    out = np.flatnonzero(x >= count)
    while len(out):
        x[out] = _rotate(x[out], _pick(width, out), _pick(height, out), _pick(key, out), rounds)
        out = out[x[out] >= _pick(count, out)]
    return x


def _rotate(x: U64, width: U64, height: U64, key: U64, rounds: int) -> U64:
    """A Feistel network: rows and columns in turn are rotated by a hash of the other coordinate."""
    row = x // width
    column = x - row * width
    for number in range(rounds):
        salt = key + _GOLDEN * number % 2**64
        one, other, size = (row, column, height) if number % 2 else (column, row, width)
        one += (mix(salt + other) >> 24) * size >> 40
        # Modulo: below the size, the unsigned difference wraps to something huge.
        np.minimum(one, one - size, out=one)
    return row * width + column


def _pick(values: npt.NDArray[Any], which: slice | I64) -> npt.NDArray[Any]:
    return values if len(values) == 1 else values[which]
