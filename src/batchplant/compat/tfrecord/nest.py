"""Structures: values in dicts, tuples and named tuples, as the elements of a dataset are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import SchemaError
from .values import RaggedTensor, SparseTensor, String, Tensor, as_dtype, string, strings, tensor


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """The same structure with the function applied to its leaves (and those in the same place of others)."""
    first = structures[0]
    if isinstance(first, Mapping):
        if any(not isinstance(one, Mapping) or one.keys() != first.keys() for one in structures[1:]):
            raise SchemaError(f"the structures differ: {[_outline(one) for one in structures]}")
        return {name: map_structure(function, *(one[name] for one in structures)) for name in first}
    if isinstance(first, tuple):
        if any(not isinstance(one, tuple) or len(one) != len(first) for one in structures[1:]):
            raise SchemaError(f"the structures differ: {[_outline(one) for one in structures]}")
        parts = [map_structure(function, *each) for each in zip(*structures, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if any(isinstance(one, Mapping | tuple) for one in structures[1:]):
        raise SchemaError(f"the structures differ: {[_outline(one) for one in structures]}")
    return function(*structures)


def flatten(structure: Any) -> Iterator[Any]:
    """The leaves, dicts in the order of their keys."""
    if isinstance(structure, Mapping):
        for name in sorted(structure):
            yield from flatten(structure[name])
    elif isinstance(structure, tuple):
        for part in structure:
            yield from flatten(part)
    else:
        yield structure


def _outline(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return f"{{{', '.join(map(str, structure))}}}"
    return f"tuple of {len(structure)}" if isinstance(structure, tuple) else "one value"


def element(structure: Any) -> Any:
    """What a user's function gave, as an element: every leaf a tensor."""
    if isinstance(structure, Mapping | tuple):
        return map_structure(_leaf, structure)
    return _leaf(structure)


def _leaf(value: Any) -> Any:
    # Datasets may be values too, as those of window() are.
    return value if hasattr(value, "as_numpy_iterator") else tensor(value)


def to_numpy(structure: Any) -> Any:
    """The structure with plain NumPy values and bytes."""
    return map_structure(lambda leaf: leaf.numpy() if hasattr(leaf, "numpy") else leaf, structure)


def stack(elements: list[Any]) -> Any:
    """One element with a first dimension more, out of several of the same shape."""
    return map_structure(lambda *leaves: _stack(leaves), *elements)


def _stack(leaves: tuple[Any, ...]) -> Any:
    first = leaves[0]
    if isinstance(first, SparseTensor):
        return _stack_sparse(leaves)
    if isinstance(first, RaggedTensor):
        raise SchemaError("ragged values cannot be batched here; batch first and parse then")
    if all(type(leaf) is String for leaf in leaves):
        return strings(leaves)
    dtype, shape = np.dtype(first.dtype), first.shape
    out = np.empty((len(leaves), *shape), dtype=dtype)
    for row, leaf in enumerate(leaves):
        # A dtype is compared too: NumPy would cast without a word.
        if leaf.shape != shape or np.dtype(leaf.dtype) != dtype:
            raise SchemaError(
                f"a batch needs values of one shape and type: the first is {as_dtype(dtype).name} {shape}, "
                f"number {row} is {as_dtype(leaf.dtype).name} {tuple(leaf.shape)}; "
                "padded_batch fills up to the longest"
            )
        out[row] = leaf
    return out.view(Tensor)


def _stack_sparse(leaves: tuple[Any, ...]) -> SparseTensor:
    counts = [len(leaf.values) for leaf in leaves]
    indices = np.concatenate([leaf.indices.numpy() for leaf in leaves])
    rows = np.repeat(np.arange(len(leaves)), counts)
    values = np.concatenate([leaf.values.numpy() for leaf in leaves])
    shape = np.max([leaf.dense_shape.numpy() for leaf in leaves], axis=0)
    return SparseTensor(np.column_stack([rows, indices]), values, [len(leaves), *shape])


def pad(elements: list[Any], shapes: Any, values: Any) -> Any:
    """Like stack, each dimension filled up to the longest or to what ``shapes`` says."""

    def one(shape: Any, value: Any, *leaves: Any) -> Any:
        return _pad(leaves, shape, value)

    first = elements[0]
    return map_structure(
        one, spread(shapes, first, is_shape=True), spread(values, first), *(_boxed(one) for one in elements)
    )


class Box:
    """Holds a shape, so that map_structure does not take the tuple for a structure."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _boxed(structure: Any) -> Any:
    return map_structure(Box, structure)


def spread(given: Any, like: Any, *, is_shape: bool = False) -> Any:
    """The structure of ``like`` with what was given for each leaf; one thing for all is spread."""
    if isinstance(like, Mapping):
        if isinstance(given, Mapping):
            return {name: spread(given.get(name), like[name], is_shape=is_shape) for name in like}
        return {name: spread(given, like[name], is_shape=is_shape) for name in like}
    if isinstance(like, tuple):
        parts = len(like)
        if isinstance(given, tuple) and len(given) == parts and not (is_shape and _plain(given)):
            return tuple(spread(one, part, is_shape=is_shape) for one, part in zip(given, like, strict=True))
        return tuple(spread(given, part, is_shape=is_shape) for part in like)
    return Box(given)


def _plain(shape: tuple[Any, ...]) -> bool:
    return bool(shape) and all(size is None or isinstance(size, int) for size in shape)


def _pad(boxes: tuple[Box, ...], shape_box: Box, value_box: Box) -> Any:
    leaves = [box.content for box in boxes]
    first = leaves[0]
    rank, dtype = len(first.shape), as_dtype(first.dtype)
    for leaf in leaves:
        if len(leaf.shape) != rank or as_dtype(leaf.dtype) != dtype:
            raise SchemaError("padded_batch needs values of one type and number of dimensions")
    longest = [max(leaf.shape[axis] for leaf in leaves) for axis in range(rank)]
    wanted: list[Any] = [None] * rank if shape_box.content is None else list(shape_box.content)
    if len(wanted) != rank:
        raise SchemaError(f"padded_shapes has {len(wanted)} dimensions, the values have {rank}")
    for axis, size in enumerate(wanted):
        if size is None or size == -1:
            wanted[axis] = longest[axis]
        elif size < longest[axis]:
            raise SchemaError(f"a value is {longest[axis]} long, more than padded_shapes allows ({size})")
    filler: Any = b"" if dtype == string else 0
    if value_box.content is not None:
        filler = value_box.content
        filler = filler.encode() if isinstance(filler, str) else filler
    out: Any = np.empty((len(leaves), *wanted), dtype=dtype.dtype)
    out.fill(String(filler) if dtype == string else filler)
    for row, leaf in enumerate(leaves):
        out[(row, *(slice(size) for size in leaf.shape))] = leaf
    return out.view(Tensor)


def rows(structure: Any) -> int:
    """How many rows all leaves have; SchemaError where they differ."""
    sizes = {_rows(leaf) for leaf in flatten(structure)}
    if len(sizes) != 1:
        raise SchemaError(f"the values differ in their first dimension: {sorted(sizes)}")
    return sizes.pop()


def _rows(leaf: Any) -> int:
    if isinstance(leaf, SparseTensor):
        return int(leaf.dense_shape[0])
    if not leaf.shape:
        raise SchemaError("a single value has no rows to take apart")
    return len(leaf)


def row(structure: Any, number: int) -> Any:
    """One row of every leaf."""
    return map_structure(lambda leaf: _row(leaf, number), structure)


def _row(leaf: Any, number: int) -> Any:
    if isinstance(leaf, SparseTensor):
        mine = leaf.indices.numpy()[:, 0] == number
        return SparseTensor(leaf.indices.numpy()[mine, 1:], leaf.values.numpy()[mine], leaf.dense_shape[1:])
    return leaf[number]
