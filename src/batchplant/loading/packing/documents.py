"""``Pack``, and the documents that rows are packed of: lengths, tokens, and which end with an end token."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ... import _native
from ... import order as orders
from ...codecs.cells import decode_cell
from ...data import mix_config as mixplan
from ...data.mix import Mix
from ...data.reader import Reader
from ...data.sizes import sizes_of
from ...errors import DataError, OptionError, Problem, listed, near, no_such
from ...order.keyed import LONGEST, whole
from ...schema import Tensor
from ...schema.columns import (
    I32,
    I64,
    U8,
    AnyArray,
    AnyDType,
    Columns,
    Flags,
    Ragged,
    as_bytes,
    dense_of,
    starts_of,
)
from ...storage.spans import Spans
from ..executor import Batch, Executor
from ..ordering import find_sizes
from ..plan import Output

STRATEGIES = ("best_fit", "first_fit", "concat_split", "none")
OVERLONG = ("split", "truncate", "drop")
LABELS = ("same", "shifted", None)
# The outputs of a batch besides its tokens.
OUTPUTS = (
    "labels", "loss_mask", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "pieces"
)  # fmt: skip


# Returns the number of tokens of documents, including the end token that they get (below 0: leave it out),
# and their spans, if these are known.
Sizes = Callable[[I64], tuple[AnyArray, Spans | None]]


@dataclasses.dataclass(frozen=True)
class Pack:
    """Pack documents into rows of ``length`` tokens: ``Loader("train.idx", 8, pack=Pack(8192, eos=0))``.

    field: the field of tokens. strategy: ``best_fit`` (the longest document first, each into the row that it
    fills best), ``first_fit``, ``concat_split`` (one after another, cut where a row ends), ``none`` (one
    document in each row). window: number of documents that are packed together. eos: a token to append to
    documents that do not end with it; 64 documents of a source decide for all of it where they
    agree. pad: the token that fills the rest of a row. overlong: ``split``, ``truncate`` or ``drop``
    documents that are longer than a row. multiple_of: pad each piece of a document to a multiple of so many
    tokens; that padding is part of its sequence. across: treat a row as one sequence; by default each
    document is a sequence of its own.

    A batch has the tokens under the name of the field and these ``outputs``; naming fewer saves time:
    ``labels``; ``loss_mask``; ``position_ids``; ``document_ids`` (-1 in the padding); ``cu_seqlens`` and
    ``max_seqlen``, the bounds of sequences in the batch as one long row, as flash-attention takes them; and
    ``pieces``, the (row, place, size, start, document) of each piece of a document. Other fields are given
    for each document. dtype: ``int64`` or ``int32``, of tokens and labels.

    labels: ``same`` (the tokens, as the models of Hugging Face take them), ``shifted`` (the next token of
    each) or None. ignore: the label of tokens that are not learned. prompt: a field with the number of tokens
    at the start of each document that are not learned.

    sizes: lengths of the documents where they are not known without reading: a field, a number for each
    sample, or a function of sample numbers. image_tokens: number of tokens that stand for a document's images
    before its text, given in the same ways, or one number for all. They are ``image_token_id`` and are not
    learned.

    Raises: OptionError for values that are none of these, and, in the Loader, for a field without tokens.
    """

    length: int
    field: str = "tokens"
    strategy: str = "best_fit"
    window: int = 4096
    eos: int | None = None
    pad: int = 0
    overlong: str = "split"
    across: bool = False
    labels: str | None = "same"
    ignore: int = -100
    prompt: str | None = None
    sizes: Any = None
    dtype: str = "int64"
    image_tokens: Any = None
    image_token_id: int = 0
    outputs: Sequence[str] = OUTPUTS
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("strategy", self.strategy, STRATEGIES),
            ("overlong", self.overlong, OVERLONG),
            ("labels", self.labels, LABELS),
            ("dtype", self.dtype, ("int32", "int64")),
        ):
            if value not in choices:
                raise OptionError(f"{name} is one of {', '.join(map(str, choices))}, not {value!r}")
        if not isinstance(self.outputs, list | tuple):
            raise OptionError(f"outputs is a list of names, as ['labels'], not {self.outputs!r}")
        for name in self.outputs:
            if name not in OUTPUTS:
                raise OptionError(no_such("output", name, OUTPUTS))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        token = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        numbers = {
            "length": (1, 2**24),
            "multiple_of": (1, 2**24),
            "window": (1, LONGEST),
            "pad": token,
            "ignore": token,
        }
        for name, bounds in {**numbers, "image_token_id": token, "eos": token}.items():
            value = getattr(self, name)
            if name != "eos" or value is not None:
                object.__setattr__(self, name, whole(name, value, *bounds))

        if self.length % self.multiple_of:
            raise OptionError(
                f"length is a multiple of multiple_of, and {self.length} is not of {self.multiple_of}"
            )
        if self.across and self.multiple_of > 1:
            raise OptionError(
                "with across, a row is one sequence: multiple_of is for documents by themselves"
            )

    def mark(self, eos: bool | str) -> list[Any]:
        """Return the options that decide which documents share a row; ``eos``: which ones get that token."""
        mark = [self.length, self.field, self.strategy, self.window, eos, self.overlong]
        mark += [] if self.multiple_of == 1 else [f"multiples of {self.multiple_of}"]
        return mark if self.image_tokens is None else [*mark, str(orders.mark(self.image_tokens))]


def pack_of(plan: mixplan.MixPlan) -> Pack | None:
    """Return the packing that a plan of a mixture describes."""
    if plan.pack is None:
        return None
    options = {field.name for field in dataclasses.fields(Pack)}
    for name in plan.pack:
        if name not in options:
            prefix = plan.file.line_prefix("pack", name)
            raise OptionError(
                f"{prefix}pack has no {name!r}{near(name, options)}; there are {listed(sorted(options))}",
                path=plan.path,
            )
    if "length" not in plan.pack:
        raise OptionError(f"{plan.file.line_prefix('pack')}pack needs a length", path=plan.path)
    try:
        return Pack(**plan.pack)
    except OptionError as error:
        raise OptionError(plan.file.line_prefix("pack") + error.message, path=plan.path) from None


# The token types that the engine takes.
TOKEN_DTYPES = ("uint8", "uint16", "int32", "uint32", "int64")

# Documents of a source whose last tokens stand for all of it.
PROBED_DOCUMENTS = 64


class DocumentCache:
    """Documents of one epoch that had to be made to learn their lengths, cached until rows are made of them.

    ``make`` returns a batch of documents, in which they are the output ``name``.
    """

    # Tokens that are cached, unless two windows have more.
    max_tokens: ClassVar[int] = 8 << 20

    def __init__(self, make: Callable[[I64], Batch], name: str) -> None:
        self._make, self._name = make, name
        self._lock = threading.Lock()
        self._windows: deque[dict[int, AnyArray]] = deque()
        self._tokens = 0
        self._skipped: list[Problem] = []
        self._reported: set[int | None] = set()

    def sizes(self, samples: I64) -> I64:
        """Return the lengths of documents; -1 for those that cannot be made and are to be left out."""
        batch = self._make(samples)
        values, offsets = ragged_tokens(batch.values[self._name], self._name)
        parts = np.split(values, offsets[1:-1]) if len(offsets) > 1 else []
        window = dict(zip(batch.ids.tolist(), parts, strict=True))
        with self._lock:
            self._skipped += [problem for problem in batch.skipped if problem.sample not in self._reported]
            self._reported |= {problem.sample for problem in batch.skipped}
            self._windows.append(window)
            self._tokens += len(values)
            while self._tokens > self.max_tokens and len(self._windows) > 2:
                self._tokens -= sum(map(len, self._windows.popleft().values()))
        documents = (window.get(sample) for sample in samples.tolist())
        return np.array([-1 if tokens is None else len(tokens) for tokens in documents], dtype=np.int64)

    def ends(self, samples: I64, token: int | None) -> Flags:
        """Return which of the documents that ``sizes`` was last called for end with a token."""
        with self._lock:
            window = self._windows[-1]
        documents = (window.get(sample) for sample in samples.tolist())
        ends = [tokens is not None and len(tokens) > 0 and tokens[-1] == token for tokens in documents]
        return np.array(ends, np.bool_)

    def take_skipped(self) -> list[Problem]:
        """Return the problems of documents that were left out; each is returned once."""
        with self._lock:
            skipped, self._skipped = self._skipped, []
        return skipped

    def _cached(self, samples: I64) -> list[AnyArray] | None:
        """Return these documents, if all of them are cached."""
        with self._lock:
            windows = list(self._windows)
        documents = []
        for sample in samples.tolist():
            window = next((window for window in reversed(windows) if sample in window), None)
            if window is None:
                return None
            documents.append(window[sample])
        return documents

    def has(self, samples: I64) -> bool:
        return self._cached(samples) is not None

    def tokens(self, samples: I64) -> tuple[AnyArray, I64]:
        """Return the tokens of documents; evicted ones are made again."""
        documents = self._cached(samples)
        if documents is None:
            return ragged_tokens(self._make(samples).values[self._name], self._name)
        sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
        return np.concatenate(documents) if documents else np.zeros(0, dtype=np.int64), starts_of(sizes)


def ragged_tokens(value: Any, field: str) -> tuple[AnyArray, I64]:
    """Return the tokens of documents, one after another, and the offsets of the documents."""
    if isinstance(value, tuple):
        tokens, offsets = value
    elif isinstance(value, np.ndarray) and value.ndim == 2:
        tokens, offsets = value.reshape(-1), np.arange(len(value) + 1, dtype=np.int64) * value.shape[1]
    else:
        parts = [np.asarray(part) for part in value]
        wrong = next((part for part in parts if part.ndim != 1), None)
        if wrong is not None:
            text = "text: put Tokenize before it"
            kind = text if wrong.dtype.kind == "U" else f"arrays of shape {wrong.shape}"
            raise OptionError(f"documents are rows of tokens, not {kind}", field=field)
        offsets = starts_of(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
        tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise OptionError(f"tokens are rows of whole numbers, not {tokens.dtype}", field=field)
    return tokens, offsets


class Tokens:
    """Documents in memory: document i is ``size[i]`` bytes at ``begin[i]`` of ``bases[base[i]]``."""

    def __init__(self, bases: list[U8], base: I32, begin: I64, size: I64, dtype: str) -> None:
        self.bases, self.base, self.begin, self.size, self.dtype = bases, base, begin, size, dtype

    @classmethod
    def of(cls, value: Any, field: str) -> Tokens:
        """Return documents that are an output of a batch."""
        tokens, offsets = native_tokens(value, field)
        starts = offsets * tokens.itemsize
        base = np.zeros(len(offsets) - 1, dtype=np.int32)
        return cls([as_bytes(tokens)], base, starts[:-1], np.diff(starts), tokens.dtype.name)

    def without_end(self, token: int, chosen: Flags) -> Tokens:
        """Return the documents, the chosen ones without their last token if it is this one."""
        dtype, size = np.dtype(self.dtype), self.size.copy()
        for number, data in enumerate(self.bases):
            rows = np.flatnonzero(chosen & (self.base == number) & (size >= dtype.itemsize))
            last = (self.begin + size)[rows, None] - dtype.itemsize + np.arange(dtype.itemsize)
            size[rows[data[last].view(dtype)[:, 0] == token]] -= dtype.itemsize
        return Tokens(self.bases, self.base, self.begin, size, self.dtype)


def native_tokens(value: Any, field: str) -> tuple[AnyArray, I64]:
    """Return the tokens and offsets of documents in types that the engine takes."""
    tokens, offsets = ragged_tokens(value, field)
    tokens = np.ascontiguousarray(tokens)
    if tokens.dtype.name not in TOKEN_DTYPES:
        tokens = tokens.astype(np.int64)
    return tokens, np.ascontiguousarray(offsets, dtype=np.int64)


def with_image_tokens(images: I64, image_token: int, tokens: AnyArray, offsets: I64) -> tuple[AnyArray, I64]:
    """Return the tokens of documents, each after the placeholder tokens of its images."""
    lengths = np.diff(offsets)
    starts = starts_of(lengths + images)
    dtype = np.result_type(tokens.dtype, np.min_scalar_type(image_token))
    if dtype.name not in TOKEN_DTYPES:
        dtype = np.dtype(np.int64)
    filled = np.full(int(starts[-1]), image_token, dtype=dtype)
    texts = np.ascontiguousarray(tokens, dtype=dtype)
    width = dtype.itemsize
    text_starts = (starts[:-1] + images) * width
    _native.copy_runs(as_bytes(texts), offsets[:-1] * width, lengths * width, as_bytes(filled), text_starts)
    return filled, starts


# -- lengths -------------------------------------------------------------------------------------------------


def image_sizes(pack: Pack, reader: Reader) -> Callable[[I64], I64] | None:
    """Return a function that gives the number of image tokens of documents; None where there are none."""
    image_tokens = pack.image_tokens
    if image_tokens is None:
        return None
    if isinstance(image_tokens, int):
        return lambda samples: np.full(len(samples), image_tokens, dtype=np.int64)
    sizes = find_sizes(reader, (), image_tokens)
    return lambda samples: np.asarray(sizes(samples)).astype(np.int64)


def token_sizes(pack: Pack, reader: Reader, output: Output) -> Sizes | None:
    """Return a function that gives lengths and spans of documents; None if they must be made for that."""
    if pack.sizes is not None:
        sizes = find_sizes(reader, [output.field], pack.sizes)
        return lambda samples: (sizes(samples), None)
    field = reader.schema[output.field]
    if output.steps or not isinstance(field, Tensor):
        return None
    if len(field.shape) != 1:
        raise OptionError(f"documents are rows of tokens, and {output.field} is {field}", field=output.field)
    if dense_of(field) is not None:
        return lambda samples: (np.full(len(samples), field.shape[0]), None)
    width = np.dtype(field.dtype).itemsize
    return lambda samples: _stored_sizes(reader, output.field, samples, width)


def _stored_sizes(reader: Reader, field: str, samples: I64, width: int) -> tuple[I64, Spans | None]:
    """Return the lengths of documents, and their spans if tokens lie in files as they are."""
    try:
        spans = reader.spans(field, samples)
    except DataError:
        spans = None
    if spans is None or (spans.size < 0).any() or spans.shape is not None:
        return sizes_of(reader, [field], samples) // width, None
    return spans.size // width, spans


# -- ends ----------------------------------------------------------------------------------------------------


class Endings:
    """Tells which documents of a reader end with a token.

    Some documents of each source, evenly spread, stand for all of it: either all of them end with the token
    or none does. Only where some do and some do not is every document looked at.
    """

    def __init__(self, reader: Reader, last_tokens: Callable[[I64], list[int | None]], token: int) -> None:
        self.last_tokens, self._token = last_tokens, token
        self._mix = reader if isinstance(reader, Mix) else None
        self._sizes = np.array([len(reader)]) if self._mix is None else self._mix.sizes_of_sources

    @functools.cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """The share of documents that end with the token, by source."""
        shares, first = [], 0
        for size in self._sizes.tolist():
            probed = first + np.linspace(0, size - 1, min(size, PROBED_DOCUMENTS)).astype(np.int64)
            ends = [token == self._token for token in self.last_tokens(probed) if token is not None]
            shares.append(float(np.mean(ends)) if ends else 0.0)
            first += size
        return np.array(shares)

    @property
    def all(self) -> bool:
        return bool((self.shares == 1).all())

    @property
    def none(self) -> bool:
        return not self.shares.any()

    def shares_at(self, samples: I64) -> npt.NDArray[np.float64]:
        """Return the share of the source of each sample."""
        if self._mix is None:
            return np.broadcast_to(self.shares[0], len(samples))
        return self.shares[self._mix.origin(samples)[0]]

    def __call__(self, samples: I64) -> Flags:
        shares = self.shares_at(samples)
        ends: Flags = shares == 1
        mixed = np.flatnonzero((shares > 0) & ~ends)
        ends[mixed] = [token == self._token for token in self.last_tokens(samples[mixed])]
        return ends


def stored_ends(reader: Reader, field: str, token: int) -> Endings:
    """Return the endings of documents as they are stored."""
    return Endings(reader, functools.partial(_last_stored, reader, field), token)


def _last_stored(reader: Reader, field: str, samples: I64) -> list[int | None]:
    """Return the last tokens of documents; None for those that are empty, missing or damaged."""
    try:
        columns = reader.read(samples, [field])
    except DataError:
        if len(samples) == 1:
            return [None]
        return [token for sample in samples for token in _last_stored(reader, field, np.array([sample]))]
    kind, column = reader.schema[field], columns[field]
    assert isinstance(kind, Tensor)
    if isinstance(column, np.ndarray):
        return list(column[:, -1].tolist()) if column.shape[1] else [None] * len(column)
    if isinstance(column, Ragged) and not kind.optional:
        return _last_of(column, np.dtype(kind.dtype))
    return [_last_decoded(reader, field, columns, row) for row in range(len(samples))]


def _last_of(column: Ragged, dtype: AnyDType) -> list[int | None]:
    ends = column.starts + column.sizes
    filled = np.flatnonzero(column.sizes >= dtype.itemsize)
    cells = column.data[ends[filled, None] - dtype.itemsize + np.arange(dtype.itemsize)]
    tokens: list[int | None] = [None] * len(column)
    for row, token in zip(filled.tolist(), cells.view(dtype)[:, 0].tolist(), strict=True):
        tokens[row] = token
    return tokens


def _last_decoded(reader: Reader, field: str, columns: Columns, row: int) -> int | None:
    try:
        tokens = decode_cell(reader.schema[field], columns[field], row)
    except DataError:
        return None
    return int(tokens[-1]) if tokens is not None and len(tokens) else None


def last_tokens(executor: Executor, name: str, samples: I64) -> list[int | None]:
    """Return the last tokens of documents that ops make; None for empty and damaged ones."""
    batch = executor.run(samples, epoch=0)
    tokens, offsets = ragged_tokens(batch.values[name], name)
    last = [None if end == begin else int(tokens[end - 1]) for begin, end in itertools.pairwise(offsets)]
    by_sample = dict(zip(batch.ids.tolist(), last, strict=True))
    return [by_sample.get(sample) for sample in samples.tolist()]
