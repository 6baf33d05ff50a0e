"""Reading Lance: rows by pylance, blobs where they lie."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codecs import arrow
from ...codecs.arrow.types import is_binary
from ...data.reader import Reader
from ...errors import DamagedError, NotFoundError, OptionError, UnsafeError, located, needs
from ...schema import Schema
from ...schema.columns import I32, I64, Column, Columns, Ragged, starts_of
from ...storage import Entry, Source, check_regular, is_plain, is_remote, join, like, open_source
from ...storage.cache import ChunkCache
from ...storage.index import FileGroup
from ...storage.remote.obstore_client import options_for
from ...storage.spans import Spans
from ..base.ipc import Part
from ..base.lake import as_time, first_line, wrapped
from ..base.records import GivenSchema, given_schema

if TYPE_CHECKING:
    import pyarrow as pa

VERSIONS, DATA, DELETIONS = "_versions", "data", "_deletions"
MAX_ROWS = 2**48
# The end of a data file.
FOOTER = np.dtype(
    [("metadata", "<u8"), ("columns_start", "<u8"), ("buffers_start", "<u8"), ("buffers", "<u4"),
     ("columns", "<u4"), ("version", "<u2", 2), ("magic", "S4")]
)  # fmt: skip
MAGIC, TABLE_ENTRY_BYTES = b"LANC", 16
SAMPLE_ROWS = 8
# Rows whose blobs are located at once.
BLOCK_ROWS = 1 << 16
# Metadata of a column of blobs, and its type since version 2.2 of the files.
BLOB, BLOB_TYPE = b"lance-encoding:blob", "lance.blob.v2"
# Metadata of a column whose field has another name.
NAME = b"batchplant.name"
# Kind of a blob of 2.2 that lies in the data file, as all older ones do; and where a missing one of 2.0 lies.
INLINE, MISSING_START = 0, 1


def library() -> Any:
    with needs("Lance needs the package pylance", "lance"):
        import lance
    # Every process opens the dataset anew.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    return lance


def open_table(
    path: str,
    version: int | str | None = None,
    at: str | datetime.datetime | None = None,
    storage: Mapping[str, str] | None = None,
    *,
    outside: bool = False,
) -> Any:
    """Open a version (by number or tag) or the state at a time; the latest by default."""
    lance = library()
    _check_folder(path)
    options = {**options_for(path), **(storage or {})} or None
    with wrapped(path):
        try:
            table = lance.dataset(path, storage_options=options)
        except ValueError as error:
            raise NotFoundError(f"there is no Lance table: {first_line(error)}") from None
        if at is not None:
            when = as_time(at)
            version = max(
                (entry["version"] for entry in table.versions() if time_of(entry) <= when), default=None
            )
            if version is None:
                raise OptionError(f"at {when.isoformat()} there was no version yet")
        if version is not None and version != table.version:
            try:
                table = table.checkout_version(version)
            except (ValueError, OSError):
                kind = "tag" if isinstance(version, str) else "version"
                message = f"there is no {kind} {version!r}; the latest version is {table.version}"
                raise OptionError(message) from None
    _check_files(table, path, outside)
    return table


def time_of(entry: Mapping[str, Any]) -> datetime.datetime:
    """Return the time of a version; the library has it in the zone of this machine."""
    time: datetime.datetime = entry["timestamp"]
    return time.astimezone(datetime.UTC)


def _check_folder(path: str) -> None:
    """Refuse pipes, on which the library would wait."""
    if is_remote(path):
        return
    if not os.path.isdir(join(path, VERSIONS)):
        raise NotFoundError("there is no Lance table", path=path)
    for folder in (VERSIONS, DATA, DELETIONS):
        with contextlib.suppress(FileNotFoundError), os.scandir(join(path, folder)) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    check_regular(entry.path)


def _check_files(table: Any, path: str, outside: bool) -> None:
    """Refuse files outside of the folder, and those that would make the library allocate too much."""
    with wrapped(path):
        for fragment in table.get_fragments():
            for file in fragment.metadata.files:
                inside = file.base_id is None and is_plain(file.path)
                if not inside and not outside:
                    raise UnsafeError(
                        f"the table lists {file.path}, which lies outside its folder; outside=True reads it"
                    )
                if inside and not is_remote(path):
                    _check_footer(join(path, f"{DATA}/{file.path}"))
            deleted = fragment.deletion_file()
            if deleted is not None and deleted.endswith(".arrow") and not is_remote(path):
                _check_deletions(join(path, deleted))


def _check_footer(path: str) -> None:
    """The library allocates what the footer counts, and ends the process where it cannot."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = size - FOOTER.itemsize
        file.seek(max(0, start))
        data = file.read(FOOTER.itemsize)
        if start < 0 or data[-4:] != MAGIC:
            raise DamagedError("it does not end as a Lance file does", path=path, offset=max(0, start))
        footer = np.frombuffer(data, FOOTER)[0]
        for part in ("columns", "buffers"):
            if int(footer[f"{part}_start"]) + TABLE_ENTRY_BYTES * int(footer[part]) > start:
                raise DamagedError(f"it claims {footer[part]} {part}", path=path, offset=start)


def _check_deletions(path: str) -> None:
    """Read the rows that are deleted, an Arrow file: the library allocates what its footer claims."""
    with contextlib.suppress(FileNotFoundError), contextlib.closing(Part(path)) as part:
        for batch in range(len(part.batches)):
            part.load(batch, part.schema.names)


class LanceReader(Reader):
    """Reads Lance tables: the latest state, or an older one.

    ``version``: its number, or the name of a tag. ``at``: a time in ISO 8601. ``schema``: the kinds of some
    fields, in place of those that the types mean. ``storage``: what pylance needs to reach a remote store.
    ``outside``: also read files that do not lie in the table's folder.
    """

    # Cells lie in the file as they are only in columns of blobs.
    own_spans = False

    def __init__(
        self,
        path: str,
        *,
        version: int | str | None = None,
        at: str | datetime.datetime | None = None,
        schema: GivenSchema | str | None = None,
        storage: Mapping[str, str] | None = None,
        outside: bool = False,
    ) -> None:
        if version is not None and at is not None:
            raise OptionError("choose a version or a time, not both", path=path)
        self.path = path = like(path, path.removeprefix("file://"))
        self._storage, self._outside = storage, outside
        table = open_table(path, version, at, storage, outside=outside)
        self._process, self._table = os.getpid(), table
        self.version = int(table.version)
        self._options: dict[str, Any] = {
            "version": version, "at": at, "schema": schema, "storage": storage, "outside": outside,
        }  # fmt: skip
        self._reopen = functools.partial(LanceReader, path, **self._options)
        # Workers that unpickle this reader must see the same rows, whatever was committed meanwhile.
        self._init_args = (path,), {**self._options, "version": self.version, "at": None}
        with wrapped(path):
            self.length = int(table.count_rows())
            if self.length > MAX_ROWS:
                raise DamagedError(f"it says that there are {self.length} rows")
            self._fragments = [fragment.metadata for fragment in table.get_fragments()]
            self._firsts = starts_of(np.array([part.num_rows for part in self._fragments], dtype=np.int64))
            if self._firsts[-1] != self.length:
                raise DamagedError(f"{self.length} rows, and its fragments have {self._firsts[-1]}")
            self._sources: dict[str, Source] = {}
            self._blob_places = ChunkCache(None)
            self._column_names = {name_of(field): field.name for field in table.schema}
            described = arrow.pyarrow().schema(
                [field.with_name(name_of(field)) for field in table.schema], table.schema.metadata
            )
            self._blobs = {field.name for field in described if _is_blob(field)}
            self.schema = self._infer(described, {} if schema is None else given_schema(schema))

    @property
    def table(self) -> Any:
        """The table of pylance, of this process: its threads do not survive a fork."""
        if self._process != os.getpid():
            table = open_table(self.path, self.version, None, self._storage, outside=self._outside)
            self._process, self._table = os.getpid(), table
        return self._table

    def _infer(self, described: pa.Schema, overrides: Mapping[str, Any]) -> Schema:
        pa = arrow.pyarrow()
        columns = [
            field.with_type(pa.large_binary()) if field.name in self._blobs else field for field in described
        ]
        sample: dict[str, Any] = {}
        rows = np.arange(min(SAMPLE_ROWS, self.length))
        for field in columns:
            if arrow.KEY not in (field.metadata or {}) and is_binary(field.type) and len(rows):
                # Reading the rows meets the same damage, and reports its place.
                with contextlib.suppress(Exception):
                    sample[field.name] = self._arrow_column(rows, field.name)
        fields = arrow.schema_of(pa.schema(columns, described.metadata), pa.table(sample))
        if not fields:
            raise DamagedError("the table has no column")
        fields.select(list(overrides))
        return Schema({**fields, **overrides})

    # -- rows ------------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        plain = [name for name in fields if name not in self._blobs]
        with wrapped(self.path):
            table = self._take(indices, plain) if plain and len(indices) else None
            columns = Columns()
            for name in fields:
                field = self.schema[name]
                with located(field=name):
                    if name in self._blobs and (spans := self._spans(name, indices)) is not None:
                        columns[name] = _gather(spans, field.optional)
                    elif name in self._blobs or table is None:
                        columns[name] = arrow.column_of(field, self._arrow_column(indices, name))
                    else:
                        columns[name] = arrow.column_of(field, table.column(self._column_names[name]))
            return columns

    def _take(self, indices: I64, fields: Sequence[str]) -> pa.Table:
        """Take rows; scans do so too, for an error of ``to_table`` with a NUL in it ends the process."""
        columns = [self._column_names[name] for name in fields]
        table = self.table.take(arrow.pyarrow().array(indices), columns=columns)
        if len(table) != len(indices):
            raise DamagedError(f"{len(table)} rows where {len(indices)} were asked for")
        return table

    def _arrow_column(self, indices: I64, name: str) -> pa.ChunkedArray | pa.Array:
        if name not in self._blobs:
            return self._take(indices, [name]).column(0)
        column = self._column_names[name]
        cells = [cell for _, cell in self.table.read_blobs(column, indices=indices.tolist())]
        if len(cells) != len(indices):
            raise DamagedError(f"{len(cells)} blobs where {len(indices)} were asked for")
        return arrow.pyarrow().array(cells, arrow.pyarrow().large_binary())

    # -- blobs where they lie --------------------------------------------------------------------------

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field not in self._blobs:
            return None
        blocks = indices // BLOCK_ROWS
        starts, sizes = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for block in np.unique(blocks).tolist():
            places = self._blob_places.get(
                (field, block), functools.partial(self._locate, field, block), lambda places: places.nbytes
            )
            if not places.size:
                return None
            inside = blocks == block
            starts[inside], sizes[inside] = places[:, indices[inside] - block * BLOCK_ROWS]
        fragments = np.searchsorted(self._firsts, indices, side="right") - 1
        used, positions = np.unique(fragments, return_inverse=True)
        sources = [self._source(self._data_file(int(number), field)) for number in used]
        file: I32 = positions.reshape(-1).astype(np.int32)
        ends = np.array([source.size for source in sources], dtype=np.int64)
        wrong = np.flatnonzero((starts < 0) | (sizes > ends[file] - starts))
        if len(wrong):
            raise DamagedError(
                "the blob lies outside of its file", path=sources[file[wrong[0]]].path,
                sample=int(indices[wrong[0]]), offset=int(starts[wrong[0]]),
            )  # fmt: skip
        return Spans(sources, starts, sizes, file)

    def _locate(self, field: str, block: int) -> I64:
        """Starts and sizes (-1: missing) of the blobs of a block; empty where some lie in other files."""
        first = block * BLOCK_ROWS
        none = np.empty((2, 0), dtype=np.int64)
        if any(part.overlays or self._data_file(n, field) == "" for n, part in enumerate(self._fragments)):
            return none
        with wrapped(self.path):
            rows = np.arange(first, min(first + BLOCK_ROWS, self.length))
            table = self._take(rows, [field])
            places = table.column(0).combine_chunks()
            valid = places.is_valid().to_numpy(zero_copy_only=False)
            numbers = {
                name: places.field(name).fill_null(0).to_numpy()
                for name in ("kind", "position", "size")
                if places.type.get_field_index(name) >= 0
            }
            if (numbers.get("kind", np.zeros(1)) != INLINE).any():
                return none
            starts, sizes = (numbers[name].astype(np.int64) for name in ("position", "size"))
            if "kind" not in numbers:
                valid &= (sizes != 0) | (starts != MISSING_START)
            return np.stack([np.where(valid, starts, 0), np.where(valid, sizes, -1)])

    def _data_file(self, fragment: int, field: str) -> str:
        """The file of a column in a fragment; "" if there is none."""
        number = self._field_ids[self._column_names[field]]
        files = self._fragments[fragment].files
        return next((file.path for file in files if number in file.fields and file.base_id is None), "")

    @functools.cached_property
    def _field_ids(self) -> dict[str, int]:
        return {field.name(): field.id() for field in self.table.lance_schema.fields()}

    def _source(self, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = open_source(join(self.path, f"{DATA}/{file}"))
        return self._sources[file]

    # -- about the table -------------------------------------------------------------------------------

    def _fingerprint_source(self, fields: Sequence[str]) -> FileGroup:
        entries = []
        for file in (file for part in self._fragments for file in part.files):
            path = join(self.path, f"{DATA}/{file.path}")
            changed = ""
            if not is_remote(path):
                with contextlib.suppress(OSError):
                    changed = str(Path(path).stat().st_mtime_ns)
            entries.append(Entry(path, file.file_size_bytes or 0, changed))
        return FileGroup(self.path, entries, state={"version": self.version}, options=self._options)

    def where(self, sample: int) -> str:
        files = self._fragments[int(np.searchsorted(self._firsts, sample, side="right")) - 1].files
        return join(self.path, f"{DATA}/{files[0].path}") if len(files) == 1 else self.path

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"version": self.version, "fragments": len(self._fragments)}
        with contextlib.suppress(Exception):
            facts["files of version"] = self.table.data_storage_version
        return {**facts, **({"blobs": ", ".join(sorted(self._blobs))} if self._blobs else {})}

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources = {}
        self._blob_places.clear()


def name_of(column: pa.Field) -> str:
    """Return the name of a column's field."""
    name: bytes = (column.metadata or {}).get(NAME, column.name.encode())
    return name.decode()


def _is_blob(field: pa.Field) -> bool:
    """Return whether rows hold only where the bytes of this column lie."""
    extension = isinstance(field.type, arrow.pyarrow().BaseExtensionType)
    return (field.metadata or {}).get(BLOB) == b"true" or (
        extension and field.type.extension_name == BLOB_TYPE
    )


def _gather(spans: Spans, optional: bool) -> Column:
    """Read cells of their files."""
    missing = spans.size < 0
    if missing.any() and not optional:
        raise DamagedError("a value is missing")
    offsets = starts_of(np.maximum(spans.size, 0))
    data = np.empty(offsets[-1], dtype=np.uint8)
    for source, rows, starts, sizes in spans.by_source():
        source.gather_into(starts, sizes, data, offsets[:-1][rows])
    return Ragged(data, offsets, valid=~missing if missing.any() else None)
