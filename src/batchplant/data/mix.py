"""Mixtures of datasets as one Reader: :mod:`batchplant.order.mixture` computes which source is next."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.cells import decode_cell
from ..errors import OptionError, SchemaError, listed, near, no_such
from ..order import mixture, orders
from ..order.keyed import LONGEST, key_of, whole
from ..order.mixture import Metered
from ..schema import Bool, Float, Int, Tensor
from ..schema.columns import I64, Column, Masked, Ragged, dense_of, starts_of
from ..storage import index
from . import mix_config
from .concat import Concat
from .keys import FormatKeys
from .layout import Layout
from .reader import Reader, ReaderWrapper, open_reader
from .sizes import are_known, sizes_of
from .split import rows_by_value

# Value of ``by`` for weights that count samples; any other names a field of tokens.
SAMPLES = "samples"
# Epochs whose orders are cached if weights count tokens.
MAX_CACHED_EPOCHS = 4
# Sources that a state lists; of more it stores a checksum.
MAX_LISTED_SOURCES = 256
# Weights whose relative difference is below this form a group, if there are more than MAX_WEIGHT_GROUPS.
WEIGHT_TOLERANCE, MAX_WEIGHT_GROUPS = 0.01, 4096
# Of the token counts in an index file.
VERSION = 1
# Samples whose tokens are counted together.
COUNTED_ROWS = 1 << 16


# A change of weights while a run goes on: epoch, position, the weights from there on.
Change = tuple[int, int, Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Seen:
    """Samples of one source up to a position of a mixture."""

    name: str
    weight: float
    size: int
    samples: int
    # None if weights count samples.
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

    Raises: OptionError for weights that are negative or count what is not there; SchemaError where the fields
    of the sources differ; what :func:`batchplant.open` raises for a source.
    """

    format = "mix"
    # Counts tokens; None if weights count samples.
    _meter: Meter | None = None
    # Loaders that read the mixture.
    _loaders: weakref.WeakSet[Any]

    def __init__(
        self,
        sources: Sequence[object] | Mapping[str, object],
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
        named = sources.items() if isinstance(sources, Mapping) else ((None, source) for source in sources)
        entries = [(name, *_source_and_weight(source)) for name, source in named]
        if not entries:
            raise OptionError("a mixture needs at least one source")
        source_weights = [weight for *_, weight in entries if weight is not None]
        if source_weights and weights is not None:
            raise OptionError("sources have weights already: give them there, or as weights=")
        source_weights = source_weights if weights is None else [float(weight) for weight in weights]
        if (source_weights or weights is not None) and len(source_weights) != len(entries):
            raise OptionError(
                f"there are {len(entries)} sources, but {len(source_weights)} weights: give every source "
                "one, or none"
            )
        readers = [open_reader(source) for _, source, _ in entries]
        self.names = tuple(name or reader.path for (name, *_), reader in zip(entries, readers, strict=True))
        self.base = Concat(_with_fields(readers, fields))
        self.schema, self.path = self.base.schema, f"mixture of {listed(self.names)}"
        sizes = [len(reader) for reader in readers]
        amounts: Sequence[float] = sizes
        if by != SAMPLES:
            self._meter = Meter(readers, by, self.names)
            amounts = self._meter.totals.tolist()
        step = whole("step", step, 1)
        plan = [(0, source_weights or amounts), *((step * start, changed) for start, changed in schedule)]
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
        cooled = [(position, _cooled(weights, temperature)) for position, weights in plan]
        for _, weights in cooled:
            self._check_weights(weights)
        self._plan: dict[str, Any] = {"schedule": cooled[1:], "stop": stop, "max_repeats": max_repeats}
        self._weights = cooled[0][1]
        self._firsts = starts_of(self.sizes_of_sources)
        self._metered: dict[Any, mixture.Mixed] = {}
        self._loaders = weakref.WeakSet()
        self._lock = threading.Lock()
        # Bound of the sample numbers of any epoch.
        if self._meter is None:
            self._by_samples = mixture.blend(sizes, self._weights, **self._plan)
            self.length = mixture.mixed(self._by_samples, seed=0, epoch=0).samples
        else:
            self.length = self._meter.numbers(self.sizes_of_sources, self._weights, **self._plan)
        # Without what changes of weights add to it.
        self.planned_length = self.length

    @property
    def blend(self) -> mixture.Plan:
        """Source of each position; if weights count tokens, in the first epoch of a run with the seed 0."""
        if self._meter is None:
            return self._by_samples
        return self.epoch_order("random", seed=0, epoch=0).blend

    def _check_weights(self, weights: Sequence[float]) -> None:
        """Raise OptionError that names the source of the first impossible weight."""
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
        cls, source: object, field: str, weights: Mapping[Any, float] | None = None, **options: Any
    ) -> Mix:
        """One source, every class of it as often as any other, or as its weight says.

        field: what the classes are: whole numbers, booleans or text. weights: by class, by its name or
        number; what they do not name has the weight 1. options: those of Mix; unless ``stop`` says
        otherwise, an epoch ends when every sample came.

        Raises: FieldNameError where there is no such field; OptionError where its values are no classes,
        or ``weights`` name one that does not occur.
        """
        reader = open_reader(source)
        groups = rows_by_value(reader, field)
        remaining = {str(name): weight for name, weight in (weights or {}).items()}
        class_weights = [remaining.pop(name, 1.0) for name in groups]
        if remaining:
            name = next(iter(remaining))
            raise OptionError(f"{field} has no class {name!r}{near(name, groups)}; it has {listed(groups)}")
        return Grouped(
            reader, list(groups), list(groups.values()), class_weights, **{"stop": "all", **options}
        )

    @classmethod
    def weighted(cls, source: object, weights: str | npt.ArrayLike, **options: Any) -> Mix:
        """One source, every sample as often as its weight says: on average, that is weight / mean times.

        weights: a field of numbers, or one number for each sample. Samples whose weights are within 1 % of
        each other form a group, and all of a group come equally often. options: those of Mix; unless
        ``stop`` says otherwise, an epoch has as many samples as the source.

        Raises: OptionError unless there is one finite number for each sample, none below 0 and one above.
        """
        reader = open_reader(source)
        if isinstance(weights, str):
            name = weights
            if not isinstance(reader.schema[name], Int | Float | Bool):
                raise OptionError(
                    f"weights are a field of numbers, not {reader.schema[name]}", path=reader.path, field=name
                )
            parts = [np.asarray(columns[name], dtype=np.float64) for columns in reader.scan(fields=[name])]
            weights = np.concatenate([np.zeros(0), *parts])
        groups = _by_weight(np.asarray(weights, dtype=np.float64), len(reader), reader.path)
        sums = [float(total) for _, total in groups]
        means = [f"{total / len(rows):.4g}" for rows, total in groups]
        return Grouped(
            reader, means, [rows for rows, _ in groups], sums, **{"stop": max(len(reader), 1), **options}
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Mix:
        """Return the mixture of a plan: a .yaml, .toml or .json file, see ``batchplant mix --help``.

        Raises: what :meth:`Loader.from_file` raises for the plan.
        """
        plan = mix_config.read(path)
        return plan.located(lambda: cls(plan.open(), **plan.options))

    # -- the order of an epoch -------------------------------------------------------------------------

    def set_weights(
        self, weights: Mapping[str, float] | Sequence[float], *, at_step: int | None = None
    ) -> None:
        """Change the weights while a Loader of this mixture runs; see :meth:`batchplant.Loader.set_weights`.

        Raises: OptionError where no Loader reads the mixture, or several do, and what that method raises.
        """
        loaders = list(self._loaders)
        if len(loaders) != 1:
            count = "no Loader reads" if not loaders else f"{len(loaders)} Loaders read"
            raise OptionError(f"{count} this mixture: call set_weights of the Loader")
        loaders[0].set_weights(weights, at_step=at_step)

    def weights_of(self, weights: Mapping[str, float] | Sequence[float]) -> list[float]:
        """Return the weights of all sources, checked; those that a mapping lacks have the weight 0."""
        if isinstance(weights, Mapping):
            if unknown := [name for name in weights if name not in self.names]:
                raise OptionError(no_such("source", unknown[0], self.names))
            weights = [weights.get(name, 0.0) for name in self.names]
        values = [float(weight) for weight in weights]
        if len(values) != len(self.names) or not any(values):
            raise OptionError(f"there are {len(self.names)} sources: give each a weight, not all of them 0")
        self._check_weights(values)
        return values

    def _plan_of(self, epoch: int, changes: Sequence[Change]) -> tuple[list[float], dict[str, Any]]:
        """Return the weights and the plan of an epoch; a change holds until the next, for all of the run."""
        weights, schedule = self._weights, list(self._plan["schedule"])
        for changed_epoch, position, changed in changes:
            if changed_epoch < epoch or (changed_epoch == epoch and not position):
                weights, schedule = list(changed), []
            elif changed_epoch == epoch:
                schedule = [*(entry for entry in schedule if entry[0] < position), (position, list(changed))]
        return weights, {**self._plan, "schedule": schedule}

    def epoch_order(
        self, order: object, *, seed: int, epoch: int, changes: Sequence[Change] = (), **options: Any
    ) -> mixture.Mixed:
        """Return the order of an epoch; ``order`` is that of every source, in every pass another.

        changes: of the weights, as (epoch, position, weights), in order.
        """
        weights, plan = self._plan_of(epoch, changes)
        if self.seed:
            seed = int(key_of(seed, self.seed, 10)[0])
        if not isinstance(order, str):
            raise OptionError("a mixture takes an order by its name: random, sequential, quasi_random …")
        of_source = None if order == "random" else self._order_of_source(order, seed, epoch, options)
        if self._meter is None and not changes:
            return mixture.mixed(self._by_samples, seed=seed, epoch=epoch, order=of_source)
        # Planning an epoch takes a while, and a loader asks for it several times.
        key = (order, seed, epoch, repr(sorted(options.items())), repr((weights, plan)))
        with self._lock:
            if key not in self._metered:
                sizes = self.sizes_of_sources.tolist()
                if self._meter is None:
                    blend = mixture.blend(sizes, weights, **plan)
                    order_of_epoch = mixture.mixed(blend, seed=seed, epoch=epoch, order=of_source)
                    # Other weights may go through a source more often.
                    self.length = max(self.length, order_of_epoch.samples)
                else:
                    bound = self._meter.numbers(self.sizes_of_sources, weights, **plan)
                    self.length = max(self.length, bound)
                    order_of_epoch = self._metered_order(self._meter, seed, epoch, of_source, weights, plan)
                recent = list(self._metered.items())[1 - MAX_CACHED_EPOCHS :]
                self._metered = {**dict(recent), key: order_of_epoch}
            return self._metered[key]

    def _metered_order(
        self,
        meter: Meter,
        seed: int,
        epoch: int,
        of_source: Callable[[int, int], orders.Order] | None,
        weights: Sequence[float],
        options: Mapping[str, Any],
    ) -> mixture.Mixed:
        sizes = self.sizes_of_sources
        numbers = mixture.numbering(sizes, seed=seed, epoch=epoch, order=of_source)

        def lengths(source: I64, turn: I64) -> I64:
            return meter(source, self._base_rows(numbers(source, turn)) - self._firsts[source])

        plan = Metered(sizes.tolist(), weights, meter.totals, lengths, **options)
        length = min(plan.length, self.length, LONGEST) if self.length else 0
        # Identifies this order, and needs no plan.
        plain = mixture.mixed(
            mixture.blend(sizes.tolist(), self._weights, stop="never"),
            seed=seed,
            epoch=epoch,
            order=of_source,
        )
        return mixture.Mixed(
            self.length, length, lambda positions: numbers(*plan.at(positions)), _base=plain, blend=plan
        )

    def _order_of_source(
        self, order: str, seed: int, epoch: int, options: Mapping[str, Any]
    ) -> Callable[[int, int], orders.Order]:
        sizes = self.sizes_of_sources
        blocks: dict[int, orders.BlockIndex] = {}

        def of_source(source: int, lap: int) -> orders.Order:
            source_seed = int(key_of(seed, source, 8)[0])
            order_options = dict(options)
            if order in orders.BY_BLOCKS:
                if source not in blocks:
                    blocks[source] = self._blocks_of(source)
                order_options["blocks"] = blocks[source]
            return orders.make(
                order,
                int(sizes[source]),
                seed=source_seed,
                epoch=int(key_of(epoch, lap, 9)[0]),
                **order_options,
            )

        return of_source

    @property
    def is_endless(self) -> bool:
        """True if an epoch has no end."""
        return self._plan["stop"] == "never" and self.blend.length >= mixture.ENDLESS

    @property
    def weighted_sources(self) -> npt.NDArray[np.bool_]:
        """Flags of the sources that have a weight at some position."""
        every = [self._weights, *(weights for _, weights in self._plan["schedule"])]
        return np.max(every, axis=0) > 0

    def _blocks_of(self, source: int) -> orders.BlockIndex:
        reader = self.base.readers[source] if isinstance(self.base, Concat) else None
        blocks = None if reader is None else reader.blocks()
        if reader is None or blocks is None:
            raise OptionError(f"{self.names[source]} has no blocks; use random")
        return orders.BlockIndex(blocks, reader.window)

    def origin(self, samples: npt.ArrayLike) -> tuple[I64, I64, I64]:
        """Return the source of each sample number, the sample's number there, and the pass."""
        numbers = self._check(samples)
        lap, rows = np.divmod(numbers, max(int(self._firsts[-1]), 1))
        source = np.searchsorted(self._firsts, rows, side="right") - 1
        return source, rows - self._firsts[source], lap

    def token_counts(self, samples: I64, field: str) -> I64 | None:
        """Return the number of tokens of samples in a field; None unless weights count these."""
        if self._meter is None or self._meter.field != field:
            return None
        return self._meter(*self.origin(samples)[:2])

    def seen(self, position: int | None = None) -> list[Seen]:
        """Return the samples of each source that come before a position (default: in an epoch)."""
        blend = self.blend
        position = blend.length if position is None else position
        counts, weights = blend.counts(position).tolist(), self.weights(position).tolist()
        tokens = blend.tokens(position).tolist() if isinstance(blend, Metered) else [None] * len(counts)
        rows = zip(self.names, weights, self.sizes_of_sources.tolist(), counts, tokens, strict=True)
        return [Seen(*row) for row in rows]

    def weights(self, position: int = 0) -> npt.NDArray[np.float64]:
        """Return the weights at a position, which sum up to 1."""
        return self.blend.weights(position)

    def mark(self) -> dict[str, Any]:
        """Return JSON of everything that decides the order of sources; see :meth:`difference`."""
        sources: Any = [
            [name, size, weight]
            for name, size, weight in zip(
                self.names, self.sizes_of_sources.tolist(), self._weights, strict=True
            )
        ]
        if len(sources) > MAX_LISTED_SOURCES:
            sources = [len(sources), zlib.crc32(repr([source[1:] for source in sources]).encode())]
        schedule = [[position, list(weights)] for position, weights in self._plan["schedule"]]
        return {
            "by": SAMPLES if self._meter is None else self._meter.field,
            "sources": sources,
            "schedule": schedule,
            "stop": self._plan["stop"],
            "max_repeats": self._plan["max_repeats"],
            "seed": self.seed,
        }

    def difference(self, mark: Mapping[str, Any]) -> str | None:
        """Return the difference to the mixture of a mark; None if there is none but names of sources."""
        mine = self.mark()
        theirs, ours = mark.get("sources"), mine["sources"]
        if isinstance(theirs, list) and theirs != ours and (changes := _changed_sources(theirs, ours)):
            return changes
        labels = {
            "by": "weights counted",
            "schedule": "the schedule was",
            "stop": "stop was",
            "max_repeats": "max_repeats was",
            "seed": "the seed of the mixture was",
        }
        for name, label in labels.items():
            if name in mark and mark[name] != mine[name]:
                return f"{label} {mark[name]}, and now {mine[name]}"
        return None

    # -- reading ---------------------------------------------------------------------------------------

    def _base_rows(self, rows: I64) -> I64:
        return rows % max(int(self._firsts[-1]), 1)

    def _keys(self) -> FormatKeys | None:
        format_keys = self.base._keys()
        return None if format_keys is None else format_keys.mapped(self._base_rows)

    def _layout(self) -> Layout:
        # An epoch has an order of its own: blocks of the base and the like are no help to it.
        return Layout()

    def facts(self) -> dict[str, object]:
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
        # One reader for all groups, so that a batch is read at once.
        self.rows = np.concatenate(list(groups))
        self.base, self.schema = reader.subset(self.rows), reader.schema
        self._blend([len(rows) for rows in groups], [(0, weights)], temperature, stop, max_repeats, seed)

    def origin(self, samples: npt.ArrayLike) -> tuple[I64, I64, I64]:
        """Return the group of each sample number, the sample's number in the source, and the pass."""
        group, _, lap = super().origin(samples)
        return group, self.rows[self._base_rows(self._check(samples))], lap


def _by_weight(weights: npt.NDArray[np.float64], count: int, path: str) -> list[tuple[I64, float]]:
    """Return groups of samples of about the same weight, and the weight of each group; 0 is in none."""
    if weights.shape != (count,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise OptionError(f"weights are {count} finite numbers, none below 0 and not all 0", path=path)
    used = np.flatnonzero(weights)
    distinct, code = np.unique(weights[used], return_inverse=True)
    if len(distinct) > MAX_WEIGHT_GROUPS:
        logs = np.log(weights[used] / weights.max())
        # Groups are wider only if weights differ by too much for that many.
        width = max(WEIGHT_TOLERANCE, float(-logs.min()) / MAX_WEIGHT_GROUPS)
        code = np.unique(np.floor(logs / width).astype(np.int64), return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    return [(used[part], float(weights[used[part]].sum())) for part in np.split(order, cuts)]


def _changed_sources(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    """Describe how sources of [name, size, weight] have changed; of checksums, only that they have."""
    if not all(isinstance(source, list) and len(source) == 3 for source in (*theirs, *ours)):
        return "its sources, or their weights, have changed"
    names = [name for name, *_ in theirs], [name for name, *_ in ours]
    if len(theirs) != len(ours):
        added = [name for name in names[1] if name not in names[0]]
        removed = [name for name in names[0] if name not in names[1]]
        parts = [f"without {listed(added)}"] if added else []
        parts += [f"with {listed(removed)}"] if removed else []
        return f"it was made {' and '.join(parts)}" if parts else f"it had {len(theirs)} sources"
    changed = []
    for (_, size, weight), (name, new_size, new_weight) in zip(theirs, ours, strict=True):
        if weight != new_weight:
            changed.append(f"the weight of {name} was {weight:g} and is {new_weight:g}")
        if size != new_size:
            changed.append(f"{name} had {size:,} samples and has {new_size:,}")
    return "; ".join(changed[:4]) + ("; …" if len(changed) > 4 else "")


def _source_and_weight(entry: object) -> tuple[object, float | None]:
    if isinstance(entry, tuple | list) and len(entry) == 2 and isinstance(entry[1], int | float):
        return entry[0], float(entry[1])
    return entry, None


def _with_fields(readers: Sequence[Reader], fields: Sequence[str] | None) -> list[Reader]:
    """Return the readers with these fields; by default, those that all have."""
    if fields is None:
        fields = [name for name in readers[0].schema if all(name in reader.schema for reader in readers)]
    names = list(fields)
    if not names:
        fields_of_sources = "; ".join(f"{reader.path}: {', '.join(reader.schema)}" for reader in readers[:4])
        raise SchemaError(f"the sources have no field in common: {fields_of_sources}")
    return [reader if list(reader.schema) == names else reader.select(names) for reader in readers]


def _cooled(weights: Sequence[float], temperature: float | None) -> list[float]:
    if temperature is None:
        return [float(weight) for weight in weights]
    if not temperature > 0:
        raise OptionError(f"temperature is above 0, not {temperature}")
    max_weight = max(weights, default=0) or 1
    return [(weight / max_weight) ** (1 / temperature) if weight > 0 else 0.0 for weight in weights]


# -- weights that count tokens ------------------------------------------------------------------------------


class Meter:
    """Counts the tokens of documents of several readers; ``totals``: of each of them."""

    def __init__(self, readers: Sequence[Reader], field: str, names: Sequence[str]) -> None:
        self.field = field
        try:
            counts = [token_counts(reader, field) for reader in readers]
        except OptionError as error:
            raise OptionError(f"by={field!r}: {error.message}", path=error.path) from None
        self._counts = [count for count, _ in counts]
        self.totals: I64 = np.array([total for _, total in counts], dtype=np.int64)

    def __call__(self, source: I64, sample: I64) -> I64:
        """Return the tokens of documents by their sources and their numbers there."""
        counts = np.empty(len(source), dtype=np.int64)
        for number in np.unique(source).tolist():
            rows = source == number
            counts[rows] = self._counts[number](sample[rows])
        return counts

    def numbers(
        self,
        sizes: I64,
        weights: Sequence[float],
        *,
        schedule: Sequence[tuple[int, Sequence[float]]],
        stop: str | int,
        max_repeats: int | None,
    ) -> int:
        """Return a bound of the sample numbers of any epoch; see ``mixture.numbered``."""
        used = (np.asarray(weights) > 0) & (self.totals > 0)
        laps = self.totals[used] / np.asarray(weights)[used]
        passes = mixture.ENDLESS
        if max_repeats is not None:
            passes = max_repeats
        elif isinstance(stop, int):
            passes = stop // max(int(sizes[used].min(initial=1)), 1) + 1
        elif not schedule and stop != "never" and len(laps):
            end = laps.min() if stop == "first" else laps.max()
            passes = int(end / laps.min()) + 2
        return mixture.numbered(passes, int(sizes.sum()))


def token_counts(reader: Reader, field: str) -> tuple[Callable[[I64], I64], int]:
    """Return a function from sample numbers to token counts, and the tokens of all samples.

    field: rows of whole numbers, whose lengths count, or a field of whole numbers, which are the counts.
    If a format does not know the lengths of cells, the field is read once, and an index stores the lengths.
    """
    if field not in reader.schema:
        raise OptionError(
            f"weights count samples or the tokens of a field: {no_such('field', field, reader.schema)}"
        )
    kind = reader.schema[field]
    dense = dense_of(kind)
    tokens = isinstance(kind, Tensor) and len(kind.shape) == 1 and np.dtype(kind.dtype).kind in "iu"
    if tokens and dense is not None and not kind.optional:
        row = dense[1][0]
        return (lambda samples: np.full(len(samples), row, dtype=np.int64)), row * len(reader)
    if tokens and not kind.optional and are_known(reader, [field]):
        assert isinstance(kind, Tensor)
        width = np.dtype(kind.dtype).itemsize
        total = 0
        for start in range(0, len(reader), COUNTED_ROWS):
            numbers = np.arange(start, min(start + COUNTED_ROWS, len(reader)))
            total += int(sizes_of(reader, [field], numbers).sum()) // width
        return (lambda samples: sizes_of(reader, [field], samples) // width), total
    if not tokens and type(kind) is not Int:
        raise OptionError(
            f"weights count samples, the tokens of a field, or a field of counts, and {field!r} is {kind}",
            path=reader.path,
        )
    counts = _read_counts(reader, field)
    if (counts < 0).any():
        sample = int(np.argmax(counts < 0))
        raise OptionError("a count of tokens is not below 0", path=reader.path, sample=sample, field=field)
    return (lambda samples: counts[samples]), int(counts.sum())


def _read_counts(reader: Reader, field: str) -> I64:
    """Read the counts of all samples; an index stores them."""

    def build(source: Reader) -> tuple[index.Arrays, index.Facts]:
        parts = [
            _counts(source, field, columns[field]) for columns in source._consecutive(COUNTED_ROWS, (field,))
        ]
        counts = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return {"counts": counts}, {"samples": len(counts)}

    def check(content: index.Index) -> bool:
        counts = content.arrays["counts"]
        return counts.dtype == np.int64 and counts.shape == (len(reader),)

    stored = reader._indexed((field,), "token-counts", "", build, version=VERSION, check=check)
    return build(reader)[0]["counts"] if stored is None else stored.arrays["counts"]


def _counts(reader: Reader, field: str, column: Column) -> I64:
    kind = reader.schema[field]
    if isinstance(kind, Tensor):
        if not kind.optional and isinstance(column, Ragged):
            return column.sizes // np.dtype(kind.dtype).itemsize
        cells = (decode_cell(kind, column, row) for row in range(len(column)))
        return np.array([0 if cell is None else len(cell) for cell in cells], dtype=np.int64)
    if isinstance(column, Masked | Ragged):
        cells = (decode_cell(kind, column, row) for row in range(len(column)))
        return np.array([0 if cell is None else cell for cell in cells], dtype=np.int64)
    return column.astype(np.int64)
