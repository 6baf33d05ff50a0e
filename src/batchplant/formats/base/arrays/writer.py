"""GridWriter: fields as arrays in chunks. A format says how a chunk and the metadata look.

Rows are gathered until a chunk is full; it is packed and written on several threads. What is not full yet
at a checkpoint lies in a file of its own, so that a resumed writer goes on with it.
"""

from __future__ import annotations

import math
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ....codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ....data.writer import WriteOptions, Writer
from ....errors import BatchplantError, OptionError
from ....schema import Audio, Field, Float, Image, Schema, Tensor, Video
from ....schema.columns import U8, Columns, Flags, Ragged
from ....storage import Patch, files_below, put_file
from . import pieces
from .compression import level_of, numcodecs
from .layout import OFFSETS, SHAPE, VALID, VALUES, Note, fixed, parts_of, paths_of
from .parts import Chunks, Part, Style, chunk_rows, chunk_shapes, files_at, write_chunks
from .reader import GridReader
from .store import FolderStore

IN_MEMORY = 256 << 20
# The table of a shard has 16 bytes for each.
MOST_CHUNKS = 1 << 20
# Numbers of x86 that no other machine has.
EXTENDED = ("float96", "float128", "complex256")

# "" → attributes of the top, field → its own.
Attributes = Mapping[str, Mapping[str, Any]]


def masked_rows(cells: Ragged, valid: Flags, part: Part) -> npt.NDArray[Any]:
    """A row for each cell, zeros where it is missing."""
    rows: npt.NDArray[Any] = np.zeros((len(cells), *part.row), dtype=part.dtype)
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
        for name, given in (("chunk_samples", chunk_samples), ("chunks_per_shard", chunks_per_file)):
            if given is not None and (type(given) is not int or given < 1):
                raise OptionError(f"{name} is a number from 1 on, not {given!r}", path=path)
        if chunks_per_file > MOST_CHUNKS:
            raise OptionError(f"chunks_per_shard is at most {MOST_CHUNKS}, not {chunks_per_file}", path=path)
        if attributes is not None and not set(attributes) <= {"", *schema}:
            raise OptionError(f"attributes belong to '' or a field, not {', '.join(attributes)}", path=path)
        try:
            shapes = chunk_shapes(chunks, schema)
        except BatchplantError as error:
            raise error.at(path=path) from None
        self.style = style
        style.attributes = (attributes or {}).get("", {})
        kind = "zstd" if compression == "auto" else compression
        level = level_of(kind, level, style.packings)
        self._how = kind, level
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
        how = options.get("compression", "auto"), 0, options.get("chunk_samples")
        return pieces.unit(_parts(schema, *how, shapes, options.get("chunks_per_shard", 1)), samples)

    def add_pieces(self, paths: Sequence[str]) -> None:
        for samples in pieces.add(self, paths):
            self.received += samples
            self.written += samples

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
        self._piece: pieces.Piece | None = None
        if self.options.piece is not None:
            self._piece = pieces.Piece(self, self.options, state["log"] if state else ())
        if self.base is not None:
            assert isinstance(self.base, GridReader)
            self._begin_behind(self.base)
        if state is None and self.base is not None:
            return
        if state is None and self._piece is not None:
            self._piece.begin()
            return
        if state is None:
            for (_, name), part in self.parts.items():
                if name == OFFSETS:
                    part.add(np.zeros(1, dtype=np.int64), 1)
            return
        data = np.fromfile(self.partial.folder / state["tails"], dtype=np.uint8)
        for part, (rows, files, size, lead) in zip(self.parts.values(), state["parts"], strict=True):
            part.rows, part.files, part.lead = rows, files, lead
            part.waiting, part.waiting_bytes = [data[:size].copy()], size
            data = data[size:]
            # Files after the checkpoint are written anew.
            number = files
            while _remove([self.top / one for one in files_at(self.style, part, number)]):
                number += 1
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
        if base.note is None or not isinstance(base.store, FolderStore):
            raise self.cannot_append("only a folder that batchplant has written can be")
        if len(base.arrays) != len(self.parts):
            raise self.cannot_append("there are arrays in it that are no fields")
        self.style, self._how, self.paths = self._style_of(base), base.note.packing, base.note.paths
        said = base.attributes
        self.style.attributes = said.get("", {})
        for key, own in self.parts.items():
            grid = base.parts[key]
            own.path = grid.name
            own.attributes = said.get(key[0], {}) if key[1] in ("", VALUES) else {}
            own.rows = grid.shape[0]
            if not own.rows:
                continue
            kind, level = self._how
            own.packing = "none" if grid.packing.startswith(("none", "raw")) else kind
            own.level = level if own.packing == kind else 0
            own.chunk, own.chunks_per_file = grid.chunks[0], grid.per_file
            own.cut = None if grid.whole_rows else grid.chunks[1:]
            own.files, rest = divmod(own.rows, own.file_rows)
            if self.style.full_size(own) is not None:
                own.lead = rest * own.width
                self._leads[files_at(self.style, own, own.files)[0]] = own.lead
            elif rest and own.width:
                own.waiting = [base.last_rows(grid, rest)]
                own.waiting_bytes = len(own.waiting[0])

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
            self.write_full(number, part)

    def write_full(self, number: int, part: Part) -> None:
        """Write the files of an array that are full."""
        while self._piece is not None and self._piece.is_kept(number):
            placed = part.lead > 0
            data = part.take() if placed else part.take_all()
            if data is None:
                return
            self._piece.keep(number, data)
            if not placed:
                return
        while (data := part.take()) is not None:
            self._submit_chunk(part, part.files - 1, data)

    def reserve(self, samples: int) -> None:
        """So many samples whose chunks somebody else will write; see regions.py."""
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

    def _submit_chunk(self, part: Part, number: int, data: U8) -> None:
        if self._packers is None:
            self._packers = ThreadPoolExecutor(self._workers, thread_name_prefix="batchplant-pack")
        self._packing.append(self._packers.submit(self._write_file, part, number, data))
        # Chunks in memory: a few for each worker, but no more than some hundred megabytes.
        self._wait(min(2 * self._workers, IN_MEMORY // max(1, len(data))))

    def _write_file(self, part: Part, number: int, data: U8) -> None:
        name = files_at(self.style, part, number)[0]
        if self._leads.get(name):
            file = self.top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            put_file(file, data)
        else:
            write_chunks(self.top, self.style, part, number, part.values(data))

    def _wait(self, most: int) -> None:
        while len(self._packing) > most:
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
            if len(rest := part.rest()):
                self._submit_chunk(part, part.files, rest)
        self._wait(0)
        for name, data in self.style.describe(list(self.parts.values()), self._note()).items():
            file = self.top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return self._zipped() if self.path.lower().endswith(".zip") else "store"

    def _note(self) -> Note:
        return Note(self.schema, self.paths, self.before + self.written, self._how)

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        """New chunks, then the metadata of the arrays, then that of the top, which says how many samples."""
        patches, chunks, documents = [], [], []
        described = self.style.describe(list(self.parts.values()), self._note())
        for one in files_below(self.top):
            move = f"{name}/{one}", f"{self.partial.name}/{one}"
            if self._leads.get(one):
                patches.append(Patch(*move, self._leads[one]))
            elif one in described:
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
            for file in sorted(files, key=lambda one: (len(one.relative_to(self.top).parts) > 1, one)):
                member = zipfile.ZipInfo(file.relative_to(self.top).as_posix())
                with open(file, "rb") as source, archive.open(member, "w", force_zip64=True) as out:
                    while data := source.read(1 << 24):
                        out.write(data)
        return "archive"


def _parts(
    schema: Schema, compression: str, level: int, chunk_samples: int | None,
    shapes: Mapping[str, tuple[int, tuple[int, ...] | None]], chunks_per_file: int,
    attributes: Attributes | None = None,
) -> dict[tuple[str, str], Part]:  # fmt: skip
    """The arrays of every field, and how they are cut into chunks."""
    auto = compression == "auto"
    kind = "zstd" if auto else compression
    found, paths = {}, paths_of(schema)
    for name, field in schema.items():
        for part, (dtype, row) in parts_of(field).items():
            # Images, sound and video are packed already, and are used in place where they lie plain.
            media = isinstance(field, Image | Audio | Video) and part == VALUES
            packing = "none" if auto and media else kind
            width = dtype.itemsize * math.prod(row)
            wanted = None if part == VALUES and fixed(field) is None else chunk_samples
            below = f"{paths[name]}/{part}" if part else paths[name]
            cut = None
            if name in shapes:
                wanted, cut = shapes[name]
            rows = chunk_rows(width, packing, wanted)
            found[name, part] = Part(
                below, dtype, row, rows, packing, level if packing == kind else 0, chunks_per_file,
                attributes=(attributes or {}).get(name, {}) if part in ("", VALUES) else {},
                cut=cut if part in ("", VALUES) else None,
            )  # fmt: skip
    return found


def _remove(files: list[Path]) -> bool:
    """Remove these files; whether there was one."""
    there = [file for file in files if file.exists()]
    for file in there:
        file.unlink()
    return bool(there)
