"""Pickle, any Python objects.

A pickle is a program that builds objects. One that somebody else wrote can do anything, so a file is loaded
only with ``allow_pickle=True``; finding out that it is a pickle loads nothing.

What is read as a dataset: a dict of columns, a list of dicts, tuples or values, a DataFrame, an array, and
several pickles one after another. We write one dict of columns, which ``pickle.load`` gives as it is: arrays
of numbers, and lists of text, bytes, JSON values, arrays, None. A text with our schema stands before it, and
the pickle itself drops it::

    PROTO 4, BINUNICODE {"batchplant": 1, "schema": […], "samples": n}, POP, then the dict in protocol 5
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from ..errors import DamagedError
from ..schema import EVERY_KIND
from .base.format import Capabilities, Format, Probe
from .base.objects import Inline, ObjectReader, ObjectWriter, read_note
from .base.records import Note

PROTO, STOP = 0x80, ord(".")
# A file of joblib begins like a pickle, but is none.
JOBLIB = b"joblib.numpy_pickle"


class PickleReader(ObjectReader):
    """Reads pickles, with ``allow_pickle=True`` only: loading one can run any code that is in it.

    ``fields``: only these columns. ``encoding``: of the text in pickles of Python 2 (``latin1``, ``bytes``).
    """

    def __init__(
        self,
        path: str,
        *,
        allow_pickle: bool = False,
        fields: Iterable[str] | None = None,
        encoding: str = "ASCII",
    ) -> None:
        self._encoding = encoding
        self._open(path, allow_pickle, fields)

    def _note(self) -> Note | None:
        return read_note(self._source.file())

    def _load(self) -> list[Any]:
        file, result = self._source.file(), []
        while file.tell() < self._source.size:
            result.append(pickle.Unpickler(file, encoding=self._encoding).load())
        if not result:
            raise DamagedError("the file is empty")
        return result


class PickleWriter(ObjectWriter):
    """Writes one dict of columns."""

    def _dump(self, table: dict[str, Any], note: bytes, file: BinaryIO) -> None:
        file.write(note)
        pickler = pickle.Pickler(file, protocol=5)
        # Without the memory of every value that it has written.
        pickler.fast = True
        pickler.dump(
            {
                name: Inline(column) if isinstance(column, np.ndarray) else column
                for name, column in table.items()
            }
        )


def sniff(probe: Probe) -> bool:
    """From protocol 2 on a pickle says which it is, and every pickle ends with STOP. Nothing is loaded."""
    head = probe.head
    if len(head) < 4 or head[0] != PROTO or not 2 <= head[1] <= 5 or JOBLIB in head:
        return False
    return int(probe.source.view(probe.size - 1, 1)[0]) == STOP


FORMAT = Format(
    name="pickle",
    title="Python pickle",
    suffixes=(".pkl", ".pickle"),
    spec="https://docs.python.org/3/library/pickle.html",
    reader=PickleReader,
    writer=PickleWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="loading can run code: opened only with allow_pickle; in memory as a whole",
    can=Capabilities(
        keeps_schema=True,
        ecosystem=("Python", "pandas"),
    ),
)
