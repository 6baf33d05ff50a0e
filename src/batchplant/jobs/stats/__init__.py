"""Statistics of a dataset by field: counts, means, quantiles, frequent values, resolutions, copies.

:func:`collect` looks at every sample once, on any engine. Each range of samples gives partial statistics;
numbers.py and values.py have the accumulators and how two of them merge. ``batchplant stats`` prints them.
"""

from .collecting import Stats, collect
from .fields import FieldStats
from .numbers import Numbers
from .values import Copies, Values

__all__ = ["Copies", "FieldStats", "Numbers", "Stats", "Values", "collect"]
