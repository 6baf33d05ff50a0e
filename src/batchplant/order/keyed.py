"""Keyed randomness: every draw is a hash of a counter, so there is no state and no memory."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError
from ..schema.columns import I64

U64 = npt.NDArray[np.uint64]

# The longest order; the products below stay within 64 bits up to here.
LONGEST = 2**48
# Numbers worked on at a time: the temporaries stay in the processor's cache.
CHUNK = 1 << 14
_GOLDEN = 0x9E3779B97F4A7C15


def whole(name: str, value: Any, minimum: int, maximum: int = LONGEST) -> int:
    """Return the value as an int; raise OptionError unless it is an integer of that range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, not {value!r}") from None
    if not minimum <= number <= maximum:
        below = number < minimum and maximum == LONGEST
        bounds = f"at least {minimum}" if below else f"from {minimum} to {maximum}"
        raise OptionError(f"{name} must be {bounds}, not {number}")
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
    """Return the key of an epoch; ``purpose`` tells its uses apart.

    An array of one element, since the arithmetic of arrays wraps around without a warning.
    """
    parts = (("seed", seed), ("epoch", epoch), ("purpose", purpose))
    return _key(*(whole(name, value, 0, 2**64 - 1) for name, value in parts))


@functools.lru_cache(256)
def _key(*parts: int) -> U64:
    key = np.zeros(1, dtype=np.uint64)
    for value in parts:
        key = mix(key + value + _GOLDEN)
    # It is cached and shared.
    key.flags.writeable = False
    return key


def derive(key: U64, numbers: I64) -> U64:
    """Derive a key for each number. Either argument may have a single element for all of the other."""
    return _native.derive(np.ascontiguousarray(key), np.ascontiguousarray(numbers, dtype=np.int64))


def uniform(key: U64, numbers: I64) -> npt.NDArray[np.float64]:
    """Draw from [0, 1) for each number."""
    return (derive(key, numbers) >> 11).astype(np.float64) * 2.0**-53


def permute(numbers: I64, count: I64 | U64, key: U64) -> I64:
    """Permute numbers of [0, count) by the permutation that the key chooses.

    ``count`` and ``key`` have one element for all numbers, or one for each.
    """
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    return _native.permute(numbers, np.ascontiguousarray(count, dtype=np.uint64), np.ascontiguousarray(key))
