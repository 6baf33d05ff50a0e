"""One Arrow file: its schema, and where its record batches are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....codecs.arrow import pyarrow
from ....codecs.arrow.hugging_face import is_missing, with_files
from ....codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ....codecs.arrow.types import is_file_struct
from ....errors import BatchplantError, DamagedError, SchemaError
from ....schema.columns import I64, as_bytes
from ....storage import MappedSource, Source, limits, open_source
from .layout import (
    BATCH,
    DICTIONARY,
    FEATHER_1,
    MAGIC,
    SCHEMA,
    Batch,
    Message,
    Needs,
    has_dictionary,
    read_batch,
    read_footer,
    read_message,
    tree_size,
)

if TYPE_CHECKING:
    import pyarrow as pa

# What mostly holds the metadata of a message.
MESSAGE_HEAD = 4096
# Packed buffers begin with their unpacked size; -1: this one is not packed after all.
PREFIX, AS_IT_IS = 8, -1


class Part:
    """One file: its schema, and where its record batches are."""

    def __init__(self, file: str | Source) -> None:
        self.source: Source = file if isinstance(file, Source) else open_source(file)
        self.path = path = self.source.path
        self.ended = True
        self._dictionaries: list[Message] = []
        self.batches: list[Batch] = []
        try:
            self._open()
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            message = str(error).strip().split("\n")[0]
            raise DamagedError(f"it cannot be read: {message}", path=path) from None

    def _open(self) -> None:
        head = self.source.view(0, min(8, self.source.size)).tobytes()
        if head.startswith(FEATHER_1):
            raise SchemaError(
                "this is Feather's first version, which is not read; write it again with "
                "pandas.read_feather(…).to_feather(…)"
            )
        self.file = head.startswith(MAGIC)
        messages = self._listed() if self.file else self._walked()
        self.schema = pyarrow().ipc.read_schema(pyarrow().py_buffer(self._first))
        check_names(self.schema)
        for message in messages:
            if message.kind == BATCH:
                self.batches.append(read_batch(message))
            elif message.kind == DICTIONARY:
                self._dictionaries.append(message)
            else:
                raise DamagedError(f"a message of kind {message.kind}", offset=message.offset)
        self.rows = [batch.rows for batch in self.batches]
        check_rows(self.source, self.schema, self.batches)
        check_dictionaries(self.source, [read_batch(dictionary) for dictionary in self._dictionaries])
        self._has_dictionaries = any(has_dictionary(field.type) for field in self.schema)

    def _listed(self) -> list[Message]:
        self._first, dictionaries, batches = read_footer(self.source)
        offsets = np.array([*dictionaries, *batches], dtype=np.int64)
        if not isinstance(self.source, MappedSource) and self.source.outside(offsets, offsets * 0) is None:
            self.source.request(offsets, np.minimum(MESSAGE_HEAD, self.source.size - offsets))
        messages = [read_message(self.source, offset) for offset in (*dictionaries, *batches)]
        kinds = [None if message is None else message.kind for message in messages]
        if kinds != [DICTIONARY] * len(dictionaries) + [BATCH] * len(batches):
            raise DamagedError("the footer points at something else than record batches")
        return [message for message in messages if message is not None]

    def _walked(self) -> Iterator[Message]:
        first = read_message(self.source, 0)
        if first is None or first.kind != SCHEMA:
            raise DamagedError("it does not begin with a schema")
        self._first = self.source.view(0, first.end).tobytes()
        return self._behind(first.end)

    def _behind(self, offset: int) -> Iterator[Message]:
        while True:
            message = read_message(self.source, offset)
            if message is None:
                self.ended = offset + 4 <= self.source.size
                return
            yield message
            offset = message.end

    def _buffer(self, start: int, end: int) -> pa.Buffer:
        return pyarrow().py_buffer(self.source.view(start, end - start))

    def load(self, number: int, names: Sequence[str]) -> pa.Table:
        """These columns of a record batch."""
        pa = pyarrow()
        batch = self.batches[number]
        message = batch.message
        if not batch.packed and not self._has_dictionaries:
            parsed = pa.ipc.read_message(self._buffer(message.offset, message.end))
            return pa.ipc.read_record_batch(parsed, self.schema).select(names)
        numbers = [self.schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=numbers)
        if self.file and isinstance(self.source, MappedSource):
            data = pa.BufferReader(self._buffer(0, self.source.size))
            return pa.ipc.open_file(data, options=options).get_batch(number).select(names)
        before = [batch for batch in self._dictionaries if self.file or batch.offset < message.offset]
        pieces = [self.source.view(batch.offset, batch.end - batch.offset) for batch in (*before, message)]
        data = pa.py_buffer(np.concatenate([as_bytes(self._first), *pieces]))
        stream = pa.ipc.open_stream(pa.BufferReader(data), options=options)
        return stream.read_next_batch().select(names)

    def first_rows(self, names: Sequence[str]) -> pa.Table:
        """A few rows; None where there are none, or they cannot be read."""
        try:
            table = self.load(0, names).slice(0, 16) if self.rows and names else None
            return None if table is None else with_files(table, self.path)
        except Exception:
            return None

    def starts(self) -> dict[str, tuple[int, int | None]]:
        """The numbers of the first node and buffer of every column; None where batches differ in that."""
        starts: dict[str, tuple[int, int | None]] = {}
        node, buffer = 0, 0
        all_known = True
        for field in self.schema:
            starts[field.name] = (node, buffer if all_known else None)
            nodes, buffers = tree_size(field.type)
            node, buffer = node + nodes, buffer + (buffers or 0)
            all_known = all_known and buffers is not None
        return starts

    @property
    def _null_in_dictionary(self) -> bool:
        """True if some value that others refer to is missing."""
        return any(bool(read_batch(message).nulls.any()) for message in self._dictionaries)

    def nulls(self) -> set[str]:
        """The columns with missing values."""
        names = set()
        for field in self.schema:
            nodes = [self.starts()[field.name][0]]
            if is_file_struct(field.type):
                # An image is missing where its bytes are; both parts of the struct are one node.
                nodes.append(nodes[0] + 1 + [part.name for part in field.type].index("bytes"))
            packed = pyarrow().types.is_dictionary(field.type) and self._null_in_dictionary
            batches = [
                n for n, b in enumerate(self.batches) if max(nodes) >= len(b.nulls) or b.nulls[nodes].any()
            ]
            if packed or (
                batches and not (is_file_struct(field.type) and self._has_paths(field.name, batches))
            ):
                names.add(field.name)
        return names

    def _has_paths(self, name: str, batches: Sequence[int]) -> bool:
        """True if files that lack their bytes have a path in all of these batches."""
        try:
            return not any(is_missing(self.load(number, [name]).column(name)) for number in batches)
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return False

    def gaps(self) -> set[str]:
        """The lists of whole numbers inside of which some are missing."""
        names = set()
        for field in self.schema:
            first = self.starts()[field.name][0]
            inside = slice(first + 1, first + tree_size(field.type)[0])
            if not is_whole_list(field.type):
                continue
            for number in range(len(self.rows)):
                # Those of a list that is missing as a whole are counted, too.
                if self.batches[number].nulls[inside].any():
                    # Whoever reads it will meet the same damage, and say where.
                    with contextlib.suppress(Exception):
                        if has_gaps(self.load(number, [field.name]).column(field.name)):
                            names.add(field.name)
                            break
        return names

    def close(self) -> None:
        self.source.close()


def check_rows(source: Source, schema: pa.Schema, batches: list[Batch]) -> None:
    """DamagedError where the batches claim more than they have."""
    rows = sum(batch.rows for batch in batches)
    # Whatever a row is made of, it takes a byte.
    limits.check(f"a table of {rows:,} rows", rows, source.size)
    needs: Needs | None = None
    for batch in batches:
        if needs is None or len(batch.views):
            needs = Needs((field.type for field in schema), batch.views.tolist())
        try:
            _check(source, batch, needs)
        except (ValueError, IndexError, OverflowError) as error:
            raise DamagedError(
                f"its record batch of {batch.rows} rows is damaged: {error}", offset=batch.message.offset
            ) from None


def check_dictionaries(source: Source, dictionaries: list[Batch]) -> None:
    """The same for the values that dictionaries hold, whose types are not known here."""
    for dictionary in dictionaries:
        limits.check(f"a dictionary of {dictionary.rows:,} values", dictionary.rows, dictionary.message.size)
        try:
            _unpacked(source, dictionary)
        except ValueError as error:
            raise DamagedError(
                f"a dictionary is damaged: {error}", offset=dictionary.message.offset
            ) from None


def _check(source: Source, batch: Batch, needs: Needs) -> None:
    lengths, sizes = batch.lengths, _unpacked(source, batch)
    if needs.nodes != len(lengths) or len(needs.buffers) > len(sizes):
        raise ValueError(f"{len(lengths)} columns and {len(sizes)} buffers do not fit its schema")
    if (lengths[needs.columns] != batch.rows).any() or (lengths < 0).any():
        raise ValueError("its columns differ in length")
    # Python's numbers: sizes that are lies may be of any size.
    if any(lengths[inner] < int(lengths[outer]) * factor for outer, inner, factor in needs.inside.tolist()):
        raise ValueError("a column is longer than what it is made of")
    nodes, bits, extra = needs.buffers.T
    if len(lengths) and int(lengths.max()) > 2**56 // max(1, int(bits.max(initial=0))):
        raise ValueError(f"a column of {lengths.max()} values")
    of = lengths[nodes]
    needed = np.where(of > 0, ((of + extra) * bits + 7) // 8, 0)
    short = np.flatnonzero(needed > sizes[: len(needed)])
    if len(short):
        raise ValueError(f"a column needs {needed[short[0]]} bytes, and {sizes[short[0]]} are there")


def _unpacked(source: Source, batch: Batch) -> I64:
    """The bytes of each buffer, unpacked; more than is allowed is a DamagedError."""
    sizes: I64 = batch.buffers["size"].astype(np.int64)
    if not batch.packed:
        return sizes
    prefixed = np.flatnonzero(sizes >= PREFIX)
    starts = batch.message.body + batch.buffers["offset"][prefixed].astype(np.int64)
    stated = (
        source.gather(starts, np.full(len(prefixed), PREFIX, dtype=np.int64))
        .data.view("<i8")
        .astype(np.int64)
    )
    unpacked = np.zeros(len(sizes), dtype=np.int64)
    unpacked[prefixed] = np.where(stated == AS_IT_IS, sizes[prefixed] - PREFIX, stated)
    if (unpacked < 0).any():
        raise ValueError(f"a buffer of {unpacked.min()} bytes")
    for number in np.flatnonzero(unpacked > limits.max_bytes()).tolist():
        limits.check("a buffer", int(unpacked[number]), int(sizes[number]))
    return unpacked
