"""Mixtures of datasets as one Reader: who comes when is arithmetic, see :mod:`batchplant.order.mixture`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import I64, Column, Columns, Spans, starts_of
from .errors import OptionError, SchemaError
from .joined import Concat
from .order import mixture, orders
from .order.keyed import key_of
from .reader import Reader
from .registry import open as open_reader
from .schema import Field


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a mixture gives of one source up to a position."""

    name: str
    weight: float
    size: int
    samples: int

    @property
    def passes(self) -> float:
        return self.samples / self.size if self.size else 0.0


class Mix(Reader):
    """Several datasets as one: ``Loader(Mix([("web.parquet", 0.7), ("books.tar", 0.3)]), 256,
    order="random")``.

    sources: (source, weight) each, a dict of them by name, or sources alone, which come in proportion to
    their sizes; a source is a Reader or what :func:`batchplant.open` takes. They have the same fields, or
    ``fields`` names those that all have. At every position, each source has come weight times position
    times, give or take one.

    temperature: weights to the power of 1/temperature; 2 or more make small sources come more often.
    schedule: (position, weights) from which on other weights hold. stop: an epoch ends when the first source
    is through (``first``), when all are (``all``), or never; until then, a source that is through begins
    again, shuffled anew. max_repeats: how often a source is gone through at most; then it leaves the
    mixture.

    The loader's order is that of each source; an epoch has them interleaved. Samples are numbered source
    after source, and pass after pass: ``origin`` says which sample of which source a number is.
    """

    format = "mix"

    def __init__(
        self,
        sources: Sequence[Any] | Mapping[str, Any],
        *,
        temperature: float | None = None,
        schedule: Sequence[tuple[int, Sequence[float]]] = (),
        stop: str = "first",
        max_repeats: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        named = sources.items() if isinstance(sources, Mapping) else ((None, one) for one in sources)
        found = [(name, *_weighted(one)) for name, one in named]
        if not found:
            raise OptionError("a mixture needs at least one source")
        readers = [one if isinstance(one, Reader) else open_reader(one) for _, one, _ in found]
        self.names = tuple(name or reader.path for (name, *_), reader in zip(found, readers, strict=True))
        self.base = Concat(_alike(readers, fields))
        self.schema, self.path = self.base.schema, f"mixture of {', '.join(self.names)}"
        given = [weight for *_, weight in found if weight is not None]
        if given and len(given) != len(found):
            raise OptionError("give every source a weight, or none of them")
        self.sizes_of_sources = np.array([len(one) for one in readers], dtype=np.int64)
        weights: list[float] = given or self.sizes_of_sources.tolist()
        plan = [(at, _cooled(one, temperature)) for at, one in [(0, weights), *schedule]]
        self.blend = mixture.blend(
            self.sizes_of_sources.tolist(), plan[0][1], schedule=plan[1:], stop=stop, max_repeats=max_repeats
        )
        self._firsts = starts_of(self.sizes_of_sources)
        # As many as an epoch may name.
        self.length = mixture.mixed(self.blend, seed=0, epoch=0).samples

    # -- who comes when --------------------------------------------------------------------------------

    def own_order(self, order: Any, *, seed: int, epoch: int, **options: Any) -> orders.Order:
        """An epoch: the order that was asked for is that of every source, in every pass another."""
        if order == "random":
            return mixture.mixed(self.blend, seed=seed, epoch=epoch)
        if not isinstance(order, str):
            raise OptionError("a mixture takes an order by its name: random, sequential, quasi_random …")
        readers = self.base.readers
        blocks: dict[int, orders.BlockIndex] = {}

        def of_source(source: int, lap: int) -> orders.Order:
            own = int(key_of(seed, source, 8)[0])
            known = dict(options)
            if order in orders.BY_BLOCKS:
                if source not in blocks:
                    found = readers[source].blocks()
                    if found is None:
                        raise OptionError(f"{self.names[source]} has no blocks; use random")
                    blocks[source] = orders.BlockIndex(found, readers[source].window)
                known["blocks"] = blocks[source]
            return orders.make(
                order, len(readers[source]), seed=own, epoch=int(key_of(epoch, lap, 9)[0]), **known
            )

        return mixture.mixed(self.blend, seed=seed, epoch=epoch, order=of_source)

    def origin(self, samples: Any) -> tuple[I64, I64, I64]:
        """Which source each number is of, which of its samples, and in which pass."""
        numbers = self._check(samples)
        lap, rest = np.divmod(numbers, max(int(self._firsts[-1]), 1))
        source = np.searchsorted(self._firsts, rest, side="right") - 1
        return source, rest - self._firsts[source], lap

    def seen(self, position: int | None = None) -> list[Seen]:
        """What a run has seen of each source before a position (default: in an epoch)."""
        position = self.blend.length if position is None else position
        counts = self.blend.counts(position)
        weights = self.weights(position)
        rows = zip(self.names, weights, self.sizes_of_sources.tolist(), counts.tolist(), strict=True)
        return [Seen(name, float(weight), size, count) for name, weight, size, count in rows]

    def weights(self, position: int = 0) -> npt.NDArray[np.float64]:
        """The weights at a position, which sum up to 1."""
        begun = [one for one in self.blend.segments if one.start <= position]
        return begun[-1].weights

    # -- reading ---------------------------------------------------------------------------------------

    def _rows(self, indices: I64) -> I64:
        return indices % max(int(self._firsts[-1]), 1)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return self.base._read(self._rows(indices), fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(field, self._rows(indices))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self.base._ranges(fields, self._rows(indices))

    def _key_kind(self) -> Field | None:
        return self.base._key_kind()

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        return self.base._keys(self._rows(indices), short)

    def where(self, sample: int) -> str:
        return self.base.where(int(self._rows(np.array([sample]))[0]))

    def facts(self) -> dict[str, Any]:
        return {"sources": len(self.names), "positions of an epoch": self.blend.length}

    def close(self) -> None:
        self.base.close()


def _weighted(one: Any) -> tuple[Any, float | None]:
    """A source and its weight, if it has one."""
    if isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[1], int | float):
        return one[0], float(one[1])
    return one, None


def _alike(readers: Sequence[Reader], fields: Sequence[str] | None) -> list[Reader]:
    """The fields that all have, or that were asked for; of one kind each."""
    names = list(fields) if fields is not None else [
        name for name in readers[0].schema if all(name in reader.schema for reader in readers)
    ]  # fmt: skip
    if not names:
        said = "; ".join(f"{reader.path}: {', '.join(reader.schema)}" for reader in readers[:4])
        raise SchemaError(f"the sources have no field in common: {said}")
    return [one if list(one.schema) == names else one.select(names) for one in readers]


def _cooled(weights: Sequence[float], temperature: float | None) -> list[float]:
    if temperature is None:
        return [float(one) for one in weights]
    if not temperature > 0:
        raise OptionError(f"temperature is above 0, not {temperature}")
    most = max(weights, default=0) or 1
    return [(one / most) ** (1 / temperature) if one > 0 else 0.0 for one in weights]
