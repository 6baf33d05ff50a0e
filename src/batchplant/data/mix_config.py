"""Plans of mixtures in files: what ``Mix.from_file``, ``Loader.from_file`` and ``batchplant mix`` go by."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ..errors import BatchplantError, NotFoundError, OptionError, listed, near
from ..order.mixture import ENDLESS, STOPS
from . import config
from .config import PlanFile
from .reader import Reader, open_reader

T = TypeVar("T")

# What a plan may say: of the mixture, of how it is loaded, and of a source.
MIXTURE = ("sources", "schedule", "temperature", "step", "stop", "max_repeats", "fields", "seed", "by")
LOADING = ("batch_size", "order", "drop_last", "pack", "steps", "world_size")
SOURCE = ("path", "weight", "format", "where", "options")
CHANGE = ("at", "weights")
MOST_SOURCES = 100_000
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
    """What a plan says.

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
        """The sources, opened, with their weights."""
        found: dict[str, Any] = {}
        with contextlib.ExitStack() as opened:
            for name, one in self.sources.items():
                reader = self._open(name, one)
                opened.callback(reader.close)
                found[name] = reader if one.weight is None else (reader, one.weight)
            # They stay open.
            opened.pop_all()
        return found

    def _open(self, name: str, one: Source) -> Reader:
        place = self.file.line_prefix("sources", name, "path")
        try:
            return open_reader(one.path, **one.options)
        except BatchplantError as error:
            kind = NotFoundError if isinstance(error, NotFoundError) else OptionError
            raise kind(f"{place}{name} cannot be opened: {error}", path=self.path) from None

    def located(self, make: Callable[[], T]) -> T:
        """What ``make`` gives; an error says that it is of this plan."""
        try:
            return make()
        except BatchplantError as error:
            raise error.at(path=self.path) from None


def read(path: str | os.PathLike[str]) -> MixPlan:
    """The plan in a file, checked as far as that goes without opening its sources."""
    file = config.read(path, "there is no such plan; `batchplant mix --example` shows one")
    return _Checker(file).plan()


class _Checker:
    def __init__(self, file: PlanFile) -> None:
        self.file = file

    def plan(self) -> MixPlan:
        given = self.file.value
        self._known(given, (*MIXTURE, *LOADING), "a plan of a mixture")
        sources = self._sources(given.get("sources"))
        options: dict[str, Any] = {"schedule": self._schedule(given.get("schedule"), sources)}
        for name, least, most in (("seed", 0, 2**63), ("step", 1, 2**40), ("max_repeats", 1, 2**40)):
            if given.get(name) is not None:
                options[name] = self._whole(given[name], least, most, name)
        if given.get("temperature") is not None:
            options["temperature"] = self._number(given["temperature"], "temperature")
        if given.get("stop") is not None:
            options["stop"] = self._stop(given["stop"])
        if given.get("fields") is not None:
            options["fields"] = self._texts(given["fields"], "fields")
        if given.get("by") is not None:
            if not isinstance(given["by"], str):
                self._wrong(f"by is samples, or a field of tokens, not {given['by']!r}", "by")
            options["by"] = given["by"]
        loading = self._loading(given)
        pack = given.get("pack")
        if isinstance(pack, int) and not isinstance(pack, bool):
            pack = {"length": pack}
        if pack is not None and not isinstance(pack, Mapping):
            self._wrong("pack holds options, such as {length: 8192, eos: 0}", "pack")
        return MixPlan(self.file, sources, options, loading, None if pack is None else dict(pack))

    def _loading(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"order": "random"}
        for name in ("batch_size", "steps", "world_size"):
            if given.get(name) is not None:
                found[name] = self._whole(given[name], 1, 2**40, name)
        if given.get("order") is not None:
            found["order"] = str(given["order"])
        if given.get("drop_last") is not None:
            if not isinstance(given["drop_last"], bool):
                self._wrong(f"drop_last is true or false, not {given['drop_last']!r}", "drop_last")
            found["drop_last"] = given["drop_last"]
        return found

    def _sources(self, given: Any) -> dict[str, Source]:
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = {_name_in(one, number): _unnamed(one) for number, one in enumerate(given)}
        if not isinstance(given, Mapping) or not given:
            self._wrong("sources names the datasets, each with a path and a weight", "sources")
        if len(given) > MOST_SOURCES:
            self._wrong(f"{len(given):,} sources are too many; give globs of shards", "sources")
        found = {str(name): self._source(str(name), one) for name, one in given.items()}
        without = [name for name, one in found.items() if one.weight is None]
        if without and len(without) < len(found):
            self._wrong(f"{without[0]} has no weight: give every source one, or none", "sources", without[0])
        if not without and not any(one.weight for one in found.values()):
            self._wrong("the weights are all 0", "sources")
        return found

    def _source(self, name: str, given: Any) -> Source:
        keys = ("sources", name)
        given = {"path": given} if isinstance(given, str | list) else given
        if not isinstance(given, Mapping):
            self._wrong(f"{name} needs a path, as in {{path: web.idx, weight: 0.7}}", *keys)
        self._known(given, SOURCE, f"source {name}", *keys)
        if not given.get("path"):
            self._wrong(f"{name} has no path", *keys)
        paths = [given["path"]] if isinstance(given["path"], str) else given["path"]
        if not isinstance(paths, Sequence) or not all(isinstance(one, str) for one in paths):
            self._wrong(f"the path of {name} is text, or a list of texts", *keys, "path")
        weight = given.get("weight")
        if weight is not None:
            weight = self._number(weight, f"the weight of {name}", *keys, "weight")
        options = given.get("options") or {}
        if not isinstance(options, Mapping):
            self._wrong(f"options of {name} are names and values", *keys, "options")
        options = {**options, **{key: given[key] for key in ("format", "where") if given.get(key)}}
        found = [self._beside(one) for one in paths]
        return Source(found[0] if isinstance(given["path"], str) else found, weight, options)

    def _beside(self, path: str) -> str:
        """A path is relative to the plan; a URL is not."""
        return path if "://" in path else os.path.join(os.path.dirname(self.file.path), path)

    def _schedule(self, given: Any, sources: Mapping[str, Source]) -> list[tuple[int, list[float]]]:
        if given is None:
            return []
        if not isinstance(given, Sequence) or isinstance(given, str):
            self._wrong("a schedule is a list of {at: 1000, weights: {web: 0.5}}", "schedule")
        weights = {name: one.weight for name, one in sources.items()}
        found: list[tuple[int, list[float]]] = []
        for number, one in enumerate(given):
            keys = ("schedule", number)
            if not isinstance(one, Mapping) or not isinstance(one.get("weights"), Mapping) or "at" not in one:
                self._wrong("a change is {at: 1000, weights: {web: 0.5}}", *keys)
            self._known(one, CHANGE, "a change of the schedule", *keys)
            at = self._whole(one["at"], 1, 2**48, "at", *keys, "at")
            if found and at <= found[-1][0]:
                self._wrong(f"at {at:,} comes after {found[-1][0]:,}: positions grow", *keys, "at")
            for name, weight in one["weights"].items():
                if str(name) not in weights:
                    said = f"there is no source {name!r}{near(name, weights)}; there are {listed(weights)}"
                    self._wrong(said, *keys, "weights")
                told = f"the weight of {name} from {at:,} on"
                weights[str(name)] = self._number(weight, told, *keys, "weights", str(name))
            if None in weights.values():
                self._wrong("a schedule needs weights of all sources to begin with", *keys)
            if not any(weights.values()):
                self._wrong("the weights are all 0", *keys, "weights")
            found.append((at, [float(one or 0) for one in weights.values()]))
        return found

    def _stop(self, given: Any) -> str | int:
        if given in STOPS:
            return str(given)
        if isinstance(given, str):
            self._wrong(f"stop is {', '.join(STOPS)} or a number of samples, not {given!r}", "stop")
        return self._whole(given, 1, ENDLESS, "stop")

    # -- kinds of values -------------------------------------------------------------------------------

    def _known(self, given: Mapping[str, Any], names: Sequence[str], what: str, *keys: str | int) -> None:
        for name in given:
            if name not in names:
                said = f"{what} has no {name!r}{near(str(name), names)}; there are {listed(names)}"
                self._wrong(said, *keys, str(name))

    def _number(self, given: Any, what: str, *keys: str | int) -> float:
        good = isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf
        if not good:
            self._wrong(f"{what} is a number that is not below 0, not {given!r}", *(keys or (what,)))
        return float(given)

    def _whole(self, given: Any, least: int, most: int, what: str, *keys: str | int) -> int:
        # 1e6 is a whole number as well.
        good = isinstance(given, int | float) and not isinstance(given, bool) and given == given // 1
        if not good or not least <= given <= most:
            self._wrong(f"{what} is a whole number of at least {least}, not {given!r}", *(keys or (what,)))
        return int(given)

    def _texts(self, given: Any, what: str) -> list[str]:
        found = [given] if isinstance(given, str) else given
        if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found) or not found:
            self._wrong(f"{what} is a list of names, not {given!r}", what)
        return list(found)

    def _wrong(self, message: str, *keys: str | int) -> NoReturn:
        raise OptionError(self.file.line_prefix(*keys) + message, path=self.file.path)


def _name_in(one: Any, number: int) -> str:
    """The name of an entry of a list of sources."""
    if isinstance(one, Mapping):
        path = one.get("path")
        return str(one.get("name") or (path if isinstance(path, str) else number))
    return one if isinstance(one, str) else str(number)


def _unnamed(one: Any) -> Any:
    return {key: value for key, value in one.items() if key != "name"} if isinstance(one, Mapping) else one
