"""Conditions on samples: ``label == 'cat' and width >= 224``, as text or as objects made of ``col``.

tree has the conditions, parser makes them of text, binding ties one to the fields of a dataset, evaluate says
which rows of columns match, or can match if only bounds of their cells are known. No file is read here;
``filters`` and the readers call it.
"""

from __future__ import annotations

from .binding import Bound, bind, comparison_of, fields_of, loosely
from .evaluate import Bounds, Lookup, can_match, matching
from .parser import parse
from .tree import Condition, FieldRef, as_condition, check_depth, col

__all__ = [
    "Bound",
    "Bounds",
    "Condition",
    "FieldRef",
    "Lookup",
    "as_condition",
    "bind",
    "can_match",
    "check_depth",
    "col",
    "comparison_of",
    "fields_of",
    "loosely",
    "matching",
    "parse",
]
