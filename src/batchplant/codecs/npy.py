"""Arrays as cells, as NPY files (header, fields, rows) and as nested lists of JSON. Never unpickles."""

from __future__ import annotations

import ast
import contextlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _native
from ..errors import DamagedError, DecodeError, FieldNameError, SchemaError, no_such
from ..schema import Bool, Bytes, Field, Float, Int, Tensor, Text
from ..schema.columns import I64, U8, AnyArray, AnyDType, Column, Ragged, as_bytes, dense_of
from ..storage import Source

MAGIC = b"\x93NUMPY"
# The longest header that NumPy itself reads from files it does not trust.
MAX_HEADER_BYTES = 10_000
MAX_EMPTY_ROWS = 1_000_000
# Version → bytes of the header's length, encoding of its text.
_VERSIONS = {1: (2, "latin1"), 2: (4, "latin1"), 3: (4, "utf8")}
# The header that NumPy writes for an array that is not structured.
_PLAIN = re.compile(
    r"\{'descr': '([<>|=]?[a-zA-Z]\d*(?:\[\w+\])?)', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d+, ?)*\d*)\), \} *\n?"
)

# Rows of at least this many bytes are copied by native code.
MIN_NATIVE_ROW_BYTES = 512


class Header(NamedTuple):
    dtype: AnyDType
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def size(self) -> int:
        """Bytes of the values; a false header may say more than memory holds."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))


# Maximum nesting of structures; no real array has as many.
MAX_DEPTH = 16


def parse_header(head: bytes) -> Header:
    """Parse the header at the start of these bytes; DamagedError if there is none."""
    try:
        if head[:6] != MAGIC or len(head) < 12 or head[6] not in _VERSIONS:
            raise ValueError(f"it begins with {head[:8]!r}")
        width, encoding = _VERSIONS[head[6]]
        start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
        if not 8 + width < start <= min(len(head), MAX_HEADER_BYTES + 12):
            raise ValueError(f"{start} bytes of header")
        text = head[8 + width : start].decode(encoding)
        plain = _PLAIN.fullmatch(text)
        if plain is not None:
            descr: Any = plain[1]
            shape: Any = tuple(int(size) for size in plain[3].split(",") if size.strip())
            fortran: Any = plain[2] == "True"
        else:
            # A damaged header may hold an odd literal that Python warns about.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                literal = _parse_literal(text.strip())
            descr, fortran, shape = literal["descr"], literal["fortran_order"], literal["shape"]
        dtype = np.lib.format.descr_to_dtype(descr)
        sizes = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not sizes or not isinstance(fortran, bool):
            raise ValueError(f"shape {shape}")
    # The header is a Python literal; damaged ones raise all of these.
    except (
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        raise DamagedError(f"not an NPY header: {error}") from None
    return Header(dtype, shape, fortran, start)


def _parse_literal(text: str, tries: int = 10) -> Any:
    """Evaluate a Python literal; try again where threads of CPython 3.11 disturb each other (gh-106905)."""
    for _ in range(tries - 1):
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text)
    return ast.literal_eval(text)


def map_file(path: str | Path) -> AnyArray:
    """Map an NPY file that this program wrote; unlike ``np.load``, it runs no parser of Python's."""
    with open(path, "rb") as file:
        header = parse_header(file.read(MAX_HEADER_BYTES + 12))
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    return np.memmap(path, header.dtype, "r", header.start, header.shape, order)


def read(data: U8) -> AnyArray:
    """Return the array of a load_all NPY file in memory: a view."""
    header = parse_header(data[: MAX_HEADER_BYTES + 12].tobytes())
    return view(header, data[header.start :])


def view(header: Header, values: U8) -> AnyArray:
    """Return the array over its values; their number has to be what the header says."""
    if header.dtype.hasobject:
        raise DamagedError("object arrays hold pickles, which are not read here")
    if header.size != values.size:
        raise DamagedError(f"{values.size} bytes of values, and the header promises {header.size}")
    if header.size == 0:
        # Rows without a byte cost nothing, so a header could promise any number of them.
        if header.shape and header.shape[0] > MAX_EMPTY_ROWS:
            raise DamagedError(f"it promises {header.shape[0]} rows of no bytes")
        return np.empty(header.shape, header.dtype)
    return values.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def header_bytes(dtype: AnyDType, shape: tuple[int, ...]) -> bytes:
    """Return the header as NumPy writes it, with room for the number of rows to grow."""
    described = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {described!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (21 - len(repr(shape[0]))) if shape else ""
    version = 1 if text.isascii() and len(text) < 65_000 else 3
    width, encoding = _VERSIONS[version]
    encoded = text.encode(encoding)
    encoded += b" " * (64 - (8 + width + len(encoded) + 1) % 64) + b"\n"
    return MAGIC + bytes([version, 0]) + len(encoded).to_bytes(width, "little") + encoded


def write(array: AnyArray) -> bytes:
    return header_bytes(array.dtype, array.shape) + array.tobytes()


def columns_of(array: AnyArray, name: str = "", deep: int = 0) -> dict[str, AnyArray]:
    """Return the columns of an array by dotted name: one, or a view of each field of a structured one."""
    if not array.dtype.names or deep > MAX_DEPTH:
        return {name: array}
    columns: dict[str, AnyArray] = {}
    for field in array.dtype.names:
        inner = columns_of(array[field], f"{name}.{field}" if name else field, deep + 1)
        if columns.keys() & inner.keys():
            raise SchemaError(f"two fields are called {next(iter(columns.keys() & inner.keys()))!r}")
        columns |= inner
    return columns


def choose(
    names: Sequence[str],
    requested: Sequence[str] | None,
    header: Callable[[str], Header],
    array: Callable[[str], AnyArray],
) -> dict[str, AnyArray]:
    """Return the columns of several arrays: these, fields of structured ones, single values if nothing else.

    A field of a structured array is named by both, or by its own name if there is no other array.
    """
    alone = names[0] if len(names) == 1 and header(names[0]).dtype.names else None
    chosen = names if requested is None else requested
    if requested is None:
        chosen = [name for name in names if header(name).shape] or names
    columns_by_name: dict[str, AnyArray] = {}
    for name in chosen:
        above = next((candidate for candidate in names if name.startswith(f"{candidate}.")), name)
        array_name = name if name in names else alone or above
        values = array(array_name)
        columns = columns_of(values if values.ndim else values.reshape(1))
        called = {
            label if label and alone else f"{array_name}.{label}" if label else array_name: label
            for label in columns
        }
        if name != array_name and name not in called:
            raise FieldNameError(no_such("field", name, called))
        columns_by_name |= {
            full: columns[label] for full, label in called.items() if name in (array_name, full)
        }
    return columns_by_name


def field_of(dtype: AnyDType, shape: Sequence[int]) -> Field:
    """Return the field of an array's rows; ``shape`` is that of one row."""
    if dtype.subdtype is not None:
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    if dtype.kind in "SU" and not shape:
        return Bytes() if dtype.kind == "S" else Text()
    if dtype.kind not in "biufcmM":
        raise SchemaError(f"arrays of {dtype} rows {tuple(shape)} have no field kind")
    dtype = dtype.newbyteorder("=")
    if shape or dtype.kind in "cmM" or dtype.itemsize > 8:
        return Tensor(dtype.name, tuple(shape))
    if dtype.kind == "b":
        return Bool()
    return Float(dtype.name) if dtype.kind == "f" else Int(dtype.name)


def _take(array: AnyArray, indices: I64) -> AnyArray:
    """Return ``array[indices]``, copied natively if rows are long enough for that to be faster."""
    width = array.itemsize * math.prod(array.shape[1:])
    if width < MIN_NATIVE_ROW_BYTES or not array.flags.c_contiguous or array.dtype.hasobject:
        return np.asarray(array[indices])
    rows = _native.gather_strided(as_bytes(array), 0, width, width, np.ascontiguousarray(indices))
    assert rows is not None
    return rows.view(array.dtype).reshape(len(indices), *array.shape[1:])


class StoredRows:
    """The rows of an array in a file that is not in memory, read on demand."""

    def __init__(self, source: Source, header: Header, start: int) -> None:
        self.dtype, self.shape, self.ndim = header.dtype, header.shape, len(header.shape)
        self.nbytes = header.size
        self._source, self._start = source, start
        self._width = header.dtype.itemsize * math.prod(header.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def runs(self, starts: I64, sizes: I64) -> Ragged:
        """Return runs of bytes."""
        return self._source.gather(self._start + starts, sizes)

    def take(self, indices: I64) -> AnyArray:
        data = self._source.gather_rows(self._start, self._width, self._width, indices)
        return data.view(self.dtype).reshape(len(indices), *self.shape[1:])


def stored(source: Source, header: Header, start: int, size: int) -> AnyArray | StoredRows:
    """Return the array whose values are these bytes of a file; read now if its rows are not contiguous."""
    if header.size != size:
        raise DamagedError(f"{size} bytes of values, and the header promises {header.size}")
    source.check_bounds(start, size)
    rows = header.shape and header.size and not (header.fortran and len(header.shape) > 1)
    return StoredRows(source, header, start) if rows else view(header, source.view(start, size))


def load_all(array: AnyArray | StoredRows) -> AnyArray:
    return array.take(np.arange(len(array))) if isinstance(array, StoredRows) else array


class StoredCells(Ragged):
    """Cells that are fetched when they are taken; ``data`` locates them."""

    def take(self, rows: Any) -> Ragged:
        rows = np.arange(len(self))[rows]
        data: Any = self.data
        cells: Ragged = data.runs(self.starts[rows], self.sizes[rows])
        cells.shape = None if self.shape is None else self.shape[rows]
        cells.valid = None if self.valid is None else self.valid[rows]
        return cells


def cells_of(parts: Mapping[str, Any], length: int) -> Ragged:
    """Return the cells that arrays called data, offsets, shape and valid describe, as in Ragged."""
    data, offsets = parts.get("data"), parts.get("offsets")
    if data is None or offsets is None:
        raise DamagedError("its data or its offsets are missing")
    offsets = load_all(offsets)
    shape, valid = (load_all(parts[name]) if name in parts else None for name in ("shape", "valid"))
    good = data.dtype == np.uint8 and data.ndim == 1 and offsets.dtype == np.int64 and offsets.ndim == 1
    good = good and len(offsets) == length + 1 and offsets[0] == 0 and offsets[-1] == len(data)
    good = good and bool((np.diff(offsets) >= 0).all())
    good = good and (shape is None or (shape.dtype == np.int32 and shape.shape == (length, 3)))
    good = good and (shape is None or bool(((shape >= 0) & (shape[:, 2:] <= 4)).all()))
    good = good and (valid is None or (valid.dtype == np.bool_ and valid.shape == (length,)))
    if not good:
        raise DamagedError("its data, offsets, shape and valid members do not fit together")
    return (StoredCells if isinstance(data, StoredRows) else Ragged)(data, offsets, shape, valid)


def rows(array: AnyArray | StoredRows, indices: I64, field: Field) -> Column:
    """Return the cells of these rows: numbers in native order, text and bytes ragged."""
    values = array.take(indices) if isinstance(array, StoredRows) else _take(array, indices)
    if isinstance(field, Text):
        try:
            return Ragged.from_cells([str(text).encode() for text in values])
        except UnicodeEncodeError as error:
            raise DamagedError(f"not text: {error}") from None
    if isinstance(field, Bytes):
        return Ragged.from_cells([bytes(value) for value in values])
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))


def pack_tensor(field: Tensor, array: AnyArray) -> bytes:
    """Return the ragged cell of an array: its values, or a whole NPY if those do not tell the shape."""
    return array.tobytes() if field.flat else write(array)


def unpack_tensor(field: Tensor, data: U8) -> AnyArray:
    """Return the array of a ragged cell."""
    if not field.flat:
        array = read(data)
        if array.dtype != np.dtype(field.dtype) or not field.fits(array.shape):
            raise DecodeError(f"an array {array.dtype} {array.shape} does not fit {field}")
        return array
    inner = [size for size in field.shape[1:] if size is not None]
    first = field.shape[0] if field.shape and field.shape[0] is not None else -1
    array = data.view(np.dtype(field.dtype))
    return array.reshape((first, *inner) if field.shape else ())


def check_bytes(field: Field, starts: I64, sizes: I64) -> None:
    """Check that runs of bytes hold the numbers of a field, as in memory; a missing one has size -1."""
    dense = dense_of(field)
    if dense is not None:
        size = dense[0].itemsize * math.prod(dense[1])
        wrong = (sizes >= 0) & (sizes != size)
        takes = f"takes {size}"
    elif isinstance(field, Tensor) and field.flat:
        size = np.dtype(field.dtype).itemsize * math.prod(length or 0 for length in field.shape[1:])
        wrong = (sizes >= 0) & (sizes % size != 0)
        takes = f"takes {size} or a multiple of it"
    else:
        return
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"the value has {sizes[row]} bytes, and {field} {takes}"
        raise DecodeError(message, sample=row, offset=int(starts[row]))


def lists_of(array: AnyArray) -> Any:
    """Return nested lists; an empty array, whose lists would not tell its shape, is ``{"shape": [0, 4]}``."""
    return array.tolist() if array.size else {"shape": list(array.shape)}


def array_of(field: Tensor, value: Any) -> AnyArray:
    """Return the array of nested lists; whatever NumPy raises, a ValueError too, if they are none."""
    dtype = np.dtype(field.dtype)
    if isinstance(value, dict):
        shape = tuple(int(size) for size in value["shape"])
        if 0 not in shape or not field.fits(shape):
            raise ValueError
        return np.zeros(shape, dtype=dtype)
    array = np.array(value, dtype=dtype)
    allowed: set[type] = {bool} if dtype.kind == "b" else {int, float} if dtype.kind == "f" else {int}
    # NumPy would truncate 1.5 to 1.
    if not field.fits(array.shape) or not set(map(type, np.array(value, dtype=object).flat)) <= allowed:
        raise ValueError
    return array
