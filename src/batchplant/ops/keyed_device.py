"""The random numbers of a key, on a device: those of ``order.keyed``, in a tensor's arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..order.keyed import U64, derive
from ..schema.columns import I64
from .base import Tensors

# Of 12 bits, in each word of 64.
LANES = 5


def numbers_of(key: U64, first: int, end: int) -> I64:
    """Numbers ``first`` to ``end`` - 1, each from 0 to 4095, of the stream of one key, (1,)."""
    words = derive(key, np.arange(first // LANES, -(-end // LANES)))
    lanes = (words[:, None] >> (12 * np.arange(LANES, dtype=np.uint64))) & np.uint64(4095)
    start = first - first // LANES * LANES
    found: I64 = lanes.reshape(-1)[start : start + end - first].astype(np.int64)
    return found


def numbers_on_device(keys: U64, count: int, tensors: Tensors) -> Any:
    """The first ``count`` numbers of the stream of every key, (keys, count)."""
    torch = tensors.torch
    key = tensors.send(keys.view(np.int64))[:, None]
    words = torch.arange(1, -(-count // LANES) + 1, device=key.device)
    bits = key + words * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # Without the sign that a shift of a signed number repeats.
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    lanes = bits[..., None] >> (12 * torch.arange(LANES, device=key.device))
    return (lanes & 4095).flatten(1)[:, :count]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
