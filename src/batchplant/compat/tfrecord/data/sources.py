"""Where elements come from: generators, other datasets side by side, files of records and of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....errors import OptionError
from .. import nest
from ..values import TensorSpec, check_shape, tensor


def generated(
    generator: Callable[..., Any],
    types: Any,
    shapes: Any,
    args: tuple[Any, ...] | None,
    signature: Any,
) -> Callable[[], Iterator[Any]]:
    """What makes an iterator over the values that a user's generator yields."""
    if not callable(generator):
        raise OptionError("from_generator needs a function that makes an iterator, not the iterator itself")
    given = tuple(tensor(one).numpy() for one in args or ())
    if signature is None and types is not None:
        signature = nest.map_structure(lambda kind: TensorSpec(None, kind), types)

    def make() -> Iterator[Any]:
        for value in generator(*given):
            if signature is not None:
                # A generator may yield a list where a tuple is meant.
                value = tuple(value) if isinstance(signature, tuple) and isinstance(value, list) else value
                value = nest.map_structure(_fit, signature, value)
            value = nest.element(value)
            if shapes is not None:
                nest.map_structure(
                    lambda shape, leaf: check_shape(leaf, shape.content), nest.spread(shapes, value), value
                )
            yield value

    return make


def _fit(spec: Any, value: Any) -> Any:
    if not isinstance(spec, TensorSpec):
        raise OptionError(f"{type(spec).__name__} in output_signature is not mirrored; use tf.TensorSpec")
    made = tensor(value, spec.dtype)
    check_shape(made, spec.shape)
    return made


def side_by_side(makes: Any) -> Iterator[Any]:
    """Elements in the structure of ``makes``, as long as the shortest."""
    iterators = nest.map_structure(lambda make: make(), makes)
    while True:
        try:
            element = nest.map_structure(next, iterators)
        except StopIteration:
            return
        yield element
