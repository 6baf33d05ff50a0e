"""Lance: a folder of columns in fragments, and a manifest for each version of the table.

The package pylance reads and writes it: rows in any order, of any version, of other stores. Fields that lie
in blob columns are read out of the data files themselves, byte range by byte range, where the blobs lie in
them; so are those that the writer stores. What our fields are stands in the metadata of the table's columns.

The footers of data files and the lists of deleted rows are checked before pylance sees them. Beyond those it
allocates what the pages claim, and ends the process where it cannot: compare the checksums of files that may
be damaged before opening them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codecs import arrow
from ..codecs.arrow.types import is_binary
from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import DamagedError, NotFoundError, OptionError, UnsafeError, located, needs
from ..schema import EVERY_KIND, Schema, Video
from ..schema.columns import I32, I64, Columns, starts_of
from ..storage import (
    Entry,
    Source,
    absolute,
    check_regular,
    is_plain,
    is_remote,
    join,
    like,
    open_source,
    tree,
)
from ..storage.cache import ChunkCache
from ..storage.index import FileGroup
from ..storage.remote.obstore_client import options_for
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.ipc import Part
from .base.lake import (
    Compacted,
    LakeWriter,
    Progress,
    State,
    Upkeep,
    Vacuumed,
    as_time,
    check_same_fields,
    conflict,
    count,
    first_line,
    wrapped,
)
from .base.records import GivenSchema, given_schema

if TYPE_CHECKING:
    import pyarrow as pa

# -- reading ------------------------------------------------------------------------------------------
# Reading Lance: rows by pylance, blobs where they lie.

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
                        missing = spans.size < 0
                        if missing.any() and not field.optional:
                            raise DamagedError("a value is missing")
                        cells = spans.gather()
                        cells.valid = ~missing if missing.any() else None
                        columns[name] = cells
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
        names = [self._data_file(int(number), field) for number in used]
        for name in names:
            if name not in self._sources:
                self._sources[name] = open_source(join(self.path, f"{DATA}/{name}"))
        sources = [self._sources[name] for name in names]
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


# -- writing ------------------------------------------------------------------------------------------
# Writing Lance: rows are kept until all are there, then one transaction of pylance adds them.

# Blobs of later versions lie in files of their own, under names that the library alone knows.
FILE_VERSION = "2.1"
# The property of a transaction that has its name.
TRANSACTION = "batchplant"


class LanceWriter(LakeWriter):
    """``mode``: ``create`` a table; ``append`` rows to one; ``overwrite`` its rows, the older versions stay.

    The last two are one transaction: all rows appear at once, or none. ``blobs``: fields of bytes that are
    stored as blobs, which pylance reads by range and batchplant in place (default: videos). ``file_size``:
    bytes of a fragment.
    """

    title = "Lance"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        mode: str = "create",
        blobs: str | Iterable[str] | None = None,
        file_size: int = 4 << 30,
    ) -> None:
        library()
        names = blobs.split(",") if isinstance(blobs, str) else blobs
        if names is None:
            names = [name for name, field in schema.items() if isinstance(field, Video)]
        self._blobs = frozenset(name for name in names if name)
        super().__init__(path, schema, options, mode=mode, file_size=file_size)

    def _described(self) -> pa.Schema:
        pa = arrow.pyarrow()
        self.schema.select(list(self._blobs))
        fields = []
        for field in arrow.arrow_schema(self.schema):
            metadata, kind = dict(field.metadata or {}), field.type
            if field.name in self._blobs:
                if not is_binary(kind):
                    raise OptionError(
                        f"blobs are fields of bytes; {field.name!r} is {self.schema[field.name]}"
                    )
                metadata[BLOB], kind = b"true", pa.large_binary()
            fields.append(pa.field(field.name, kind, field.nullable, metadata))
        return pa.schema(fields)

    def _exists(self) -> bool:
        return tree.is_folder(join(self.path, VERSIONS))

    def _existing(self) -> tuple[Schema, Any, list[str]]:
        with LanceReader(self.path) as reader:
            return reader.schema, reader.version, []

    def _create(self, folder: Path) -> None:
        self._save(str(folder), "create", _without_dots(self._arrow), data_storage_version=FILE_VERSION)

    def _save(self, target: Any, mode: str, described: pa.Schema, **options: Any) -> None:
        reader = arrow.pyarrow().RecordBatchReader.from_batches(described, self._batches(described))
        with wrapped(self.path):
            library().write_dataset(
                reader, target, mode=mode, max_bytes_per_file=self._file_size,
                transaction_properties={TRANSACTION: self._id}, **options,
            )  # fmt: skip

    def _batches(self, described: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows with the columns of the table; those that the rows lack are null."""
        pa = arrow.pyarrow()
        for group in self._row_groups():
            # A copy: the library takes only aligned decimals, and those of rows in a file need not be.
            group = group.take(pa.array(range(len(group))))
            columns = [
                group.column(name).cast(field.type)
                if (name := name_of(field)) in group.column_names
                else pa.nulls(len(group), field.type)
                for field in described
            ]
            yield from pa.Table.from_arrays(columns, schema=described).to_batches()

    def _is_committed(self, id: str) -> bool:
        table = open_table(self.path)
        with wrapped(self.path):
            for transaction in table.get_transactions(table.version):
                properties = getattr(transaction, "transaction_properties", None) or {}
                if properties.get(TRANSACTION) == id:
                    return True
        return False

    def _commit(self) -> None:
        storage = options_for(self.path) or None
        if not self._exists():
            self._save(
                self.path, "create", _without_dots(self._arrow), data_storage_version=FILE_VERSION,
                storage_options=storage,
            )  # fmt: skip
            return
        table = open_table(self.path)
        if self.mode == "overwrite":
            if table.version != self._base:
                raise conflict(self.path)
            self._save(table, "overwrite", _without_dots(self._arrow), data_storage_version=FILE_VERSION)
            return
        with LanceReader(self.path) as reader:
            fresh = check_same_fields(reader.schema, self.schema)
        if fresh:
            added = {name: dataclasses.replace(self.schema[name], optional=True) for name in fresh}
            with wrapped(self.path):
                table.add_columns(_without_dots(arrow.arrow_schema(Schema(added))))
            table = open_table(self.path)
        self._save(table, "append", table.schema)


def _without_dots(described: pa.Schema) -> pa.Schema:
    """Rename columns with dots, which Lance reserves for structs; metadata keep the names of fields."""
    for number, field in enumerate(described):
        if "." in field.name:
            name = field.name.replace(".", "_")
            while name in described.names:
                name += "_"
            metadata = {**(field.metadata or {}), NAME: field.name.encode()}
            described = described.set(number, field.with_name(name).with_metadata(metadata))
    return described


# -- upkeep -------------------------------------------------------------------------------------------
# The upkeep of Lance tables, by pylance: each step is a version.


class LanceUpkeep(Upkeep):
    """``storage``: what pylance needs to reach a remote store."""

    def __init__(self, path: str, *, storage: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        self._storage = storage

    def _open(self) -> Any:
        return open_table(self.path, None, None, self._storage)

    def history(self) -> list[State]:
        table = self._open()
        with wrapped(self.path):
            return list(reversed(_states(table)))

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        table = self._open()
        options = {"error_if_tagged_old_versions": False}
        with wrapped(self.path):
            plan = table.explain_cleanup_old_versions(older_than, include_files=True, **options)
            before = {state.id for state in _states(table)}
            # The library names them from the root of the store.
            root = absolute(self.path).rstrip("/").rpartition("/")[2]
            files = [file.path.rpartition(f"{root}/")[2] for file in plan.candidate_files]
            if dry_run:
                cut = datetime.datetime.now(datetime.UTC) - older_than
                old = [state for state in _states(table) if not state.current and not state.refs]
                return Vacuumed(
                    files, plan.stats.bytes_removed, [state.id for state in old if state.at < cut], False
                )
            removed = table.cleanup_old_versions(older_than, **options)
            remaining = {state.id for state in _states(self._open())}
        return Vacuumed(files, removed.bytes_removed, sorted(before - remaining), True)

    def restore(self, state: State) -> None:
        table = self._open()
        if state.id == table.version:
            return
        with wrapped(self.path):
            table.checkout_version(state.id).restore()

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        table = self._open()
        with wrapped(self.path):
            fragments = [fragment.metadata for fragment in table.get_fragments()]
            sizes = [sum(file.file_size_bytes or 0 for file in part.files) for part in fragments]
            rows = sum(part.physical_rows for part in fragments)
            small = [size for size in sizes if size < file_size]
            if len(small) < 2:
                return Compacted(0, 0, 0, 0, not dry_run)
            if dry_run:
                return Compacted(len(small), max(1, -(-sum(small) // file_size)), sum(small), 0, False)
            target = max(1, rows * file_size // max(1, sum(sizes)))
            metrics = table.optimize.compact_files(target_rows_per_fragment=target)
        if progress is not None:
            progress(metrics.fragments_removed, metrics.fragments_removed)
        return Compacted(metrics.fragments_removed, metrics.fragments_added, sum(small), 0, True)


def _states(table: Any) -> list[State]:
    tags: dict[int, list[str]] = {}
    for name, tag in table.tags.list().items():
        tags.setdefault(int(tag["version"]), []).append(name)
    states, before = [], 0
    for entry in table.versions():
        number, rows = int(entry["version"]), count(entry["metadata"].get("total_rows")) or 0
        transaction = table.read_transaction(number)
        operation = "unknown" if transaction is None else type(transaction.operation).__name__.upper()
        added = {"APPEND": rows - before, "OVERWRITE": rows}.get(operation)
        refs = tuple(sorted(tags.get(number, ())))
        states.append(State(number, time_of(entry), operation, added, number == table.version, refs))
        before = rows
    return states


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    return f"{VERSIONS}/" in probe.names and (f"{DATA}/" in probe.names or "_transactions/" in probe.names)


FORMAT = Format(
    name="lance",
    title="Lance",
    suffixes=(".lance",),
    spec="https://lance.org/format/",
    reader=LanceReader,
    writer=LanceWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="lance",
    upkeep=LanceUpkeep,
    notes="any version, tag or time; append and overwrite as one transaction; blobs by byte range",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        concurrent_writers=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pylance", "LanceDB", "DuckDB", "Ray", "Spark"),
    ),
)
