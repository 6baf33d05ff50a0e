"""RecordIO, the records of MXNet and dmlc-core. Little-endian.

One record after another: u32 magic ``0xced7230a``, u32 ``part << 29 | length``, the data, zeros up to a
multiple of four bytes. A record that has the magic in its data at a multiple of four is split there into
parts (1 first, 2 middle, 3 last; 0 is a whole record), and the magic is left out. There are no checksums.
``NAME.idx`` beside ``NAME.rec`` has a line ``key TAB offset`` for each record.

An image record, as MXNet and DALI read it, begins with a header of 24 bytes: u32 count of labels, float32
label, u64 id, u64 id2. Where the count is not 0, that many float32 labels follow. The rest is the image.

What we write: an image with at most a label, ``id`` and ``id2`` as an image record; a single field ``data``
of bytes as it is; every other sample as a MessagePack map. ``NAME.rec.schema.json`` keeps the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _native
from ..codecs.infer import infer_image
from ..codecs.media.image_rules import ImageTarget
from ..codecs.msgpack import gathered
from ..data.keys import FormatKeys
from ..data.layout import Layout
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    EncodeError,
    OptionError,
    Problem,
    SchemaError,
    check_choice,
    located,
)
from ..schema import EVERY_KIND, Bytes, Field, Float, Image, Int, Schema, Tensor, Text
from ..schema.columns import I64, U8, AnyArray, Column, Columns, Ragged, column_runs, starts_of
from ..storage import RANGE_MOST, MappedSource, Source, beside, index, open_source, read_text, tree
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.records import BLOCK_BYTES, RAW, SCHEMA_SIDE_CAR, GivenSchema, Note, RecordReader, RecordWriter

# -- layout -------------------------------------------------------------------------------------------
# Layout of .rec files, and the scan for their records.

MAGIC = 0xCED7230A
# What stands before the data of a record.
FRAME = 8
KEYS = "{stem}.idx"
# What stands before the image of an image record.
HEADER = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")])
LABEL_AT = 4
NUMBERS = ("id", "id2")
SCANNED_BYTES = 64 << 20


def image_field(schema: Schema) -> str | None:
    """The image of a schema that image records can hold; None where they cannot."""
    images = [name for name, field in schema.items() if isinstance(field, Image) and not field.optional]
    unclaimed = [name for name in schema if name not in images and not _is_number(name, schema[name])]
    if (
        len(images) != 1
        or len(unclaimed) > 1
        or (unclaimed and not is_label(unclaimed[0], schema[unclaimed[0]]))
    ):
        return None
    return images[0]


def _is_number(name: str, field: Field) -> bool:
    return name in NUMBERS and field == Int("uint64")


def is_label(name: str, field: Field) -> bool:
    if field.optional or (name != "label" and not (isinstance(field, Int) and field.names)):
        return False
    if isinstance(field, Tensor):
        return field.dtype == "float32" and len(field.shape) == 1 and field.shape[0] != 0
    return isinstance(field, Int) or (isinstance(field, Float) and field.dtype in ("float16", "float32"))


def scan(
    source: Source,
    report: index.Report,
    before: index.Index | None = None,
    position: int = 0,
    *,
    step_bytes: int = SCANNED_BYTES,
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Locate all records; ``before``: those up to ``position``, from an earlier scan."""
    batches: list[tuple[I64, I64, I64]] = []
    step = step_bytes if isinstance(source, MappedSource) else RANGE_MOST
    count, smallest, limit = 0, 2**32 - 1, 0
    if before is not None:
        batches = [(before.arrays["starts"], before.arrays["sizes"], before.arrays["split"])]
        count, smallest, limit = len(batches[0][0]), int(before.facts["least"]), int(before.facts["most"])
    while position < source.size:
        window = source.view(position, min(step, source.size - position))
        starts, sizes, split, low, high, end, failure = _native.recordio_scan(window, 0, len(window))
        if failure is not None:
            message, offset, cut = failure
            if not cut or position + len(window) == source.size:
                raise DamagedError(
                    f"{message}; the {count + len(starts)} records before it are whole",
                    path=source.path,
                    offset=position + offset,
                )
            # One record that is longer than the window.
            step = 2 * step if end == 0 else step
        batches.append((starts + position, sizes, split + count))
        count, position = count + len(starts), position + end
        smallest, limit = min(smallest, low), max(limit, high)
        report(position)
    columns = zip(*batches, strict=True) if batches else ([np.empty(0, np.int64)],) * 3
    starts, sizes, split = (np.concatenate(list(parts)) for parts in columns)
    return {"starts": starts, "sizes": sizes, "split": split}, {"least": smallest, "most": limit}


def _makes_sense(loaded: index.Index) -> bool:
    arrays = loaded.arrays
    plain = {"starts", "sizes", "split"} <= set(arrays) and all(
        array.dtype == np.int64 and array.ndim == 1 for array in arrays.values()
    )
    return plain and len(arrays["starts"]) == len(arrays["sizes"]) and {"least", "most"} <= set(loaded.facts)


def load_index(source: Source, mode: str) -> index.Index:
    return index.load(source, "recordio", scan, mode=mode, check=_makes_sense, grow=scan)


# -- reader -------------------------------------------------------------------------------------------
# Reading .rec files.

# As many records are looked at to tell what they are.
PROBED_SAMPLES = 32
READ_KINDS = ("auto", "image", "header", "raw", "packed")


class RecordIOReader(RecordReader):
    """Reads .rec files. ``records``: what they are: ``image``, ``header`` (other bytes behind such a header),
    ``raw`` bytes, ``packed`` samples, or ``auto``; ``schema``: the fields, where no side-car tells them;
    ``keys``: the keys of the .idx file as field ``key``; ``index``: auto, memory, write or rebuild."""

    def __init__(
        self,
        path: str,
        *,
        records: str = "auto",
        schema: GivenSchema | str | None = None,
        keys: bool = False,
        index: str = "auto",
    ) -> None:
        check_choice("records", records, READ_KINDS, path=path)
        self.path = path
        self.source = open_source(path)
        loaded = load_index(self.source, index)
        self._starts, self._sizes, self._split = (
            loaded.arrays[name] for name in ("starts", "sizes", "split")
        )
        self._facts = loaded.facts
        self.length = len(self._starts)
        self.image: str | None = None
        with located(path=path):
            self._open_schema(records, schema)
        self._noted_keys = self._read_keys() if keys else None
        if self._noted_keys is not None:
            if "key" in self.schema:
                raise SchemaError("there is a field 'key' already; open it without keys", path=path)
            all_keys = not isinstance(self._noted_keys, Ragged)
            self.schema = Schema({"key": Int() if all_keys else Text(), **self.schema})

    # -- which fields there are ------------------------------------------------------------------------

    def _open_schema(self, records: str, given_schema: GivenSchema | str | None) -> None:
        note = Note.beside(self.path)
        stored = None if note is None or records in ("raw", "header") else note.schema
        self._set_schema(self.path, given=given_schema, stored=RAW if stored is None else stored)
        self.noted = None if note is None else note.samples
        declared = given_schema is not None or stored is not None
        if records == "raw":
            if not self.raw:
                raise SchemaError("a raw record has the one field data", path=self.path)
            return
        if records == "packed" or (records == "auto" and self.raw and declared):
            return
        if records == "auto" and not self._has_headers(strict=not declared):
            return
        if not declared:
            self.schema = self._inferred_schema(bare=records == "header")
        elif image_field(self.schema) is None and records != "header":
            if records == "image":
                raise SchemaError("image records have one image, and at most label, id and id2")
            return
        self.image = self._body_field()
        self.raw = False

    def _body_field(self) -> str:
        bodies = [name for name, field in self.schema.items() if isinstance(field, Image | Bytes)]
        unclaimed = [name for name in self.schema if name not in bodies and name not in NUMBERS]
        if (
            len(bodies) != 1
            or len(unclaimed) > 1
            or (unclaimed and not is_label("label", self.schema[unclaimed[0]]))
        ):
            raise SchemaError("behind a header there is one field of bytes, and at most label, id and id2")
        return bodies[0]

    def _has_headers(self, *, strict: bool) -> bool:
        """True if the records are image records: a header that fits, and (``strict``) an image behind it."""
        if not self.length:
            return not strict
        try:
            data, positions, sizes, _, body = self._bodies(self._probed_rows(PROBED_SAMPLES))
        except DamagedError:
            return False
        return not strict or infer_image(gathered(data, positions + body, sizes - body)) is not None

    def _inferred_schema(self, *, bare: bool) -> Schema:
        smallest, limit = self._facts["least"], self._facts["most"]
        label: Field = Tensor("float32", (None,)) if smallest != limit else Tensor("float32", (limit,))
        if limit == 0 or not self.length:
            label = Float("float32")
        body: Field = Bytes()
        if not bare:
            data, positions, sizes, _, size = self._bodies(self._probed_rows(PROBED_SAMPLES))
            body = infer_image(gathered(data, positions + size, sizes - size)) or Image()
        numbers = {name: Int("uint64") for name in NUMBERS}
        return Schema({"data" if bare else "image": body, "label": label, **numbers})

    # -- records ---------------------------------------------------------------------------------------

    def _is_split(self, indices: I64) -> bool:
        return len(self._split) > 0 and bool(np.isin(indices, self._split).any())

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        return self._inside(indices, self._starts[indices] + FRAME, self._sizes[indices])

    def _found(self, indices: I64, *, check: bool) -> tuple[U8, I64, I64, I64]:
        if not self._is_split(indices):
            return super()._found(indices, check=check)
        # Parts are joined in memory; then a record is a run again.
        starts, sizes = self._starts[indices], self._sizes[indices]
        following = np.minimum(indices + 1, self.length - 1)
        ends = np.where(indices + 1 < self.length, self._starts[following], self.source.size)
        if self.source.outside(starts, ends - starts) is not None or (sizes > ends - starts).any():
            raise DamagedError("the index does not fit the file; open it with index=rebuild", path=self.path)
        framed = self.source.gather(starts, ends - starts)
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        bad = _native.recordio_join(framed.data, framed.starts, sizes, data, offsets[:-1])
        if bad >= 0:
            raise DamagedError(
                "the record is damaged", path=self.path, sample=indices[bad], offset=int(starts[bad])
            )
        return data, offsets[:-1], sizes, starts

    def _bodies(self, indices: I64) -> tuple[U8, I64, I64, AnyArray, I64]:
        """Image records: data, starts, sizes, headers, and where each body begins behind its start."""
        data, positions, sizes, starts = self._found(indices, check=False)
        # Of a record that is too short, none is read.
        header_sizes = np.full(len(positions), HEADER.itemsize, dtype=np.int64)
        body = header_sizes
        if not (body > sizes).any():
            headers = gathered(data, positions, header_sizes).data.view(HEADER)
            body = header_sizes + 4 * headers["flag"].astype(np.int64)
        if (short := body > sizes).any():
            row = int(np.argmax(short))
            message = "the record is too short for the header of an image record"
            raise DamagedError(message, path=self.path, sample=indices[row], offset=int(starts[row]))
        return data, positions, sizes, headers, body

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        keys = self._keys()
        stored = [name for name in fields if name != "key" or keys is None]
        records = self._read_records(indices, stored)
        if keys is not None and "key" in fields:
            records["key"] = keys.read(indices)
        return Columns((name, records[name]) for name in fields)

    def _keys(self) -> FormatKeys | None:
        keys = self._noted_keys
        if keys is None:
            return None
        return FormatKeys(self.schema["key"], lambda indices: Columns(key=keys).take(indices)["key"])

    def _read_records(self, indices: I64, fields: Sequence[str]) -> Columns:
        if not fields:
            return Columns()
        if self.image is None:
            if self.raw and self._is_split(indices):
                data, positions, sizes, _ = self._found(indices, check=True)
                return Columns(data=gathered(data, positions, sizes))
            return super()._read(indices, fields)
        data, positions, sizes, headers, body = self._bodies(indices)
        columns = Columns()
        for name in fields:
            if name == self.image:
                columns[name] = gathered(data, positions + body, sizes - body)
            elif name in NUMBERS:
                columns[name] = headers[name].astype(np.uint64)
            else:
                columns[name] = self._labels(name, indices, data, positions, headers)
        return columns

    def _labels(self, name: str, indices: I64, data: U8, positions: I64, headers: AnyArray) -> Column:
        field = self.schema[name]
        counts = headers["flag"].astype(np.int64)
        # Without a count, the label stands in the header, right behind it.
        starts = positions + np.where(counts > 0, HEADER.itemsize, LABEL_AT)
        counts = np.maximum(counts, 1)
        count = field.shape[0] if isinstance(field, Tensor) else 1
        if count is not None and (wrong := counts != count).any():
            row = int(np.argmax(wrong))
            raise DamagedError(
                f"it has {counts[row]} labels, not {count}", path=self.path, sample=indices[row], field=name
            )
        labels = gathered(data, starts, 4 * counts)
        if count is None:
            return labels
        values = labels.data.view("<f4")
        if isinstance(field, Tensor):
            return values.reshape(-1, count).astype(np.float32)
        dtype = np.dtype(getattr(field, "dtype", "float32"))
        with np.errstate(invalid="ignore", over="ignore"):
            cast = values.astype(dtype)
        # Beyond, casts to whole numbers differ from machine to machine.
        wrong = (cast.astype(np.float32) != values) | (np.abs(values) > 2.0**53)
        if dtype.kind != "f" and wrong.any():
            row = int(np.argmax(wrong))
            raise DamagedError(
                f"the label {values[row]} is no {field}", path=self.path, sample=indices[row], field=name
            )
        return cast

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if (field == "key" and self._noted_keys is not None) or self._is_split(indices):
            return None
        if self.image is None:
            return super()._spans(field, indices)
        if field != self.image:
            return None
        _, _, sizes, _, body = self._bodies(indices)
        return Spans([self.source], self._starts[indices] + FRAME + body, sizes - body)

    def _layout(self) -> Layout:
        return Layout(blocks=lambda: self._starts // BLOCK_BYTES)

    # -- keys ------------------------------------------------------------------------------------------

    def _key_lines(self) -> tuple[list[str], I64] | None:
        """The keys and the offsets of the .idx file; None where there is none."""
        key_path = beside(self.path, KEYS)
        if not tree.is_file(key_path):
            return None
        try:
            lines = [line.split("\t") for line in read_text(key_path).splitlines()]
            return [key for key, _ in lines], np.array([int(offset) for _, offset in lines], dtype=np.int64)
        except (ValueError, OverflowError) as error:
            raise DamagedError(f"not lines of a key and an offset: {error}", path=key_path) from None

    def _read_keys(self) -> Column:
        key_lines = self._key_lines()
        key_path = beside(self.path, KEYS)
        if key_lines is None:
            raise OptionError("there is no .idx file beside it, so there are no keys", path=self.path)
        for problem in self._check_keys(*key_lines):
            raise DamagedError(problem.message, path=key_path)
        keys = [key_lines[0][row] for row in np.argsort(key_lines[1], kind="stable")]
        try:
            return np.array([int(key) for key in keys], dtype=np.int64)
        except (ValueError, OverflowError):
            return Ragged.from_cells([key.encode() for key in keys])

    def _check_keys(self, keys: list[str], offsets: I64) -> Iterator[Problem]:
        key_path = beside(self.path, KEYS)
        if len(keys) != self.length:
            yield Problem(f"it has {len(keys)} keys, and there are {self.length} records", key_path)
        elif (wrong := np.sort(offsets) != self._starts).any():
            offset = int(self._starts[np.argmax(wrong)])
            yield Problem("it does not name the places where records begin", key_path, offset=offset)

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        arrays, _ = scan(self.source, lambda done: None)
        stored = {"starts": self._starts, "sizes": self._sizes, "split": self._split}
        if problems := self._other_index(arrays, stored):
            yield from problems
        elif (key_lines := self._key_lines()) is not None:
            yield from self._check_keys(*key_lines)

    def facts(self) -> dict[str, object]:
        kind = "image" if self.image is not None else "raw" if self.raw else "packed"
        return {"records": kind, "split records": len(self._split)}


# -- writer -------------------------------------------------------------------------------------------
# Writing .rec files, and the .idx file beside them.

WRITTEN_KINDS = ("auto", "image", "packed")
# More than the names, kinds and lengths of a packed cell take.
CELL_HEADER_BYTES = 4096
# Every whole number up to here is one of float32.
EXACT = 1 << 24


class RecordIOWriter(RecordWriter):
    """Writes .rec files and their .idx files. ``records``: ``image`` records, ``packed`` samples, or
    ``auto``: image records where an image, a label, id and id2 are all there is."""

    max_record_bytes: ClassVar[int] = (1 << 29) - 1

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR, KEYS)
    # There is a key for each.
    count_inside: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    growing: ClassVar[tuple[str, ...]] = (KEYS,)

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, records: str = "auto") -> None:
        check_choice("records", records, WRITTEN_KINDS, path=path)
        self._image = None if records == "packed" else image_field(schema)
        if records == "image" and self._image is None:
            raise SchemaError(
                "an image record holds one image, and at most a label (Int, Float of 32 bits, or a Tensor "
                "of those with one axis) and id and id2 (Int of uint64)",
                path=path,
            )
        unused = [name for name in schema if name != self._image and name not in NUMBERS]
        self._label = unused[0] if self._image is not None and unused else None
        super().__init__(path, schema, options)

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        # Readers of image records expect an encoded file.
        return ImageTarget()

    def remarks(self) -> list[str]:
        if self._label is not None and isinstance(self.schema[self._label], Int):
            return [f"{self._label} is stored as float32, as MXNet and DALI read it"]
        return []

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self.base is not None:
            assert isinstance(self.base, RecordIOReader)
            if self.base.image is None:
                self._image = self._label = None
            if self.base.image != self._image:
                raise self.cannot_append("its records have headers, and no images behind them")
        self._file = self.partial.spool("records")
        self._keys = self.partial.spool("keys")

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        sizes = np.zeros(columns.rows, dtype=np.int64)
        for column in columns.values():
            sizes += column_runs(column)[2].clip(0) + (0 if self.raw else CELL_HEADER_BYTES)
        for row in np.flatnonzero(sizes > self.max_record_bytes).tolist():
            problems.setdefault(
                row, EncodeError(f"a record of RecordIO has at most {self.max_record_bytes} bytes")
            )
        labels = None if self._label is None else columns[self._label]
        bad: AnyArray = np.zeros(columns.rows, dtype=np.bool_)
        if isinstance(labels, Ragged):
            bad = labels.sizes == 0
        elif labels is not None and isinstance(self.schema[str(self._label)], Int):
            bad = (labels > EXACT) | ((labels < -EXACT) if labels.dtype.kind == "i" else False)
        for row in np.flatnonzero(bad).tolist():
            label = "an empty list" if labels is None or isinstance(labels, Ragged) else str(labels[row])
            message = f"{label} is no label of an image record, which has float32"
            message += "; write it with records=packed"
            problems.setdefault(row, EncodeError(message, field=self._label))
        return problems

    def _write(self, columns: Columns) -> None:
        if self._image is None:
            super()._write(columns)
        else:
            self._write_records(self._image_records(self._image, columns))

    def _image_records(self, image: str, columns: Columns) -> Ragged:
        rows = columns.rows
        headers = np.zeros(rows, dtype=HEADER)
        headers["id"] = columns["id"] if "id" in columns else self.before + self.written + np.arange(rows)
        headers["id2"] = columns.get("id2", 0)
        several = []
        if self._label is not None:
            labels = columns[self._label]
            if isinstance(self.schema[self._label], Tensor):
                data, starts, sizes = column_runs(labels)
                if isinstance(labels, Ragged):
                    # A single label among several stands in the header itself.
                    single = sizes == 4
                    headers["label"][single] = gathered(data, starts[single], sizes[single]).data.view("<f4")
                    sizes = np.where(single, 0, sizes)
                several = [(data, starts, sizes)]
                headers["flag"] = sizes // 4
            else:
                headers["label"] = labels
        parts = [column_runs(headers), *several, column_runs(columns[image])]
        offsets = starts_of(sum((sizes for _, _, sizes in parts), np.zeros(rows, dtype=np.int64)))
        out, offset = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1].copy()
        for data, starts, sizes in parts:
            _native.copy_runs(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), out, offset)
            offset += sizes
        return Ragged(out, offsets)

    def _write_records(self, records: Ragged) -> None:
        framed, places = _native.recordio_frame(
            records.data, np.ascontiguousarray(records.starts), records.sizes
        )
        first, places = self.before + self.written, places + self.end + self._file.size
        lines = (f"{first + row}\t{offset}\n" for row, offset in enumerate(places.tolist()))
        self._keys.write("".join(lines).encode())
        self._file.write(framed)

    def _finish(self) -> str:
        return "records"

    def _beside(self) -> list[tuple[str, str]]:
        return [*super()._beside(), ("keys", KEYS)]


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    """The magic, and a part that a file can begin with."""
    head = probe.head[:FRAME]
    return head[:4] == MAGIC.to_bytes(4, "little") and len(head) == FRAME and head[7] >> 5 <= 1


FORMAT = Format(
    name="recordio",
    title="RecordIO (MXNet)",
    suffixes=(".rec",),
    spec="https://mxnet.apache.org/versions/1.9.1/api/faq/recordio.html",
    reader=RecordIOReader,
    writer=RecordIOWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="read in place; image records for MXNet and DALI, other samples as MessagePack; .idx beside",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        max_size="512 MiB in a record",
        ecosystem=("MXNet", "DALI"),
    ),
)
