"""Cells that are there twice: byte for byte, or so that the eye sees no difference."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ....codecs.media.image import fit
from ....data.keys import hash_cells
from ....schema import Schema, kinds
from ....schema.columns import I64, U8, AnyArray, column_runs
from ..check import EXAMPLES, LISTED, Batch, Check, Finding, Subject, images, is_photo

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]

# Shorter cells are equal by chance: labels, single words.
SHORTEST = 16
# Bytes; the share of cells that come again in any text, and that of cells that are labels.
LONG, FEW_AGAIN, MOST_AGAIN = 256, 0.01, 0.5
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Hashes that are held for each field. Beyond it every second one is let go, by its own bits, so that equal
# cells stay or go together.
HELD = 1 << 22
# Images whose hashes are compared.
COMPARED = 1 << 20


class Hashes:
    """Hashes of cells with their sample numbers, in bounded memory: of too many, a fair part."""

    def __init__(self, max_hashes: int = HELD) -> None:
        self._held = max_hashes
        self._parts: list[tuple[U64, I64]] = []
        self._count = 0
        # One in so many is kept.
        self.one_in = 1

    def add(self, hashes: U64, numbers: I64) -> None:
        self._keep(hashes, numbers)
        while self._count > self._held:
            self.one_in *= 2
            before, self._parts, self._count = self._parts, [], 0
            for part in before:
                self._keep(*part)

    def _keep(self, hashes: U64, numbers: I64) -> None:
        chosen = hashes % np.uint64(self.one_in) == 0
        self._parts.append((hashes[chosen], numbers[chosen]))
        self._count += int(chosen.sum())

    def repeats(self, max_pairs: int) -> tuple[int, list[tuple[int, int]]]:
        """Number of repeated cells (an estimate where not all hashes were kept), and the first pairs."""
        if not self._count:
            return 0, []
        hashes = np.concatenate([part for part, _ in self._parts])
        numbers = np.concatenate([part for _, part in self._parts])
        order = np.lexsort((numbers, hashes))
        again = np.flatnonzero(np.append(False, hashes[order][1:] == hashes[order][:-1]))
        # Behind the first of its kind.
        new = np.append(True, hashes[order][1:] != hashes[order][:-1])
        firsts = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
        pairs = sorted(
            (int(numbers[order[i]]), int(numbers[firsts[i]]))
            for i in again[np.argsort(numbers[order[again]], kind="stable")[:max_pairs]].tolist()
        )
        return len(again) * self.one_in, pairs


class Duplicates(Check):
    name = "duplicates"
    title = "images, sounds, texts, arrays that are there twice"
    severity = "warning"
    sentence = (
        "Cells that are there twice count twice, and leak from training into test data when it is split."
    )

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._least_bytes = content_fields(subject.schema)
        self._hashes = {name: Hashes() for name in self._least_bytes}
        self._of = dict.fromkeys(self._hashes, 0)
        # All content of a sample together: a question that is asked twice may have two answers.
        self._contents = Hashes() if len(self._hashes) > 1 else None
        # Where no field is long enough to tell samples apart, all of them together do.
        table = len(subject.schema) > 2 and not subject.fields(
            kinds.Boxes, kinds.Labels, kinds.Keypoints, kinds.Polygons
        )
        self._rows = Hashes() if not self._hashes and table else None
        self._looked = 0

    def look(self, batch: Batch) -> None:
        self._looked += len(batch)
        contents = np.zeros(len(batch), dtype=np.uint64)
        for name, held in self._hashes.items():
            data, starts, sizes = column_runs(batch.columns[name])
            long = np.flatnonzero(sizes >= self._least_bytes[name])
            hashes = hash_cells(data, starts[long], sizes[long])
            self._of[name] += len(long)
            held.add(hashes, batch.numbers[long])
            if self._contents is not None:
                row_hashes = np.zeros(len(batch), dtype=np.uint64)
                row_hashes[long] = hashes
                if type(self.subject.schema[name]) is kinds.Text:
                    row_hashes[_identifiers(data, starts, sizes)] = 0
                contents = contents * _MIX + row_hashes
        if self._contents is not None:
            self._contents.add(contents, batch.numbers)
        if self._rows is not None:
            mixed = np.zeros(len(batch), dtype=np.uint64)
            for column in batch.columns.values():
                data, starts, sizes = column_runs(column)
                row_hashes = hash_cells(data, starts, sizes.clip(0)) ^ (sizes < 0).astype(np.uint64)
                mixed = mixed * _MIX + row_hashes
            self._rows.add(mixed, batch.numbers)

    def findings(self) -> Iterator[Finding]:
        same = None
        if self._contents is not None:
            same = {sample for sample, _ in self._contents.repeats(LISTED)[1]}
        for name, hashes in self._hashes.items():
            count, pairs = hashes.repeats(LISTED)
            if count and self._tells(name, count):
                samples = [sample for sample, _ in pairs if same is None or sample in same]
                yield self._report(
                    f"{name}: the same bytes as in an earlier sample", name, count, pairs, samples
                )
        if self._rows is not None:
            count, pairs = self._rows.repeats(LISTED)
            if count:
                samples = [sample for sample, _ in pairs]
                yield self._report("samples equal an earlier one in all fields", None, count, pairs, samples)

    def _tells(self, name: str, count: int) -> bool:
        """True where cells repeat more often than in every dataset."""
        if isinstance(self.subject.schema[name], kinds.Image | kinds.Audio | kinds.Video):
            return True
        of = self._of[name]
        # A few texts come again wherever people write; short cells of which most do are labels.
        label = count > MOST_AGAIN * of and self.subject.bytes[name] < LONG * self.subject.looked_at
        return count >= FEW_AGAIN * of and not label

    def _report(
        self, message: str, field: str | None, count: int, pairs: list[tuple[int, int]], samples: list[int]
    ) -> Finding:
        hashes, of = (self._rows, self._looked) if field is None else (self._hashes[field], self._of[field])
        examples = [
            self.subject.place(sample, field, f"as sample {first}") for sample, first in pairs[:EXAMPLES]
        ]
        if samples:
            mend = drop(self.subject, self.name, len(samples))
        else:
            names = ", ".join(name for name in self._hashes if name != field)
            mend = f"these samples differ in {names}, so none of them is there twice"
        return self.finding(
            message, count, of, mend, examples=examples, field=field, samples=tuple(samples),
            about=hashes is not None and hashes.one_in > 1,
        )  # fmt: skip

    def remarks(self) -> Iterator[str]:
        if not self.subject.every and (self._hashes or self._rows is not None):
            yield "duplicates are sought among the samples looked at only; --all compares all of them"


def content_fields(schema: Schema) -> dict[str, int]:
    """The fields by which samples are told apart, with the fewest bytes of a cell that says something.

    Annotations (classes, boxes, masks, flags, and whatever has a row for each box) are equal in many samples.
    Beside images, sounds and films, so are short texts and arrays: captions, embeddings of words.
    """
    beside = {label for field in schema.values() if isinstance(field, kinds.Boxes) for label in field.labels}
    media = any(isinstance(field, kinds.Audio | kinds.Video) or is_photo(field) for field in schema.values())
    fields = {}
    for name, field in schema.items():
        if name in beside or getattr(field, "names", None) or getattr(field, "dtype", "") == "bool":
            continue
        if isinstance(field, kinds.Audio | kinds.Video) or is_photo(field):
            fields[name] = SHORTEST
        elif type(field) in (kinds.Bytes, kinds.Text, kinds.Tensor):
            fields[name] = LONG if media else SHORTEST
        elif type(field) in (kinds.Json, kinds.List, kinds.Struct) and not media:
            fields[name] = SHORTEST
    return fields


def _identifiers(data: U8, starts: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    """Mask of texts that are a single ASCII word, such as file names and numbers: no content."""
    prose = np.flatnonzero((data <= 32) | (data >= 128))
    ends = starts + sizes.clip(0)
    return np.searchsorted(prose, starts) == np.searchsorted(prose, ends)


def drop(subject: Subject, check: str, count: int) -> str:
    """Expression that leaves out all but the first of each kind."""
    return (
        f"batchplant doctor {subject.named} --all --only {check} --quarantine twice.jsonl\n"
        f"lists all but the first of each, here {count:,} of {subject.looked_at:,} samples, and "
        'bp.open(…, skip="twice.jsonl") leaves them out'
    )


class SimilarImages(Check):
    name = "similar-images"
    title = "images that look the same"
    severity = "note"
    sentence = (
        "Images that look the same (another size, quality or encoding) leak into test data just as well."
    )
    decodes = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        # Numbers, hashes and small copies, packed: there may be a million.
        self._found = {name: (array("q"), array("Q"), bytearray()) for name in images(subject)}
        self._left = dict.fromkeys(self._found, 0)
        self._same: dict[str, set[int]] = {name: set() for name in self._found}

    def look(self, batch: Batch) -> None:
        for name, (numbers, hashes, copies) in self._found.items():
            data, starts, sizes = column_runs(batch.columns[name])
            exact = hash_cells(data, starts, sizes.clip(0)).tolist()
            for row, small in enumerate(batch.thumbnails.get(name, ())):
                hashed = None if small is None else perceptual_hash(small)
                # What is the same byte for byte is for the other check.
                if small is None or hashed is None or exact[row] in self._same[name]:
                    continue
                if len(numbers) >= COMPARED:
                    self._left[name] += 1
                    continue
                self._same[name].add(exact[row])
                numbers.append(int(batch.numbers[row]))
                hashes.append(hashed)
                copies += reduced(small).tobytes()

    def findings(self) -> Iterator[Finding]:
        for name, (numbers, hashes, copies) in self._found.items():
            if len(numbers) < 2:
                continue
            alike = groups(
                np.array(hashes, dtype=np.uint64), np.frombuffer(copies, np.uint8).reshape(len(numbers), -1)
            )
            if not alike:
                continue
            count = sum(len(group) - 1 for group in alike)
            pairs = sorted((numbers[member], numbers[group[0]]) for group in alike for member in group[1:])
            examples = [
                self.subject.place(sample, name, f"looks like sample {first}")
                for sample, first in pairs[:EXAMPLES]
            ]
            yield self.finding(
                f"{name}: images look like an earlier one",
                count, len(numbers), drop(self.subject, self.name, count),
                examples=examples, samples=tuple(sample for sample, _ in pairs), field=name,
                facts={"groups": len(alike), "largest": max(map(len, alike))},
            )  # fmt: skip

    def remarks(self) -> Iterator[str]:
        for name, skipped in self._left.items():
            if skipped:
                yield f"similar-images compared the first {COMPARED:,} images of {name}"


# -- images that look the same ---------------------------------------------------------------------------

# A perceptual hash is made of the lowest frequencies of a small grey copy, so that another encoding, quality
# or size changes few of its bits. Hashes find candidates; a small copy of both images decides.

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


def thumbnail(pixels: AnyArray) -> F32 | None:
    """A grey copy of 32×32, levels 0 to 255, each the mean of what it covers; None: nothing to see."""
    if pixels.size == 0 or pixels.dtype.kind not in "biuf":
        return None
    # A large image natively first. Of the small rest, products are too small for threads of a library.
    pixels = fit(pixels, 4 * SIDE)
    if pixels.ndim == 3 and pixels.shape[2] >= 3:
        grey = pixels[..., :3].astype(np.float32) @ _GREY
    else:
        grey = pixels.reshape(*pixels.shape[:2], -1)[..., 0].astype(np.float32)
    small = _cover(grey.shape[0]) @ grey @ _cover(grey.shape[1]).T
    top = float(small.max())
    if not np.isfinite(small).all() or top <= 0:
        return None
    # 16 bits and floats have other levels.
    return np.asarray(small if 1 < top <= 255 else small * (255 / top), dtype=np.float32)


def _cover(size: int) -> F32:
    """For each of 32 equal parts of a side, the share that each pixel has in it."""
    edges = np.linspace(0, size, SIDE + 1)
    lower, upper = edges[:-1, None], edges[1:, None]
    pixels = np.arange(size)
    shares = np.clip(np.minimum(upper, pixels + 1) - np.maximum(lower, pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)


_COUNTS = np.array([bin(word).count("1") for word in range(1 << 16)], dtype=np.uint8)
# The rows of a cosine transform that are its lowest frequencies.
_ANGLES = (2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE)
_LOWEST = np.cos(np.arange(LOW)[:, None] * _ANGLES).astype(np.float32)


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
