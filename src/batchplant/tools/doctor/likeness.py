"""Images that look the same: a perceptual hash, and groups of images whose hashes are close.

The hash is made of the lowest frequencies of a small grey copy, so that another encoding, quality or size
changes few of its bits. Hashes find candidates; a small copy of both images decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...codecs.media.image import fit
from ...schema.columns import AnyArray

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

# Sides of the grey copy, of its lowest frequencies, and of the copy that decides.
SIDE, LOW, SMALL = 32, 8, 8
# Bits of two hashes that may differ. The search relies on it being below 8: one in each band and three more.
CLOSE = 6
# Of the two small copies: how alike in shape they are, 1 the same, and how far apart in grey levels.
ALIKE, LEVELS = 0.98, 12.0
# Grey levels; an image that varies less is blank, and blank images all look the same.
BLANK = 2.0
BANDS = [(0, 16), (16, 32), (32, 48), (48, 63)]
# Candidates of one hash and bit that are looked at; more have it only where a dataset is all alike.
CANDIDATES = 512

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_COUNTS = np.array([bin(word).count("1") for word in range(1 << 16)], dtype=np.uint8)


def thumbnail(pixels: AnyArray) -> F32 | None:
    """A grey copy of 32×32, levels 0 to 255, each the mean of what it covers; None: nothing to see."""
    if pixels.size == 0 or pixels.dtype.kind not in "biuf":
        return None
    # A large image natively first. Of the small rest, products are too small for threads of a library.
    pixels = fit(pixels, 4 * SIDE)
    grey = _grey(pixels)
    small = _cover(grey.shape[0]) @ grey @ _cover(grey.shape[1]).T
    top = float(small.max())
    if not np.isfinite(small).all() or top <= 0:
        return None
    # 16 bits and floats have other levels.
    return np.asarray(small if 1 < top <= 255 else small * (255 / top), dtype=np.float32)


def _grey(pixels: AnyArray) -> F32:
    if pixels.ndim == 2:
        return pixels.astype(np.float32)
    if pixels.shape[2] >= 3:
        return np.asarray(pixels[..., :3].astype(np.float32) @ _GREY)
    return np.asarray(pixels[..., 0], dtype=np.float32)


def _cover(size: int) -> F32:
    """For each of 32 equal parts of a side, the share that each pixel has in it."""
    edges = np.linspace(0, size, SIDE + 1)
    lower, upper = edges[:-1, None], edges[1:, None]
    pixels = np.arange(size)
    shares = np.clip(np.minimum(upper, pixels + 1) - np.maximum(lower, pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)


def _cosines() -> F32:
    """The rows of a cosine transform that are its lowest frequencies."""
    angles = (2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE)
    return np.asarray(np.cos(np.arange(LOW)[:, None] * angles), dtype=np.float32)


_LOWEST = _cosines()


def perceptual_hash(small: F32) -> int | None:
    """63 bits: which of the lowest frequencies of a 32×32 copy are above their median; None: it is blank."""
    if float(small.std()) < BLANK:
        return None
    coefficients = (_LOWEST @ small @ _LOWEST.T).reshape(-1)[1:]
    bits = coefficients > np.median(coefficients)
    return int(bits @ (1 << np.arange(LOW * LOW - 1, dtype=np.uint64)))


def reduced(small: F32) -> U8:
    """8×8 of the 32×32, as bytes: what decides whether two images are alike."""
    side = SIDE // SMALL
    means = small.reshape(SMALL, side, SMALL, side).mean(axis=(1, 3))
    return np.asarray(means.clip(0, 255).round(), dtype=np.uint8).reshape(-1)


def distance(a: U64, b: U64) -> npt.NDArray[np.uint8]:
    """Number of bits that differ."""
    words = np.ascontiguousarray(a ^ b).view(np.uint16).reshape(-1, 4)
    return np.asarray(_COUNTS[words].sum(axis=1), dtype=np.uint8)


def groups(hashes: U64, copies: U8) -> list[list[int]]:
    """Groups of images that look the same: indices into ``hashes``, sorted within and among groups."""
    leader = np.arange(len(hashes))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = int(leader[index])
        return index

    for lefts, rights in _candidates(hashes):
        close = _alike(copies[lefts], copies[rights])
        for a, b in zip(lefts[close].tolist(), rights[close].tolist(), strict=True):
            first, second = sorted((find(a), find(b)))
            leader[second] = first
    members: dict[int, list[int]] = {}
    for a in np.flatnonzero(leader != np.arange(len(hashes))).tolist():
        members.setdefault(find(a), []).append(a)
    return [[first, *members[first]] for first in sorted(members)]


def _candidates(hashes: U64) -> Iterator[tuple[I64, I64]]:
    """Pairs of close hashes: they agree in all but one bit of some band, whichever bits differ elsewhere."""
    for low, high in BANDS:
        band = hashes >> np.uint64(low) & np.uint64((1 << (high - low)) - 1)
        for bit in range(high - low):
            key = band & ~np.uint64(1 << bit)
            order = np.argsort(key, kind="stable")
            ordered, sorted_hashes = key[order], hashes[order]
            for shift in range(1, min(CANDIDATES, len(order) - 1) + 1):
                same = np.flatnonzero(ordered[:-shift] == ordered[shift:])
                if not len(same):
                    break
                near = same[distance(sorted_hashes[same], sorted_hashes[same + shift]) <= CLOSE]
                if len(near):
                    yield order[near], order[near + shift]


def _alike(a_bytes: U8, b_bytes: U8) -> npt.NDArray[np.bool_]:
    a, b = a_bytes.astype(np.float32), b_bytes.astype(np.float32)
    levels = np.abs(a - b).mean(axis=1)
    a -= a.mean(axis=1, keepdims=True)
    b -= b.mean(axis=1, keepdims=True)
    power = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    shape = (a * b).sum(axis=1) / np.maximum(power, 1e-6)
    return np.asarray((shape >= ALIKE) & (levels <= LEVELS))
