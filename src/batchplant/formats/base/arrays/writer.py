"""GridWriter: fields as arrays in chunks. A format says how a chunk and the metadata look.

Rows are gathered until a chunk is full; it is packed and written on several threads. What is not full yet
at a checkpoint lies in a file of its own, so that a resumed writer goes on with it.
"""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ....codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ....data.writer import WriteOptions, Writer
from ....errors import DamagedError, OptionError, SchemaError, exceptions_as, located
from ....schema import Audio, Field, Float, Image, Schema, Tensor, Video
from ....schema.columns import U8, AnyArray, Column, Columns, Flags, Ragged
from ....storage import (
    NOTE_ERRORS,
    Patch,
    files_below,
    is_remote,
    join,
    open_source,
    parse_object,
    put_file,
    read_beside,
)
from ....storage.checksums import load
from ....storage.uploads import below
from .compression import level_of, numcodecs
from .grid import Grid
from .layout import (
    OFFSETS,
    SHAPE,
    VALID,
    VALUES,
    Chunks,
    DatasetMetadata,
    OutputArray,
    Style,
    chunk_rows,
    chunk_shapes,
    files_at,
    fixed,
    parts_of,
    paths_of,
    write_chunks,
)
from .reader import GridReader
from .store import FolderStore

MAX_PENDING_BYTES = 256 << 20
# The table of a shard has 16 bytes for each.
MAX_CHUNKS_PER_SHARD = 1 << 20
# A piece's own files. No field lies under a name with a dot before it.
PIECE_LOG_NAME, PIECE_ROWS_NAME = ".piece.json", ".rest"
# A dataset is cut into at least so many pieces if the chunks of its largest array allow it, and those of the
# others.
MIN_PIECES_BY_LARGEST, MIN_PIECES_BY_OTHERS = 8, 64
# Rows of a piece are copied in blocks of so many bytes.
COPY_BLOCK_BYTES = 16 << 20
# Numbers of x86 that no other machine has.
EXTENDED = ("float96", "float128", "complex256")

# (field, name below it)
ArrayKey = tuple[str, str]
# "" → attributes of the top, field → its own.
Attributes = Mapping[str, Mapping[str, Any]]


def masked_rows(cells: Ragged, valid: Flags, part: OutputArray) -> AnyArray:
    """A row for each cell, zeros where it is missing."""
    rows: AnyArray = np.zeros((len(cells), *part.row), dtype=part.dtype)
    rows[valid] = cells.data.view(part.dtype).reshape(int(valid.sum()), *part.row)
    return rows


class GridWriter(Writer):
    """Arrays in chunks in a folder, or in a ZIP file where the target's name ends so."""

    appends: ClassVar[bool] = True

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, style: Style, compression: str,
        level: int | None, chunk_samples: int | None, chunks_per_file: int = 1, *,
        attributes: Attributes | None = None, chunks: Chunks | None = None,
    ) -> None:  # fmt: skip
        for name, count in (("chunk_samples", chunk_samples), ("chunks_per_shard", chunks_per_file)):
            if count is not None and (type(count) is not int or count < 1):
                raise OptionError(f"{name} is a number from 1 on, not {count!r}", path=path)
        if chunks_per_file > MAX_CHUNKS_PER_SHARD:
            raise OptionError(
                f"chunks_per_shard is at most {MAX_CHUNKS_PER_SHARD}, not {chunks_per_file}", path=path
            )
        if attributes is not None and not set(attributes) <= {"", *schema}:
            raise OptionError(f"attributes belong to '' or a field, not {', '.join(attributes)}", path=path)
        with located(path=path):
            shapes = chunk_shapes(chunks, schema)
        self.style = style
        style.attributes = (attributes or {}).get("", {})
        kind = "zstd" if compression == "auto" else compression
        level = level_of(kind, level, style.packings)
        self._compression = kind, level
        if kind in ("zstd", "blosc"):
            numcodecs(style.extra)
        self.paths = paths_of(schema)
        self.parts = _parts(schema, compression, level, chunk_samples, shapes, chunks_per_file, attributes)
        self._packers: ThreadPoolExecutor | None = None
        self._packing: deque[Future[None]] = deque()
        super().__init__(path, schema, options)

    @classmethod
    def piece_samples(cls, schema: Schema, samples: int, options: Mapping[str, Any]) -> int | None:
        shapes = chunk_shapes(options.get("chunks"), schema)
        compression, chunk_samples = options.get("compression", "auto"), options.get("chunk_samples")
        per_file = options.get("chunks_per_shard", 1)
        return _piece_unit(_parts(schema, compression, 0, chunk_samples, shapes, per_file), samples)

    def add_pieces(self, paths: Sequence[str]) -> None:
        for path in paths:
            samples = self._add_piece(path)
            self.received += samples
            self.written += samples

    def _add_piece(self, path: str) -> int:
        keys, parts = list(self.parts), list(self.parts.values())
        samples, log = _read_piece_log(path, len(parts))
        sizes = {name: entry.size for name, entry in below(path).items()} if is_remote(path) else {}
        spool, offset = open_source(join(path, PIECE_ROWS_NAME)), 0
        before = {name: part.rows for (name, kind), part in self.parts.items() if kind == VALUES}
        for number, rows, files in log:
            part = parts[number]
            if files:
                self._adopt_files(part, files, path, sizes)
            block_rows = max(1, COPY_BLOCK_BYTES // max(1, part.width))
            for first in range(0, rows, block_rows):
                count = min(block_rows, rows - first)
                data: Any = np.array(spool.only(offset, count * part.width))
                offset += len(data)
                if keys[number][1] == OFFSETS:
                    data = data.view(np.int64) + before[keys[number][0]]
                part.add(data, count)
                self._write_full(number, part)
        if self.options.checksums:
            sums = load(path)
            if sums is None:
                raise DamagedError("its checksums are not there", path=path)
            self.partial.spool("checksums").write(sums.sums)
        return samples

    def _adopt_files(self, part: OutputArray, files: int, path: str, sizes: Mapping[str, int]) -> None:
        if part.waiting_bytes or part.rows != part.files * part.file_rows:
            raise DamagedError(f"{part.path} does not begin where the piece before it ends", path=path)
        numbers = range(part.files, part.files + files)
        names = [name for number in numbers for name in files_at(self.style, part, number)]
        moves = [(join(path, name), f"{self.top.name}/{name}", sizes.get(name, 0)) for name in names]
        self.partial.adopt(moves)
        part.files += files
        part.rows += files * part.file_rows

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Float | Tensor) and np.dtype(field.dtype).name in EXTENDED:
            return "it has no numbers of this precision"
        return None

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget(ANY_ENCODED | {"raw"})

    @property
    def top(self) -> Path:
        return self.partial.folder / "store"

    def _begin(self, state: dict[str, Any] | None) -> None:
        self.top.mkdir(exist_ok=True)
        # Files of the dataset that only get more bytes, and from which on.
        self._leads: dict[str, int] = {}
        if self.base is not None:
            assert isinstance(self.base, GridReader)
            self._begin_behind(self.base)
        self._piece: Piece | None = None
        if self.options.piece is not None:
            self._piece = Piece(self, self.options, state["log"] if state else ())
        if state is not None:
            self._restore(state)
        elif self._piece is not None and self.base is None:
            self._piece.begin()
        elif self.base is None:
            for (_, name), part in self.parts.items():
                if name == OFFSETS:
                    part.add(np.zeros(1, dtype=np.int64), 1)

    def _restore(self, state: dict[str, Any]) -> None:
        """Go on at a checkpoint."""
        data = np.fromfile(self.partial.folder / state["tails"], dtype=np.uint8)
        for part, (rows, files, size, lead) in zip(self.parts.values(), state["parts"], strict=True):
            part.rows, part.files, part.lead = rows, files, lead
            part.waiting, part.waiting_bytes = [data[:size].copy()], size
            data = data[size:]
            # Files after the checkpoint are written anew.
            for number in itertools.count(files):
                later = [self.top / name for name in files_at(self.style, part, number)]
                if not any(file.exists() for file in later):
                    break
                for file in later:
                    file.unlink(missing_ok=True)
        self._tails = state["tails"]

    def _state(self) -> dict[str, Any]:
        self._wait(0)
        # Never over the file that the last checkpoint names.
        self._tails = "tails-1" if getattr(self, "_tails", None) == "tails-0" else "tails-0"
        with open(self.partial.folder / self._tails, "wb") as out:
            for part in self.parts.values():
                out.write(part.rest().data)
        parts = [(part.rows, part.files, part.waiting_bytes, part.lead) for part in self.parts.values()]
        log = [] if self._piece is None else self._piece.log
        return {"tails": self._tails, "parts": parts, "log": list(log)}

    def _begin_behind(self, base: GridReader) -> None:
        """Go on where the arrays of a dataset end. A file of packed chunks that is not full is made anew."""
        if base.own_metadata is None or not isinstance(base.store, FolderStore):
            raise self.cannot_append("only a folder that batchplant has written can be")
        if len(base.arrays) != len(self.parts):
            raise self.cannot_append("there are arrays in it that are no fields")
        self.style, attributes = self._style_of(base), base.attributes
        self._compression, self.paths = base.own_metadata.packing, base.own_metadata.paths
        self.style.attributes = attributes.get("", {})
        for key in self.parts:
            grid = base.parts[key]
            if grid.shape[0]:
                self.parts[key] = _stored_part(grid, base.own_metadata)
            part = self.parts[key]
            part.path = grid.name
            part.attributes = attributes.get(key[0], {}) if key[1] in ("", VALUES) else {}
            if not part.rows:
                continue
            part.files, extra_rows = divmod(part.rows, part.file_rows)
            if self.style.full_size(part) is not None:
                part.lead = extra_rows * part.width
                self._leads[files_at(self.style, part, part.files)[0]] = part.lead
            elif extra_rows and part.width:
                part.waiting = [base.last_rows(grid, extra_rows)]
                part.waiting_bytes = len(part.waiting[0])

    def _style_of(self, base: GridReader) -> Style:
        """Style in which the arrays of a dataset are written."""
        return self.style

    def _write(self, columns: Columns) -> None:
        for name, column in columns.items():
            if not isinstance(column, Ragged):
                self.parts[name, ""].add(column, len(column))
            else:
                self._add_ragged(name, self.schema[name], column)
        for number, part in enumerate(self.parts.values()):
            self._write_full(number, part)

    def _write_full(self, number: int, part: OutputArray) -> None:
        """Write the files of an array that are full."""
        while self._piece is not None and self._piece.is_loose(number):
            placed = part.lead > 0
            data = part.take() if placed else part.take_all()
            if data is None:
                return
            self._piece.store_rows(number, data)
            if not placed:
                return
        while (data := part.take()) is not None:
            self._submit_chunk(part, part.files - 1, data)

    def reserve(self, samples: int) -> None:
        """So many samples whose chunks somebody else will write; see :func:`allocate`."""
        self.received = self.written = samples
        for part in self.parts.values():
            part.rows = samples

    def _add_ragged(self, name: str, field: Field, column: Ragged) -> None:
        count = len(column)
        valid = np.ones(count, dtype=np.bool_) if column.valid is None else column.valid
        values = self.parts[name, VALUES]
        if (name, VALID) in self.parts:
            self.parts[name, VALID].add(valid, count)
        packed = column.take(slice(None))
        if (name, OFFSETS) not in self.parts:
            values.add(masked_rows(packed, valid, values), count)
            return
        self.parts[name, OFFSETS].add(packed.offsets[1:] // values.width + values.rows, count)
        values.add(packed.data, len(packed.data) // values.width)
        if (name, SHAPE) in self.parts:
            none = np.zeros((count, 3), dtype=np.int32)
            self.parts[name, SHAPE].add(none if column.shape is None else column.shape, count)

    def _submit_chunk(self, part: OutputArray, number: int, data: U8) -> None:
        if self._packers is None:
            self._packers = ThreadPoolExecutor(self._workers, thread_name_prefix="batchplant-pack")
        self._packing.append(self._packers.submit(self._write_file, part, number, data))
        # Chunks in memory: a few for each worker, but no more than some hundred megabytes.
        self._wait(min(2 * self._workers, MAX_PENDING_BYTES // max(1, len(data))))

    def _write_file(self, part: OutputArray, number: int, data: U8) -> None:
        name = files_at(self.style, part, number)[0]
        if self._leads.get(name):
            file = self.top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            put_file(file, data)
        else:
            write_chunks(self.top, self.style, part, number, part.values(data))

    def _wait(self, max_pending: int) -> None:
        while len(self._packing) > max_pending:
            self._packing.popleft().result()

    def _stop(self) -> None:
        if self._packers is not None:
            self._packers.shutdown(wait=True, cancel_futures=True)
            self._packers = None
        super()._stop()

    def _finish(self) -> str:
        if self._piece is not None:
            self._wait(0)
            self._piece.finish(self)
            return "store"
        for part in self.parts.values():
            if part.files == 0 and part.width and not self.options.append:
                # One chunk is not longer than what it holds, if nothing follows.
                part.chunk = min(part.chunk, max(1, part.rows))
            if len(data := part.rest()):
                self._submit_chunk(part, part.files, data)
        self._wait(0)
        for name, document in self.style.describe(list(self.parts.values()), self._own_metadata()).items():
            file = self.top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(document)
        return self._zipped() if self.path.lower().endswith(".zip") else "store"

    def _own_metadata(self) -> DatasetMetadata:
        return DatasetMetadata(self.schema, self.paths, self.before + self.written, self._compression)

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        """New chunks, then the metadata of the arrays, then that of the top, which says how many samples."""
        patches, chunks, documents = [], [], []
        described = self.style.describe(list(self.parts.values()), self._own_metadata())
        for file in files_below(self.top):
            move = f"{name}/{file}", f"{self.partial.name}/{file}"
            if self._leads.get(file):
                patches.append(Patch(*move, self._leads[file]))
            elif file in described:
                documents.append(move)
            else:
                chunks.append(move)
        documents.sort(key=lambda move: -move[0].count("/"))
        return patches, [*chunks, *documents]

    def _zipped(self) -> str:
        """Stored, so that chunks are used where they lie; with fixed dates, so that equal data is equal."""
        with zipfile.ZipFile(self.partial.folder / "archive", "w", zipfile.ZIP_STORED) as archive:
            files = [file for file in self.top.rglob("*") if file.is_file()]
            # The metadata of the top first, by which the file is recognised.
            for file in sorted(files, key=lambda file: (len(file.relative_to(self.top).parts) > 1, file)):
                member = zipfile.ZipInfo(file.relative_to(self.top).as_posix())
                with open(file, "rb") as source, archive.open(member, "w", force_zip64=True) as out:
                    while data := source.read(1 << 24):
                        out.write(data)
        return "archive"


def _parts(
    schema: Schema, compression: str, level: int, chunk_samples: int | None,
    shapes: Mapping[str, tuple[int, tuple[int, ...] | None]], chunks_per_file: int,
    attributes: Attributes | None = None,
) -> dict[tuple[str, str], OutputArray]:  # fmt: skip
    """The arrays of every field, and how they are cut into chunks."""
    auto = compression == "auto"
    kind = "zstd" if auto else compression
    arrays, paths = {}, paths_of(schema)
    for name, field in schema.items():
        for part, (dtype, row) in parts_of(field).items():
            # Images, sound and video are packed already, and are used in place where they lie plain.
            media = isinstance(field, Image | Audio | Video) and part == VALUES
            packing = "none" if auto and media else kind
            width = dtype.itemsize * math.prod(row)
            requested_rows = None if part == VALUES and fixed(field) is None else chunk_samples
            path = f"{paths[name]}/{part}" if part else paths[name]
            cut = None
            if name in shapes:
                requested_rows, cut = shapes[name]
            rows = chunk_rows(width, packing, requested_rows)
            arrays[name, part] = OutputArray(
                path, dtype, row, rows, packing, level if packing == kind else 0, chunks_per_file,
                attributes=(attributes or {}).get(name, {}) if part in ("", VALUES) else {},
                cut=cut if part in ("", VALUES) else None,
            )  # fmt: skip
    return arrays


def _stored_part(grid: Grid, metadata: DatasetMetadata) -> OutputArray:
    """An array of a dataset, to write more of it in the way it is stored."""
    kind, level = metadata.packing
    packing = "none" if grid.packing.startswith(("none", "raw")) else kind
    return OutputArray(
        grid.name, grid.dtype, grid.row, grid.chunks[0], packing, level, grid.per_file, grid.shape[0],
        cut=None if grid.whole_rows else grid.chunks[1:],
    )  # fmt: skip


def _is_placed(key: ArrayKey, parts: Mapping[ArrayKey, OutputArray]) -> bool:
    """True if the number of a sample alone says where its rows are."""
    return (key[0], OFFSETS) not in parts or key[1] not in (VALUES, OFFSETS)


def _piece_unit(parts: Mapping[ArrayKey, OutputArray], samples: int) -> int:
    """Number of samples that fill whole files of the arrays that are worth it: those with wide rows first."""
    placed = [part for key, part in parts.items() if part.width and _is_placed(key, parts)]
    all_placed = all(_is_placed(key, parts) for key in parts)
    unit, min_pieces = 1, MIN_PIECES_BY_LARGEST if all_placed else MIN_PIECES_BY_OTHERS
    for part in sorted(placed, key=lambda part: -part.width):
        multiple = math.lcm(unit, part.file_rows)
        unit = multiple if multiple <= samples // min_pieces else unit
        min_pieces = MIN_PIECES_BY_OTHERS
    return unit


class PieceEntry(NamedTuple):
    """Log entry of a piece: the next rows of an array in ``.rest``, or its next files."""

    part: int
    rows: int
    files: int


class Piece:
    """One of several ranges of a dataset: the rows of it that do not fill files of chunks.

    Several processes write a range of samples each, and one process joins these pieces. A file of chunks
    whose rows all lie in the range is written under its final name. All other rows go into ``.rest`` as they
    are: those at the ends of the range, which share a file with another range, and those whose place depends
    on the cells before (cells of differing length). ``.piece.json`` logs their order. Joining adopts the
    files and packs the other rows.
    """

    def __init__(self, writer: GridWriter, options: WriteOptions, log: Sequence[Sequence[int]]) -> None:
        self._parts = list(writer.parts.values())
        loose = options.piece == "loose" or writer.path.lower().endswith(".zip")
        self._placed = [not loose and _is_placed(key, writer.parts) for key in writer.parts]
        self._first = options.first
        self._rows = writer.partial.spool(PIECE_ROWS_NAME)
        self.log = [PieceEntry(*entry) for entry in log]

    def begin(self) -> None:
        for part, placed in zip(self._parts, self._placed, strict=True):
            if placed and part.width:
                part.files, rows = divmod(self._first, part.file_rows)
                part.lead = rows * part.width

    def is_loose(self, number: int) -> bool:
        """True if the waiting rows of an array are not those of a file of chunks, or only of its end."""
        return not self._placed[number] or self._parts[number].lead > 0

    def store_rows(self, number: int, data: U8) -> None:
        part = self._parts[number]
        if len(data):
            self._rows.write(data)
            self.log.append(PieceEntry(number, len(data) // part.width, 0))

    def finish(self, writer: GridWriter) -> None:
        for number, part in enumerate(self._parts):
            if not part.width:
                self.log.append(PieceEntry(number, part.rows, 0))
                continue
            files = part.files - -(-self._first // part.file_rows)
            if self._placed[number] and files > 0:
                self.log.append(PieceEntry(number, 0, files))
            self.store_rows(number, part.rest())
        writer.partial.put(PIECE_ROWS_NAME, writer.top / PIECE_ROWS_NAME)
        summary = {"samples": writer.written, "log": self.log}
        put_file(writer.top / PIECE_LOG_NAME, json.dumps(summary).encode())


def _read_piece_log(path: str, parts: int) -> tuple[int, list[PieceEntry]]:
    log_path = join(path, PIECE_LOG_NAME)
    with exceptions_as(DamagedError, "the note of a piece cannot be read", *NOTE_ERRORS, path=log_path):
        summary = parse_object(read_beside(log_path) or b"")
        log = [PieceEntry(*entry) for entry in summary["log"]]
        samples = summary["samples"]
        counts = [samples, *(count for entry in log for count in entry)]
        valid = all(type(count) is int and count >= 0 for count in counts)
        if not valid or any(entry.part >= parts for entry in log):
            raise ValueError("its numbers cannot be")
        return samples, log


# -- several processes --------------------------------------------------------------------------------
# Each writes a range of samples of its own, by whole files of chunks. Only fields whose cells all have one
# size can be written so: elsewhere the place of a cell depends on those before.


def allocate(
    writer_class: type[GridWriter], path: str, schema: Schema | Mapping[str, Field], samples: int, *,
    chunk_samples: int | None = None, overwrite: bool = False, **options: Any,
) -> None:  # fmt: skip
    """An empty dataset of so many samples. Until a range is written, reading it says that it is missing."""
    widths = []
    for name, field in Schema(schema).items():
        cell = fixed(field)
        if cell is None:
            raise SchemaError(
                "cells of differing length lie one after another, and cannot be written range by range",
                field=name,
            )
        widths.append(cell[0].itemsize * math.prod(cell[1]))
    if type(samples) is not int or samples < 0 or not widths:
        raise OptionError(
            f"a number of samples and at least one field are needed, not {samples!r}", path=path
        )
    # The same for all fields, so that one number tells where ranges may begin.
    rows = chunk_samples or chunk_rows(max(widths), options.get("compression", "auto"), None)
    write: Any = writer_class
    with write(path, Schema(schema), WriteOptions(overwrite=overwrite), chunk_samples=rows, **options) as out:
        out.reserve(samples)


def unit_of(reader: GridReader) -> int:
    """Ranges begin and end at multiples of this."""
    units = {grid.chunks[0] * grid.per_file for grid in reader.parts.values()}
    if reader.own_metadata is None or not isinstance(reader.store, FolderStore) or len(units) != 1:
        raise OptionError("ranges are written into folders that allocate() has made", path=reader.path)
    return units.pop()


def write_range(reader: GridReader, style: Style, start: int, columns: Mapping[str, Column]) -> None:
    """Write these samples from ``start`` on, where they replace what is there."""
    unit, values = unit_of(reader), Columns(columns)
    assert reader.own_metadata is not None
    values.check(reader.schema)
    end = start + values.rows
    if not 0 <= start <= end <= len(reader) or start % unit or (end % unit and end != len(reader)):
        raise OptionError(
            f"a range begins and ends at multiples of {unit} samples, or at the end, {len(reader)}; "
            f"{start} to {end} does not",
            path=reader.path,
        )
    for (name, kind), grid in reader.parts.items():
        part, column = _stored_part(grid, reader.own_metadata), values[name]
        if isinstance(column, Ragged):
            packed = column.take(slice(None))
            valid = np.ones(len(packed), dtype=np.bool_) if packed.valid is None else packed.valid
            rows: Any = valid if kind == VALID else masked_rows(packed, valid, part)
        else:
            rows = np.ascontiguousarray(column)
        for first in range(0, len(rows) if part.width else 0, unit):
            number = (start + first) // unit
            write_chunks(Path(reader.path), style, part, number, rows[first : first + unit])
