"""HDF5, datasets in groups in one file.

Datasets of equal first dimension are fields, with samples along that dimension. Groups become dotted names:
``train/image`` is ``train.image``. A member of a compound type is a field of its own. Links that lead out of
the file, virtual datasets and references are never followed. NetCDF 4 (``.nc``) and MATLAB 7.3 (``.mat``) are
HDF5: axes (dimension scales) are fields only where they are as long as the variables.

What we write, all of which h5py reads:

- numbers and tensors of one size as datasets; times as int64,
- bytes, images and tensors of varying size as variable-length ``uint8`` (tensors: of their dtype), text and
  JSON as variable-length strings; with ``layout="packed"`` as ``NAME/data`` and ``NAME/offsets`` instead,
- ``batchplant/valid/NAME`` where cells may be missing, ``batchplant/shape/NAME`` for raw images,
- the attribute ``batchplant`` of the file: the schema as JSON.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...codecs.infer import infer_image
from ...data.arrays import Array
from ...data.concat import Concat
from ...data.layout import Layout, inner_starts
from ...errors import (
    BatchplantError,
    DamagedError,
    FieldNameError,
    MissingLibraryError,
    OptionError,
    SchemaError,
    located,
    no_such,
    on_error,
)
from ...schema import EVERY_KIND, Bytes, Field, Schema, Tensor, Text
from ...schema.columns import I64, Columns, Ragged, dense_of
from ...storage import Source, open_source, parse_object
from ...storage.cache import ChunkCache
from ...storage.spans import Spans
from ..base.arrays.reader import PackedReader
from ..base.format import Capabilities, Format, Probe
from ..base.records import Note
from .attribute_texts import AXES
from .stored import Cells, Chunks, Numbers, Packed, Run, Stored, Strings, Varying, array_of
from .writer import Hdf5Writer

if TYPE_CHECKING:
    from .layout import File, Table

# -- reading ------------------------------------------------------------------------------------------
# Reading: which datasets are fields, and their cells; several groups as one dataset.

BLOCK_BYTES = 8 << 20
# So many samples say whether bytes are text or images.
PROBED_SAMPLES = 16
# The number of the filter that is a checksum.
FLETCHER = 3


class Hdf5Reader(PackedReader):
    """Reads HDF5 files. ``fields``: only these; ``group``: only what lies below this group, or a pattern of
    several with the same fields, such as ``data/*``, which are joined in natural order, an episode each;
    ``group_field``: of such groups, a text field of this name holds the group's name; ``swmr``: another
    process appends to it, ``refresh()`` sees what has come; ``cache``: bytes of unpacked chunks kept;
    ``decode``: numbers become what they stand for by their attributes (scale_factor, add_offset, _FillValue,
    missing_value), or stay as they are stored, which without it is warned of.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if cls is Hdf5Reader and is_pattern(options.get("group", "/")):
            # Another class: Python does not call __init__ of this one.
            return Hdf5Groups(*args, **options)  # type: ignore[return-value]
        return super().__new__(cls, *args, **options)

    def __init__(
        self,
        path: str,
        *,
        fields: Iterable[str] | None = None,
        group: str = "/",
        group_field: str | None = None,
        swmr: bool = False,
        cache: int | None = None,
        decode: bool | None = None,
    ) -> None:
        if group_field is not None:
            raise OptionError(f"group_field is for a pattern of groups, and {group!r} is none", path=path)
        self.path = path
        self._selected = None if fields is None else tuple(fields)
        self._group = group
        self._swmr = swmr
        self._cache = ChunkCache(cache)
        self._open()
        self._unpack(decode)

    def _said(self) -> dict[str, dict[str, Any]]:
        """Numbers have no varying length."""
        return self._file.attributes

    def _open(self) -> None:
        layout = layout_of(self.path)
        source = open_source(self.path)
        file = layout.load(self.path, source, group=self._group, swmr=self._swmr)
        if self._swmr:
            # The writer may have been ahead of the mapping.
            source.close()
            source = open_source(self.path)
        self._begin(file, source)

    def _begin(self, file: File, source: Source) -> None:
        self._source = source
        self._opened: list[Stored] = []
        with on_error(self.close, path=self.path):
            if file.note is not None:
                self._open_noted(file, source)
            else:
                self._open_plain(file, source)
        self._file = file

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """HDF5's attributes: ``""`` → those of the file or group, a dataset's name → its own."""
        from . import layout

        file = self._file
        if file.texts:
            texts = layout.read_texts(self.path, dict(file.texts.values()))
            for name, (where, _) in file.texts.items():
                file.attributes[name].update(texts.get(where, {}))
            file.texts = {}
        return self._without_rules(file.attributes)

    def _stored(self, table: Table) -> Stored:
        stored = table.stored(self._source, self._cache)
        self._opened.append(stored)
        return stored

    # -- our own files ---------------------------------------------------------------------------------

    def _open_noted(self, file: File, source: Source) -> None:
        assert file.note is not None
        note = Note.from_bytes(file.note)
        schema = note.schema if self._selected is None else note.schema.select(self._selected)
        self._cells: dict[str, Cells] = {}
        lengths = set()
        for name, field in schema.items():
            with located(field=name):
                cells, length = self._noted_cells(name, field, file, source)
            self._cells[name] = cells
            lengths.add(length)
        if len(lengths) != 1 or note.samples not in (None, *lengths):
            raise DamagedError(f"the fields differ in length: {sorted(lengths)}, {note.samples} were written")
        self.schema, self.length = schema, lengths.pop()

    def _noted_cells(self, name: str, field: Field, file: File, source: Source) -> tuple[Cells, int]:
        def table(key: str) -> Table:
            if key not in file.tables:
                raise DamagedError(file.left_out.get(key, f"there is no dataset {key}"))
            return file.tables[key]

        def beside(key: str, dtype: Any, shape: tuple[int, ...]) -> Stored | None:
            dataset = file.tables.get(f"batchplant.{key}.{name}")
            if dataset is None:
                return None
            part = dataset.parts[0]
            if (
                len(dataset.parts) > 1
                or (part.kind, part.dtype) != ("number", dtype)
                or dataset.dims[1:] != shape
            ):
                raise DamagedError(f"its {key} dataset makes no sense")
            if dataset.dims[0] != length:
                raise DamagedError(f"its {key} dataset has {dataset.dims[0]} rows for {length} samples")
            return self._stored(dataset)

        packed = f"{name}.offsets" in file.tables and name not in file.tables
        main = table(f"{name}.offsets" if packed else name)
        length = main.dims[0] - packed
        marks = {
            "valid": beside("valid", np.dtype("?"), ()),
            "shapes": beside("shape", np.dtype("<i4"), (3,)),
        }
        if packed:
            data = table(f"{name}.data")
            values = self._stored(data)
            kinds = [(part.dtype.str, len(stored.dims)) for stored in (data, main) for part in stored.parts]
            in_place = isinstance(values, Run) or not data.dims[0]
            if kinds != [("|u1", 1), ("<i8", 1)] or length < 0 or not in_place:
                raise DamagedError("its data and offsets do not fit together")
            return Packed(source, field, values, self._stored(main), **marks), length
        if len(main.parts) != 1:
            raise DamagedError(f"the dataset is not {field}")
        [part] = main.parts
        dense = dense_of(field)
        if dense is not None:
            dtype, shape = dense
            have = part.dtype.newbyteorder("="), (*main.dims[1:], *part.shape)
            same = have == (np.dtype("i8") if dtype.kind in "mM" else dtype, shape)
            if part.kind != "number" or not same:
                raise DamagedError(f"the dataset is not {field}")
            return Numbers(source, field, self._stored(main), part, main.item, **marks), length
        width = np.dtype(field.dtype).itemsize if isinstance(field, Tensor) and field.flat else 1
        if part.kind != "vlen" or len(main.dims) != 1 or part.dtype.itemsize != width:
            raise DamagedError(f"the dataset is not {field}")
        return Varying(source, field, self._stored(main), part, file.base, self._cache, **marks), length

    # -- files of others -------------------------------------------------------------------------------

    def _open_plain(self, file: File, source: Source) -> None:
        columns: dict[str, tuple[Table, Any, Field]] = {}
        for name, table in file.tables.items():
            for part in table.parts:
                full = ".".join(filter(None, (name, part.name)))
                try:
                    columns[full] = table, part, part.field(table.dims[1:])
                except SchemaError as error:
                    file.left_out[full] = error.message
        self._choose(columns, file)
        if not columns:
            message = "; ".join(f"{name}: {why}" for name, why in list(file.left_out.items())[:5])
            raise SchemaError(f"there is no dataset in it that has samples{': ' if message else ''}{message}")
        self.length = next(iter(columns.values()))[0].dims[0]
        self._cells, fields = {}, {}
        opened: dict[str, Stored] = {}
        for name, (table, part, field) in columns.items():
            try:
                if table.path not in opened:
                    opened[table.path] = self._stored(table)
            except SchemaError as error:
                if self._selected is not None:
                    raise error.at(field=name) from None
                file.left_out[name] = error.message
                continue
            except BatchplantError as error:
                raise error.at(field=name) from None
            stored = opened[table.path]
            if part.kind == "vlen":
                cells: Cells = Varying(source, field, stored, part, file.base, self._cache)
            else:
                kind = Strings if part.kind == "string" else Numbers
                cells = kind(source, field, stored, part, table.item)
            if isinstance(field, Text | Bytes):
                cells.field = self._probed_field(cells, part, field)
            self._cells[name], fields[name] = cells, cells.field
        if not fields:
            raise SchemaError(f"nothing in it can be read: {file.left_out}")
        self.schema = Schema(fields)

    def _choose(self, columns: dict[str, Any], file: File) -> None:
        """Leave only the fields that were asked for, or those whose length most datasets have.

        A single value is no column, unless there are only such.
        """
        if self._selected is None and not all(table.single for table, _, _ in columns.values()):
            for name in [name for name, (table, _, _) in columns.items() if table.single]:
                del columns[name]
                file.left_out[name] = "a single value has no samples"
        if self._selected is not None:
            for name in self._selected:
                if name not in columns:
                    raise FieldNameError(
                        file.left_out.get(name, no_such("dataset", name, columns)), field=name
                    )
            chosen = {name: columns[name] for name in self._selected}
            columns.clear()
            columns.update(chosen)
        lengths = {name: column[0].dims[0] for name, column in columns.items()}
        if len(set(lengths.values())) < 2:
            return
        # A compound dataset counts once, an axis only where there is nothing else.
        axes = {
            name for name in columns if file.attributes.get(name, {}).get(AXES) == [name.rpartition(".")[2]]
        }
        counts = Counter(
            {
                column[0].path: column[0].dims[0]
                for name, column in columns.items()
                if name not in axes or len(axes) == len(columns)
            }.values()
        ).most_common(2)
        if self._selected is not None or len({count for _, count in counts}) < len(counts):
            message = ", ".join(f"{name} {length}" for name, length in list(lengths.items())[:20])
            ways = "choose equal ones with fields=[…]"
            groups = dict.fromkeys(column[0].path.rpartition("/")[0] for column in columns.values())
            if len(groups) > 1:
                named = " or ".join(f'"{name or "/"}"' for name in list(groups)[:4])
                ways += f", or those of a group with group={named}"
            raise SchemaError(f"the datasets differ in length ({message}); {ways}")
        for name, length in lengths.items():
            if length != counts[0][0]:
                del columns[name]
                file.left_out[name] = f"it has {length} rows, and the others {counts[0][0]}"

    def _probed_field(self, cells: Cells, part: Any, field: Field) -> Field:
        """Bytes that are images are an Image; a text that says it is ASCII, and is not, is Bytes."""
        try:
            sample = cells.read(np.arange(min(PROBED_SAMPLES, self.length)))
        # What is damaged will be found when it is read.
        except DamagedError:
            return field
        assert isinstance(sample, Ragged)
        if isinstance(field, Text) and (part.utf8 or sample.data.tobytes().isascii()):
            return field
        if not len(sample):
            return field
        return infer_image(sample) or Bytes()

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return self._unpacked(Columns.read(fields, lambda name: self._cells[name].read(indices), self.path))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field in self._rules:
            return None
        with located(path=self.path, field=field):
            return self._cells[field].spans(indices)

    def _array(self, field: str) -> Array | None:
        """Also of a dataset that is no field, because it was not chosen or is longer than the others."""
        cells = self._cells.get(field)
        if field in self._rules:
            return None
        if isinstance(cells, Numbers):
            return array_of(self.path, field, cells.field, cells.stored, cells.part, cells.item)
        tables = {} if cells is not None or self._file.note is not None else self._file.tables
        named = {
            ".".join(filter(None, (name, part.name))): (table, part)
            for name, table in tables.items()
            for part in table.parts
        }
        if field not in named:
            return None
        table, part = named[field]
        kind = part.field(table.dims[1:])
        return array_of(self.path, field, kind, self._stored(table), part, table.item)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        needs = [self._cells[name].needs(indices) for name in fields]
        runs = [column_ranges for column_ranges in needs if column_ranges is not None]
        if len(runs) < len(needs) or not runs:
            return None
        starts, sizes = (np.concatenate(column_ranges) for column_ranges in zip(*runs, strict=True))
        return Spans([self._source], starts, sizes)

    def _layout(self) -> Layout:
        return Layout(blocks=self._blocks)

    def _blocks(self) -> I64:
        """The chunks of the field that is most work to unpack; else about 8 MiB of the file."""
        costly = [dataset for dataset in self._chunked() if dataset.filters]
        numbers = np.arange(self.length, dtype=np.int64)
        if costly:
            return numbers // max(costly, key=lambda dataset: dataset.width).chunk
        sample_bytes = max(1, self._source.size // max(1, self.length))
        return numbers // max(1, BLOCK_BYTES // sample_bytes)

    def _chunked(self) -> list[Chunks]:
        stored = [cells.stored for cells in self._cells.values() if isinstance(cells, Numbers | Varying)]
        return [dataset for dataset in stored if isinstance(dataset, Chunks)]

    @property
    def file_bytes(self) -> int:
        """The bytes of the file."""
        return self._source.size

    def own_checks(self) -> tuple[str, ...]:
        filters = {code for dataset in self._chunked() for code, _ in dataset.filters}
        return ("Fletcher-32 of every chunk",) if FLETCHER in filters else ()

    def facts(self) -> dict[str, object]:
        file = self._file
        facts: dict[str, object] = {"superblock": file.superblock}
        layouts = {name: file.tables[name].described for name in self.schema if name in file.tables}
        if layouts:
            facts["layout"] = "; ".join(f"{name}: {layout}" for name, layout in layouts.items())
        if file.note is not None:
            chosen = parse_object(file.note).get("chunks")
            if isinstance(chosen, str):
                facts["chunk size"] = chosen
        for name, values in self.attributes.items():
            facts[f"attributes of {name}" if name else "attributes"] = ", ".join(
                f"{key}={str(value)[:60]}" for key, value in values.items()
            )
        if file.left_out:
            facts["left out"] = "; ".join(f"{name}: {why}" for name, why in file.left_out.items())
        return facts

    def close(self) -> None:
        for dataset in self._opened:
            dataset.close()
        self._cache.clear()
        self._source.close()


class Hdf5Group(Hdf5Reader):
    """One group of a file that is open already. ``cache``: what all groups share."""

    def __init__(
        self,
        path: str,
        source: Source,
        file: File,
        cache: ChunkCache,
        *,
        fields: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> None:
        self.path, self._cache, self._swmr, self._group = path, cache, False, ""
        self._selected = None if fields is None else tuple(fields)
        self._begin(file, source)
        self._unpack(decode)


class Hdf5Groups(Concat):
    """The groups that match a pattern, in natural order; all have the same fields."""

    format = "hdf5"
    readers: Sequence[Hdf5Reader]

    def __init__(
        self,
        path: str,
        *,
        group: str,
        fields: Iterable[str] | None = None,
        group_field: str | None = None,
        swmr: bool = False,
        cache: int | None = None,
        decode: bool | None = None,
    ) -> None:
        if swmr:
            raise OptionError("swmr is for one group, not for a pattern of several", path=path)
        layout = layout_of(path)
        source = open_source(path)
        names = None if fields is None else [name for name in fields if name != group_field]
        shared = ChunkCache(cache)
        with on_error(source.close, path=path):
            files = layout.load_groups(path, source, group)
            self.groups = tuple(files)
            readers = [
                Hdf5Group(path, source, file, shared, fields=names or None, decode=decode)
                for file in files.values()
            ]
            self._check_alike(readers)
            super().__init__(readers)
            self.path = path
            self._group_field = group_field
            if group_field is not None:
                if group_field in self.schema:
                    raise OptionError(
                        f"there is a field {group_field!r} already; give group_field another name"
                    )
                stored = {} if names == [] else self.schema
                self.schema = Schema({**stored, group_field: Text()})

    def _check_alike(self, readers: Sequence[Hdf5Reader]) -> None:
        first = readers[0].schema
        for name, reader in zip(self.groups, readers, strict=True):
            differing = [
                field for field in {**first, **reader.schema} if first.get(field) != reader.schema.get(field)
            ]
            if differing:
                field = differing[0]
                had, has = first.get(field, "nothing"), reader.schema.get(field, "nothing")
                message = f"it is {has} in group {name}, and {had} in {self.groups[0]}"
                raise SchemaError(f"{message}; choose what all groups have with fields=[…]", field=field)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        stored = [name for name in fields if name != self._group_field]
        columns = super()._read(indices, stored) if stored else Columns()
        if len(stored) < len(fields) and self._group_field is not None:
            names = [name.rsplit("/", 1)[-1].encode() for name in self.groups]
            columns[self._group_field] = Ragged.from_cells(names).take(self._split(indices)[0])
        return Columns((name, columns[name]) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return None if field == self._group_field else super()._spans(field, indices)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        stored = [name for name in fields if name != self._group_field]
        return super()._ranges(stored, indices) if stored else None

    def _layout(self) -> Layout:
        # An episode does not go on in the next group.
        boundaries = inner_starts(self._bounds, self.length)
        return dataclasses.replace(super()._layout(), block_sizes=None, boundaries=boundaries)

    def _blocks(self) -> I64:
        """About 8 MiB of the file."""
        sample_bytes = max(1, self.readers[0].file_bytes // max(1, self.length))
        return np.arange(self.length, dtype=np.int64) // max(1, BLOCK_BYTES // sample_bytes)

    def facts(self) -> dict[str, object]:
        return {"groups": len(self.groups), **self.readers[0].facts()}


def layout_of(path: str) -> Any:
    """The module that asks the library; MissingLibraryError where that is not there."""
    try:
        from . import layout
    except ImportError:
        raise MissingLibraryError('HDF5 needs h5py: pip install "batchplant[hdf5]"', path=path) from None
    return layout


def is_pattern(group: str) -> bool:
    return any(sign in group for sign in "*?[")


# -- format -------------------------------------------------------------------------------------------

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def sniff(probe: Probe) -> bool:
    """The signature, at the start or behind a block of the user's: at 512 bytes, 1024, 2048 …"""
    head = probe.head
    offsets = [0, *(512 << step for step in range(6))]
    return any(head[offset : offset + 8] == SIGNATURE for offset in offsets)


FORMAT = Format(
    name="hdf5",
    title="HDF5",
    suffixes=(".h5", ".hdf5", ".he5", ".nc", ".nc4", ".mat"),
    spec="https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html",
    reader=Hdf5Reader,
    writer=Hdf5Writer,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    extra="hdf5",
    notes="contiguous datasets and variable-length cells are used in place; chunks are unpacked once",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("gzip", "lzf", "zstd", "blosc", "blosc2", "lz4", "bitshuffle"),
        compressed="chunk",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        metadata=True,
        ecosystem=("h5py", "PyTables", "MATLAB", "netCDF4", "Julia"),
    ),
)
