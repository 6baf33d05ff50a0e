"""Samples by key: ``reader.keys()`` and ``reader.by_key(key)``.

A key is what a format itself calls a sample (the key of an LMDB entry, the name of a file), or the value of a
field that tells samples apart. What is held of n keys is 8 bytes of hash for each, sorted, and the number of
its sample: no Python object for any of them. A hash only leads to a sample; its key is read and compared.

table.py has the hashes, lookup.py the keys as users see them, slips.py what a key that is not there may have
meant, keyed.py what a reader gets of it.
"""

from __future__ import annotations

from .keyed import Keyed
from .lookup import Keys
from .table import Table, same_cells

__all__ = ["Keyed", "Keys", "Table", "same_cells"]
