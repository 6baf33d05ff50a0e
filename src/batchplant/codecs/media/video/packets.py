"""The packets of a video, as the tables or blocks of its file tell them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....schema.columns import I64, U8

# Packets may share bytes of the file, but not more often than this.
OVERLAP = 4

View = Callable[[int, int], U8]
Bools = npt.NDArray[np.bool_]


class Packets(NamedTuple):
    """The packets of a video, in the order of decoding; times are in units of ``base`` seconds.

    ``rotation``: degrees, against the clock. ``colour``: primaries, transfer, matrix (as ISO 23091-2 numbers
    them) and 1 for full range, where the file tells. ``last``: how long the last one is shown. ``shown``:
    flags of those that the edit list does not cut off. ``rate``: frames a second, if the file tells.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    rotation: int
    colour: tuple[int, int, int, int] | None
    base: Fraction
    last: int
    starts: I64
    sizes: I64
    dts: I64
    pts: I64
    keys: Bools
    shown: Bools
    rate: float | None = None


class UnknownError(Exception):
    """The file is damaged, or of a form that is not read here."""


def check(fits: object) -> None:
    """Raise UnknownError unless a condition holds."""
    if not fits:
        raise UnknownError
