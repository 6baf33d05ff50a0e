"""Documents that had to be made to learn how long they are, kept until rows are made of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, Problem
from ..schema.columns import I64, starts_of
from .batch import Batch

# Tokens that are kept, of two windows at least.
KEPT = 8 << 20


class Made:
    """The documents of one epoch: ``make`` gives a batch of them, in which they are the output ``name``."""

    def __init__(self, make: Callable[[I64], Batch], name: str) -> None:
        self._make, self._name = make, name
        self._lock = threading.Lock()
        self._windows: deque[dict[int, Any]] = deque()
        self._tokens = 0
        self._lost: list[Problem] = []
        self._told: set[int | None] = set()

    def sizes(self, samples: I64) -> I64:
        """How long documents are; -1 of those that cannot be made, and are to be left out."""
        batch = self._make(samples)
        values, offsets = ragged(batch.values[self._name], self._name)
        parts = np.split(values, offsets[1:-1]) if len(offsets) > 1 else []
        found = dict(zip(batch.ids.tolist(), parts, strict=True))
        with self._lock:
            self._lost += [one for one in batch.skipped if one.sample not in self._told]
            self._told |= {one.sample for one in batch.skipped}
            self._windows.append(found)
            self._tokens += len(values)
            while self._tokens > KEPT and len(self._windows) > 2:
                self._tokens -= sum(map(len, self._windows.popleft().values()))
        there = (found.get(one) for one in samples.tolist())
        return np.array([-1 if one is None else len(one) for one in there], dtype=np.int64)

    def ends(self, samples: I64, token: int | None) -> npt.NDArray[np.bool_]:
        """Which documents, of those whose sizes were asked for last, end with a token."""
        with self._lock:
            window = self._windows[-1]
        there = (window.get(one) for one in samples.tolist())
        return np.array([one is not None and len(one) > 0 and one[-1] == token for one in there], np.bool_)

    def lost(self) -> list[Problem]:
        """What is wrong with those that were left out; each is told once."""
        with self._lock:
            found, self._lost = self._lost, []
        return found

    def _found(self, samples: I64) -> list[Any] | None:
        with self._lock:
            windows = list(self._windows)
        found = [
            next((one[sample] for one in reversed(windows) if sample in one), None)
            for sample in samples.tolist()
        ]
        return None if any(one is None for one in found) else found

    def has(self, samples: I64) -> bool:
        return self._found(samples) is not None

    def of(self, samples: I64) -> tuple[Any, I64]:
        """The tokens of documents; such as are not kept any more are made again."""
        found = self._found(samples)
        if found is None:
            return ragged(self._make(samples).values[self._name], self._name)
        sizes = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64), starts_of(sizes)


def ragged(value: Any, field: str) -> tuple[Any, I64]:
    """The tokens of documents, one after another, and where each begins."""
    if isinstance(value, tuple):
        tokens, offsets = value
    elif isinstance(value, np.ndarray) and value.ndim == 2:
        tokens, offsets = value.reshape(-1), np.arange(len(value) + 1, dtype=np.int64) * value.shape[1]
    else:
        parts = [np.asarray(one) for one in value]
        wrong = next((one for one in parts if one.ndim != 1), None)
        if wrong is not None:
            text = "text: put Tokenize before it"
            said = text if wrong.dtype.kind == "U" else f"arrays of shape {wrong.shape}"
            raise OptionError(f"documents are rows of tokens, not {said}", field=field)
        offsets = starts_of(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)))
        tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise OptionError(f"tokens are rows of whole numbers, not {tokens.dtype}", field=field)
    return tokens, offsets
