"""HDF5 types: where in the stored bytes of an element its parts lie, and what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from ...codecs import npy
from ...errors import SchemaError
from ...schema import Bool, Bytes, Field, Int, Tensor, Text
from .heap import DESCRIPTOR


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a stored element: ``width`` bytes at ``offset``.

    kind: ``number``, ``string`` (of fixed length) or ``vlen``; the dtype is that of the values, in the
    file's byte order; shape that of an array inside of the element.
    """

    name: str
    kind: str
    offset: int
    width: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    text: bool = False
    utf8: bool = False
    padding: int = 0
    names: tuple[str, ...] | None = None
    # Bool or times that are kept as whole numbers.
    means: str | None = None
    # Why it has no field, where there is something wrong with it alone.
    refused: str | None = None

    def field(self, shape: tuple[int, ...]) -> Field:
        """The field that it is in a dataset whose samples have this shape."""
        if self.refused is not None:
            raise SchemaError(self.refused)
        if self.means is not None and not shape and not self.shape:
            return Bool() if self.means == "bool" else Tensor(self.means)
        if self.kind == "number":
            field = npy.field_of(self.dtype, (*shape, *self.shape))
            if self.names is not None and isinstance(field, Int):
                return Int(field.dtype, self.names)
            return field
        if shape or self.shape:
            raise SchemaError("arrays of text or of varying length have no field kind")
        if self.text:
            return Text()
        return Bytes() if self.dtype == np.uint8 else Tensor(self.dtype.newbyteorder("=").name, (None,))


def parts_of(kind: Any, name: str = "", offset: int = 0) -> tuple[list[Part], int]:
    """The parts of a type and the bytes that an element takes in the file; SchemaError for strange types."""
    if isinstance(kind, h5py.h5t.TypeCompoundID) and not _is_complex(kind):
        found: list[Part] = []
        # Parts of varying length are larger in the file, and move what lies behind them.
        moved = 0
        numbers = sorted(range(kind.get_nmembers()), key=kind.get_member_offset)
        for number in numbers:
            inner = kind.get_member_type(number)
            label = kind.get_member_name(number).decode()
            at = offset + kind.get_member_offset(number) + moved
            full = f"{name}.{label}" if name else label
            try:
                parts, size = parts_of(inner, full, at)
            except SchemaError as error:
                # A reference may be larger in the file, and move what lies behind it.
                if not isinstance(inner, h5py.h5t.TypeOpaqueID | h5py.h5t.TypeArrayID | h5py.h5t.TypeTimeID):
                    raise
                size = inner.get_size()
                parts = [Part(full, "number", at, size, np.dtype("u1"), refused=error.message)]
            found += parts
            moved += size - inner.get_size()
        return found, kind.get_size() + moved
    part = _simple(kind, name, offset)
    return [part], part.width


def _is_complex(kind: Any) -> bool:
    return bool(kind.dtype.kind == "c")


def _simple(kind: Any, name: str, offset: int) -> Part:
    if isinstance(kind, h5py.h5t.TypeStringID):
        utf8 = kind.get_cset() == h5py.h5t.CSET_UTF8
        vlen, size = kind.is_variable_str(), kind.get_size()
        width = DESCRIPTOR.itemsize if vlen else size
        label = "vlen" if vlen else "string"
        return Part(name, label, offset, width, np.dtype("u1"), (), True, utf8, kind.get_strpad())
    if isinstance(kind, h5py.h5t.TypeVlenID):
        dtype, _ = _number(kind.get_super())
        return Part(name, "vlen", offset, DESCRIPTOR.itemsize, dtype)
    shape: tuple[int, ...] = ()
    if isinstance(kind, h5py.h5t.TypeArrayID):
        shape = tuple(int(size) for size in kind.get_array_dims())
        kind = kind.get_super()
        if isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str():
            one = _simple(kind, name, offset)
            width = one.width * int(np.prod(shape, dtype=object))
            return dataclasses.replace(one, width=width, shape=shape)
    dtype, names = _number(kind)
    width = dtype.itemsize * int(np.prod(shape, dtype=object))
    return Part(name, "number", offset, width, dtype, shape, names=names)


def _number(kind: Any) -> tuple[np.dtype[Any], tuple[str, ...] | None]:
    known = h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID | h5py.h5t.TypeEnumID | h5py.h5t.TypeBitfieldID
    complexes = kind.get_class() not in (h5py.h5t.OPAQUE, h5py.h5t.REFERENCE) and _is_complex(kind)
    if not isinstance(kind, known) and not complexes:
        raise SchemaError(f"{_class_name(kind)} values have no field kind")
    dtype = np.dtype(kind.dtype)
    strange = dtype.itemsize != kind.get_size() or dtype.kind not in "biufc"
    if isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        strange = strange or not kind.equal(h5py.h5t.py_create(dtype))
    if strange:
        raise SchemaError(f"numbers of {kind.get_size()} bytes with a layout of their own are not read")
    names = h5py.check_enum_dtype(dtype) if dtype.kind in "iu" else None
    labels = None
    if names is not None and sorted(names.values()) == list(range(len(names))):
        labels = tuple(sorted(names, key=names.__getitem__))
    # Without what h5py notes in its dtypes.
    return np.dtype(dtype.str), labels


def _class_name(kind: Any) -> str:
    for name in ("REFERENCE", "OPAQUE", "TIME", "COMPOUND", "ARRAY", "VLEN", "STRING"):
        if kind.get_class() == getattr(h5py.h5t, name):
            return name.lower()
    return "such"


def walk(group: Any, left_out: dict[str, str], limit: int = 100_000) -> Iterator[tuple[str, Any]]:
    """(dotted name, dataset) of everything below a group that lies in this file, each object once."""
    seen = {_address(group)}
    stack = [("", group)]
    while stack:
        prefix, here = stack.pop()
        inner = []
        for label in here:
            name = prefix + label
            link = here.get(label, getlink=True)
            if not isinstance(link, h5py.HardLink):
                outside = isinstance(link, h5py.ExternalLink)
                left_out[name] = "a link to another file" if outside else "a soft link"
                continue
            child = here[label]
            if _address(child) in seen:
                left_out[name] = "another name of an object that was met before"
                continue
            seen.add(_address(child))
            if len(seen) > limit:
                raise SchemaError(f"there are more than {limit} objects in it; choose a group")
            if isinstance(child, h5py.Group) and _is_index(child):
                left_out[name] = "an index of PyTables"
            elif isinstance(child, h5py.Group):
                inner.append((f"{name}.", child))
            elif isinstance(child, h5py.Dataset):
                yield name, child
        stack += reversed(inner)


def _is_index(group: Any) -> bool:
    """True if PyTables keeps there what finds rows quickly; it has no samples."""
    try:
        return bool(group.attrs.get("CLASS") == b"TINDEX")
    # Attributes of strangers may be anything.
    except Exception:
        return False


def _address(thing: Any) -> int:
    return int(h5py.h5o.get_info(thing.id).addr)
