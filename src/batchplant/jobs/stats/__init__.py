"""What a dataset holds, field by field: counts, means, quantiles, frequent values, resolutions, copies.

:func:`collect` looks at every sample once, on any engine. Each range of samples gives a part of the result;
numbers.py, values.py and sketch.py have what such parts are made of, and how two become one. ``batchplant
stats`` prints it.
"""

from .collecting import Stats, collect
from .fields import FieldStats
from .numbers import Numbers
from .values import Copies, Values

__all__ = ["Copies", "FieldStats", "Numbers", "Stats", "Values", "collect"]
