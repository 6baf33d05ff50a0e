"""Base classes of checks: Check, the Subject that it examines, the Batch that it looks at, a Tally."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...codecs.media import image
from ...data.reader import Reader, View
from ...errors import BatchplantError, Problem, shown
from ...formats.base.format import Capabilities
from ...formats.registry import get_format
from ...schema import Bool, Field, Image, Int, Schema, Text
from ...schema.columns import I64, AnyArray, Columns, Masked, Ragged

DOCS = "docs/guides/doctor.md"
# Fields of recordings of robots.
TIME, ACTION, EPISODE, FRAME = "timestamp", "action", "episode_index", "frame_index"
LABELS = ("label", "labels", "class", "cls", "target", "category", "y")


@dataclasses.dataclass(frozen=True)
class FileLimits:
    """Sizes from which on files and blocks are reported."""

    # Smaller files are opened more than they are read; fewer of them do not matter.
    tiny_file_bytes: int = 256 << 10
    many_files: int = 1000
    # What reading one sample may cost.
    block_bytes: int = 64 << 20
    # A smaller file is unpacked in a moment.
    packed_file_bytes: int = 16 << 20


class Subject:
    """The dataset that is examined, and how it will be used."""

    limits: ClassVar[FileLimits] = FileLimits()

    def __init__(
        self,
        reader: Reader,
        *,
        world_size: int | None = None,
        crop: int = 224,
        batch_size: int = 256,
        window: int = 1000,
        label: str | None = None,
        every: bool = False,
        named: str = "SRC",
    ) -> None:
        self.named = named
        self.reader, self.schema, self.samples = reader, reader.schema, len(reader)
        self.world_size, self.crop, self.batch_size, self.window = world_size, crop, batch_size, window
        # Whether all samples are looked at.
        self.every = every
        self.label = find_label(self.schema, label)
        # The mean bytes of a sample, and of the fields, as soon as some were read.
        self.looked_at = 0
        self.bytes: dict[str, int] = dict.fromkeys(self.schema, 0)

    @functools.cached_property
    def can(self) -> Capabilities:
        """Capabilities of the format; None for several formats, or a reader without one."""
        names = {part.format for part in self.parts}
        with contextlib.suppress(BatchplantError):
            return get_format(names.pop()).can if len(names) == 1 else Capabilities()
        return Capabilities()

    @functools.cached_property
    def episodes(self) -> I64 | None:
        """First frames of the episodes of a recording of robots; None for other datasets."""
        begins = np.append(0, self.reader.boundaries())
        if (len(begins) > 1 or EPISODE in self.schema) and {TIME, ACTION} & set(self.schema):
            return begins
        return None

    def moment(self, sample: int | None) -> str:
        """Return the episode and the frame of a sample; empty where there are no episodes."""
        if self.episodes is None or sample is None:
            return ""
        episode = int(np.searchsorted(self.episodes, sample, side="right")) - 1
        return f"episode {episode}, frame {sample - self.episodes[episode]}"

    @property
    def sample_bytes(self) -> float:
        return sum(self.bytes.values()) / max(self.looked_at, 1)

    @functools.cached_property
    def parts(self) -> tuple[Reader, ...]:
        """The files of the dataset; of a chosen part of it, all of them."""
        reader = self.reader
        while isinstance(reader, View):
            reader = reader.base
        return tuple(getattr(reader, "readers", (reader,)))

    def command(self, *flags: str) -> str:
        """``batchplant convert`` of this dataset into a new one of the same kind."""
        first = shown(self.parts[0].path).rstrip("/").rpartition("/")[2]
        stem, _, suffix = first.partition(".")
        if len(self.parts) > 1:
            # The new files have numbers of their own.
            stem = stem.rstrip("0123456789").rstrip("-_")
        suffix = suffix.removesuffix(".gz").removesuffix(".zst") or "tar"
        target = f"{stem or 'data'}-new.{suffix}"
        return " ".join(["batchplant convert", self.named, shlex.quote(target), *flags])

    def fields(self, *kinds: type[Field]) -> dict[str, Field]:
        return {name: field for name, field in self.schema.items() if isinstance(field, kinds)}

    def place(self, sample: int, field: str | None = None, said: str = "") -> Example:
        """One sample with its key and file, as far as they are known."""
        key = path = None
        with contextlib.suppress(BatchplantError):
            path = shown(self.reader.where(sample))
        # Some formats have no keys.
        with contextlib.suppress(BatchplantError, StopIteration):
            cell = next(iter(self.reader.subset([sample]).keys()))
            key = cell.decode("utf-8", "backslashreplace") if isinstance(cell, bytes) else str(cell)
        return Example(sample, field, key, path, said)


class Batch:
    """Samples that were read: their numbers and cells. What several checks need of them is made once."""

    def __init__(
        self,
        schema: Schema,
        numbers: I64,
        columns: Columns,
        asked: int | None = None,
        problems: Sequence[Problem] = (),
        thumbnails: dict[str, list[npt.NDArray[np.float32] | None]] | None = None,
    ) -> None:
        self.schema, self.numbers, self.columns = schema, numbers, columns
        # With those that could not be read, of which there are no cells.
        self.asked = len(numbers) if asked is None else asked
        # Of the samples that could not be read, and of the cells that could not be decoded.
        self.problems = problems
        self.thumbnails = thumbnails or {}
        self._headers: dict[str, npt.NDArray[np.int32]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def ragged(self, field: str) -> Ragged:
        """The cells of a field whose kind is ragged."""
        return self.columns.ragged(field)

    def present(self, field: str) -> npt.NDArray[np.bool_]:
        """Mask of the cells that are not missing."""
        column = self.columns[field]
        valid = column.valid if isinstance(column, Ragged) else None
        return np.ones(len(self), dtype=np.bool_) if valid is None else valid

    def numbers_of(self, field: str) -> AnyArray | None:
        """Numbers or arrays of one shape, one row for each sample; None where a field has no such."""
        column = self.columns[field]
        if isinstance(column, Masked):
            return column.values
        return None if isinstance(column, Ragged) else column

    def headers(self, field: str) -> npt.NDArray[np.int32]:
        """Encoding, width, height, mode and bits of images (see ``image.probe``)."""
        if field not in self._headers:
            self._headers[field] = image.probe(self.ragged(field))
        return self._headers[field]


class Check:
    """One gotcha. A check looks at every batch, holds bounded memory, and tells at the end what it found.

    ``title`` says what it looks for, ``sentence`` why it matters; the section of the guide has its ``name``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[str]
    sentence: ClassVar[str]
    # What it counts.
    unit: ClassVar[str] = "samples"
    # Whether it wants to know what comes of decoding.
    decodes: ClassVar[bool] = False
    # Whether it has something to say about a model, whose samples are tensors with a name.
    models: ClassVar[bool] = False

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @classmethod
    def docs(cls) -> str:
        return f"{DOCS}#{cls.name}"

    def look(self, batch: Batch) -> None:
        """Some samples, each seen once."""

    def findings(self) -> Iterator[Finding]:
        """After the last batch."""
        return iter(())

    def remarks(self) -> Iterator[str]:
        """Sentences on what it did not look at."""
        return iter(())

    @classmethod
    def of_error(cls, error: BatchplantError, source: Any) -> Finding | None:
        """The finding that a dataset is which cannot be opened."""
        return None

    def finding(
        self,
        message: str,
        count: int,
        of: int,
        mend: str,
        *,
        examples: Iterable[Example] = (),
        severity: str | None = None,
        unit: str | None = None,
        **more: Any,
    ) -> Finding:
        """Make a finding of this check."""
        return Finding(
            self.name, severity or self.severity, message, count, of, mend, tuple(examples)[:EXAMPLES],
            unit=unit or self.unit, **more,
        )  # fmt: skip


class Tally:
    """Counts the cells of a field that have a property, and lists the first of them."""

    def __init__(self, subject: Subject, field: str | None = None) -> None:
        self._subject, self.field = subject, field
        self.count = self.of = 0
        self.first: list[tuple[int, str]] = []

    def add(
        self, batch: Batch, flags: npt.NDArray[np.bool_], said: Callable[[int], str] | None = None, *, of: int
    ) -> None:
        """The flagged rows of a batch, of so many that could be."""
        rows = np.flatnonzero(flags)
        self.count += len(rows)
        self.of += of
        for row in rows[: EXAMPLES - len(self.first)].tolist():
            self.first.append((int(batch.numbers[row]), "" if said is None else said(row)))

    def examples(self) -> list[Example]:
        return [self._subject.place(sample, self.field, said) for sample, said in self.first]


class CellCheck(Check):
    """Base class of checks of single cells: counts the cells of each field that have a property."""

    # The kinds of fields that have such cells.
    kinds: ClassVar[tuple[type[Field], ...]] = (Field,)
    # Share of the cells from which on a field is reported.
    least_share: ClassVar[float] = 0.0
    # What is wrong with them, and what helps.
    message: ClassVar[str]
    mend: ClassVar[str]

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.tallies = {
            name: Tally(subject, name) for name, field in subject.schema.items() if self.concerns(name, field)
        }

    def concerns(self, name: str, field: Field) -> bool:
        """Return whether a field has cells that this check looks at."""
        return isinstance(field, self.kinds)

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        """Add the cells of one field of a batch to its tally."""
        raise NotImplementedError

    def report(self, name: str, tally: Tally) -> Finding | None:
        """Return the finding of a field of which enough cells were counted."""
        return self.cells(self.message, tally, self.mend)

    def look(self, batch: Batch) -> None:
        for name, tally in list(self.tallies.items()):
            self.count(batch, name, tally)

    def findings(self) -> Iterator[Finding]:
        for name, tally in self.tallies.items():
            if tally.count and tally.count >= self.least_share * tally.of:
                finding = self.report(name, tally)
                if finding is not None:
                    yield finding

    def cells(self, message: str, tally: Tally, mend: str, **more: Any) -> Finding:
        """Make the finding of a field, with the first cells as examples."""
        return self.finding(
            f"{tally.field}: {message}", tally.count, tally.of, mend,
            **{"examples": tally.examples(), "field": tally.field, **more},
        )  # fmt: skip


def is_photo(field: Field) -> bool:
    """Return whether a field has images that are no masks."""
    return isinstance(field, Image) and not field.mask


def find_label(schema: Schema, asked: str | None = None) -> str | None:
    """The field of the classes: the one asked for, one whose numbers have names, one with a usual name."""
    if asked is not None:
        return next(iter(schema.select([asked])))
    usable = {name: field for name, field in schema.items() if type(field) in (Int, Bool, Text)}
    named = (name for name, field in usable.items() if isinstance(field, Int) and field.names)
    return next(named, next((name for name in LABELS if name in usable), None))


def named(source: Any) -> str:
    """A source as a command line names it."""
    if isinstance(source, Reader):
        source = source.path
    if isinstance(source, list | tuple) and len(source) == 1:
        [source] = source
    return shlex.quote(shown(os.fspath(source))) if isinstance(source, str | os.PathLike) else "SRC"


def images(subject: Subject) -> list[str]:
    """The fields of images that are no masks."""
    return [name for name, field in subject.schema.items() if is_photo(field)]


# The worst first.
SEVERITIES = ("error", "warning", "note")
# A finding names so many places; it counts all of them.
EXAMPLES = 5
# Samples to leave out that a finding lists.
LISTED = 1_000_000


@dataclasses.dataclass(frozen=True)
class Example:
    """One place where a finding shows. ``said``: what is there; None where a part makes no sense."""

    sample: int | None = None
    field: str | None = None
    key: str | None = None
    path: str | None = None
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One gotcha of a dataset.

    ``check`` is the name of the check, ``count`` how many have it of the ``of`` that were looked at (samples,
    or what ``unit`` says), ``mend`` the command, the code or the sentence that helps. ``facts`` are the
    numbers behind the message; ``about``: they are an estimate. ``samples`` are those that can be left out,
    where that mends it.
    """

    check: str
    severity: str
    message: str
    count: int
    of: int
    mend: str = ""
    examples: tuple[Example, ...] = ()
    field: str | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    about: bool = False
    unit: str = "samples"
    samples: tuple[int, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings, the worst first. ``looked_at``: how many samples were read; ``checks``: which ran."""

    path: str
    format: str
    samples: int
    looked_at: int
    findings: tuple[Finding, ...]
    checks: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong that stops a training run or spoils it; warnings and notes may be there."""
        return not self.of("error")

    def of(self, severity: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    def get(self, check: str) -> Finding | None:
        """The first finding of a check, None where it is silent."""
        return next((finding for finding in self.findings if finding.check == check), None)
