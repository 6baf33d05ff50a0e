"""Conditions on samples: ``label == 'cat' and width >= 224``, as text or as objects made of ``col``.

tree has the conditions and their parser; evaluate ties one to the fields of a dataset and says which rows of
columns match, or can match if only bounds of their cells are known. No file is read here;
``filters`` and the readers call it.
"""

from __future__ import annotations

from .evaluate import Bound, Bounds, Lookup, bind, can_match, comparison_of, fields_of, loosely, matching
from .tree import Condition, FieldRef, as_condition, check_depth, col, parse

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
