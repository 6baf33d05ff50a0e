"""Reading MDS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...codecs.npy import check_bytes
from ...errors import BatchplantError, DamagedError, NotFoundError, Problem, located
from ...schema import Field, Schema, Text
from ...schema.columns import I64, U8, Ragged
from ...storage import Source, is_remote, join, limits, open_source, tree
from ...storage.files import stat_files
from ..base.records import GivenSchema
from ..base.shards.reader import Inner, Opened, Shards, ShardsReader, table_of
from . import cells, layout
from .cells import DIGITS, IMAGE_ENCODINGS, holds
from .layout import Shard, digest, unpack

# -- shards -------------------------------------------------------------------------------------------
# The files of shards: which one to read, and whether it is what the index says.


def open_file(folder: str, shard: Shard) -> Source:
    """The file of a shard, which has the size that the index says."""
    path, packed = file_of(folder, shard)
    try:
        source = open_source(path)
    except NotFoundError:
        raise DamagedError("the index lists it, but it is not there", path=path) from None
    expected = shard.raw if packed is None else shard.packed
    if expected is None or source.size != expected.size:
        size = 0 if expected is None else expected.size
        raise DamagedError(f"it has {source.size} bytes, and the index says {size}", path=path)
    return source


def load(folder: str, shard: Shard, source: Source) -> Opened:
    """A shard of this file, unpacked where it is packed."""
    path, packed = file_of(folder, shard)
    if packed is not None:
        source = unpack(source, packed, shard.raw.size)
    with located(path=path):
        return Opened(source, table_of(source, shard.samples, path))


def check_sizes(folder: str, every: Sequence[Shard]) -> None:
    """DamagedError where a file has not the bytes that the index says."""
    sizes = [-1] * len(every)
    if not is_remote(folder):
        sizes = stat_files(folder, [entry.raw.name for entry in every])[0].tolist()
    for shard, at_least in zip(every, sizes, strict=True):
        if shard.raw.size <= at_least and shard.packed is None:
            continue
        path, packed = file_of(folder, shard)
        size = tree.size_below(path)
        if shard.raw.size > (size if packed is None else limits.allowed(size)):
            raise DamagedError(f"the index says {shard.raw.size} bytes, and it has {size}", path=path)


def file_of(folder: str, shard: Shard) -> tuple[str, str | None]:
    """The file to read, and how it is packed; Streaming may have unpacked it already."""
    raw = join(folder, shard.raw.name)
    if shard.packed is None or (not is_remote(raw) and tree.is_file(raw)):
        return raw, None
    return join(folder, shard.packed.name), shard.compression


# -- reader -------------------------------------------------------------------------------------------


class MdsReader(ShardsReader):
    """Reads folders of MDS.

    ``schema``: what columns hold, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``.
    """

    def __init__(self, path: str, *, schema: GivenSchema | str | None = None) -> None:
        self.path = path
        self.index = layout.read(path)
        self.columns = self.index.columns
        self._encodings = dict(self.columns)
        self.width = len(self.columns)
        every = self.index.shards
        self.shards = Shards(
            [shard.samples for shard in every],
            [(name, column.size) for name, column in self.columns],
            lambda number: open_file(path, every[number]),
            lambda number, source: load(path, every[number], source),
            lambda number: every[number].packed is not None,
            remote=is_remote(path),
        )
        self.length = int(self.shards.firsts[-1])
        # An order takes 8 bytes a sample: a forged index must not claim more samples than its files hold.
        if 8 * self.length > limits.allowed():
            check_sizes(path, every)
        note = self.index.note
        self.missing = None if note is None or not every else note.missing
        self._set_schema(self._inferred_schema() if note is None else note.schema, schema)

    def _inferred_schema(self) -> Schema:
        ambiguous = ("pil", "str_int", *IMAGE_ENCODINGS)
        vague = [name for name, column in self.columns if column.varies or column.text in ambiguous]
        return Schema(layout.fields_of(self.index, self._first_cells(vague)))

    # -- reading ---------------------------------------------------------------------------------------

    def _holds(self, name: str, field: Field) -> str | None:
        return None if holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return self._encodings[name].varies or self._encodings[name].text == "pil"

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        encoding, field = self._encodings[name], self.schema[name]
        if data is not None:
            return cells.inner(encoding, field, data, starts, sizes)
        if encoding.text in DIGITS and not isinstance(field, Text):
            return None
        if encoding.size is None:
            check_bytes(field, starts, sizes)
        return Inner(starts, sizes)

    def _make(self, name: str, cells_: Ragged) -> Ragged:
        return cells.decoded(self._encodings[name], self.schema[name], cells_)

    def _file_of(self, number: int) -> str:
        return file_of(self.path, self.index.shards[number])[0]

    def _shard_bytes(self) -> list[int]:
        return [(shard.packed or shard.raw).size for shard in self.index.shards]

    # -- checking --------------------------------------------------------------------------------------

    def own_checks(self) -> tuple[str, ...]:
        names = {name for shard in self.index.shards for name in shard.raw.hashes}
        return tuple(f"{name} of every shard" for name in sorted(names) if digest(name, b"") is not None)

    def _verify(self) -> Iterator[Problem]:
        for number, shard in enumerate(self.index.shards):
            try:
                yield from self._verify_shard(number, shard)
            except BatchplantError as error:
                yield Problem.of(error)

    def _verify_shard(self, number: int, shard: Shard) -> Iterator[Problem]:
        opened = self.shards.open(number)
        path, packed = file_of(self.path, shard)
        table, size = opened.table.astype(np.int64), opened.source.size
        if (np.diff(table) < 0).any() or table[-1] != size or table[0] < 4 * len(table) + 4:
            yield Problem(f"its offsets do not rise from the first sample to its end, {size}", path, offset=4)
        files = [(shard.raw, opened.source)]
        if packed is not None and shard.packed is not None:
            files.append((shard.packed, open_source(path)))
        for file, source in files:
            for name, want in file.hashes.items():
                have = digest(name, source.view(0, source.size))
                if have not in (None, want):
                    yield Problem(f"the {name} of {file.name} is {have}, and the index says {want}", path)

    def facts(self) -> dict[str, object]:
        every = self.index.shards
        packed = ", ".join(sorted({shard.compression for shard in every if shard.compression}))
        hashes = ", ".join(sorted({name for shard in every for name in shard.raw.hashes}))
        facts = {"shards": len(every), "compression": packed, "hashes": hashes}
        return {name: value for name, value in facts.items() if value != ""}
