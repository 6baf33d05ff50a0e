"""Reading .rec files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.infer import infer_image
from ...codecs.msgpack import gathered
from ...errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError
from ...schema import Bytes, Field, Float, Image, Int, Schema, Tensor, Text
from ...schema.columns import I64, U8, Column, Columns, Ragged, Spans, starts_of
from ...storage import beside, open_source, read_text, tree
from ..base.records import BLOCK_BYTES, RAW, GivenSchema, Note, RecordReader
from .layout import FRAME, HEADER, KEYS, LABEL_AT, NUMBERS, image_field, is_label, load_index, scan

# As many records are looked at to tell what they are.
PROBED_SAMPLES = 32
KINDS = ("auto", "image", "header", "raw", "packed")


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
        if records not in KINDS:
            raise OptionError(f"records is one of {', '.join(KINDS)}, not {records!r}", path=path)
        self.path = path
        self.source = open_source(path)
        found = load_index(self.source, index)
        self._starts, self._sizes, self._split = (found.arrays[name] for name in ("starts", "sizes", "split"))
        self._facts = found.facts
        self.length = len(self._starts)
        self.image: str | None = None
        try:
            self._open_schema(records, schema)
        except BatchplantError as error:
            raise error.at(path=path) from None
        self._noted_keys = self._read_keys() if keys else None
        if self._noted_keys is not None:
            if "key" in self.schema:
                raise SchemaError("there is a field 'key' already; open it without keys", path=path)
            whole = not isinstance(self._noted_keys, Ragged)
            self.schema = Schema({"key": Int() if whole else Text(), **self.schema})

    # -- which fields there are ------------------------------------------------------------------------

    def _open_schema(self, records: str, given_schema: GivenSchema | str | None) -> None:
        note = Note.beside(self.path)
        stored = None if note is None or records in ("raw", "header") else note.schema
        self._set_schema(self.path, given=given_schema, stored=RAW if stored is None else stored)
        self.noted = None if note is None else note.samples
        known = given_schema is not None or stored is not None
        if records == "raw":
            if not self.raw:
                raise SchemaError("a raw record has the one field data", path=self.path)
            return
        if records == "packed" or (records == "auto" and self.raw and known):
            return
        if records == "auto" and not self._has_headers(strict=not known):
            return
        if not known:
            self.schema = self._found_schema(bare=records == "header")
        elif image_field(self.schema) is None and records != "header":
            if records == "image":
                raise SchemaError("image records have one image, and at most label, id and id2")
            return
        self.image = self._body_field()
        self.raw = False

    def _body_field(self) -> str:
        """The field that is behind the header."""
        bodies = [name for name, field in self.schema.items() if isinstance(field, Image | Bytes)]
        rest = [name for name in self.schema if name not in bodies and name not in NUMBERS]
        if len(bodies) != 1 or len(rest) > 1 or (rest and not is_label("label", self.schema[rest[0]])):
            raise SchemaError("behind a header there is one field of bytes, and at most label, id and id2")
        return bodies[0]

    def _some(self) -> I64:
        step = max(1, self.length // PROBED_SAMPLES)
        return np.arange(0, self.length, step)[:PROBED_SAMPLES]

    def _has_headers(self, *, strict: bool) -> bool:
        """True if the records are image records: a header that fits, and (``strict``) an image behind it."""
        if not self.length:
            return not strict
        try:
            data, at, sizes, _, body = self._bodies(self._some())
        except DamagedError:
            return False
        return not strict or infer_image(gathered(data, at + body, sizes - body)) is not None

    def _found_schema(self, *, bare: bool) -> Schema:
        """The fields of image records that no schema describes."""
        least, limit = self._facts["least"], self._facts["most"]
        label: Field = Tensor("float32", (None,)) if least != limit else Tensor("float32", (limit,))
        if limit == 0 or not self.length:
            label = Float("float32")
        body: Field = Bytes()
        if not bare:
            data, at, sizes, _, size = self._bodies(self._some())
            body = infer_image(gathered(data, at + size, sizes - size)) or Image()
        numbers = {name: Int("uint64") for name in NUMBERS}
        return Schema({"data" if bare else "image": body, "label": label, **numbers})

    # -- records ---------------------------------------------------------------------------------------

    def _is_split(self, indices: I64) -> bool:
        return len(self._split) > 0 and bool(np.isin(indices, self._split).any())

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts, sizes = self._starts[indices] + FRAME, self._sizes[indices]
        bad = self.source.outside(starts, sizes)
        if bad is not None:
            raise DamagedError(
                "the record lies outside of the file", path=self.path, sample=indices[bad], offset=starts[bad]
            )
        return starts, sizes

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

    def _bodies(self, indices: I64) -> tuple[U8, I64, I64, npt.NDArray[Any], I64]:
        """Image records: data, starts, sizes, headers, and where each body begins behind its start."""
        data, at, sizes, starts = self._found(indices, check=False)
        short = sizes < HEADER.itemsize
        if short.any():
            raise self._no_header(indices, starts, int(np.argmax(short)))
        whole = np.full(len(at), HEADER.itemsize, dtype=np.int64)
        headers = gathered(data, at, whole).data.view(HEADER)
        body = whole + 4 * headers["flag"].astype(np.int64)
        long = body > sizes
        if long.any():
            raise self._no_header(indices, starts, int(np.argmax(long)))
        return data, at, sizes, headers, body

    def _no_header(self, indices: I64, starts: I64, row: int) -> DamagedError:
        return DamagedError(
            "the record is too short for the header of an image record",
            path=self.path,
            sample=indices[row],
            offset=int(starts[row]),
        )

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        own = [name for name in fields if name != "key" or self._noted_keys is None]
        records = self._read_records(indices, own)
        for name in fields:
            if name not in records:
                assert self._noted_keys is not None
                records[name] = Columns(key=self._noted_keys).take(indices)["key"]
        return Columns((name, records[name]) for name in fields)

    def _key_kind(self) -> Field | None:
        return None if self._noted_keys is None else self.schema["key"]

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        return (
            None if short or self._noted_keys is None else Columns(key=self._noted_keys).take(indices)["key"]
        )

    def _read_records(self, indices: I64, fields: Sequence[str]) -> Columns:
        if not fields:
            return Columns()
        if self.image is None:
            if self.raw and self._is_split(indices):
                data, at, sizes, _ = self._found(indices, check=True)
                return Columns(data=gathered(data, at, sizes))
            return super()._read(indices, fields)
        data, at, sizes, headers, body = self._bodies(indices)
        columns = Columns()
        for name in fields:
            if name == self.image:
                columns[name] = gathered(data, at + body, sizes - body)
            elif name in NUMBERS:
                columns[name] = headers[name].astype(np.uint64)
            else:
                columns[name] = self._labels(name, indices, data, at, headers)
        return columns

    def _labels(self, name: str, indices: I64, data: U8, at: I64, headers: npt.NDArray[Any]) -> Column:
        field = self.schema[name]
        counts = headers["flag"].astype(np.int64)
        # Without a count, the label stands in the header, right behind it.
        starts = at + np.where(counts > 0, HEADER.itemsize, LABEL_AT)
        counts = np.maximum(counts, 1)
        wanted = field.shape[0] if isinstance(field, Tensor) else 1
        if wanted is not None and (wrong := counts != wanted).any():
            row = int(np.argmax(wrong))
            raise DamagedError(
                f"it has {counts[row]} labels, not {wanted}", path=self.path, sample=indices[row], field=name
            )
        labels = gathered(data, starts, 4 * counts)
        if wanted is None:
            return labels
        values = labels.data.view("<f4")
        if isinstance(field, Tensor):
            return values.reshape(-1, wanted).astype(np.float32)
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
        return Spans([self.source.path], self._starts[indices] + FRAME + body, sizes - body)

    def blocks(self) -> I64 | None:
        return self._starts // BLOCK_BYTES

    # -- keys ------------------------------------------------------------------------------------------

    def _key_lines(self) -> tuple[list[str], I64] | None:
        """The keys and the offsets of the .idx file; None where there is none."""
        place = beside(self.path, KEYS)
        if not tree.is_file(place):
            return None
        try:
            lines = [line.split("\t") for line in read_text(place).splitlines()]
            return [key for key, _ in lines], np.array([int(offset) for _, offset in lines], dtype=np.int64)
        except (ValueError, OverflowError) as error:
            raise DamagedError(f"not lines of a key and an offset: {error}", path=place) from None

    def _read_keys(self) -> Column:
        key_lines = self._key_lines()
        place = beside(self.path, KEYS)
        if key_lines is None:
            raise OptionError("there is no .idx file beside it, so there are no keys", path=self.path)
        for problem in self._check_keys(*key_lines):
            raise DamagedError(problem.message, path=place)
        keys = [key_lines[0][row] for row in np.argsort(key_lines[1], kind="stable")]
        try:
            return np.array([int(key) for key in keys], dtype=np.int64)
        except (ValueError, OverflowError):
            return Ragged.from_cells([key.encode() for key in keys])

    def _check_keys(self, keys: list[str], offsets: I64) -> Iterator[Problem]:
        place = beside(self.path, KEYS)
        if len(keys) != self.length:
            yield Problem(f"it has {len(keys)} keys, and there are {self.length} records", place)
        elif (wrong := np.sort(offsets) != self._starts).any():
            offset = int(self._starts[np.argmax(wrong)])
            yield Problem("it does not name the places where records begin", place, offset=offset)

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        arrays, _ = scan(self.source, lambda done: None)
        for name, have in (("starts", self._starts), ("sizes", self._sizes), ("split", self._split)):
            if not np.array_equal(arrays[name], have):
                yield Problem("the index is not that of this file; open it with index=rebuild", self.path)
                return
        key_lines = self._key_lines()
        if key_lines is not None:
            yield from self._check_keys(*key_lines)

    def facts(self) -> dict[str, Any]:
        kind = "image" if self.image is not None else "raw" if self.raw else "packed"
        return {"records": kind, "split records": len(self._split)}
