"""Plans of mixtures in files, for ``Mix.from_file``, ``Loader.from_file`` and ``batchplant mix``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ..errors import BatchplantError, NotFoundError, OptionError, listed, located, near
from ..order.mixture import ENDLESS, STOPS
from . import config
from .config import PlanFile
from .reader import Reader, open_reader

T = TypeVar("T")

# Keys of a plan: of the mixture, of its loading, of a source, and of a change of the schedule.
MIXTURE = ("sources", "schedule", "temperature", "step", "stop", "max_repeats", "fields", "seed", "by")
LOADING = ("batch_size", "order", "drop_last", "pack", "steps", "world_size")
SOURCE = ("path", "weight", "format", "where", "options")
CHANGE = ("at", "weights")
MAX_SOURCES = 100_000
EXAMPLE = """\
# What a run reads: `batchplant mix plan.yaml --dry-run` says what it will see, Mix.from_file and
# Loader.from_file read it. Paths are relative to this file.
sources:
  web:
    path: web.idx               # file, folder, URL or glob of shards
    weight: 0.7                 # share of this source, in what `by` says; none at all: by sizes
  books: {path: books.idx, weight: 0.3}
by: samples                     # what weights count: samples (documents), or tokens (a field of them)
schedule:                       # other weights from a position on; what is not named keeps its own
  - at: 2000
    weights: {web: 0.4, books: 0.6}
stop: all                       # first, all, never, or a number of samples
max_repeats: 8                  # how often a source is gone through at most
seed: 7
order: random
batch_size: 8                   # of one process; rows, where documents are packed
pack: {length: 2048, eos: 0}    # options of Pack; leave it out for samples as they are
"""


@dataclasses.dataclass(frozen=True)
class Source:
    path: Any
    weight: float | None
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class MixPlan:
    """Contents of a plan.

    options: those of Mix. loading: those of a Loader, ``steps`` and ``world_size``. pack: those of Pack.
    """

    file: PlanFile
    sources: dict[str, Source]
    options: dict[str, Any]
    loading: dict[str, Any]
    pack: dict[str, Any] | None

    @property
    def path(self) -> str:
        return self.file.path

    def open(self) -> dict[str, Any]:
        """Open the sources; return them with their weights."""
        readers: dict[str, Any] = {}
        with contextlib.ExitStack() as opened:
            for name, source in self.sources.items():
                reader = self._open(name, source)
                opened.callback(reader.close)
                readers[name] = reader if source.weight is None else (reader, source.weight)
            opened.pop_all()
        return readers

    def _open(self, name: str, source: Source) -> Reader:
        line = self.file.line_prefix("sources", name, "path")
        try:
            return open_reader(source.path, **source.options)
        except BatchplantError as error:
            kind = NotFoundError if isinstance(error, NotFoundError) else OptionError
            raise kind(f"{line}{name} cannot be opened: {error}", path=self.path) from None

    def located(self, make: Callable[[], T]) -> T:
        """Call ``make``; add the path of the plan to errors."""
        with located(path=self.path):
            return make()


def read(path: str | os.PathLike[str]) -> MixPlan:
    """Read a plan and check it as far as possible without opening its sources."""
    file = config.read(path, "there is no such plan; `batchplant mix --example` shows one")
    return _Checker(file).plan()


class _Checker:
    def __init__(self, file: PlanFile) -> None:
        self.file = file

    def plan(self) -> MixPlan:
        values = self.file.value
        self._check_keys(values, (*MIXTURE, *LOADING), "a plan of a mixture")
        sources = self._sources(values.get("sources"))
        options: dict[str, Any] = {"schedule": self._schedule(values.get("schedule"), sources)}
        for name, minimum, maximum in (("seed", 0, 2**63), ("step", 1, 2**40), ("max_repeats", 1, 2**40)):
            if values.get(name) is not None:
                options[name] = self._whole(values[name], minimum, maximum, name)
        if values.get("temperature") is not None:
            options["temperature"] = self._number(values["temperature"], "temperature")
        if values.get("stop") is not None:
            options["stop"] = self._stop(values["stop"])
        if values.get("fields") is not None:
            options["fields"] = self._texts(values["fields"], "fields")
        if values.get("by") is not None:
            if not isinstance(values["by"], str):
                self._wrong(f"by is samples, or a field of tokens, not {values['by']!r}", "by")
            options["by"] = values["by"]
        loading = self._loading(values)
        pack = values.get("pack")
        if isinstance(pack, int) and not isinstance(pack, bool):
            pack = {"length": pack}
        if pack is not None and not isinstance(pack, Mapping):
            self._wrong("pack holds options, such as {length: 8192, eos: 0}", "pack")
        return MixPlan(self.file, sources, options, loading, None if pack is None else dict(pack))

    def _loading(self, values: Mapping[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {"order": "random"}
        for name in ("batch_size", "steps", "world_size"):
            if values.get(name) is not None:
                options[name] = self._whole(values[name], 1, 2**40, name)
        if values.get("order") is not None:
            options["order"] = str(values["order"])
        if values.get("drop_last") is not None:
            if not isinstance(values["drop_last"], bool):
                self._wrong(f"drop_last is true or false, not {values['drop_last']!r}", "drop_last")
            options["drop_last"] = values["drop_last"]
        return options

    def _sources(self, value: object) -> dict[str, Source]:
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = {_name_in(entry, number): _unnamed(entry) for number, entry in enumerate(value)}
        if not isinstance(value, Mapping) or not value:
            self._wrong("sources names the datasets, each with a path and a weight", "sources")
        if len(value) > MAX_SOURCES:
            self._wrong(f"{len(value):,} sources are too many; give globs of shards", "sources")
        sources = {str(name): self._source(str(name), entry) for name, entry in value.items()}
        without = [name for name, entry in sources.items() if entry.weight is None]
        if without and len(without) < len(sources):
            self._wrong(f"{without[0]} has no weight: give every source one, or none", "sources", without[0])
        if not without and not any(entry.weight for entry in sources.values()):
            self._wrong("the weights are all 0", "sources")
        return sources

    def _source(self, name: str, value: object) -> Source:
        keys = ("sources", name)
        value = {"path": value} if isinstance(value, str | list) else value
        if not isinstance(value, Mapping):
            self._wrong(f"{name} needs a path, as in {{path: web.idx, weight: 0.7}}", *keys)
        self._check_keys(value, SOURCE, f"source {name}", *keys)
        if not value.get("path"):
            self._wrong(f"{name} has no path", *keys)
        paths = [value["path"]] if isinstance(value["path"], str) else value["path"]
        if not isinstance(paths, Sequence) or not all(isinstance(path, str) for path in paths):
            self._wrong(f"the path of {name} is text, or a list of texts", *keys, "path")
        weight = value.get("weight")
        if weight is not None:
            weight = self._number(weight, f"the weight of {name}", *keys, "weight")
        options = value.get("options") or {}
        if not isinstance(options, Mapping):
            self._wrong(f"options of {name} are names and values", *keys, "options")
        options = {**options, **{key: value[key] for key in ("format", "where") if value.get(key)}}
        resolved = [self._beside(path) for path in paths]
        return Source(resolved[0] if isinstance(value["path"], str) else resolved, weight, options)

    def _beside(self, path: str) -> str:
        """Return a path relative to the plan; a URL is not."""
        return path if "://" in path else os.path.join(os.path.dirname(self.file.path), path)

    def _schedule(self, value: object, sources: Mapping[str, Source]) -> list[tuple[int, list[float]]]:
        if value is None:
            return []
        if not isinstance(value, Sequence) or isinstance(value, str):
            self._wrong("a schedule is a list of {at: 1000, weights: {web: 0.5}}", "schedule")
        weights = {name: source.weight for name, source in sources.items()}
        changes: list[tuple[int, list[float]]] = []
        for number, change in enumerate(value):
            keys = ("schedule", number)
            if (
                not isinstance(change, Mapping)
                or not isinstance(change.get("weights"), Mapping)
                or "at" not in change
            ):
                self._wrong("a change is {at: 1000, weights: {web: 0.5}}", *keys)
            self._check_keys(change, CHANGE, "a change of the schedule", *keys)
            position = self._whole(change["at"], 1, 2**48, "at", *keys, "at")
            if changes and position <= changes[-1][0]:
                self._wrong(f"at {position:,} comes after {changes[-1][0]:,}: positions grow", *keys, "at")
            for name, weight in change["weights"].items():
                if str(name) not in weights:
                    message = f"there is no source {name!r}{near(name, weights)}; there are {listed(weights)}"
                    self._wrong(message, *keys, "weights")
                label = f"the weight of {name} from {position:,} on"
                weights[str(name)] = self._number(weight, label, *keys, "weights", str(name))
            if None in weights.values():
                self._wrong("a schedule needs weights of all sources to begin with", *keys)
            if not any(weights.values()):
                self._wrong("the weights are all 0", *keys, "weights")
            changes.append((position, [float(weight or 0) for weight in weights.values()]))
        return changes

    def _stop(self, value: object) -> str | int:
        if value in STOPS:
            return str(value)
        if isinstance(value, str):
            self._wrong(f"stop is {', '.join(STOPS)} or a number of samples, not {value!r}", "stop")
        return self._whole(value, 1, ENDLESS, "stop")

    # -- kinds of values -------------------------------------------------------------------------------

    def _check_keys(
        self, values: Mapping[str, Any], names: Sequence[str], label: str, *keys: str | int
    ) -> None:
        for name in values:
            if name not in names:
                message = f"{label} has no {name!r}{near(str(name), names)}; there are {listed(names)}"
                self._wrong(message, *keys, str(name))

    def _number(self, value: object, label: str, *keys: str | int) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return float(value)
        self._wrong(f"{label} is a number that is not below 0, not {value!r}", *(keys or (label,)))

    def _whole(self, value: Any, minimum: int, maximum: int, label: str, *keys: str | int) -> int:
        # 1e6 is a whole number as well.
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if is_whole and minimum <= value <= maximum:
            return int(value)
        self._wrong(f"{label} is a whole number of at least {minimum}, not {value!r}", *(keys or (label,)))

    def _texts(self, value: object, label: str) -> list[str]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names) or not names:
            self._wrong(f"{label} is a list of names, not {value!r}", label)
        return list(names)

    def _wrong(self, message: str, *keys: str | int) -> NoReturn:
        raise OptionError(self.file.line_prefix(*keys) + message, path=self.file.path)


def _name_in(entry: object, number: int) -> str:
    """Return the name of an entry of a list of sources."""
    if isinstance(entry, Mapping):
        path = entry.get("path")
        return str(entry.get("name") or (path if isinstance(path, str) else number))
    return entry if isinstance(entry, str) else str(number)


def _unnamed(entry: object) -> object:
    return (
        {key: value for key, value in entry.items() if key != "name"} if isinstance(entry, Mapping) else entry
    )
