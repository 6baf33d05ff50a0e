"""Numbers, times and text: precision nobody needs, values that are missing, times without a zone, padding."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....schema import Field, Float, Tensor, Text, Time
from ....schema.columns import I64, AnyArray, Ragged
from ..check import Batch, CellCheck, Check, Finding, Subject, Tally

# How much of the spread of a field float32 may get wrong, to do for it.
PRECISION = 1e-5
# From this share on a field is mostly padding, or mostly missing.
MOSTLY = 0.5
SHORTEST = 16
# Numbers without needless zeros before them, as identifiers have.
NUMBER = re.compile(rb"\s*[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*")
MAX_NUMBER_BYTES = 64
# Values after which it is clear that a field is mostly words.
ENOUGH_VALUES = 100
# Above this share of other values a field is not meant to be numbers.
MAX_ODD_SHARE = 0.1
NAIVE = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?")


class MissingValues(CellCheck):
    name = "missing-values"
    title = "values that are not there"
    severity = "note"
    sentence = "A missing value becomes NaN or 0 in a batch, and a model takes that for data."

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        tally.add(batch, ~batch.present(name), of=len(batch))

    def report(self, name: str, tally: Tally) -> Finding:
        mend = f'bp.open(…, where="{name} is not null") leaves the samples out; '
        mend += "the step Present tells a model which are there"
        severity = "warning" if tally.count >= MOSTLY * tally.of else None
        return self.cells("values are missing", tally, mend, severity=severity)


class NotFinite(CellCheck):
    name = "not-finite"
    title = "NaN and infinity"
    severity = "warning"
    sentence = "One NaN or infinity in a batch makes the loss NaN, and with it every weight."
    message = "values are NaN or infinite"
    mend = "find out where they come from, or leave the samples out: bp.open(…, where=…)"

    def concerns(self, name: str, field: Field) -> bool:
        return isinstance(field, Float) or (isinstance(field, Tensor) and field.dtype.startswith("float"))

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        values = batch.numbers_of(name)
        if values is None:
            return
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        # A missing value is NaN too, and another check's.
        tally.add(batch, bad & batch.present(name), functools.partial(_describe_bad, values), of=len(values))


class Float64(Check):
    name = "float64"
    unit = "values"
    title = "float64 where float32 would do"
    severity = "note"
    sentence = "Models compute in float32 or less; float64 doubles the bytes that are read, copied and sent."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._spreads = {
            name: _Spread()
            for name, field in subject.schema.items()
            if isinstance(field, Float | Tensor) and field.dtype == "float64"
        }
        self._text = subject.can.human_readable

    def look(self, batch: Batch) -> None:
        for name, spread in self._spreads.items():
            values = batch.numbers_of(name)
            if values is None:
                cells = batch.ragged(name)
                packed = np.ascontiguousarray(cells.data[int(cells.offsets[0]) : int(cells.offsets[-1])])
                field = self.subject.schema[name]
                # A cell whose shape varies is a file of its own.
                if not (isinstance(field, Tensor) and field.flat) or len(packed) % 8:
                    continue
                values = packed.view(np.float64)
            spread.add(values)

    def findings(self) -> Iterator[Finding]:
        # A number that stands there as text has as many digits as it has.
        for name, spread in {} if self._text else self._spreads.items():
            if spread.count and spread.fits:
                field = self.subject.schema[name]
                shape = f", {field.shape}" if isinstance(field, Tensor) else ""
                yield self.finding(
                    f"{name}: float64, and float32 would do: values from {spread.least:.4g} to "
                    f"{spread.most:.4g}, off by {spread.error:.1g} at most",
                    spread.count, spread.count,
                    f'store float32, {type(field).__name__}("float32"{shape}); '
                    'or in the Loader Convert("float32")',
                    field=name, facts={"least": spread.least, "most": spread.most, "error": spread.error},
                )  # fmt: skip


class _Spread:
    """Least, largest and standard deviation of values, and what float32 makes of them, as they pass by."""

    def __init__(self) -> None:
        self.count, self.least, self.most, self.error = 0, np.inf, -np.inf, 0.0
        self._mean = self._square = 0.0
        self._out = False

    def add(self, values: AnyArray) -> None:
        good = values.reshape(-1)[np.isfinite(values.reshape(-1))]
        if not len(good):
            return
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = good.astype(np.float32)
            self._out |= bool(np.isinf(narrow).any() or ((narrow == 0) & (good != 0)).any())
            self.error = max(self.error, float(np.abs(narrow - good).max()))
            self.least, self.most = min(self.least, float(good.min())), max(self.most, float(good.max()))
            # Chan's update of mean and squares.
            count, mean = len(good), float(good.mean())
            square, apart = float(((good - mean) ** 2).sum()), mean - self._mean
        total = self.count + count
        self._square += square + apart * apart * self.count * count / total
        self._mean += apart * count / total
        self.count = total

    @property
    def fits(self) -> bool:
        spread = float(np.sqrt(self._square / max(self.count, 1)))
        largest = max(abs(self.least), abs(self.most))
        # The spread of one value is what rounding leaves of it.
        scale = spread if spread > 1e-12 * largest else largest
        return not self._out and np.isfinite(scale) and self.error <= PRECISION * scale


class NaiveTimes(CellCheck):
    name = "naive-times"
    title = "times without a time zone"
    severity = "note"
    sentence = (
        "A time without a zone means another moment on every machine, and two sources cannot be joined."
    )

    def concerns(self, name: str, field: Field) -> bool:
        if isinstance(field, Time):
            return field.tz is None and not field.clock and field.unit != "D"
        return type(field) is Text

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        present = batch.present(name)
        if isinstance(self.subject.schema[name], Time):
            tally.add(batch, present, of=int(present.sum()))
            return
        cells = batch.ragged(name)
        flags = [
            cell is not None and len(cell) < 40 and bool(NAIVE.fullmatch(cell.tobytes())) for cell in cells
        ]
        tally.add(batch, np.array(flags, np.bool_), functools.partial(_text, cells), of=int(present.sum()))

    def report(self, name: str, tally: Tally) -> Finding | None:
        text = type(self.subject.schema[name]) is Text
        # A text that is a time now and then is no field of times.
        if text and tally.count < 0.9 * tally.of:
            return None
        unit = '"s"' if text else repr(getattr(self.subject.schema[name], "unit", "s"))
        mend = f'if they are UTC, say so when you write them: Time({unit}, tz="UTC")'
        message = f"{'text of times' if text else 'times'} without a time zone"
        return self.cells(message, tally, mend, examples=tally.examples()[:2])


class OddValues(CellCheck):
    name = "odd-values"
    title = "numbers that are text because of a few other values"
    severity = "warning"
    sentence = "One word in a column of numbers makes all of it text, which a model cannot use."

    def concerns(self, name: str, field: Field) -> bool:
        return type(field) is Text

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        cells = batch.ragged(name)
        odd = np.array([cell is not None and not _is_number(cell.tobytes()) for cell in cells], np.bool_)
        tally.add(batch, odd, functools.partial(_text, cells), of=int(batch.present(name).sum()))
        if tally.of >= ENOUGH_VALUES and tally.count > MOSTLY * tally.of:
            del self.tallies[name]

    def report(self, name: str, tally: Tally) -> Finding | None:
        if tally.count > MAX_ODD_SHARE * tally.of:
            return None
        first = tally.examples()[0]
        better = "correct them where the data comes from"
        if self.subject.reader.format == "csv":
            better += f", or read them as missing: bp.open(…, missing=['', {first.said!r}])"
        message = f"text, because a few values are not numbers: {first.said!r} at sample {first.sample:,}"
        return self.cells(message, tally, better)


def _is_number(cell: bytes) -> bool:
    return len(cell) <= MAX_NUMBER_BYTES and NUMBER.fullmatch(cell) is not None


class Padding(CellCheck):
    name = "padding"
    title = "arrays and text that are mostly padding"
    severity = "note"
    sentence = "Stored padding is read and copied in every epoch; a batch can be padded as it is made."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        # Values that are padding, and all values, of each field.
        self._padded = dict.fromkeys(self.tallies, 0)
        self._total = dict.fromkeys(self.tallies, 0)
        self._pads: dict[str, Counter[Any]] = {name: Counter() for name in self.tallies}

    def concerns(self, name: str, field: Field) -> bool:
        if not isinstance(field, Tensor) or field.dtype[:1] not in "iuf" or None in field.shape:
            return type(field) is Text
        # An array that is long enough to be padded.
        return int(np.prod([size or 0 for size in field.shape])) >= SHORTEST

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        if type(self.subject.schema[name]) is Text:
            padded, total = _text_padding(batch, name)
        else:
            values = batch.numbers_of(name)
            if values is None or not len(values):
                return
            padded, total = _tensor_padding(values.reshape(len(values), -1), self._pads[name])
        self._padded[name] += int(padded.sum())
        self._total[name] += int(total.sum())
        tally.add(
            batch, padded > MOSTLY * np.maximum(total, 1),
            lambda row: f"{padded[row]:,} of {total[row]:,} are padding", of=len(padded),
        )  # fmt: skip

    def report(self, name: str, tally: Tally) -> Finding | None:
        if self._padded[name] <= MOSTLY * self._total[name]:
            return None
        share = self._padded[name] / self._total[name]
        pads = self._pads[name].most_common(1)
        field = self.subject.schema[name]
        better = "strip it"
        if isinstance(field, Tensor):
            better = (
                f'store what is there, Tensor("{field.dtype}", (None,)), and pad each batch to its longest'
            )
        message = f"{share:.0%} of what is stored is padding{f' with {pads[0][0]}' if pads else ''}"
        return self.cells(message, tally, better, facts={"padding": share})


def _tensor_padding(values: AnyArray, pads: Counter[Any]) -> tuple[I64, I64]:
    """Number of equal values at the end of each row, beyond one, and the length of the rows."""
    last = values[:, -1:]
    differs = values != last
    length = values.shape[1]
    run = np.where(differs.any(axis=1), np.argmax(differs[:, ::-1], axis=1), length)
    # Two values at the end that are the same by chance are no padding.
    padded = np.where(run > 2, run, 0)
    pads.update(last[padded > 0, 0].tolist())
    return padded, np.full(len(values), length)


def _text_padding(batch: Batch, name: str) -> tuple[I64, I64]:
    cells = batch.ragged(name)
    total = np.where(batch.present(name), cells.sizes, 0)
    long = np.flatnonzero(total >= SHORTEST)
    padded = np.zeros(len(total), dtype=np.int64)
    for row in long.tolist():
        cell = cells[row]
        padded[row] = 0 if cell is None else len(cell) - len(cell.tobytes().rstrip(b" \t\r\n\0"))
    return padded, total


def _describe_bad(values: AnyArray, row: int) -> str:
    flat = values[row].reshape(-1)
    bad = flat[~np.isfinite(flat)]
    return str(bad[0]) if flat.size == 1 else f"{bad.size:,} of {flat.size:,} values"


def _text(cells: Ragged, row: int) -> str:
    cell = cells[row]
    return "" if cell is None else cell.tobytes().decode("utf-8", "replace")
