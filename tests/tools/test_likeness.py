"""Images that look the same: the perceptual hash holds through encodings and sizes; groups are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_doctor import photo

from batchplant.codecs.media import image
from batchplant.tools.doctor.checks import duplicates as likeness
from batchplant.tools.doctor.checks.duplicates import Hashes

SEEDS = st.integers(0, 10_000)


def hash_of(pixels):
    small = likeness.thumbnail(pixels)
    assert small is not None
    result = likeness.perceptual_hash(small)
    assert result is not None
    return result


def bits(one, other):
    return int(likeness.distance(np.array([one], np.uint64), np.array([other], np.uint64))[0])


def grouped(*images):
    small = [likeness.thumbnail(item) for item in images]
    hashes = np.array([likeness.perceptual_hash(item) for item in small], dtype=np.uint64)
    return likeness.groups(hashes, np.array([likeness.reduced(item) for item in small]))


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(40, 100), st.sampled_from(["jpeg", "webp"]))
def test_another_encoding_looks_the_same(seed, quality, encoding):
    pixels = photo(seed)
    again = image.decode(image.encode(pixels, encoding, quality=quality, lossless=False), "RGB")
    assert bits(hash_of(pixels), hash_of(again)) <= likeness.CLOSE
    assert grouped(pixels, again) == [[0, 1]]


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(64, 255))
def test_another_size_looks_the_same(seed, longest):
    pixels = photo(seed, height=192, width=256)
    small = image.fit(pixels, longest)
    assert grouped(pixels, small) == [[0, 1]]


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(-15, 15), st.floats(0.9, 1.1))
def test_a_little_brighter_looks_the_same(seed, more, contrast):
    pixels = photo(seed) * 0.7 + 38
    changed = ((pixels - 128) * contrast + 128 + more * 0.5).clip(0, 255)
    assert bits(hash_of(pixels.astype(np.uint8)), hash_of(changed.astype(np.uint8))) <= likeness.CLOSE


@settings(max_examples=10, deadline=None)
@given(SEEDS, SEEDS)
def test_other_images_look_different(seed, other):
    assert (grouped(photo(seed), photo(other)) == []) == (seed != other)


def test_other_images_have_far_hashes():
    hashes = np.array([hash_of(photo(seed)) for seed in range(120)], dtype=np.uint64)
    left, right = np.triu_indices(120, 1)
    apart = likeness.distance(hashes[left], hashes[right])
    assert apart.min() > likeness.CLOSE
    assert apart.mean() == pytest.approx(31.5, abs=2)


def test_of_drawings_that_share_their_background():
    """As scanned digits do: the same frame, something else inside."""
    frame = np.zeros((28, 28), np.uint8)
    digits = []
    for seed in range(30):
        one = frame.copy()
        rng = np.random.default_rng(seed)
        for row, column in rng.integers(4, 20, (6, 2)):
            one[row : row + 4, column : column + 4] = 255
        digits.append(one)
    assert grouped(*digits) == []
    assert grouped(*digits, np.roll(digits[3], 0) // 2 * 2) == [[3, 30]]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_all_close_hashes_are_found(data):
    """The search by bands finds what comparing all pairs finds."""
    base = data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=12))
    flips = st.lists(st.integers(0, 62), max_size=8)
    changed = [item ^ sum(1 << bit for bit in set(data.draw(flips))) for item in base]
    hashes = np.array([*base, *changed], dtype=np.uint64)
    left, right = np.triu_indices(len(hashes), 1)
    close = likeness.distance(hashes[left], hashes[right]) <= likeness.CLOSE
    expected = set(zip(left[close].tolist(), right[close].tolist(), strict=True))
    actual = {
        (min(pair), max(pair))
        for candidate, other in likeness._candidates(hashes)
        for pair in zip(candidate.tolist(), other.tolist(), strict=True)
    }
    assert actual == expected


@pytest.mark.parametrize("left_out", range(4))
def test_bits_that_differ_in_three_bands(left_out):
    flips = [
        low + bit for number, (low, _) in enumerate(likeness.BANDS) if number != left_out for bit in (3, 9)
    ]
    other = sum(1 << bit for bit in flips)
    pairs = list(likeness._candidates(np.array([0, other], dtype=np.uint64)))
    assert pairs
    assert {tuple(sorted((*pair.tolist(), *two.tolist()))) for pair, two in pairs} == {(0, 1)}


@pytest.mark.parametrize(
    "pixels",
    [
        np.full((40, 40, 3), 77, np.uint8),
        np.zeros((1, 1), np.uint8),
        np.full((5, 900), 1000, np.uint16),
        np.full((3, 3), np.nan, np.float32),
        np.zeros((0, 4), np.uint8),
    ],
)
def test_blank_images_have_no_hash(pixels):
    small = likeness.thumbnail(pixels)
    assert small is None or likeness.perceptual_hash(small) is None


@pytest.mark.parametrize("change", ["grey", "alpha", "uint16", "float32"])
def test_other_modes_look_the_same(change):
    pixels = photo(1)
    changed = {
        "grey": lambda: (pixels @ np.array([0.299, 0.587, 0.114])).astype(np.uint8),
        "alpha": lambda: np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)]),
        "uint16": lambda: pixels.astype(np.uint16) * 257,
        "float32": lambda: pixels.astype(np.float32) / 255,
    }[change]()
    assert bits(hash_of(pixels), hash_of(changed)) <= likeness.CLOSE


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 9))
def test_repeats_are_counted(values, step):
    hashes = np.array(values, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    held = Hashes()
    for start in range(0, len(values), step):
        held.add(hashes[start : start + step], np.arange(start, min(start + step, len(values))))
    first: dict[int, int] = {}
    expected = [(at, first[value]) for at, value in enumerate(values) if first.setdefault(value, at) != at]
    assert held.repeats(100) == (len(expected), expected)
