"""Ops on numbers, labels, ragged values and text: convert, pad, fill, encode, tokenize."""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs.cells import decode_cell
from ..codecs.tokens import Tokenizer, texts_of
from ..data.reader import Reader
from ..errors import DamagedError, DataError, DecodeError, OptionError, exceptions_as, no_such
from ..ops.base import DType
from ..schema import Bytes, Field, Image, Int, Text
from ..schema.columns import I64, AnyArray, AnyDType, Column, Flags, Masked, Ragged, as_bytes, dense_of
from ..storage import NOTE_ERRORS, parse_object, put_file, read_whole
from .base import Batch, CellErrors, CellOp, Draws, Op, RowError, Spec, Tensors
from .dtypes import is_torch_dtype, numpy_dtype, torch_dtype
from .parallel import Threads


class Present(CellOp):
    """True where the value is present: the first step of ``NAME_mask`` of an optional field of numbers."""

    def infer_field(self, field: Field) -> Spec:
        return Spec(np.dtype(np.bool_))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        valid = batch.valid if isinstance(batch, Ragged) else None
        return np.ones(len(batch), dtype=np.bool_) if valid is None else valid.copy()


class Convert(Op):
    """Another dtype, of NumPy or of torch, by value; for arrays and for tensors.

    target_dtype: a dtype of either, or its name, such as ``"float16"``.
    """

    def __init__(self, target_dtype: DType) -> None:
        self.target_dtype = target_dtype if is_torch_dtype(target_dtype) else np.dtype(target_dtype)

    def infer(self, spec: Spec) -> Spec:
        return spec.replace(dtype=converted_dtype(spec, self.target_dtype, self))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, tuple):
            return self.run(batch[0], ids, draws), batch[1]
        if isinstance(batch, np.ndarray):
            return batch.astype(numpy_dtype(self.target_dtype))
        return batch.to(torch_dtype(self.target_dtype))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return self.run(batch, ids, draws)


def converted_dtype(spec: Spec, target: DType, op: Op) -> AnyDType | None:
    """Return the target dtype as NumPy's; None for a tensor's that NumPy has no name for."""
    if spec.dtype is None:
        raise OptionError(f"{type(op).__name__} needs numbers, not {spec}")
    dtype = numpy_dtype(target)
    if dtype is None and not spec.torch:
        raise OptionError(f"NumPy has no {target}: put ToTensor() before {type(op).__name__}")
    return dtype or spec.dtype


class Pad(Op):
    """Ragged values as one array: cut or filled to ``length`` (default: the longest of the batch).

    value: what fills it. side: where it is filled. truncate: the end that is cut off. multiple_of: the
    longest of the batch, rounded up, as tensor cores like it; max_length: but no longer. mask: with an output
    that says where values are, True (bool): ``NAME_mask``, or what it is called, as in
    ``mask="attention_mask"``.
    """

    def __init__(
        self,
        length: int | None = None,
        value: Any = 0,
        *,
        side: str = "right",
        truncate: str = "right",
        multiple_of: int | None = None,
        max_length: int | None = None,
        mask: bool | str = False,
    ) -> None:
        for name, end in (("side", side), ("truncate", truncate)):
            if end not in ("left", "right"):
                raise OptionError(f"{name} is left or right, not {end!r}")
        if length is not None and length < 0:
            raise OptionError(f"length must not be negative, as {length} is")
        if length is not None and (multiple_of is not None or max_length is not None):
            raise OptionError("multiple_of and max_length are for the longest of a batch: leave length out")
        if multiple_of is not None and (multiple_of < 1 or (max_length or 0) % multiple_of):
            raise OptionError(f"multiple_of is at least 1 and divides max_length, unlike {multiple_of}")
        if max_length is not None and max_length < 1:
            raise OptionError(f"max_length is at least 1, not {max_length}")
        self.length, self.value, self.side, self.truncate = length, value, side, truncate
        self.multiple_of, self.max_length, self.mask = multiple_of, max_length, mask

    def infer(self, spec: Spec) -> Spec:
        if spec.dtype is None or spec.torch or not spec.ragged:
            hint = ": put Tokenize or Function(…, shape=(None,)) before it" if spec.dtype is None else ""
            raise OptionError(f"Pad needs values whose first size varies, not {spec}{hint}")
        return Spec(spec.dtype, (self.length, *spec.shape[1:]))

    def _sizes(self, offsets: I64) -> tuple[int, I64]:
        """Return the padded length of rows, and the number of values that each keeps."""
        lengths = np.diff(offsets)
        length = self.length
        if length is None:
            multiple = self.multiple_of or 1
            length = -(-int(lengths.max(initial=0)) // multiple) * multiple
            length = length if self.max_length is None else min(length, self.max_length)
        return length, np.minimum(lengths, length)

    def mask_of(self, batch: Batch) -> Flags:
        """Return the mask of values, as opposed to padding, once the batch is padded."""
        length, lengths = self._sizes(batch[1])
        places = np.arange(length)
        return places < lengths[:, None] if self.side == "right" else places >= length - lengths[:, None]

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        values, offsets = np.ascontiguousarray(batch[0]), np.asarray(batch[1])
        length, lengths = self._sizes(offsets)
        out = np.full((len(lengths), length, *values.shape[1:]), self.value, dtype=values.dtype)
        width = values.itemsize * int(np.prod(values.shape[1:]))
        if out.size:
            starts = offsets[:-1] if self.truncate == "right" else offsets[1:] - lengths
            places = np.arange(len(lengths)) * length
            places = places if self.side == "right" else places + length - lengths
            sizes = lengths * width
            _native.copy_runs(as_bytes(values), starts * width, sizes, as_bytes(out), places * width)
        return out


def ragged_values(cells: Ragged, dtype: Any, cell_shape: tuple[int, ...]) -> tuple[AnyArray, I64]:
    """(values, offsets) of ragged numbers, offsets counting rows."""
    width = np.dtype(dtype).itemsize * int(np.prod(cell_shape))
    packed = cells.take(slice(None))
    values = as_bytes(packed.data).view(dtype).reshape(-1, *cell_shape)
    return values, packed.offsets // max(width, 1)


STATISTICS = ("mean", "median", "most_frequent", "min", "max")


class Fill(CellOp):
    """Another value in place of missing ones, and of NaN; the first step of a field of numbers or text.

    value: a number or text; or, found in the data by ``fit``: mean, median, most_frequent, min, max. The mask
    ``NAME_mask`` beside the values still says which were there.
    """

    keeps_mask = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def fit(self, reader: Reader, field: str) -> Self:
        """Return a Fill with the statistic that ``Fill("median")`` names; reads the whole field once.

        Mean and median of whole numbers are rounded.
        """
        if not isinstance(self.value, str) or self.value not in STATISTICS:
            raise OptionError(
                f"Fill({self.value!r}) has its value already; to be found: {', '.join(STATISTICS)}"
            )
        return type(self)(typical(reader, field, self.value))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the op with what a file that ``save`` wrote has."""
        where = os.fspath(path)
        with exceptions_as(DamagedError, "no value to fill in", *NOTE_ERRORS, path=where):
            return cls(parse_object(read_whole(where))["value"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file, which appears when it is complete."""
        if isinstance(self.value, np.ndarray | np.generic):
            raise OptionError(f"only numbers and text can be saved, not {self.value!r}")
        put_file(os.fspath(path), json.dumps({"batchplant": 1, "value": self.value}).encode())

    def infer_field(self, field: Field) -> Spec:
        if isinstance(field, Text):
            if not isinstance(self.value, str):
                raise OptionError(f"Fill of text needs text, not {self.value!r}")
            return Spec(None)
        dense = dense_of(field)
        if dense is None:
            raise OptionError(f"Fill needs numbers, arrays of one shape, or text, and this is {field}")
        if isinstance(self.value, str) and dense[0].kind not in "mM":
            call = f'Fill("{self.value}").fit(reader, field)'
            raise OptionError(
                f"its value is not found yet: {call} gives one that has it"
                if self.value in STATISTICS
                else f"Fill needs a number, or one of {', '.join(STATISTICS)}, not {self.value!r}"
            )
        self._cast(*dense)
        return Spec(*dense)

    def _cast(self, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
        """The value, as it stands in an array of this dtype."""
        try:
            value = np.asarray(self.value)
            converted = value.astype(dtype)
            fits = value.dtype.kind in "biuf" or dtype.kind in "mM"
            # A fraction, or what is out of range, would become another number.
            same = dtype.kind not in "iub" or np.array_equal(converted, value)
            if fits and same and np.broadcast_shapes(converted.shape, shape) == shape:
                return converted
        except (ValueError, TypeError, OverflowError):
            pass
        raise OptionError(f"{self.value!r} cannot stand among values of {dtype} {shape}")

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, Ragged) and not isinstance(batch, Masked):
            return [self.value if cell is None else cell.tobytes().decode() for cell in batch]
        values = np.array(batch.values if isinstance(batch, Masked) else batch)
        filling = self._cast(values.dtype, values.shape[1:])
        if isinstance(batch, Masked):
            values[~batch.mask] = filling
        if values.dtype.kind in "fcmM":
            missing = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
            values[missing] = np.broadcast_to(filling, values.shape)[missing]
        return values


# Images of which a mean is estimated.
FIT_SAMPLES = 10_000
SCAN_ROWS, SCAN_IMAGES = 4096, 64
# A median is of at most this many values, evenly spread.
MAX_MEDIAN_VALUES, MAX_DISTINCT_VALUES = 1 << 24, 1_000_000

F64 = npt.NDArray[np.float64]


def field_of(reader: Reader, name: str) -> Field:
    if name not in reader.schema:
        raise OptionError(no_such("field", name, reader.schema), path=reader.path)
    return reader.schema[name]


class Moments:
    """Count, mean and sum of squared distances from it, of columns of numbers; parts can be added."""

    def __init__(self) -> None:
        self.count: Any = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: Any) -> None:
        """Rows of numbers (n, columns); NaN does not count."""
        values = values.astype(np.float64)
        present = ~np.isnan(values)
        count = present.sum(axis=0)
        safe = np.maximum(count, 1)
        mean = np.where(present, values, 0).sum(axis=0) / safe
        squares = np.square(np.where(present, values - mean, 0)).sum(axis=0)
        self.merge(count, mean, squares)

    def merge(self, count: Any, mean: Any, squares: Any) -> None:
        total = np.maximum(self.count + count, 1)
        between = mean - self.mean
        self.squares = self.squares + squares + between**2 * self.count * count / total
        self.mean = self.mean + between * count / total
        self.count = self.count + count

    def mean_and_std(self, path: str | None, field: str) -> tuple[F64, F64]:
        if not np.all(self.count):
            raise OptionError("there are no values to find a mean in", path=path, field=field)
        std = np.sqrt(self.squares / self.count)
        # What never varies stays as it is.
        return np.atleast_1d(self.mean), np.atleast_1d(np.where(std == 0, 1.0, std))


def moments(reader: Reader, name: str, *, each: bool = True, samples: int = FIT_SAMPLES) -> tuple[F64, F64]:
    """Mean and standard deviation of a field: of every channel of images, of every number of the last axis
    of arrays (one for all without ``each``), or of a number."""
    field = field_of(reader, name)
    totals = Moments()
    if isinstance(field, Image):
        if samples < 1:
            raise OptionError(f"samples is a number from 1 on, not {samples}")
        _add_images(totals, reader, name, field, samples)
        return totals.mean_and_std(reader.path, name)
    dense = dense_of(field)
    if dense is None or dense[0].kind not in "biuf":
        raise OptionError(f"a mean is of images, numbers, or arrays of one shape, not of {field}", field=name)
    width = dense[1][-1] if each and dense[1] else 1
    for values in _numbers(reader, name):
        if len(values):
            totals.add(values.reshape(-1, width))
    return totals.mean_and_std(reader.path, name)


def _add_images(totals: Moments, reader: Reader, name: str, field: Image, samples: int) -> None:
    as_loaded = Image(mode=field.mode or "RGB")
    total = len(reader)
    if not total:
        return
    numbers = np.unique(np.linspace(0, total - 1, min(samples, total)).astype(np.int64))
    threads = Threads()
    try:
        for start in range(0, len(numbers), SCAN_IMAGES):
            column = reader.read(numbers[start : start + SCAN_IMAGES], [name]).ragged(name)

            def image_moments(row: int, column: Ragged = column) -> tuple[Any, Any, Any] | None:
                pixels = decode_cell(as_loaded, column, row)
                if pixels is None:
                    return None
                levels = pixels.reshape(-1, pixels.shape[2] if pixels.ndim == 3 else 1)
                # Exact, and without an array of floats: how often each level is there.
                counts = np.stack([np.bincount(channel, minlength=256) for channel in levels.T], axis=1)
                scale = np.arange(len(counts), dtype=np.float64)[:, None]
                mean = (counts * scale).sum(axis=0) / len(levels)
                return len(levels), mean, (counts * np.square(scale - mean)).sum(axis=0)

            for moments_of_image in threads.each(len(column), image_moments):
                if moments_of_image is not None:
                    totals.merge(*moments_of_image)
    finally:
        threads.close()


def _numbers(reader: Reader, name: str) -> Iterator[AnyArray]:
    """The values that are there."""
    for columns in reader.scan(SCAN_ROWS, [name]):
        column: Column = columns[name]
        if isinstance(column, Masked):
            yield column.values[column.mask]
        else:
            yield np.asarray(column)


def typical(reader: Reader, name: str, statistic: str) -> Any:
    """The mean, median, most_frequent, min or max of a field of numbers; the most frequent text."""
    field = field_of(reader, name)
    dense = dense_of(field)
    if isinstance(field, Text) and statistic == "most_frequent":
        return _most_frequent(_texts(reader, name), name)
    if dense is None or dense[1] or dense[0].kind not in "biuf":
        raise OptionError(f"the {statistic} is of numbers, not of {field}", path=reader.path, field=name)
    if statistic == "most_frequent":
        return _most_frequent((values[values == values].tolist() for values in _numbers(reader, name)), name)
    if statistic == "mean":
        mean = float(moments(reader, name)[0][0])
        return mean if dense[0].kind == "f" else round(mean)
    stride = max(1, math.ceil(len(reader) / MAX_MEDIAN_VALUES)) if statistic == "median" else 1
    parts = [np.empty(0, dtype=dense[0])]
    for values in _numbers(reader, name):
        values = values[values == values][::stride]
        parts.append(
            values
            if statistic == "median" or not len(values)
            else np.atleast_1d(getattr(values, statistic)())
        )
    numbers = np.concatenate(parts)
    if not len(numbers):
        raise OptionError(f"there are no values to find a {statistic} in", path=reader.path, field=name)
    if statistic == "median":
        middle = float(np.median(numbers))
        return middle if dense[0].kind == "f" else round(middle)
    return getattr(numbers, statistic)().item()


def _texts(reader: Reader, name: str) -> Iterator[list[str]]:
    for columns in reader.scan(SCAN_ROWS, [name]):
        column = columns.ragged(name)
        yield [cell.tobytes().decode(errors="replace") for cell in column if cell is not None]


def _most_frequent(parts: Iterator[list[Any]], name: str) -> Any:
    counts: collections.Counter[Any] = collections.Counter()
    for part in parts:
        counts.update(part)
        if len(counts) > MAX_DISTINCT_VALUES:
            raise OptionError(f"there are more than {MAX_DISTINCT_VALUES:,} different values", field=name)
    if not counts:
        raise OptionError("there are no values to find the most frequent of", field=name)
    highest = max(counts.values())
    # Of several, the least: whatever the order of samples.
    return min(value for value, count in counts.items() if count == highest)


# A field with longer or more values holds no categories.
MAX_CATEGORY_BYTES = 4096
MAX_CATEGORIES = 1_000_000
# Suffix of every word in a table: its length, and a nonzero byte, because NumPy strips trailing zeros.
SUFFIX_BYTES = 5

Words = npt.NDArray[np.bytes_]


class Categories(CellOp):
    """Text or whole numbers as codes (int64): the place of each value in the vocabulary.

    vocabulary: the values, all text or all whole numbers, or the path of a file that ``save`` wrote.
    unknown: the code of what is not in it, and of missing values; None: an error that names the sample.
    """

    def __init__(
        self, vocabulary: Sequence[str] | Sequence[int] | str | os.PathLike[str], *, unknown: int | None = -1
    ) -> None:
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = _load(os.fspath(vocabulary))
        self.vocabulary: list[Any] = list(vocabulary)
        self.unknown = unknown
        if not self.vocabulary:
            raise OptionError("a vocabulary needs at least one value")
        self._text = all(isinstance(value, str) for value in self.vocabulary)
        if not self._text and not all(type(value) is int for value in self.vocabulary):
            raise OptionError("a vocabulary is all text or all whole numbers")
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise OptionError("a value is in the vocabulary twice")
        self._width = 0
        self._table: AnyArray
        with exceptions_as(OptionError, "the vocabulary cannot be used", UnicodeEncodeError, OverflowError):
            if self._text:
                words = Ragged.from_cells([value.encode() for value in self.vocabulary])
                self._width = int(words.sizes.max(initial=0))
                self._table = _words(words, self._width)
            else:
                wide = max(self.vocabulary) >= 2**63
                self._table = np.array(self.vocabulary, dtype=np.uint64 if wide else np.int64)
        self._order = np.argsort(self._table, kind="stable")
        self._table = self._table[self._order]

    def __repr__(self) -> str:
        return f"Categories({len(self.vocabulary)} values, unknown={self.unknown!r})"

    def __len__(self) -> int:
        return len(self.vocabulary)

    @classmethod
    def fit(
        cls, reader: Reader, field: str, *, unknown: int | None = -1, max_values: int = MAX_CATEGORIES
    ) -> Self:
        """Return Categories with the values that a field has, sorted; reads the whole field once.

        A field with more than ``max_values`` is an error.
        """
        kind = reader.schema[field]
        _check(kind, field)
        values: set[Any] = set()
        for columns in reader.scan(SCAN_ROWS, [field]):
            values.update(_distinct(columns[field], field))
            if len(values) > max_values:
                raise OptionError(
                    f"it has more than {max_values:,} values; these are no categories", field=field
                )
        return cls(sorted(values), unknown=unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file, which appears when it is complete."""
        text = json.dumps({"batchplant": 1, "vocabulary": self.vocabulary}, ensure_ascii=False)
        put_file(os.fspath(path), text.encode())

    def infer_field(self, field: Field) -> Spec:
        _check(field, None)
        if isinstance(field, Text) != self._text:
            content = "text" if self._text else "numbers"
            raise OptionError(f"the vocabulary is of {content}, and the field is {field}")
        return Spec(np.dtype(np.int64))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        keys: AnyArray
        if isinstance(batch, Ragged):
            valid = np.ones(len(batch), dtype=np.bool_) if batch.valid is None else batch.valid
            # What is longer than every word is none of them: it is cut, but its length stays in the key.
            keys = _words(batch, self._width)
        else:
            keys = batch.astype(self._table.dtype)
            # A number that the other dtype cannot hold has changed its sign.
            valid = (keys < 0) == (batch < 0)
        return self._codes(keys, valid, batch, ids)

    def _codes(self, keys: AnyArray, valid: Flags | None, batch: Column, ids: I64) -> I64:
        codes = np.full(len(keys), -1 if self.unknown is None else self.unknown, dtype=np.int64)
        places = np.searchsorted(self._table, keys).clip(max=len(self._table) - 1)
        in_vocabulary = valid & (self._table[places] == keys)
        codes[in_vocabulary] = self._order[places[in_vocabulary]]
        if self.unknown is None and not in_vocabulary.all():
            row = int(np.argmin(in_vocabulary))
            raise DecodeError(
                f"{_said(batch, row)} is not among the {len(self.vocabulary)} values of the vocabulary",
                sample=int(ids[row]),
            )
        return codes


def _check(field: Field, name: str | None) -> None:
    if not isinstance(field, Text | Int) or (isinstance(field, Int) and field.optional):
        raise OptionError(
            f"categories are text, or whole numbers that are never missing, and this is {field}", field=name
        )


def _load(path: str) -> list[Any]:
    with exceptions_as(DamagedError, "not a vocabulary", *NOTE_ERRORS, path=path):
        return list(parse_object(read_whole(path))["vocabulary"])


def _said(batch: Column, row: int) -> str:
    """A value in words, short."""
    if not isinstance(batch, Ragged):
        return str(batch[row])
    cell = batch[row]
    return "a missing value" if cell is None else repr(cell[:60].tobytes().decode(errors="replace"))


def _words(cells: Ragged, width: int) -> Words:
    """The cells as one array of equally long keys that are equal exactly where the cells are."""
    sizes = cells.sizes
    table = np.zeros((len(cells), width + SUFFIX_BYTES), dtype=np.uint8)
    starts = np.arange(len(cells), dtype=np.int64) * (width + SUFFIX_BYTES)
    lengths = np.minimum(sizes, width)
    _native.copy_runs(cells.data, np.ascontiguousarray(cells.starts), lengths, table.reshape(-1), starts)
    table[:, width:-1] = sizes.clip(max=2**32 - 1).astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, -1] = 1
    return table.reshape(-1).view(f"S{width + SUFFIX_BYTES}")


def _distinct(column: Column, name: str) -> Iterator[Any]:
    """The values that are there, each once."""
    if not isinstance(column, Ragged):
        yield from np.unique(column).tolist()
        return
    if column.valid is not None:
        column = column.take(column.valid)
    width = int(column.sizes.max(initial=0))
    if width > MAX_CATEGORY_BYTES:
        raise OptionError(f"a text of {width:,} bytes is no category", field=name)
    for word in np.unique(_words(column, width)).tolist():
        with exceptions_as(DecodeError, "not text", UnicodeDecodeError, field=name):
            yield word[: int.from_bytes(word[-SUFFIX_BYTES:-1], "big")].decode()


class Tokenize(Tokenizer, CellOp):
    """Text as ids of varying length: ``{"text": [Tokenize("tokenizer.json"), Pad(64)]}``.

    tokenizer: the path of a ``tokenizer.json``, or of a folder that has one; an object of the library
    ``tokenizers``, of Transformers or of tiktoken, or any other with ``encode_batch``; or a function from a
    text to its ids. Fields are Text, or Bytes that are UTF-8. A text that is missing has no ids.

    max_length: at most so many ids; what is longer is cut at the side ``truncate``, ``right`` or ``left``
    (default: as the tokenizer itself is set up). add_special_tokens: those that the tokenizer itself puts
    around a text. bos, eos: a token, by its id or its name, put at the beginning or end unless it is there;
    ``eos=True`` is the tokenizer's own. dtype: that of the ids.
    """

    def __repr__(self) -> str:
        source = self.path if self.path is not None else getattr(self.tokenizer, "__name__", None)
        arguments = [repr(source) if self.path else source or type(self.tokenizer).__name__]
        usual = {"truncate": "right", "add_special_tokens": True, "dtype": np.dtype("int32")}
        for name, value in self._options().items():
            if value != usual.get(name):
                arguments.append(f"{name}={str(value) if name == 'dtype' else value!r}")
        return f"Tokenize({', '.join(arguments)})"

    def infer_field(self, field: Field) -> Spec:
        if not isinstance(field, Text | Bytes):
            raise OptionError(f"Tokenize takes text, and this is {field}")
        return Spec(self.dtype, (None,), ragged=True)

    def infer(self, spec: Spec) -> Spec:
        # What a function before it made: text, as far as anybody knows.
        if spec.dtype is not None or spec.torch:
            raise OptionError(f"Tokenize takes text, not {spec}")
        return Spec(self.dtype, (None,), ragged=True)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        texts, failures = texts_of(batch) if isinstance(batch, Ragged) else (list(batch), {})
        tokens = self.encode(texts)
        failures |= tokens.failures
        wrong = {row: error for row, error in failures.items() if isinstance(error, DataError)}
        if wrong:
            raise CellErrors(wrong)
        # A user's function raised it.
        for row, error in failures.items():
            raise RowError(row, error)
        return tokens.values, tokens.offsets
