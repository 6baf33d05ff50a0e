"""WebDataset: tar archives in which neighbouring members are the fields of one sample.

``sub/07.jpg`` and ``sub/07.cls`` are the fields ``jpg`` and ``cls`` of the sample with the key ``sub/07``.

- The key is the path up to the first dot of its last part, the extension all after it, in small letters.
- Members that follow each other and have one key are a sample. The same extension twice in one is an error.
- Passed over: folders and links, names without an extension, dot files at the top, names like ``__x__``.

Every member is a run of bytes behind a header, so the archive is scanned once, and every sample is found at
once from then on. Numbers are decimal text, arrays are NPY files, images and sound are as they are. A field
that a sample does not have is missing. Names are data: nothing is ever unpacked to a path.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.media import image
from ...data.keys import FormatKeys
from ...data.layout import Layout
from ...data.reader import Reader
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, DamagedError, EncodeError, Problem, SchemaError, on_error
from ...schema import EVERY_KIND, Bool, Field, Float, Int, Schema, Tensor, Text, field_from_json
from ...schema.columns import I64, Column, Columns, Ragged, as_bytes, starts_of
from ...storage import Patch, RemoteSource, Source, index, open_source
from ...storage.compressed import CHECKED, GzipSource, check_gzip, open_gzip
from ...storage.index import Report
from ...storage.spans import Spans
from ..base.format import Capabilities, Format, Probe, archives_within
from ..base.records import given_schema
from . import members
from .members import BLOCK, KEY, NOTHING, Note, extensions_of

# -- reader -------------------------------------------------------------------------------------------

BLOCK_BYTES = 8 << 20
GZIP = b"\x1f\x8b"


class Table(NamedTuple):
    """Locations of a field's members. ``rows``: the samples that have one; None: all."""

    rows: I64 | None
    starts: I64
    sizes: I64


class WebDatasetReader(Reader):
    """Reads .tar and .tar.gz files.

    ``schema``: the fields by name, in place of those found; a name is an extension, or ``__key__``.
    ``index``: what becomes of the side-car index (auto, write, memory, rebuild).
    """

    def __init__(
        self,
        path: str,
        *,
        schema: Schema | Mapping[str, Field | str] | str | None = None,
        index: str = "auto",
    ) -> None:
        self.path = path
        self._file = self._source = open_source(path)
        with on_error(self.close, path=path):
            self.packed = self._file.view(0, min(2, self._file.size)).tobytes() == GZIP
            self._open(index)
            self._set_schema(None if schema is None else given_schema(schema))

    def _open(self, mode: str) -> None:
        check = functools.partial(_makes_sense, packed=self.packed)
        loaded = index.load(self._file, "webdataset", self._scan, mode=mode, check=check)
        self._arrays, self._facts = loaded.arrays, loaded.facts
        if self.packed and self._source is self._file:
            self._source = open_gzip(self._file, size=self._facts["size"], points=self._arrays["points"])
        self.length = len(self._arrays["firsts"])
        self._numbers = {name: number for number, name in enumerate(self._facts["extensions"])}
        self._tables: dict[str, Table] = {}

    def _scan(self, file: Source, report: Report) -> tuple[members.Arrays, members.Facts]:
        if not self.packed:
            return members.scan(file, report)
        self._source = open_gzip(file)
        part = file.size / max(self._source.size, 1)
        arrays, facts = members.scan(self._source, lambda done: report(int(done * part)))
        points = self._source.points() if isinstance(self._source, GzipSource) else np.empty(0, np.uint8)
        return {**arrays, "points": points}, {**facts, "size": self._source.size}

    def _set_schema(self, schema: Schema | None) -> None:
        self.note = note = None if self._facts["note"] is None else Note.from_json(self._facts["note"])
        self._extensions = {} if note is None else note.extensions
        self._key = KEY if note is None or note.key is None else note.key
        self.schema = (
            schema if schema is not None else self._inferred_schema() if note is None else note.schema
        )
        if not self.schema:
            raise SchemaError("the schema has no field")

    # -- for appending ---------------------------------------------------------------------------------

    @property
    def key_field(self) -> str | None:
        """The field that the members' keys are; None where they only count."""
        return KEY if self.note is None else self.note.key

    def last_key(self) -> str:
        ends = self._arrays["key_offsets"][-2:].tolist()
        return self._arrays["keys"][slice(*ends)].tobytes().decode(errors="replace") if len(ends) > 1 else ""

    def starts_with(self, data: bytes) -> bool:
        return self._file.view(0, min(len(data), self._file.size)).tobytes() == data

    def end_of_members(self) -> int:
        """Return the end of the last member, even if it belongs to no sample."""
        offset = int(np.max(self._arrays["starts"] + self._arrays["sizes"], initial=0))
        offset = -(-offset // BLOCK) * BLOCK
        while offset + BLOCK <= self._file.size:
            header = self._file.view(offset, BLOCK).tobytes()
            if not any(header):
                break
            try:
                member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise DamagedError(f"here is no member: {error}", path=self.path, offset=offset) from None
            # Links and folders have no bytes, whatever the header says.
            supported = member.type in tarfile.SUPPORTED_TYPES and member.type not in tarfile.REGULAR_TYPES
            empty = supported and member.type not in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
            offset += BLOCK if empty else BLOCK + -(-member.size // BLOCK) * BLOCK
        return offset

    def _inferred_schema(self) -> Schema:
        """The key, then the extensions in order of name, so that all shards have the same order."""
        fields = {KEY: field_from_json(self._facts["key"])}
        for name in sorted(self._numbers):
            field = field_from_json(self._facts["kinds"][name])
            complete = len(self._members_of(name)[1]) == self.length
            fields[name] = field if complete else dataclasses.replace(field, optional=True)
        return Schema(fields)

    def with_schema(self, schema: Schema) -> Reader | None:
        """The same samples with other fields; None for an archive that says which it has."""
        if self._facts["note"] is not None:
            return None
        # Pickling would open the file again, and so would copying.
        reader = type(self).__new__(type(self))
        reader.__dict__.update(self.__dict__)
        args, options = self._init_args
        reader._init_args = (args, {**options, "schema": schema})
        reader._tables = {}
        reader.schema = schema
        return reader

    def _members_of(self, extension: str) -> Table:
        number = self._numbers.get(extension)
        if number is None:
            none = np.empty(0, dtype=np.int64)
            return Table(none, none, none)
        bounds = slice(*self._arrays["extension_offsets"][number : number + 2])
        return Table(*(self._arrays[name][bounds] for name in ("rows", "starts", "sizes")))

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            present = [
                extension for extension in self._extensions.get(name, [name]) if extension in self._numbers
            ]
            table = (
                self._members_of(present[0] if len(present) == 1 else "")
                if len(present) < 2
                else self._merged(present)
            )
            assert table.rows is not None
            complete = len(table.rows) == self.length
            self._tables[name] = table._replace(rows=None) if complete else table
        return self._tables[name]

    def _merged(self, extensions: list[str]) -> Table:
        """The members of a field whose cells have several extensions, in order of sample."""
        parts = [self._members_of(extension) for extension in extensions]
        rows, starts, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        rows, starts, sizes = rows[order], starts[order], sizes[order]
        twice = np.flatnonzero(np.diff(rows) == 0)
        if len(twice):
            row = int(twice[0])
            raise DamagedError(
                "two members of the sample belong to the same field",
                sample=int(rows[row]),
                offset=int(starts[row + 1]) - BLOCK,
            )
        return Table(rows, starts, sizes)

    def _runs(self, name: str, indices: I64) -> tuple[I64, I64]:
        """Locate the members of a field, bounds checked; a missing one has size -1."""
        rows, starts, sizes = self._table(name)
        if rows is None:
            starts, sizes = starts[indices], sizes[indices]
        elif len(rows):
            position = np.minimum(np.searchsorted(rows, indices), len(rows) - 1)
            present = rows[position] == indices
            starts, sizes = np.where(present, starts[position], 0), np.where(present, sizes[position], -1)
        else:
            starts, sizes = np.zeros(len(indices), np.int64), np.full(len(indices), -1, np.int64)
        missing = sizes < 0
        if missing.any() and not self.schema[name].optional:
            sample = int(indices[np.argmax(missing)])
            raise DamagedError(
                "the sample has no such member, and the field is not optional", path=self.path,
                sample=sample, field=name, offset=int(self._arrays["firsts"][sample]),
            )  # fmt: skip
        bad = self._source.outside(starts, np.maximum(sizes, 0))
        if bad is not None:
            raise DamagedError(
                f"{sizes[bad]} bytes are needed here, but the file ends at {self._source.size}",
                path=self.path, sample=int(indices[bad]), field=name, offset=int(starts[bad]),
            )  # fmt: skip
        return starts, sizes

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        runs = {name: self._runs(name, indices) for name in fields if name != self._key}
        together: dict[str, Ragged] = {}
        if isinstance(self._source, RemoteSource) and len(runs) > 1:
            # The members of a sample are neighbours: one request for all of them.
            starts, sizes = (np.concatenate(columns) for columns in zip(*runs.values(), strict=True))
            cells = self._source.gather(starts, np.maximum(sizes, 0))
            for number, name in enumerate(runs):
                offsets = cells.offsets[number * len(indices) : (number + 1) * len(indices) + 1]
                together[name] = Ragged(cells.data[offsets[0] : offsets[-1]], offsets - offsets[0])
        return Columns(
            (name, self._column(name, indices, runs.get(name), together.get(name))) for name in fields
        )

    def _column(self, name: str, indices: I64, runs: tuple[I64, I64] | None, cells: Ragged | None) -> Column:
        if runs is None:
            return Ragged(self._arrays["keys"], self._arrays["key_offsets"]).take(indices)
        starts, sizes = runs
        if cells is None:
            cells = self._source.gather(starts, np.maximum(sizes, 0))
        if (sizes < 0).any():
            cells.valid = sizes >= 0
        try:
            return members.unpacked(self.schema[name], cells)
        except BatchplantError as error:
            if error.sample is not None:
                row, error.sample = error.sample, int(indices[error.sample])
                error.at(offset=int(starts[row]))
            raise error.at(path=self.path, field=name) from None

    def _keys(self) -> FormatKeys:
        keys = Ragged(self._arrays["keys"], self._arrays["key_offsets"])
        return FormatKeys(field_from_json(self._facts["key"]), keys.take)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        packed = isinstance(self.schema[field], Int | Float | Bool | Tensor)
        if packed or field == self._key or self.packed:
            return None
        starts, sizes = self._runs(field, indices)
        return Spans([self._file], starts, sizes)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if self.packed:
            return None
        runs = [self._runs(name, indices) for name in fields if name != self._key]
        empty = np.empty(0, dtype=np.int64)
        starts, sizes = (np.concatenate([empty, *(run[n] for run in runs)]) for n in (0, 1))
        return Spans([self._file], starts, sizes)

    def _layout(self) -> Layout:
        return Layout(blocks=lambda: self._arrays["firsts"] // BLOCK_BYTES)

    def facts(self) -> dict[str, object]:
        return {
            "extensions": len(self._numbers),
            "skipped members": self._facts["skipped"],
            "compressed": self.packed,
        }

    def own_checks(self) -> tuple[str, ...]:
        return ("checksum of every tar header", *([CHECKED] if self.packed else []))

    def _verify(self) -> Iterator[Problem]:
        """The headers' checksums, which an index of earlier has not seen since."""
        if self.packed:
            check_gzip(self.path)
        members.verify(self._source, self._arrays)
        return iter(())

    def close(self) -> None:
        self._source.close()
        self._file.close()


def _makes_sense(loaded: index.Index, packed: bool) -> bool:
    """True if the parts of an index fit together, so that no row leads outside of them."""
    arrays, facts = loaded.arrays, loaded.facts
    keys, members_ = arrays["key_offsets"], arrays["extension_offsets"]
    for kind in (facts["key"], *facts["kinds"].values()):
        field_from_json(kind)
    if not all(isinstance(name, str) for name in facts["extensions"]):
        return False
    if facts["note"] is not None:
        Note.from_json(facts["note"])
    # Only undeclared fields had to be inferred.
    elif not set(facts["extensions"]) <= set(facts["kinds"]):
        return False
    return (
        all(arrays[name].ndim == 1 and arrays[name].dtype == np.int64 for name in members.ARRAYS[1:])
        and len(keys) == len(arrays["firsts"]) + 1
        and len(members_) == len(facts["extensions"]) + 1
        and bool((keys[[0, -1]] == [0, len(arrays["keys"])]).all() and (np.diff(keys) >= 0).all())
        and bool((members_[[0, -1]] == [0, len(arrays["rows"])]).all() and (np.diff(members_) >= 0).all())
        and len(arrays["rows"]) == len(arrays["starts"]) == len(arrays["sizes"])
        and (not packed or ("points" in arrays and loaded.size >= 0))
    )


def sniff(probe: Probe) -> bool:
    """A tar header, or one behind gzip."""
    head = probe.head
    if head[:2] == GZIP:
        try:
            head = zlib.decompressobj(31).decompress(head, BLOCK)
        except zlib.error:
            return False
    is_tar = _native.is_tar_header(np.frombuffer(head[:BLOCK], np.uint8))
    return is_tar and not probe.ask(archives_within)


# -- writer -------------------------------------------------------------------------------------------

COPIED_BYTES = 1 << 22
# Of the keys, where there is no field for them.
DIGITS = 8
GZIP_LEVEL = 6
# Of NVIDIA DALI, beside archives that it reads: it is of no use once they are written anew.
DALI_INDEX = "{stem}.idx"


class WebDatasetWriter(Writer):
    """Writes .tar files, and .tar.gz by the suffix.

    ``key``: the Text field that names the members; without such a field they are numbered.
    """

    side_cars: ClassVar[tuple[str, ...]] = (DALI_INDEX,)
    appends: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, key: str = KEY) -> None:
        self._key = key if key in schema else None
        if self._key is not None and schema[key] != Text():
            raise SchemaError("keys are text, and none is missing: the field has to be Text()", field=key)
        if self._key is None and key != KEY:
            raise SchemaError(f"there is no field {key!r} to name the members by", field=key)
        self._set_names(
            schema, extensions_of({name: field for name, field in schema.items() if name != self._key})
        )
        self._gzip = path.lower().endswith((".gz", ".tgz"))
        # The number of a shard is part of the keys, so that they differ from shard to shard.
        shard = re.search(r"-(\d+)$", Path(path).name.partition(".")[0])
        self._prefix = f"{shard[1]}-" if shard else ""
        super().__init__(path, schema, options)

    def _set_names(self, schema: Schema, named: dict[str, list[str]]) -> None:
        self._note = Note(schema, named, self._key)
        # Every extension there is, and the first of each field in that list.
        self._endings = [ending for endings in named.values() for ending in endings] + [NOTHING]
        self._first = starts_of(np.array([len(endings) for endings in named.values()], dtype=np.int64))

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._last = "" if state is None else str(state["last"])
        self._file = self.partial.spool("archive")
        if self.base is not None:
            assert isinstance(self.base, WebDatasetReader)
            self._check_base(self.base, state)
        elif not self._file.size:
            self._file.write(self._note.to_bytes())

    def _check_base(self, base: WebDatasetReader, state: dict[str, Any] | None) -> None:
        """The archive says how its members are called; new ones begin where it ends."""
        if base.packed:
            raise self.cannot_append("it is packed, and its end with it; write .tar, or a new shard")
        self._key = base.key_field
        if base.note is not None:
            # One of earlier names them in another way.
            self._set_names(self.schema, base.note.extensions)
        self._noted = base.note is not None
        if base.note is not None and not base.starts_with(base.note.to_bytes()):
            raise self.cannot_append("its note leaves no room for another number of samples")
        self.end = base.end_of_members()
        if state is None:
            self._last = base.last_key()

    def _state(self) -> dict[str, Any]:
        return {"last": self._last}

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        if self._key is None:
            return {}
        column = columns.ragged(self._key)
        problems: dict[int, BatchplantError] = {}
        for row, cell in enumerate(column):
            assert cell is not None
            reason = self._unfit_key(cell.tobytes())
            if reason is not None:
                problems[row] = EncodeError(f"the key {cell.tobytes()[:200]!r} {reason}", field=self._key)
        return problems

    def _unfit_key(self, key: bytes) -> str | None:
        """Why a key cannot be a member's name, where it cannot."""
        parts = key.split(b"/")
        if not parts[-1] or b"." in parts[-1]:
            return "needs a last part without a dot, for there the extension would begin"
        if not parts[0] or b".." in parts or b"\0" in key or (b"\\" in key and b".." in key):
            return "is no path inside a folder"
        if re.match(rb"__[^/]*__(/|$)", key):
            return "would be passed over: names like __x__ are metadata"
        return None

    def _keys(self, columns: Columns) -> Ragged:
        if self._key is None:
            return self._numbered(columns.rows)
        column = columns.ragged(self._key)
        last = self._last
        for row, cell in enumerate(column):
            assert cell is not None
            key = cell.tobytes().decode()
            if key == last:
                message = f"the sample before has the key {key!r} too, and the two would be read as one"
                raise EncodeError(message, field=self._key, sample=self.written + row, path=self.path)
            last = key
        self._last = last
        return column.take(slice(None))

    def _numbered(self, rows: int) -> Ragged:
        first = self.before + self.written
        return Ragged.from_cells(
            [f"{self._prefix}{number:0{DIGITS}d}".encode() for number in range(first, first + rows)]
        )

    def _write(self, columns: Columns) -> None:
        keys = self._keys(columns)
        cells = [members.packed(self.schema[name], columns[name]) for name in self._note.extensions]
        present = np.ones((columns.rows, len(cells) + 1), dtype=np.bool_)
        ending = np.full(present.shape, len(self._endings) - 1, dtype=np.int64)
        for number, column in enumerate(cells):
            if column.valid is not None:
                present[:, number] = column.valid
            ending[:, number] = self._ending(number, column)
        # A sample without any cell still is one.
        present[:, -1] = ~present[:, :-1].any(axis=1)
        cells.append(Ragged(np.empty(0, np.uint8), np.zeros(columns.rows + 1, np.int64)))
        rows, fields = np.nonzero(present)
        sizes = np.stack([column.sizes for column in cells], axis=1)[rows, fields]
        names = self._names(keys, rows, ending[rows, fields])
        headers, ends = _native.tar_headers(names.data, names.offsets, sizes)
        places = starts_of(np.diff(ends) + (sizes + BLOCK - 1) // BLOCK * BLOCK)
        archive = np.zeros(places[-1], dtype=np.uint8)
        _native.copy_runs(headers, ends[:-1].copy(), np.diff(ends), archive, places[:-1].copy())
        starts = places[:-1] + np.diff(ends)
        for number, column in enumerate(cells):
            of_field = fields == number
            runs = (
                np.ascontiguousarray(column.starts[rows[of_field]]),
                np.ascontiguousarray(sizes[of_field]),
            )
            _native.copy_runs(as_bytes(column.data), *runs, archive, np.ascontiguousarray(starts[of_field]))
        self._file.write(archive)

    def _ending(self, number: int, column: Ragged) -> I64 | int:
        """Return each cell's extension: by encoding for images, else that of the field."""
        first, last = int(self._first[number]), int(self._first[number + 1])
        if last - first == 1:
            return first
        codes: npt.NDArray[np.int64] = image.probe(column)[:, 0].astype(np.int64)
        return first + codes

    def _names(self, keys: Ragged, rows: I64, endings: I64) -> Ragged:
        ends = Ragged.from_cells([b"." + ending.encode() for ending in self._endings])
        key_sizes, end_sizes = keys.sizes[rows], ends.sizes[endings]
        offsets = starts_of(key_sizes + end_sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(keys.data, keys.starts[rows], key_sizes, data, offsets[:-1].copy())
        _native.copy_runs(ends.data, ends.starts[endings], end_sizes, data, offsets[:-1] + key_sizes)
        return Ragged(data, offsets)

    def _finish(self) -> str:
        self._file.write(bytes(2 * BLOCK))
        samples, size = self.before + self.written, self.end + self._file.size
        note = Note(self._note.schema, self._note.extensions, self._key, samples, size)
        if self.base is not None:
            self.partial.spool("note").write(note.to_bytes())
            return "archive"
        self._file.write_at(note.to_bytes(), 0)
        if not self._gzip:
            return "archive"
        pack = zlib.compressobj(GZIP_LEVEL, wbits=31)
        with open(self.partial.folder / "archive.gz", "wb") as out:
            for done in range(0, self._file.size, COPIED_BYTES):
                out.write(pack.compress(self._file.read_at(COPIED_BYTES, done)))
            out.write(pack.flush())
        return "archive.gz"

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        patches = [Patch(name, self.partial.name, self.end)]
        if self._noted:
            patches.append(Patch("note", self.partial.name, 0))
        return patches, []


# -- format -------------------------------------------------------------------------------------------

FORMAT = Format(
    name="webdataset",
    title="WebDataset (tar)",
    suffixes=(".tar", ".tar.gz", ".tgz"),
    spec="https://github.com/webdataset/webdataset",
    reader=WebDatasetReader,
    writer=WebDatasetWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="plain archives are used in place, with random access; .tar.gz too, more slowly",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("gzip",),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        ecosystem=("WebDataset", "tar", "DALI", "Hugging Face"),
    ),
)
