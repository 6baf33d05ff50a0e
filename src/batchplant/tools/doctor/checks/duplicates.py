"""Cells that are there twice: byte for byte, or so that the eye sees no difference."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ....data.keys import hash_cells
from ....schema import Schema, kinds
from ....schema.columns import U8, column_runs
from ..check import Batch, Check, Subject, images, is_photo
from ..likeness import I64, U64, groups, perceptual_hash, reduced
from ..report import EXAMPLES, LISTED, Finding

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
