"""TensorWriter: what the writers of models share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from ....data.tensors import BITS, shape_of, size_of, text_of
from ....data.writer import Writer
from ....errors import BatchplantError, OptionError, SchemaError
from ....schema.columns import U8, Columns


@dataclasses.dataclass(frozen=True)
class Placed:
    """A tensor that was written: ``start`` is what ``_put`` returned."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    start: int


class TensorWriter(Writer):
    """Takes the samples of TENSORS. A format implements ``_finish``, and ``_put`` where it needs its own."""

    # What the format can hold; a sentence for those that it cannot.
    dtypes: ClassVar[Collection[str]] = tuple(BITS)
    elsewhere: ClassVar[str] = "safetensors holds most dtypes"
    entries: list[Placed]

    @staticmethod
    def _checked_metadata(path: str, metadata: Mapping[str, str] | None) -> dict[str, str]:
        """Return the option of a format that keeps text about the model."""
        if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
            raise OptionError("metadata is text by name", path=path)
        return dict(metadata or {})

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        failed: dict[int, BatchplantError] = {}
        for row in range(columns.rows):
            try:
                name, dtype, shape, data = _row(columns, row)
                if dtype in BITS and dtype not in self.dtypes:
                    raise SchemaError(f"tensor {name!r}: {self.format} has no {dtype}; {self.elsewhere}")
                size = size_of(dtype, shape)
                if size != data.size:
                    raise SchemaError(
                        f"tensor {name!r}: {dtype} {list(shape)} has {size} bytes, and {data.size} were given"
                    )
                self._check(name, dtype, shape)
            except BatchplantError as error:
                failed[row] = error
        return failed

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Raise SchemaError where the format cannot hold it; the dtype is one of its own. In a worker."""

    def _begin(self, state: dict[str, Any] | None) -> None:
        # Nothing is encoded, and tensors may be large: few of them are under way at a time.
        self._workers = 1
        self._data = self.partial.spool("data")
        self._list = self.partial.spool("entries")
        lines = self._list.read_at(self._list.size, 0).splitlines()
        self.entries = [
            Placed(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in map(json.loads, lines)
        ]
        self._names = {entry.name for entry in self.entries}

    def _write(self, columns: Columns) -> None:
        for row in range(columns.rows):
            name, dtype, shape, data = _row(columns, row)
            if name in self._names:
                raise SchemaError(
                    f"two tensors are called {name!r}",
                    path=self.path,
                    sample=self.written + row,
                    field="name",
                )
            self._names.add(name)
            start = self._put(name, dtype, shape, data)
            self.entries.append(Placed(name, dtype, shape, data.size, start))
            self._list.write(json.dumps([name, dtype, shape, data.size, start]).encode() + b"\n")

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        """Write the values down; where they begin, in the spool ``data`` unless the format says otherwise."""
        start = self._data.size
        self._data.write(data)
        return start


def _row(columns: Columns, row: int) -> tuple[str, str, tuple[int, ...], U8]:
    data = columns["data"][row]
    assert data is not None
    return (
        text_of(columns["name"], row),
        text_of(columns["dtype"], row),
        shape_of(columns["shape"], row),
        data,
    )
