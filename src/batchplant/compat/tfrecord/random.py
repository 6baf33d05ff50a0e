"""tf.random: numbers that depend on set_seed; not TensorFlow's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import OptionError
from .seeds import generator, set_seed, stateless
from .values import Tensor, as_dtype, float32, tensor

__all__ = ["normal", "set_seed", "shuffle", "stateless_uniform", "uniform"]


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(one) for one in np.asarray(shape, dtype=np.int64).reshape(-1))


def _uniform(draws: np.random.Generator, shape: Any, low: Any, high: Any, dtype: Any) -> Any:
    kind = as_dtype(dtype)
    if kind.is_integer:
        if high is None:
            raise OptionError("uniform integers need maxval")
        return np.asarray(draws.integers(low, high, _shape(shape), dtype=kind.dtype)).view(Tensor)
    made = draws.uniform(low, 1 if high is None else high, _shape(shape))
    return np.asarray(made).astype(kind.dtype).view(Tensor)


def uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = float32, seed: Any = None, name: Any = None
) -> Any:
    with generator(seed) as draws:
        return _uniform(draws, shape, minval, maxval, dtype)


def stateless_uniform(
    shape: Any, seed: Any, minval: Any = 0, maxval: Any = None, dtype: Any = float32, name: Any = None
) -> Any:
    return _uniform(stateless(seed), shape, minval, maxval, dtype)


def normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32, seed: Any = None, name: Any = None
) -> Any:
    with generator(seed) as draws:
        made = draws.normal(mean, stddev, _shape(shape))
    return np.asarray(made).astype(as_dtype(dtype).dtype).view(Tensor)


def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
    given = tensor(value)
    with generator(seed) as draws:
        return given[draws.permutation(len(given))]
