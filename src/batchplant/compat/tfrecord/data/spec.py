"""What the elements of a saved dataset look like: TensorFlow's StructuredValue.

Values stand in dicts and tuples; each has a type and a shape. Sparse and ragged values are several tensors
each, and known to the mirror alone.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ....errors import DamagedError, DecodeError, OptionError, SchemaError
from .. import wire
from ..tensor_proto import CODES, TYPES
from ..values import RaggedTensor, SparseTensor, Tensor, as_dtype

# Fields of StructuredValue, and classes of its TypeSpecProto.
_SPEC, _TYPE_SPEC, _LIST, _TUPLE, _DICT, _NAMED = 33, 34, 51, 52, 53, 54
_SPARSE, _RAGGED = 1, 3
DEEPEST = 50


@dataclasses.dataclass
class Leaf:
    """``kind``: tensor, sparse or ragged. ``shape``: None where ranks differ, None in it where sizes do."""

    kind: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def parts(self) -> list[str]:
        """The types of the tensors that it is stored as."""
        return {"sparse": ["int64", self.dtype, "int64"], "ragged": [self.dtype, "int64"]}.get(
            self.kind, [self.dtype]
        )


def leaf_of(value: Any) -> Leaf:
    kind = (
        "sparse"
        if isinstance(value, SparseTensor)
        else "ragged"
        if isinstance(value, RaggedTensor)
        else "tensor"
    )
    if hasattr(value, "as_numpy_iterator"):
        raise SchemaError("datasets inside of elements cannot be stored")
    if kind == "ragged" and isinstance(value.values, RaggedTensor):
        raise SchemaError("ragged values in ragged values cannot be stored")
    return Leaf(kind, as_dtype(value.dtype).name, tuple(value.shape) if kind == "tensor" else None)


def merge(one: Leaf, two: Leaf) -> Leaf:
    """What is true of both."""
    if (one.kind, one.dtype) != (two.kind, two.dtype):
        raise SchemaError(f"elements of differing types: {one.kind} {one.dtype}, then {two.kind} {two.dtype}")
    if one.shape == two.shape:
        return one
    shape: tuple[int | None, ...] | None = None
    if one.shape is not None and two.shape is not None and len(one.shape) == len(two.shape):
        shape = tuple(a if a == b else None for a, b in zip(one.shape, two.shape, strict=True))
    return Leaf(one.kind, one.dtype, shape)


def tensors_of(value: Any) -> list[Any]:
    """The tensors that a leaf is stored as."""
    if isinstance(value, SparseTensor):
        return [value.indices, value.values, value.dense_shape]
    if isinstance(value, RaggedTensor):
        return [value.values, np.asarray(value.row_splits, dtype=np.int64).view(Tensor)]
    return [value]


def value_of(leaf: Leaf, tensors: list[Any]) -> Any:
    if leaf.kind == "tensor":
        return tensors[0]
    if leaf.kind == "sparse":
        return SparseTensor(*tensors)
    splits = np.asarray(tensors[1])
    if (
        splits.ndim != 1
        or not len(splits)
        or splits[0] != 0
        or (np.diff(splits) < 0).any()
        or splits[-1] != len(tensors[0])
    ):
        raise DamagedError("the rows of a ragged value do not fit its values")
    return RaggedTensor(*tensors)


# -- as bytes ------------------------------------------------------------------------------------------


def encode(structure: Any) -> bytes:
    """Dicts, tuples and :class:`Leaf` as a StructuredValue."""
    if isinstance(structure, Leaf):
        shape = (
            b"\x18\x01"
            if structure.shape is None
            else b"".join(
                wire.block(2, b"\x08" + wire.varint(-1 if size is None else size)) for size in structure.shape
            )
        )
        tensor = wire.block(2, shape) + b"\x18" + wire.varint(CODES[structure.dtype])
        if structure.kind == "tensor":
            return wire.block(_SPEC, tensor)
        number = _SPARSE if structure.kind == "sparse" else _RAGGED
        return wire.block(
            _TYPE_SPEC, b"\x08" + wire.varint(number) + wire.block(2, wire.block(_SPEC, tensor))
        )
    if isinstance(structure, Mapping):
        entries = ((name, encode(structure[name])) for name in sorted(structure))
        return wire.block(
            _DICT,
            b"".join(
                wire.block(1, wire.block(1, name.encode()) + wire.block(2, one)) for name, one in entries
            ),
        )
    if hasattr(structure, "_fields"):
        pairs = zip(structure._fields, structure, strict=True)
        inner = (wire.block(1, name.encode()) + wire.block(2, encode(one)) for name, one in pairs)
        name = wire.block(1, type(structure).__name__.encode())
        return wire.block(_NAMED, name + b"".join(wire.block(2, pair) for pair in inner))
    return wire.block(_TUPLE, b"".join(wire.block(1, encode(one)) for one in structure))


def decode(data: bytes, path: str) -> Any:
    """The structure that a StructuredValue tells of."""
    try:
        return _decode(memoryview(data), 0)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise DamagedError(f"not a description of elements: {error}", path=path) from None


def _decode(data: memoryview, depth: int) -> Any:
    if depth > DEEPEST:
        raise DecodeError("structures are nested too deep")
    for number, kind, _, value in wire.fields(data):
        if kind != wire.BYTES:
            continue
        if number == _SPEC:
            return _decode_tensor(value)
        if number == _TYPE_SPEC:
            return _decode_type(value)
        if number in (_LIST, _TUPLE):
            return tuple(_decode(one, depth + 1) for one in _blocks(value, 1))
        if number == _DICT:
            return dict(sorted((_pair(one, depth) for one in _blocks(value, 1)), key=lambda pair: pair[0]))
        if number == _NAMED:
            pairs = [_pair(one, depth) for one in _blocks(value, 2)]
            name = next((bytes(one).decode() for one in _blocks(value, 1)), "")
            made: Any = collections.namedtuple(name, [key for key, _ in pairs])  # type: ignore[misc]
            return made(*(one for _, one in pairs))
        raise OptionError(f"elements of a kind that is not mirrored (field {number} of a StructuredValue)")
    raise DecodeError("a value has no description")


def _blocks(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for number, kind, _, value in wire.fields(data) if (number, kind) == (wanted, wire.BYTES))


def _pair(data: memoryview, depth: int) -> tuple[str, Any]:
    name = b"".join(bytes(one) for one in _blocks(data, 1)).decode()
    return name, _decode(memoryview(b"".join(bytes(one) for one in _blocks(data, 2))), depth + 1)


def _decode_tensor(data: memoryview) -> Leaf:
    shape: list[int | None] | None = []
    code = 0
    for number, kind, value, inner in wire.fields(data):
        if (number, kind) == (3, wire.VARINT):
            code = value
        elif (number, kind) == (2, wire.BYTES):
            for part, part_kind, said, dim in wire.fields(inner):
                if (part, part_kind) == (3, wire.VARINT) and said:
                    shape = None
                elif (part, part_kind) == (2, wire.BYTES) and shape is not None:
                    sizes = [
                        wire.signed(size) for n, k, size, _ in wire.fields(dim) if (n, k) == (1, wire.VARINT)
                    ]
                    shape.append(None if sizes and sizes[-1] < 0 else sizes[-1] if sizes else 0)
    if code not in TYPES:
        raise OptionError(f"elements of type {code}, which is not mirrored")
    return Leaf("tensor", TYPES[code], None if shape is None else tuple(shape))


def _decode_type(data: memoryview) -> Leaf:
    number = next((value for n, kind, value, _ in wire.fields(data) if (n, kind) == (1, wire.VARINT)), 0)
    inner = next((_decode(one, DEEPEST - 5) for one in _blocks(data, 2)), None)
    if number not in (_SPARSE, _RAGGED) or not isinstance(inner, Leaf):
        raise OptionError("sparse and ragged values that TensorFlow saved are not mirrored")
    return Leaf("sparse" if number == _SPARSE else "ragged", inner.dtype, None)
