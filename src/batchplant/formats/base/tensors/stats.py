"""Mean, least and largest value of a tensor, a part at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....data.tensors import BITS, as_array
from ....errors import MissingLibraryError, SchemaError
from ....schema.columns import U8

# A multiple of eight, so that packed values begin with a byte.
STEP = 1 << 20


def statistics(dtype: str, shape: tuple[int, ...], data: U8) -> dict[str, Any]:
    """``mean``, ``min`` and ``max`` in float64 over all values that are numbers, and how many are ``nan``.

    Of complex numbers only the mean. Empty where there is no value, or where NumPy cannot hold them.
    """
    total, count, wrong = 0.0, math.prod(shape), 0
    low, high = math.inf, -math.inf
    complex_total = 0j
    for start in range(0, count, STEP):
        size = min(STEP, count - start)
        part = data[start * BITS[dtype] // 8 : -(-(start + size) * BITS[dtype] // 8)]
        try:
            values = as_array(dtype, (size,), part)
        except (MissingLibraryError, SchemaError):
            return {}
        if values.dtype.kind == "c":
            complex_total += complex(values.sum(dtype=np.complex128))
            continue
        with np.errstate(all="ignore"):
            reals = values.astype(np.float64)
            good = reals[~np.isnan(reals)]
            wrong += size - len(good)
            if len(good):
                total += float(good.sum())
                low, high = min(low, float(good.min())), max(high, float(good.max()))
    if BITS[dtype] > 8 and dtype.startswith("complex"):
        return {"mean": complex_total / count} if count else {}
    if count == wrong:
        return {"nan": wrong} if wrong else {}
    found: dict[str, Any] = {"mean": total / (count - wrong), "min": low, "max": high}
    return found | ({"nan": wrong} if wrong else {})
