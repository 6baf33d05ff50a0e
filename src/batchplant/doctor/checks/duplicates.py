"""Cells that are there twice: byte for byte, or so that the eye sees no difference."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from ...columns import column_runs
from ...keys.table import hash_cells
from ...schema import Audio, Bytes, Image, Json, Tensor, Text, Video
from ..check import Batch, Check, Subject, pictures
from ..likeness import I64, U64, groups, perceptual_hash, reduced
from ..report import EXAMPLES, LISTED, Finding

# Shorter cells are equal by chance: labels, single words.
SHORTEST = 16
# Bytes; the share of cells that come again in any text, and that of cells that are labels.
LONG, FEW_AGAIN, MOST_AGAIN = 256, 0.01, 0.5
# Hashes that are held for each field. Beyond it every second one is let go, by its own bits, so that equal
# cells stay or go together.
HELD = 1 << 22
# Pictures whose hashes are compared.
COMPARED = 1 << 20


class Hashes:
    """Hashes of cells with their sample numbers, in bounded memory: of too many, a fair part."""

    def __init__(self, held: int = HELD) -> None:
        self._held = held
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
        kept = hashes % np.uint64(self.one_in) == 0
        self._parts.append((hashes[kept], numbers[kept]))
        self._count += int(kept.sum())

    def repeats(self, most: int) -> tuple[int, list[tuple[int, int]]]:
        """How many cells were there before (an estimate where not all were kept), and the first pairs."""
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
            (int(numbers[order[at]]), int(numbers[firsts[at]]))
            for at in again[np.argsort(numbers[order[again]], kind="stable")[:most]].tolist()
        )
        return len(again) * self.one_in, pairs


class Duplicates(Check):
    name = "duplicates"
    title = "cells that are there twice, byte for byte"
    severity = "warning"
    sentence = (
        "Cells that are there twice count twice, and leak from training into test data when it is split."
    )

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._hashes = {
            name: Hashes() for name in subject.fields(Image, Audio, Video, Bytes, Text, Json, Tensor)
        }
        self._of = dict.fromkeys(self._hashes, 0)
        # Where no field is long enough to tell samples apart, all of them together do.
        self._rows = Hashes() if not self._hashes and len(subject.schema) > 2 else None
        self._looked = 0

    def look(self, batch: Batch) -> None:
        self._looked += len(batch)
        for name, held in self._hashes.items():
            data, starts, sizes = column_runs(batch.columns[name])
            long = np.flatnonzero(sizes >= SHORTEST)
            self._of[name] += len(long)
            held.add(hash_cells(data, starts[long], sizes[long]), batch.numbers[long])
        if self._rows is not None:
            mixed = np.zeros(len(batch), dtype=np.uint64)
            for column in batch.columns.values():
                data, starts, sizes = column_runs(column)
                here = hash_cells(data, starts, sizes.clip(0)) ^ (sizes < 0).astype(np.uint64)
                mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + here
            self._rows.add(mixed, batch.numbers)

    def findings(self) -> Iterator[Finding]:
        for name, held in self._hashes.items():
            count, pairs = held.repeats(LISTED)
            if count and self._tells(name, count):
                yield self._told(
                    f"{name}: the same bytes as in an earlier sample", name, count, self._of[name], pairs
                )
        if self._rows is not None:
            count, pairs = self._rows.repeats(LISTED)
            if count:
                yield self._told(
                    "samples equal an earlier one in all fields", None, count, self._looked, pairs
                )

    def _tells(self, name: str, count: int) -> bool:
        """Whether cells that come again are more than what every dataset has."""
        if isinstance(self.subject.schema[name], Image | Audio | Video):
            return True
        of = self._of[name]
        # A few texts come again wherever people write; short cells of which most do are labels.
        label = count > MOST_AGAIN * of and self.subject.bytes[name] < LONG * self.subject.looked_at
        return count >= FEW_AGAIN * of and not label

    def _told(
        self, message: str, field: str | None, count: int, of: int, pairs: list[tuple[int, int]]
    ) -> Finding:
        held = self._rows if field is None else self._hashes[field]
        examples = [self.subject.place(one, field, f"as sample {first}") for one, first in pairs[:EXAMPLES]]
        return self.finding(
            message, count, of, drop(self.subject, self.name), examples=examples, field=field,
            samples=tuple(one for one, _ in pairs), about=held is not None and held.one_in > 1,
        )  # fmt: skip

    def remarks(self) -> Iterator[str]:
        if not self.subject.every and (self._hashes or self._rows is not None):
            yield "duplicates are sought among the samples looked at only; --all compares all of them"


def drop(subject: Subject, check: str) -> str:
    """How to leave out all but the first of each kind."""
    return (
        f"batchplant doctor {subject.named} --all --only {check} --quarantine twice.jsonl\n"
        'lists all but the first of each, and bp.open(…, skip="twice.jsonl") leaves them out'
    )


class SimilarPictures(Check):
    name = "similar-pictures"
    title = "pictures that look the same"
    severity = "note"
    sentence = (
        "Pictures that look the same (another size, quality or encoding) leak into test data just as well."
    )
    decodes = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        # Numbers, hashes and small copies, packed: there may be a million.
        self._found = {name: (array("q"), array("Q"), bytearray()) for name in pictures(subject)}
        self._left = dict.fromkeys(self._found, 0)
        self._same: dict[str, set[int]] = {name: set() for name in self._found}

    def look(self, batch: Batch) -> None:
        for name, (numbers, hashes, copies) in self._found.items():
            data, starts, sizes = column_runs(batch.columns[name])
            exact = hash_cells(data, starts, sizes.clip(0)).tolist()
            for row, small in enumerate(batch.thumbnails.get(name, ())):
                found = None if small is None else perceptual_hash(small)
                # What is the same byte for byte is for the other check.
                if small is None or found is None or exact[row] in self._same[name]:
                    continue
                if len(numbers) >= COMPARED:
                    self._left[name] += 1
                    continue
                self._same[name].add(exact[row])
                numbers.append(int(batch.numbers[row]))
                hashes.append(found)
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
            pairs = sorted((numbers[one], numbers[group[0]]) for group in alike for one in group[1:])
            examples = [
                self.subject.place(one, name, f"looks like sample {first}") for one, first in pairs[:EXAMPLES]
            ]
            yield self.finding(
                f"{name}: pictures look like an earlier one",
                count, len(numbers), drop(self.subject, self.name),
                examples=examples, samples=tuple(one for one, _ in pairs), field=name,
                facts={"groups": len(alike), "largest": max(map(len, alike))},
            )  # fmt: skip

    def remarks(self) -> Iterator[str]:
        for name, left in self._left.items():
            if left:
                yield f"similar-pictures compared the first {COMPARED:,} pictures of {name}"
