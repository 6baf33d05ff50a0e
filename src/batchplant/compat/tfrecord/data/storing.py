"""Datasets that are kept: in memory, or in folders (see stored.py)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from ....errors import OptionError
from ..values import as_text
from . import iterate, stored, threads
from .base import UNKNOWN, Base, call
from .recipe import fingerprint


class Storing(Base):
    """The methods of a dataset that keep its elements."""

    @staticmethod
    def _new(make: Callable[[], Iterator[Any]], size: int = UNKNOWN, *, light: bool = False) -> Any:
        """A dataset of these elements."""
        raise NotImplementedError

    def cache(self, filename: Any = "") -> Any:
        """Keeps the elements, once they were all seen: in memory, or in a folder, also for later runs."""
        if not as_text(filename):
            return self._new(iterate.kept(self._make), self._size)
        path = stored.place_of(filename)

        def make() -> Iterator[Any]:
            return stored.through(self._make, path, "", None, lambda found: self._of(found)._make())

        return self._new(make, self._size)

    def snapshot(
        self,
        path: Any,
        compression: Any = "AUTO",
        reader_func: Callable[[Any], Any] | None = None,
        shard_func: Callable[..., Any] | None = None,
        name: Any = None,
    ) -> Any:
        """Keeps the elements in a folder of ``path``; in another for each way in which a dataset is made."""
        folder, packing = stored.place_of(path), stored.packing_of(compression)

        @functools.cache
        def place() -> str:
            return os.path.join(folder, fingerprint((self._recipe, packing, shard_func)))

        def make() -> Iterator[Any]:
            # As late as this, for the functions may refer to what is defined behind them.
            return stored.through(
                self._make,
                place(),
                packing,
                _sharding(shard_func),
                lambda found: self._of(found, reader_func)._make(),
            )

        return self._new(make, self._size)

    def save(
        self,
        path: Any,
        compression: Any = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: Any = None,
    ) -> None:
        """Writes the elements into a folder, which TensorFlow reads too."""
        if checkpoint_args is not None:
            raise OptionError("save(checkpoint_args=…) is not mirrored")
        place, packing = stored.place_of(path), stored.packing_of(compression)
        stored.save(self._make, place, packing, _sharding(shard_func))

    @classmethod
    def load(
        cls,
        path: Any,
        element_spec: Any = None,
        compression: Any = None,
        reader_func: Callable[[Any], Any] | None = None,
        wait: bool = False,
    ) -> Any:
        """The elements that ``save`` wrote, here or in TensorFlow."""
        return cls._of(stored.open_stored(stored.place_of(path), stored.packing_of(compression)), reader_func)

    @classmethod
    def _of(cls, found: stored.Stored, reader_func: Callable[[Any], Any] | None = None) -> Any:
        """The elements of a stored dataset: those of its shards in turn, or as ``reader_func`` takes them."""

        def part(shard: str) -> Any:
            return cls._new(lambda: found.read(shard))

        def make() -> Iterator[Any]:
            count = 0
            for element in iterate.interleave(iter(found.shards), found.read, threads.cpu_count(), 1):
                count += 1
                yield element
            found.check(count)

        if reader_func is None:
            return cls._new(make, UNKNOWN if found.count < 0 else found.count)
        parts = [part(shard) for shard in found.shards]
        return reader_func(cls._new(lambda: iter(parts), len(parts), light=True))


def _sharding(shard_func: Callable[..., Any] | None) -> Callable[[Any], int] | None:
    return None if shard_func is None else lambda element: int(call(shard_func, element))
