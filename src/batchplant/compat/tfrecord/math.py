"""tf.math: arithmetic on tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ops import argmax, elementwise, reducing
from .values import Tensor, tensor

__all__ = [
    "abs",
    "add",
    "argmax",
    "ceil",
    "clip_by_value",
    "divide",
    "equal",
    "exp",
    "floor",
    "floordiv",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "not_equal",
    "pow",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "round",
    "sqrt",
    "square",
    "subtract",
]

abs = elementwise(np.abs)
add = elementwise(np.add)
ceil = elementwise(np.ceil)
divide = elementwise(np.true_divide)
equal = elementwise(np.equal)
exp = elementwise(np.exp)
floor = elementwise(np.floor)
floordiv = elementwise(np.floor_divide)
greater = elementwise(np.greater)
greater_equal = elementwise(np.greater_equal)
less = elementwise(np.less)
less_equal = elementwise(np.less_equal)
log = elementwise(np.log)
logical_and = elementwise(np.logical_and)
logical_not = elementwise(np.logical_not)
logical_or = elementwise(np.logical_or)
maximum = elementwise(np.maximum)
minimum = elementwise(np.minimum)
mod = elementwise(np.mod)
multiply = elementwise(np.multiply)
not_equal = elementwise(np.not_equal)
pow = elementwise(np.power)
round = elementwise(np.rint)
sqrt = elementwise(np.sqrt)
square = elementwise(np.square)
subtract = elementwise(np.subtract)
reduce_all = reducing(np.all)
reduce_any = reducing(np.any)
reduce_max = reducing(np.max)
reduce_mean = reducing(np.mean)
reduce_min = reducing(np.min)
reduce_prod = reducing(np.prod)
reduce_sum = reducing(np.sum)


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any = None) -> Any:
    given = tensor(t)
    return np.clip(np.asarray(given), clip_value_min, clip_value_max).astype(given.dtype).view(Tensor)
