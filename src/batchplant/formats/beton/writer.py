"""Writing .beton: cells go to their place as they come, the tables follow at the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.media.image import probe
from ...codecs.media.image_rules import ImageTarget
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, EncodeError, OptionError
from ...schema import Field, Float, Image, Schema
from ...schema.columns import I64, Column, Columns, Ragged, column_runs
from ...storage import Spool
from .layout import (
    ALLOCATING,
    ALLOCATION,
    ARRAY,
    ARRAY_ARGUMENTS,
    DESCRIPTOR,
    FLOAT,
    HEADER,
    INT,
    JPEG,
    JSON,
    MISSING_MARK,
    NOTE_MAGIC,
    PAGE_END,
    PAGE_LEAST,
    PAGE_USUAL,
    RAW,
    RGB,
    SIDE_MOST,
    layout,
    short_names,
    table_dtype,
)

SMALL_FILE = 4 * PAGE_USUAL


class BetonWriter(Writer):
    """Writes .beton files that FFCV reads. ``page_size``: a power of two from 2 MiB on.

    Without it, pages are 2 MiB in small files and 8 MiB, as FFCV's, in others; a sample that is larger than
    a page makes the page grow. Cells go to their place at once, behind room for the table: as much as
    ``length`` samples need, or a page. Only when more come are the pages copied once at the end.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        page_size: int | None = None,
    ) -> None:
        self._page = page_size or PAGE_LEAST
        self._fixed = page_size is not None
        # Used again for every write: fresh memory would cost more than the copy into it.
        self._scratch = np.empty(0, dtype=np.uint8)
        if self._page & (self._page - 1) or not PAGE_LEAST <= self._page < PAGE_END:
            raise OptionError(f"page_size must be a power of two from 2 MiB to 2 GiB, not {page_size}")
        self._types = [layout(field) for field in schema.values()]
        self._dtype = table_dtype(self._types)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Float) and np.dtype(field.dtype).itemsize > 8:
            return f".beton cannot hold {field.dtype} exactly"
        return None

    def remarks(self) -> list[str]:
        return [
            f"the images of {name!r} are {field.mode or 'not all RGB'}; FFCV's image type holds RGB, "
            "so they are stored as bytes, which FFCV reads as such; to_rgb (--to-rgb) makes them RGB"
            for name, field in self.schema.items()
            if isinstance(field, Image) and layout(field) != RGB
        ]

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        if layout(field) == RGB:
            return ImageTarget(frozenset({"jpeg", "raw"}), frozenset({"RGB"}))
        return ImageTarget()

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._pages, self._rows = self.partial.spool("pages"), self.partial.spool("table")
        self._allocations = self.partial.spool("allocations")
        start = self._first_page(self.options.length or 0)
        state = state or {"origin": start, "cursor": start, "page": self._page}
        self._origin, self._cursor, self._page = state["origin"], state["cursor"], state["page"]

    def _state(self) -> dict[str, Any]:
        return {"origin": self._origin, "cursor": self._cursor, "page": self._page}

    def _note(self) -> bytes:
        text = json.dumps(self.schema.to_json(), ensure_ascii=False).encode()
        return NOTE_MAGIC + np.array([len(text), _native.crc32c(text)], "<u4").tobytes() + text

    def _table_at(self) -> int:
        return HEADER.itemsize + len(self._types) * DESCRIPTOR.itemsize

    def _table_end(self, samples: int) -> int:
        return self._table_at() + samples * self._dtype.itemsize + len(self._note())

    def _first_page(self, samples: int) -> int:
        return -(-self._table_end(samples) // self._page) * self._page

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        totals = np.zeros(columns.rows, dtype=np.int64)
        for name, kind in zip(self.schema, self._types, strict=True):
            column = columns[name]
            if kind in ALLOCATING:
                totals += np.maximum(column_runs(column)[2], 0) + 1
            if isinstance(column, Ragged):
                large = (probe(column)[:, 1:3] > SIDE_MOST).any(axis=1) if kind == RGB else ()
                for row in np.flatnonzero(large):
                    message = f".beton holds images of at most {SIDE_MOST} pixels a side"
                    problems[int(row)] = EncodeError(message, field=name)
        for row in np.flatnonzero(totals >= PAGE_END // 2):
            problems[int(row)] = EncodeError(f"{totals[row]} bytes exceed .beton's largest page")
        return problems

    def _write(self, columns: Columns) -> None:
        runs = {
            name: column_runs(columns[name])
            for name, kind in zip(self.schema, self._types, strict=True)
            if kind in ALLOCATING
        }
        # A JSON cell ends with a NUL; every cell takes a byte at least.
        sizes = np.zeros((columns.rows, len(runs)), dtype=np.int64)
        for number, (_, _, own) in enumerate(runs.values()):
            sizes[:, number] = np.maximum(own, 0)
        sizes += np.array([kind == JSON for kind in self._types if kind in ALLOCATING], dtype=np.int64)
        ptrs = self._place(np.maximum(sizes, 1))
        rows = np.zeros(columns.rows, dtype=self._dtype)
        allocated = np.zeros(sizes.shape, dtype=ALLOCATION)
        allocated["sample"] = (self.written + np.arange(columns.rows))[:, None]
        at = 0
        for number, (name, kind) in enumerate(zip(self.schema, self._types, strict=True)):
            member = rows[f"f{number}"]
            if kind in (INT, FLOAT):
                # A uint64 is kept as the int64 of the same bits.
                member[...] = columns[name]
                continue
            allocated["ptr"][:, at], allocated["size"][:, at] = ptrs[:, at], sizes[:, at]
            if kind == ARRAY:
                member[...] = ptrs[:, at]
            else:
                member["ptr"] = ptrs[:, at]
                if kind == RGB:
                    self._image(columns[name], member)
                else:
                    member["size"] = sizes[:, at]
            at += 1
        if runs and columns.rows:
            self._copy(ptrs, list(runs.values()))
        self._rows.write(rows)
        self._allocations.write(allocated)

    def _place(self, sizes: I64) -> I64:
        """Assign positions to cells: samples one after another, none across the end of a page."""
        totals = sizes.sum(axis=1)
        starts = np.empty(len(totals), dtype=np.int64)
        for row, total in enumerate(totals.tolist()):
            # What lies in smaller pages lies in larger ones too, so the page may grow at any time.
            if not self._fixed and self._cursor - self._origin >= SMALL_FILE:
                self._page = max(self._page, PAGE_USUAL)
            while total > self._page:
                self._page *= 2
            if self._cursor % self._page + total > self._page:
                self._cursor = -(-self._cursor // self._page) * self._page
            starts[row] = self._cursor
            self._cursor += total
        return starts[:, None] + np.cumsum(sizes, axis=1) - sizes

    def _copy(self, ptrs: I64, runs: list[tuple[Any, I64, I64]]) -> None:
        first = int(ptrs[0, 0])
        if self._scratch.size < self._cursor - first:
            self._scratch = np.empty(self._cursor - first, dtype=np.uint8)
        buffer = self._scratch[: self._cursor - first]
        buffer.fill(0)
        for number, (data, starts, own) in enumerate(runs):
            _native.copy_runs(
                data, starts, np.maximum(own, 0), buffer, np.ascontiguousarray(ptrs[:, number] - first)
            )
            buffer[ptrs[own < 0, number] - first] = MISSING_MARK
        self._pages.write_at(buffer, first)

    def _image(self, column: Column, member: Any) -> None:
        assert isinstance(column, Ragged)
        headers = probe(column)
        member["mode"] = np.where(column.raw, RAW, JPEG)
        member["width"], member["height"] = headers[:, 1], headers[:, 2]

    def _finish(self) -> str:
        # The page may have grown since; that alone moves nothing.
        if self._table_end(self.written) > self._origin:
            self._move(self._first_page(self.written))
        end = -(-self._cursor // self._page) * self._page if self._cursor > self._origin else self._origin
        file = self._pages
        file.resize(end)
        file.write_at(self._header(end), 0)
        self._copy_rows(self._rows, self._dtype, file, self._table_at())
        file.write_at(self._note(), self._table_at() + self.written * self._dtype.itemsize)
        self._copy_rows(self._allocations, ALLOCATION, file, end)
        return file.path.name

    def _move(self, start: int) -> None:
        """Make room for the table in front of the pages."""
        moved = self.partial.spool("moved")
        self._shift = -(-(start - self._origin) // self._page) * self._page
        done = self._origin
        while done < self._pages.size:
            part = self._pages.read_at(1 << 24, done)
            moved.write_at(part, done + self._shift)
            done += len(part)
        self._pages, self._cursor, self._origin = (
            moved,
            self._cursor + self._shift,
            self._origin + self._shift,
        )

    _shift = 0

    def _copy_rows(self, rows: Spool, dtype: np.dtype[Any], file: Spool, at: int) -> None:
        """Copy table or allocations behind the header, ptrs made absolute."""
        step = dtype.itemsize * (1 << 16)
        for done in range(0, rows.size, step):
            part = np.frombuffer(bytearray(rows.read_at(step, done)), dtype=dtype)
            for member in self._ptrs(part):
                member += np.uint64(self._shift)
            file.write_at(part, at + done)

    def _ptrs(self, rows: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        if rows.dtype == ALLOCATION:
            return [rows["ptr"]]
        kinds = [(f"f{number}", kind) for number, kind in enumerate(self._types) if kind in ALLOCATING]
        return [rows[name] if kind == ARRAY else rows[name]["ptr"] for name, kind in kinds]

    def _header(self, allocations: int) -> bytes:
        header = np.array([(2, len(self._types), self._page, self.written, allocations)], dtype=HEADER)
        descriptors = np.zeros(len(self._types), dtype=DESCRIPTOR)
        for row, short, field in zip(
            descriptors, short_names(self.schema), self.schema.values(), strict=True
        ):
            row["type"], row["name"] = layout(field), short
            if row["type"] == ARRAY:
                assert field.cell is not None
                dtype, shape = field.cell
                text = json.dumps(dtype.descr).encode()
                head = np.zeros(1, dtype=ARRAY_ARGUMENTS)
                head["shape"][0, : len(shape)], head["length"] = shape, len(text)
                row["arguments"][: head.nbytes + len(text)] = np.frombuffer(head.tobytes() + text, np.uint8)
        return header.tobytes() + descriptors.tobytes()
