"""Data that cannot be read, or should not be: damaged samples, pickles, odd names, empty datasets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....errors import BatchplantError, DataError, UnsafeError
from ....schema import Bytes, Int
from ....schema.columns import U8
from ..check import EXAMPLES, LISTED, Batch, CellCheck, Check, Example, Finding, Subject, Tally, named

# How a pickle of protocol 2 to 5 begins; its last byte is a full stop.
PICKLE_HEADS = tuple(bytes([0x80, version]) for version in (2, 3, 4, 5))
# Of a folder that cannot be opened.
MOST_NAMES = 1_000_000
RENAME = "convmv -f latin1 -t utf8 -r --notest FOLDER  renames files and folders; archives are written anew"
PICKLE_FORMATS = ("pickle", "joblib")


class Empty(Check):
    name = "empty"
    unit = "datasets"
    title = "no samples at all"
    models = True
    severity = "error"
    sentence = "There are no samples: a run over them ends at once, often without a word."

    def findings(self) -> Iterator[Finding]:
        if not self.subject.samples:
            yield self.finding(
                "there are no samples",
                1,
                1,
                "check the path or glob, --where and --skip: what is left is empty",
            )


class CorruptSamples(Check):
    name = "corrupt-samples"
    title = "samples that cannot be read or decoded"
    models = True
    severity = "error"
    sentence = "Samples that cannot be read or decoded stop an epoch, often hours after it began."
    decodes = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._bad: list[int] = []
        self._count = self._of = 0
        self._examples: list[Example] = []

    def look(self, batch: Batch) -> None:
        self._of += batch.asked
        self._count += len({problem.sample for problem in batch.problems})
        if len(self._bad) < LISTED:
            self._bad += sorted({problem.sample for problem in batch.problems if problem.sample is not None})
        for problem in sorted(batch.problems, key=lambda p: -1 if p.sample is None else p.sample):
            if len(self._examples) == EXAMPLES:
                break
            sample = problem.sample
            if sample is None or sample not in {example.sample for example in self._examples}:
                example = Example() if sample is None else self.subject.place(sample)
                path = example.path or problem.path
                message = ": ".join(filter(None, (self.subject.moment(sample), problem.message)))
                self._examples.append(Example(sample, problem.field, example.key, path, message))

    def findings(self) -> Iterator[Finding]:
        if self._count:
            mend = (
                f"batchplant verify {self.subject.named} --decode --quarantine bad.jsonl\n"
                'lists all of them, and bp.open(…, skip="bad.jsonl") leaves them out'
            )
            yield self.finding(
                "samples cannot be read or decoded", self._count, self._of, mend, examples=self._examples,
                samples=tuple(self._bad),
            )  # fmt: skip

    @classmethod
    def of_error(cls, error: BatchplantError, source: Any) -> Finding | None:
        if not isinstance(error, DataError):
            return None
        example = Example(error.sample, error.field, None, error.path, error.message)
        mend = f"batchplant verify {named(source)}  says more; copy the file again from where it is whole"
        return Finding(cls.name, cls.severity, "it cannot be opened", 1, 1, mend, (example,), unit="files")


class Pickles(CellCheck):
    name = "pickles"
    title = "pickles and object arrays, which run code when loaded"
    models = True
    severity = "error"
    sentence = "Pickles and object arrays run code when they are loaded, and only Python reads them."
    kinds = (Bytes,)

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        flags = np.array([_is_pickle(cell) for cell in batch.ragged(name)], dtype=np.bool_)
        tally.add(batch, flags, lambda row: "begins and ends as a pickle", of=len(flags))

    def report(self, name: str, tally: Tally) -> Finding:
        mend = "write the values themselves: numbers as Int or Float, arrays as Tensor, the rest Json"
        return self.cells("cells are pickles", tally, mend, severity="warning")

    def findings(self) -> Iterator[Finding]:
        # Whoever allowed it has a reader already; the file is a program all the same.
        programs = [part for part in self.subject.parts if part.format in PICKLE_FORMATS]
        if programs:
            examples = [Example(path=part.path) for part in programs[:EXAMPLES]]
            mend = f"batchplant convert {self.subject.named} data.beton --option allow_pickle=true"
            yield self.finding(
                "files are pickles", len(programs), len(self.subject.parts), mend, examples=examples,
                unit="files",
            )  # fmt: skip
        yield from super().findings()

    @classmethod
    def of_error(cls, error: BatchplantError, source: Any) -> Finding | None:
        if not isinstance(error, UnsafeError):
            return None
        example = Example(error.sample, error.field, None, error.path, error.message.partition(";")[0])
        mend = (
            "if you trust who made it, convert it once, and use the result:\n"
            f"batchplant convert {named(source)} data.beton --option allow_pickle=true"
        )
        return Finding(
            cls.name, cls.severity, "loading it can run any code", 1, 1, mend, (example,), unit="files"
        )


def _is_pickle(cell: U8 | None) -> bool:
    return cell is not None and len(cell) > 3 and cell[-1] == ord(".") and cell[:2].tobytes() in PICKLE_HEADS


class Names(Check):
    name = "non-utf8-names"
    unit = "names"
    title = "names of files, fields or classes that are no UTF-8"
    models = True
    severity = "warning"
    sentence = (
        "Names that are no UTF-8 cannot be written to most formats, and other systems show them garbled."
    )

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._samples = Tally(subject)

    def look(self, batch: Batch) -> None:
        odd = np.array([is_odd(key) for key in self._keys(batch)], dtype=np.bool_)
        self._samples.add(batch, odd, of=len(odd))

    def _keys(self, batch: Batch) -> list[str]:
        """Keys of the samples, which in a folder are the names of files."""
        try:
            return [_name(key) for key in self.subject.reader.subset(batch.numbers).keys()]  # noqa: SIM118
        except BatchplantError:
            return []

    def findings(self) -> Iterator[Finding]:
        tally, files = self._samples, [part.path for part in self.subject.parts]
        if tally.count:
            yield self.finding(
                "names of samples are not UTF-8", tally.count, tally.of, RENAME, examples=tally.examples()
            )
        if odd_files := [path for path in files if is_odd(path)]:
            yield self.finding(
                "names of files are not UTF-8", len(odd_files), len(files), RENAME,
                examples=[Example(path=path) for path in odd_files],
            )  # fmt: skip
        names = [(name, name) for name in self.subject.schema]
        for field, kind in self.subject.fields(Int).items():
            names += [(field, label) for label in getattr(kind, "names", None) or ()]
        odd = [(field, name) for field, name in names if is_odd(name)]
        if odd:
            examples = [Example(field=field, said=repr(name)) for field, name in odd]
            yield self.finding(
                "names of fields or classes are not UTF-8", len(odd), len(names),
                RENAME + "\nbatchplant convert … --rename OLD=NEW  names a field anew",
                examples=examples,
            )  # fmt: skip

    @classmethod
    def of_error(cls, error: BatchplantError, source: Any) -> Finding | None:
        """A class whose name is no text, or a field."""
        if isinstance(source, list | tuple) and len(source) == 1:
            [source] = source
        local = isinstance(source, str | os.PathLike) and os.path.isdir(source)
        count, odd = _odd_below(os.fspath(source)) if local else (0, [])
        if not count:
            return None
        examples = tuple(Example(path=path, said=repr(os.path.basename(path))) for path in odd)
        message = f"it cannot be opened: {error.message}"
        return Finding(cls.name, "error", message, count, count, RENAME, examples, unit=cls.unit)


def _odd_below(folder: str) -> tuple[int, list[str]]:
    """Number of names below a folder that are no UTF-8, and the first of them."""
    names = ((where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files))
    odd = [os.path.join(*entry) for entry in itertools.islice(names, MOST_NAMES) if is_odd(entry[1])]
    return len(odd), odd[:EXAMPLES]


def _name(key: object) -> str:
    """A key as text. Bytes are the name of a file where no letter of them is one that nobody types."""
    if not isinstance(key, bytes):
        return str(key)
    return "" if any(byte < 0x20 for byte in key) else key.decode("utf-8", "surrogateescape")


def is_odd(name: str) -> bool:
    """True for a name that was no UTF-8: surrogates or replacement characters stand for its bytes."""
    return not name.isascii() and any("\ud800" <= letter <= "\udfff" or letter == "\ufffd" for letter in name)
