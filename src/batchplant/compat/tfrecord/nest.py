"""Structures: values in dicts, tuples and named tuples, as the elements of a dataset are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import SchemaError
from ...schema.columns import AnyArray
from .values import (
    Element,
    SparseTensor,
    String,
    Tensor,
    as_bytes,
    as_dtype,
    string,
    strings,
    tensor,
)


def map_structure(function: Callable[..., object], *structures: Element) -> Element:
    """Return the same structure with the function applied to its leaves, and to those of the others."""
    first = structures[0]
    if isinstance(first, Mapping):
        if any(not isinstance(other, Mapping) or other.keys() != first.keys() for other in structures[1:]):
            raise _mismatch(structures)
        return {name: map_structure(function, *(part[name] for part in structures)) for name in first}
    if isinstance(first, tuple):
        if any(not isinstance(other, tuple) or len(other) != len(first) for other in structures[1:]):
            raise _mismatch(structures)
        parts = [map_structure(function, *parallel) for parallel in zip(*structures, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if any(isinstance(other, Mapping | tuple) for other in structures[1:]):
        raise _mismatch(structures)
    return function(*structures)


def flatten(structure: Element) -> Iterator[Any]:
    """Yield the leaves, dicts in the order of their keys."""
    if isinstance(structure, Mapping):
        for name in sorted(structure):
            yield from flatten(structure[name])
    elif isinstance(structure, tuple):
        for part in structure:
            yield from flatten(part)
    else:
        yield structure


def _mismatch(structures: tuple[Element, ...]) -> SchemaError:
    return SchemaError(f"the structures differ: {[_outline(structure) for structure in structures]}")


def _outline(structure: Element) -> str:
    if isinstance(structure, Mapping):
        return f"{{{', '.join(map(str, structure))}}}"
    return f"tuple of {len(structure)}" if isinstance(structure, tuple) else "one value"


def element(structure: Element) -> Element:
    """Return the result of a user's function as an element: every leaf a tensor."""
    if isinstance(structure, Mapping | tuple):
        return map_structure(_leaf, structure)
    return _leaf(structure)


def _leaf(value: object) -> Any:
    # Datasets may be values too, as those of window() are.
    return value if hasattr(value, "as_numpy_iterator") else tensor(value)


def to_numpy(structure: Element) -> Element:
    """Return the structure with plain NumPy values and bytes."""
    return map_structure(lambda leaf: leaf.numpy() if hasattr(leaf, "numpy") else leaf, structure)


def stack(elements: list[Element]) -> Element:
    """Return a batch of elements of the same shape."""
    return map_structure(lambda *leaves: _stack(leaves), *elements)


def _stack(leaves: tuple[Any, ...]) -> SparseTensor | Tensor:
    first = leaves[0]
    if isinstance(first, SparseTensor):
        return _stack_sparse(leaves)
    if all(type(leaf) is String for leaf in leaves):
        return strings(leaves)
    dtype, shape = np.dtype(first.dtype), first.shape
    batch = np.empty((len(leaves), *shape), dtype=dtype)
    for row, leaf in enumerate(leaves):
        # The dtype is compared too: NumPy would cast silently.
        if leaf.shape != shape or np.dtype(leaf.dtype) != dtype:
            raise SchemaError(
                f"a batch needs values of one shape and type: the first is {as_dtype(dtype).name} {shape}, "
                f"number {row} is {as_dtype(leaf.dtype).name} {tuple(leaf.shape)}; "
                "padded_batch fills up to the longest"
            )
        batch[row] = leaf
    return batch.view(Tensor)


def _stack_sparse(leaves: tuple[SparseTensor, ...]) -> SparseTensor:
    counts = [len(leaf.values) for leaf in leaves]
    indices = np.concatenate([leaf.indices.numpy() for leaf in leaves])
    rows = np.repeat(np.arange(len(leaves)), counts)
    values = np.concatenate([leaf.values.numpy() for leaf in leaves])
    shape = np.max([leaf.dense_shape.numpy() for leaf in leaves], axis=0)
    return SparseTensor(np.column_stack([rows, indices]), values, [len(leaves), *shape])


def pad(elements: list[Element], shapes: Any, values: Any) -> Element:
    """Return a batch in which each dimension is padded to the longest or to ``shapes``."""
    first = elements[0]
    return map_structure(
        lambda shape, value, *boxes: _pad([box.content for box in boxes], shape.content, value.content),
        spread(shapes, first, is_shape=True),
        spread(values, first),
        *(map_structure(Box, element) for element in elements),
    )


class Box:
    """Hides a shape from map_structure, which would take the tuple for a structure."""

    def __init__(self, content: Any) -> None:
        self.content = content


def spread(setting: Any, like: Element, *, is_shape: bool = False) -> Element:
    """Return the structure of ``like`` with a Box of the setting for each leaf.

    A setting may have the same structure; a single one applies to all leaves.
    """
    if isinstance(like, Mapping):
        if isinstance(setting, Mapping):
            return {name: spread(setting.get(name), like[name], is_shape=is_shape) for name in like}
        return {name: spread(setting, like[name], is_shape=is_shape) for name in like}
    if isinstance(like, tuple):
        if (
            isinstance(setting, tuple)
            and len(setting) == len(like)
            and not (is_shape and _is_single_shape(setting))
        ):
            return tuple(spread(s, part, is_shape=is_shape) for s, part in zip(setting, like, strict=True))
        return tuple(spread(setting, part, is_shape=is_shape) for part in like)
    return Box(setting)


def _is_single_shape(shape: tuple[object, ...]) -> bool:
    return bool(shape) and all(size is None or isinstance(size, int) for size in shape)


def _pad(leaves: list[Any], shape: Sequence[int | None] | None, value: Any) -> Tensor:
    first = leaves[0]
    rank, dtype = len(first.shape), as_dtype(first.dtype)
    for leaf in leaves:
        if len(leaf.shape) != rank or as_dtype(leaf.dtype) != dtype:
            raise SchemaError("padded_batch needs values of one type and number of dimensions")
    sizes = [max(leaf.shape[axis] for leaf in leaves) for axis in range(rank)]
    if shape is not None:
        if len(shape) != rank:
            raise SchemaError(f"padded_shapes has {len(shape)} dimensions, the values have {rank}")
        for axis, size in enumerate(shape):
            if size is None or size == -1:
                continue
            if size < sizes[axis]:
                raise SchemaError(f"a value is {sizes[axis]} long, more than padded_shapes allows ({size})")
            sizes[axis] = size
    padded: AnyArray = np.empty((len(leaves), *sizes), dtype=dtype.dtype)
    if dtype == string:
        padded.fill(String(b"" if value is None else as_bytes(value)))
    else:
        padded.fill(0 if value is None else value)
    for row, leaf in enumerate(leaves):
        index: tuple[Any, ...] = (row, *(slice(size) for size in leaf.shape))
        padded[index] = leaf
    return padded.view(Tensor)


def row_count(structure: Element) -> int:
    """Return the number of rows of all leaves; SchemaError where they differ."""
    counts = {_row_count(leaf) for leaf in flatten(structure)}
    if len(counts) != 1:
        raise SchemaError(f"the values differ in their first dimension: {sorted(counts)}")
    return counts.pop()


def _row_count(leaf: Any) -> int:
    if isinstance(leaf, SparseTensor):
        return int(leaf.dense_shape[0])
    if not leaf.shape:
        raise SchemaError("a single value has no rows to take apart")
    return len(leaf)


def row(structure: Element, index: int) -> Element:
    """Return one row of every leaf."""
    return map_structure(lambda leaf: _row(leaf, index), structure)


def _row(leaf: Any, index: int) -> Any:
    if isinstance(leaf, SparseTensor):
        in_row = leaf.indices.numpy()[:, 0] == index
        return SparseTensor(
            leaf.indices.numpy()[in_row, 1:], leaf.values.numpy()[in_row], leaf.dense_shape[1:]
        )
    return leaf[index]
