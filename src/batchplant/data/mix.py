"""Mixtures of datasets as one Reader: who comes when is arithmetic, see :mod:`batchplant.order.mixture`."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, SchemaError, listed, near
from ..order import mixture, orders
from ..order.keyed import LONGEST, key_of, whole
from ..order.metered import Metered
from ..schema.columns import I64, starts_of
from . import mix_config as mixplan
from .concat import Concat
from .keys import FormatKeys
from .reader import Reader, ReaderWrapper, open_reader
from .split import rows_by_value
from .tokencounts import Meter

# What weights count, unless a field of tokens is named.
SAMPLES = "samples"
# Epochs whose plans are kept, where weights count tokens.
METERED_EPOCHS = 4
# Sources that a state names one by one; of more it has a checksum.
NAMED_SOURCES = 256
# Weights within this share of each other are taken as one, where there are more than so many.
ALIKE, GROUPS = 0.01, 4096


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a mixture gives of one source up to a position."""

    name: str
    weight: float
    size: int
    samples: int
    # Where weights count tokens.
    tokens: int | None = None

    @property
    def passes(self) -> float:
        return self.samples / self.size if self.size else 0.0


class Mix(ReaderWrapper):
    """Several datasets as one: ``Loader(Mix([("web.parquet", 0.7), ("books.tar", 0.3)]), 256,
    order="random")``.

    sources: (source, weight) each, a dict of them by name, or sources alone, whose ``weights`` are given in
    the same order, or are their sizes; a source is a Reader or what :func:`batchplant.open` takes. They have
    the same fields, or ``fields`` names those that all have.

    by: what weights count: ``samples`` (documents), or a field of tokens, as ``tokens``. By samples, at every
    position each source has come weight times position times, give or take one. By tokens, each source has
    given its share of all tokens so far, give or take half of the longest document of every source; where
    epochs end then depends on the lengths of the documents that came. A field of whole numbers counts as many
    tokens as it says.

    temperature: weights to the power of 1/temperature; 2 or more make small sources come more often.
    schedule: (position, weights) from which on other weights hold; where ``step`` says how many samples a
    training step takes, (step, weights). stop: an epoch ends when the first source is through (``first``),
    when all are (``all``), never, or after so many samples; until then, a source that is through begins
    again, shuffled anew. max_repeats: how often a source is gone through at most; then it leaves the
    mixture. seed: of the orders of sources, besides the loader's.

    ``Mix.by_class`` and ``Mix.weighted`` are mixtures of the samples of one source, ``Mix.from_file`` what
    a plan says. The loader's order is that of each source; an epoch has them interleaved. Samples are
    numbered source after source, and pass after pass: ``origin`` says which sample of which source it is.
    """

    format = "mix"
    # Counts tokens, where weights do.
    _meter: Meter | None = None

    def __init__(
        self,
        sources: Sequence[Any] | Mapping[str, Any],
        *,
        weights: Sequence[float] | None = None,
        temperature: float | None = None,
        schedule: Sequence[tuple[int, Sequence[float]]] = (),
        step: int = 1,
        stop: str | int = "first",
        max_repeats: int | None = None,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        by: str = SAMPLES,
    ) -> None:
        named = sources.items() if isinstance(sources, Mapping) else ((None, one) for one in sources)
        found = [(name, *_weighted(one)) for name, one in named]
        if not found:
            raise OptionError("a mixture needs at least one source")
        given = [weight for *_, weight in found if weight is not None]
        if given and weights is not None:
            raise OptionError("sources have weights already: give them there, or as weights=")
        given = given if weights is None else [float(one) for one in weights]
        if (given or weights is not None) and len(given) != len(found):
            raise OptionError(
                f"there are {len(found)} sources, but {len(given)} weights: give every source one, or none"
            )
        readers = [one if isinstance(one, Reader) else open_reader(one) for _, one, _ in found]
        self.names = tuple(name or reader.path for (name, *_), reader in zip(found, readers, strict=True))
        self.base = Concat(_alike(readers, fields))
        self.schema, self.path = self.base.schema, f"mixture of {listed(self.names)}"
        sizes = [len(one) for one in readers]
        amounts: Sequence[float] = sizes
        if by != SAMPLES:
            self._meter = Meter(readers, by, self.names)
            amounts = self._meter.totals.tolist()
        plan = [(0, given or amounts), *((whole("step", step, 1) * at, one) for at, one in schedule)]
        self._blend(sizes, plan, temperature, stop, max_repeats, seed)

    def _blend(
        self,
        sizes: Sequence[int],
        plan: Sequence[tuple[int, Sequence[float]]],
        temperature: float | None,
        stop: str | int,
        max_repeats: int | None,
        seed: int,
    ) -> None:
        self.seed = whole("seed", seed, 0, 2**64 - 1)
        self.sizes_of_sources = np.array(sizes, dtype=np.int64)
        cooled = [(at, _cooled(one, temperature)) for at, one in plan]
        for at, one in cooled:
            self._check_weights(at, one)
        self._plan: dict[str, Any] = {"schedule": cooled[1:], "stop": stop, "max_repeats": max_repeats}
        self._weights = cooled[0][1]
        self._firsts = starts_of(self.sizes_of_sources)
        self._metered: dict[Any, mixture.Mixed] = {}
        self._lock = threading.Lock()
        # As many as an epoch may name.
        if self._meter is None:
            self._by_samples = mixture.blend(sizes, self._weights, **self._plan)
            self.length = mixture.mixed(self._by_samples, seed=0, epoch=0).samples
        else:
            self.length = self._meter.numbers(self.sizes_of_sources, self._weights, **self._plan)

    @property
    def blend(self) -> mixture.Plan:
        """Who comes when; where weights count tokens, in the first epoch of a run with the seed 0."""
        if self._meter is None:
            return self._by_samples
        return self.epoch_order("random", seed=0, epoch=0).blend

    def _check_weights(self, at: int, weights: Sequence[float]) -> None:
        """Which source it is that a weight does not fit."""
        for name, size, weight in zip(self.names, self.sizes_of_sources, weights, strict=False):
            if not 0 <= weight < math.inf:
                raise OptionError(f"the weight of {name} must be finite and not below 0, not {weight}")
            if weight and not size:
                raise OptionError(f"{name} has the weight {weight:g}, but no samples")
        if self._meter is not None:
            for name, total, weight in zip(self.names, self._meter.totals, weights, strict=False):
                if weight and not total:
                    raise OptionError(f"{name} has the weight {weight:g}, but no tokens")

    @classmethod
    def by_class(
        cls, source: Any, field: str, weights: Mapping[Any, float] | None = None, **options: Any
    ) -> Mix:
        """One source, every class of it as often as any other, or as its weight says.

        field: what the classes are: whole numbers, booleans or text. weights: by class, by its name or
        number; what they do not name has the weight 1. options: those of Mix; unless ``stop`` says
        otherwise, an epoch ends when every sample came.
        """
        reader = source if isinstance(source, Reader) else open_reader(source)
        groups = rows_by_value(reader, field)
        left = {str(name): weight for name, weight in (weights or {}).items()}
        found = [left.pop(name, 1.0) for name in groups]
        if left:
            name = next(iter(left))
            raise OptionError(f"{field} has no class {name!r}{near(name, groups)}; it has {listed(groups)}")
        return Grouped(reader, list(groups), list(groups.values()), found, **{"stop": "all", **options})

    @classmethod
    def weighted(cls, source: Any, weights: Any, **options: Any) -> Mix:
        """One source, every sample as often as its weight says: on average, that is weight / mean times.

        weights: a field of numbers, or one number for each sample. Samples whose weights are within 1 % of
        each other form a group, and all of a group come equally often. options: those of Mix; unless
        ``stop`` says otherwise, an epoch has as many samples as the source.
        """
        reader = source if isinstance(source, Reader) else open_reader(source)
        if isinstance(weights, str):
            name = weights
            parts = [np.asarray(one[name], dtype=np.float64) for one in reader.scan(fields=[name])]
            weights = np.concatenate([np.zeros(0), *parts])
        groups = _by_weight(np.asarray(weights, dtype=np.float64), len(reader), reader.path)
        sums = [float(total) for _, total in groups]
        means = [f"{total / len(rows):.4g}" for rows, total in groups]
        return Grouped(
            reader, means, [rows for rows, _ in groups], sums, **{"stop": max(len(reader), 1), **options}
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Mix:
        """The mixture that a plan describes: a .yaml, .toml or .json file, see ``batchplant mix --help``."""
        plan = mixplan.read(path)
        return plan.located(lambda: cls(plan.open(), **plan.options))

    # -- who comes when --------------------------------------------------------------------------------

    def epoch_order(self, order: Any, *, seed: int, epoch: int, **options: Any) -> mixture.Mixed:
        """An epoch: the order that was asked for is that of every source, in every pass another."""
        if self.seed:
            seed = int(key_of(seed, self.seed, 10)[0])
        if not isinstance(order, str):
            raise OptionError("a mixture takes an order by its name: random, sequential, quasi_random …")
        of_source = None if order == "random" else self._order_of_source(order, seed, epoch, options)
        if self._meter is None:
            return mixture.mixed(self._by_samples, seed=seed, epoch=epoch, order=of_source)
        # Planning an epoch takes a while, and a loader asks for it several times.
        key = (order, seed, epoch, repr(sorted(options.items())))
        with self._lock:
            if key not in self._metered:
                made = self._metered_order(self._meter, seed, epoch, of_source)
                kept = list(self._metered.items())[1 - METERED_EPOCHS :]
                self._metered = {**dict(kept), key: made}
            return self._metered[key]

    def _metered_order(
        self, meter: Meter, seed: int, epoch: int, of_source: Callable[[int, int], orders.Order] | None
    ) -> mixture.Mixed:
        sizes = self.sizes_of_sources
        numbers = mixture.numbering(sizes, seed=seed, epoch=epoch, order=of_source)

        def lengths(source: I64, turn: I64) -> I64:
            return meter(source, self._base_rows(numbers(source, turn)) - self._firsts[source])

        plan = Metered(sizes.tolist(), self._weights, meter.totals, lengths, **self._plan)
        length = min(plan.length, self.length, LONGEST) if self.length else 0
        # Tells this order from others, and is there without the plan.
        plain = mixture.mixed(
            mixture.blend(sizes.tolist(), self._weights, stop="never"),
            seed=seed,
            epoch=epoch,
            order=of_source,
        )
        return mixture.Mixed(self.length, length, lambda at: numbers(*plan.at(at)), _base=plain, blend=plan)

    def _order_of_source(
        self, order: str, seed: int, epoch: int, options: Mapping[str, Any]
    ) -> Callable[[int, int], orders.Order]:
        sizes = self.sizes_of_sources
        blocks: dict[int, orders.BlockIndex] = {}

        def of_source(source: int, lap: int) -> orders.Order:
            own = int(key_of(seed, source, 8)[0])
            known = dict(options)
            if order in orders.BY_BLOCKS:
                if source not in blocks:
                    blocks[source] = self._blocks_of(source)
                known["blocks"] = blocks[source]
            return orders.make(
                order, int(sizes[source]), seed=own, epoch=int(key_of(epoch, lap, 9)[0]), **known
            )

        return of_source

    @property
    def is_endless(self) -> bool:
        """Whether an epoch has no end."""
        return self._plan["stop"] == "never" and self.blend.length >= mixture.ENDLESS

    @property
    def weighted_sources(self) -> npt.NDArray[np.bool_]:
        """Which sources have a weight at some position."""
        every = [self._weights, *(weights for _, weights in self._plan["schedule"])]
        found: npt.NDArray[np.bool_] = np.max(every, axis=0) > 0
        return found

    def _blocks_of(self, source: int) -> orders.BlockIndex:
        reader = self.base.readers[source] if isinstance(self.base, Concat) else None
        found = None if reader is None else reader.blocks()
        if reader is None or found is None:
            raise OptionError(f"{self.names[source]} has no blocks; use random")
        return orders.BlockIndex(found, reader.window)

    def origin(self, samples: Any) -> tuple[I64, I64, I64]:
        """Which source each number is of, which of its samples, and in which pass."""
        numbers = self._check(samples)
        lap, rest = np.divmod(numbers, max(int(self._firsts[-1]), 1))
        source = np.searchsorted(self._firsts, rest, side="right") - 1
        return source, rest - self._firsts[source], lap

    def token_counts(self, samples: I64, field: str) -> I64 | None:
        """How many tokens samples have in a field; None unless weights count these."""
        if self._meter is None or self._meter.field != field:
            return None
        return self._meter(*self.origin(samples)[:2])

    def seen(self, position: int | None = None) -> list[Seen]:
        """What a run has seen of each source before a position (default: in an epoch)."""
        blend = self.blend
        position = blend.length if position is None else position
        counts, weights = blend.counts(position).tolist(), self.weights(position).tolist()
        tokens = blend.tokens(position).tolist() if isinstance(blend, Metered) else [None] * len(counts)
        rows = zip(self.names, weights, self.sizes_of_sources.tolist(), counts, tokens, strict=True)
        return [Seen(*row) for row in rows]

    def weights(self, position: int = 0) -> npt.NDArray[np.float64]:
        """The weights at a position, which sum up to 1."""
        return self.blend.weights(position)

    def mark(self) -> dict[str, Any]:
        """What decides who comes when, as something that JSON can hold; see :meth:`difference`."""
        sources: Any = [
            [name, size, weight]
            for name, size, weight in zip(
                self.names, self.sizes_of_sources.tolist(), self._weights, strict=True
            )
        ]
        if len(sources) > NAMED_SOURCES:
            sources = [len(sources), zlib.crc32(repr([one[1:] for one in sources]).encode())]
        schedule = [[at, list(weights)] for at, weights in self._plan["schedule"]]
        return {
            "by": SAMPLES if self._meter is None else self._meter.field, "sources": sources,
            "schedule": schedule, "stop": self._plan["stop"], "max_repeats": self._plan["max_repeats"],
            "seed": self.seed,
        }  # fmt: skip

    def difference(self, mark: Mapping[str, Any]) -> str | None:
        """How the mixture of a mark differs from this one, in words; names of sources do not count."""
        mine = self.mark()
        theirs, ours = mark.get("sources"), mine["sources"]
        if isinstance(theirs, list) and theirs != ours:
            said = _changed_sources(theirs, ours)
            if said:
                return said
        for name, what in (
            ("by", "weights counted"), ("schedule", "the schedule was"), ("stop", "stop was"),
            ("max_repeats", "max_repeats was"), ("seed", "the seed of the mixture was"),
        ):  # fmt: skip
            if name in mark and mark[name] != mine[name]:
                return f"{what} {mark[name]}, and now {mine[name]}"
        return None

    # -- reading ---------------------------------------------------------------------------------------

    def _base_rows(self, rows: I64) -> I64:
        return rows % max(int(self._firsts[-1]), 1)

    def _keys(self) -> FormatKeys | None:
        format_keys = self.base._keys()
        return None if format_keys is None else format_keys.mapped(self._base_rows)

    # An epoch has an order of its own: blocks of the base and the like are no help to it.

    def blocks(self) -> I64 | None:
        return None

    def boundaries(self) -> I64:
        return np.empty(0, dtype=np.int64)

    def sizes(self) -> I64 | None:
        return None

    def facts(self) -> dict[str, Any]:
        return {"sources": len(self.names), "positions of an epoch": self.blend.length}


class Grouped(Mix):
    """A mixture of groups of the samples of one reader: see ``Mix.by_class`` and ``Mix.weighted``."""

    def __init__(
        self,
        reader: Reader,
        names: Sequence[str],
        groups: Sequence[I64],
        weights: Sequence[float],
        *,
        temperature: float | None = None,
        stop: str | int,
        max_repeats: int | None = None,
        seed: int = 0,
    ) -> None:
        if not groups:
            raise OptionError("there are no samples", path=reader.path)
        self.names, self.path = tuple(names), reader.path
        # One reader for all of them: a batch is read at once, however many groups it has samples of.
        self.rows = np.concatenate(list(groups))
        self.base, self.schema = reader.subset(self.rows), reader.schema
        self._blend([len(one) for one in groups], [(0, weights)], temperature, stop, max_repeats, seed)

    def origin(self, samples: Any) -> tuple[I64, I64, I64]:
        """Which group each number is of, which sample of the source it is, and in which pass."""
        group, _, lap = super().origin(samples)
        return group, self.rows[self._base_rows(self._check(samples))], lap


def _by_weight(weights: npt.NDArray[np.float64], count: int, path: str) -> list[tuple[I64, float]]:
    """Samples of about the same weight, and what that comes to; those of weight 0 are in none."""
    if weights.shape != (count,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise OptionError(f"weights are {count} finite numbers, none below 0 and not all 0", path=path)
    used = np.flatnonzero(weights)
    distinct, code = np.unique(weights[used], return_inverse=True)
    if len(distinct) > GROUPS:
        logs = np.log(weights[used] / weights.max())
        # Coarser only where weights differ by more than any table of groups could tell.
        width = max(ALIKE, float(-logs.min()) / GROUPS)
        code = np.unique(np.floor(logs / width).astype(np.int64), return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    return [(used[one], float(weights[used[one]].sum())) for one in np.split(order, cuts)]


def _changed_sources(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    """How sources of [name, size, weight] have changed; of many, only that they have."""
    if not all(isinstance(one, list) and len(one) == 3 for one in (*theirs, *ours)):
        return "its sources, or their weights, have changed"
    names = [name for name, *_ in theirs], [name for name, *_ in ours]
    if len(theirs) != len(ours):
        new = [name for name in names[1] if name not in names[0]]
        gone = [name for name in names[0] if name not in names[1]]
        parts = [f"{what} {listed(some)}" for what, some in (("without", new), ("with", gone)) if some]
        return f"it was made {' and '.join(parts)}" if parts else f"it had {len(theirs)} sources"
    changed = []
    for (_, size, weight), (name, own_size, own_weight) in zip(theirs, ours, strict=True):
        if weight != own_weight:
            changed.append(f"the weight of {name} was {weight:g} and is {own_weight:g}")
        if size != own_size:
            changed.append(f"{name} had {size:,} samples and has {own_size:,}")
    return "; ".join(changed[:4]) + ("; …" if len(changed) > 4 else "")


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
