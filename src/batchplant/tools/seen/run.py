"""A recorded run: its stretches of steps, the samples of a step, the steps of a sample, losses and spikes."""

from __future__ import annotations

import base64
import bisect
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_cell
from ...data.concat import Concat
from ...data.join import Join
from ...data.mix import Mix
from ...data.reader import Reader, ReaderWrapper, open_reader
from ...errors import (
    DamagedError,
    DataError,
    NotFoundError,
    OptionError,
    SampleIndexError,
    exceptions_as,
    located,
)
from ...loading.executor import Batch
from ...loading.loader import Loader
from ...loading.node.recipe import RecipeDecoder
from ...loading.preview import Cut, cut_of
from ...loading.recording import FAILED, LOSSES, NOTE, VERSION, fingerprint, notes_names
from ...loading.skipping import skip_of
from ...ops.function import part_of
from ...order.ranks import SkippedShard
from ...schema import Field, Image
from ...schema.columns import I64, AnyArray, Flags
from ...storage import NOTE_ERRORS, parse_object

# Ranks of a run whose files are looked for.
MAX_RANKS = 1 << 12
# Losses that are looked at together.
CHUNK_LOSSES = 1 << 22
# Of spikes: steps that are looked at together, values that tell what is usual, and the standard deviation of
# a normal distribution whose median deviation is 1.
CHUNK_STEPS, MIN_BEFORE, NORMAL_DEVIATION = 1 << 16, 10, 1.4826
# Positions of an order that are compared with a sample at a time.
CHUNK_POSITIONS = 1 << 20
# Steps with spikes whose samples are counted, and other steps that tell how frequent sources usually are.
MAX_SPIKES, USUAL_STEPS = 1000, 200


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive steps of a run: ``steps`` of them from ``step`` on, at position ``start`` of an epoch.

    lasting: how many of its steps belong to the run as it went on; a run that was resumed from an earlier
    state repeats the others.
    """

    process: dict[str, Any]
    settings: dict[str, Any]
    step: int
    epoch: int
    start: int
    world_size: int
    batch_size: int
    steps: int
    window: tuple[int, int] | None = None
    lasting: int = 0


def read_stretches(path: str) -> list[Stretch]:
    """Return the stretches of a record in the order of the file.

    Half a line that a killed process left is ignored: the last one, or the one before a process line.
    """
    if not os.path.exists(path):
        raise NotFoundError("there is no such record of a run", path=path)
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    stretches: list[Stretch] = []
    process: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    offset = 0
    for number, line in enumerate(lines):
        with exceptions_as(DamagedError, "not the record of a run", *NOTE_ERRORS, path=path, offset=offset):
            entry = _entry(lines, number)
            if "process" in entry:
                process, settings = entry, {}
                if entry["process"] != VERSION:
                    raise DataError(f"the record is of version {entry['process']}, and this reads {VERSION}")
            elif entry and process is None:
                raise ValueError("it does not begin with a process")
            elif "settings" in entry:
                settings = dict(entry["settings"])
            elif "stretch" in entry and process is not None:
                stretches.append(_stretch(process, settings, entry))
        offset += len(line) + 1
    if process is None:
        raise DamagedError("not the record of a run", path=path)
    return _lasting(stretches)


def _entry(lines: list[bytes], number: int) -> dict[str, Any]:
    line = lines[number]
    if not line.strip() or number == len(lines) - 1:
        return {}
    try:
        return parse_object(line)
    except ValueError:
        if lines[number + 1].startswith(b'{"process"'):
            return {}
        raise


def _stretch(process: dict[str, Any], settings: dict[str, Any], entry: dict[str, Any]) -> Stretch:
    values = entry["stretch"]
    names = ("step", "epoch", "start", "world_size", "batch_size")
    numbers = [values[name] for name in names] + [entry["steps"]]
    if not all(type(value) is int and value >= 0 for value in numbers) or not all(numbers[3:5]):
        raise ValueError("a number of a stretch is none")
    window = values.get("window")
    pair = None if window is None else (int(window[0]), int(window[1]))
    step, epoch, start, world_size, batch_size, steps = numbers
    return Stretch(process, settings, step, epoch, start, world_size, batch_size, steps, pair)


def _lasting(stretches: list[Stretch]) -> list[Stretch]:
    """Return the stretches with what lasts of each: steps that a later stretch does not repeat."""
    limit, lasting = 2**62, []
    for stretch in reversed(stretches):
        lasting.append(dataclasses.replace(stretch, lasting=min(stretch.steps, max(0, limit - stretch.step))))
        limit = min(limit, stretch.step)
    return lasting[::-1]


class Notes:
    """Values that were noted of steps by one rank."""

    def __init__(self, path: str, rank: int) -> None:
        self.rank = rank
        self.names = notes_names(f"{path}.names-{rank}")
        self.entries = _column(f"{path}.notes-{rank}", NOTE)
        self._losses = _column(f"{path}.losses-{rank}", np.dtype("<f2"))

    def values(self, step: int) -> dict[str, float]:
        """Return the values of a step; of one that was repeated, the latest."""
        entries = self.entries[(self.entries["step"] == step) & (self.entries["name"] != LOSSES)]
        return {
            self.names[entry["name"] - 1]: float(entry["value"])
            for entry in entries
            if entry["name"] <= len(self.names)
        }

    def failed(self, step: int) -> I64:
        """Return the samples of a step that could not be read and were left out."""
        entries = self.entries
        return entries["value"][(entries["step"] == step) & (entries["name"] == FAILED)].astype(np.int64)

    def failed_before(self, step: int) -> list[int]:
        """Return the samples of all steps before one that could not be read; those of repeated steps once."""
        entries = self.entries[(self.entries["name"] == FAILED) & (self.entries["step"] < step)]
        return [int(entry["value"]) for entry in np.unique(entries)]

    def series(self, name: str) -> tuple[I64, npt.NDArray[np.float64]]:
        """Return the steps with a value of this name, in order, and their latest values."""
        if name not in self.names:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        entries = self._latest(self.entries[self.entries["name"] == self.names.index(name) + 1])
        return entries["step"].astype(np.int64), entries["value"].astype(np.float64)

    def _latest(self, entries: AnyArray) -> AnyArray:
        _, last = np.unique(entries["step"][::-1], return_index=True)
        return entries[len(entries) - 1 - last]

    def _with_losses(self) -> AnyArray:
        entries = self._latest(self.entries[self.entries["name"] == LOSSES])
        return entries[entries["value"] + entries["count"] <= len(self._losses)]

    def losses(self, step: int) -> npt.NDArray[np.float32] | None:
        """Return the losses of the samples of a step; None where there are none."""
        entries = self.entries[(self.entries["step"] == step) & (self.entries["name"] == LOSSES)]
        if not len(entries):
            return None
        start, count = int(entries[-1]["value"]), int(entries[-1]["count"])
        return np.asarray(self._losses[start : start + count], dtype=np.float32)

    def worst(self, count: int) -> list[tuple[float, int, int]]:
        """Return the largest losses, as (loss, step, row); NaN is larger than any."""
        entries = self._with_losses()
        entries = entries[np.argsort(entries["value"])]
        starts, counts = entries["value"].astype(np.int64), entries["count"].astype(np.int64)
        worst: list[tuple[float, int, int]] = []
        first = 0
        while first < len(entries):
            last = max(int(np.searchsorted(starts, starts[first] + CHUNK_LOSSES)), first + 1)
            entry = np.repeat(np.arange(first, last), counts[first:last])
            row = np.arange(len(entry)) - np.repeat(
                np.cumsum(counts[first:last]) - counts[first:last], counts[first:last]
            )
            losses = np.asarray(self._losses[starts[entry] + row], dtype=np.float32)
            ranked = np.where(np.isnan(losses), np.inf, losses)
            top = np.argsort(-ranked, kind="stable")[:count]
            steps = entries["step"][entry[top]].tolist()
            worst += zip(losses[top].tolist(), steps, row[top].tolist(), strict=True)
            worst = sorted(worst, key=lambda item: -np.nan_to_num(item[0], nan=np.inf))[:count]
            first = last
        return worst


def all_notes(path: str) -> Iterator[Notes]:
    """Yield the notes of every rank that has some."""
    for rank in range(MAX_RANKS):
        if os.path.exists(f"{path}.notes-{rank}"):
            yield Notes(path, rank)


def _column(path: str, dtype: npt.DTypeLike) -> AnyArray:
    """Map a column; half an entry at its end is ignored."""
    width = np.dtype(dtype).itemsize
    count = os.path.getsize(path) // width if os.path.exists(path) else 0
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype=dtype)


def spikes_in(values: npt.NDArray[np.float64], window: int, threshold: float) -> Flags:
    """Flag values that exceed the median of the ``window`` before them by a multiple of the deviation there.

    The deviation is the median one, scaled to that of a normal distribution. NaN and infinity are flagged.
    """
    flags: Flags = ~np.isfinite(values)
    padded = np.concatenate([np.full(window, np.nan), np.where(flags, np.nan, values)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)[:-1]
    for first in range(0, len(values), CHUNK_STEPS):
        before = windows[first : first + CHUNK_STEPS]
        enough = np.flatnonzero(np.isfinite(before).sum(axis=1) >= min(MIN_BEFORE, window))
        medians = np.nanmedian(before[enough], axis=1)
        deviations = np.nanmedian(np.abs(before[enough] - medians[:, None]), axis=1) * NORMAL_DEVIATION
        limits = medians + threshold * np.maximum(deviations, 1e-6 * np.abs(medians))
        flags[first + enough] |= values[first + enough] > limits
    return flags


@dataclasses.dataclass(frozen=True)
class SeenSample:
    """A sample in a batch: number, file and row there, key; source and pass in a mixture; draws; loss."""

    step: int
    rank: int
    row: int
    epoch: int
    sample: int
    file: str
    file_row: int
    key: str | None = None
    source: str | None = None
    repeat: int = 0
    draws: dict[str, Cut] = dataclasses.field(default_factory=dict)
    loss: float | None = None


@dataclasses.dataclass(frozen=True)
class Spike:
    """A step whose value jumped."""

    step: int
    value: float


@dataclasses.dataclass(frozen=True)
class Spikes:
    """Steps whose value jumped, and samples, sources and files by (count in these steps, times as usual)."""

    steps: list[Spike]
    samples: list[tuple[int, int]]
    sources: list[tuple[str, int, float]]
    files: list[tuple[str, int, float]]


class Run:
    """The record of a run, and the dataset that it names.

    source: the dataset, where it lies elsewhere now, or was in memory. loader: a Loader with the options of
    the run, for options that are code, such as an order that is a function, and were not recorded.

    Raises: NotFoundError where there is no record; DamagedError where the file is none; what
    :func:`batchplant.open` raises for the dataset.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, source: object = None, loader: Loader | None = None
    ) -> None:
        path = os.fspath(path)
        self._set(path, read_stretches(path), source, loader)

    @classmethod
    def of(cls, stretches: list[Stretch], *, source: object = None) -> Self:
        """Return a run of these stretches, of which nothing was noted."""
        run = cls.__new__(cls)
        run._set("", stretches, source, None)
        return run

    def _set(self, path: str, stretches: list[Stretch], source: object, loader: Loader | None) -> None:
        self.path, self.stretches = path, stretches
        self._source, self._loader = source, loader
        self._loaders: dict[str, Loader] = {}
        self._notes: dict[int, Notes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for loader in self._loaders.values():
            loader.close()

    @property
    def steps(self) -> int:
        """Number of steps of the run as it went on."""
        return max((part.step + part.lasting for part in self.stretches), default=0)

    def stretch(self, step: int) -> Stretch:
        """Return the stretch that a step is in; raise SampleIndexError where there is none."""
        for stretch in self.stretches:
            if 0 <= step - stretch.step < stretch.lasting:
                return stretch
        raise SampleIndexError(f"the record has no step {step:,}; it has {self.steps:,} steps")

    # -- the loader of a stretch -----------------------------------------------------------------------

    @functools.cached_property
    def reader(self) -> Reader:
        """The dataset; warns if it is not as it was."""
        process = self.stretches[-1].process if self.stretches else {}
        if self._loader is not None:
            reader = self._loader.reader
        elif self._source is not None:
            reader = self._source if isinstance(self._source, Reader) else open_reader(self._source)
        elif process.get("reader") is None:
            raise OptionError("the record does not say how the dataset is opened: give it", path=self.path)
        else:
            reader = _decoded(process["reader"], self.path)
        dataset = process.get("dataset", {})
        tags, before = fingerprint(reader), dataset.get("samples")
        if before != tags["samples"]:
            raise DataError(
                f"the run had a dataset of {before} samples, and this one has {tags['samples']}",
                path=reader.path,
            )
        if self._source is None and tags["digest"] != dataset.get("digest"):
            warnings.warn(
                f"{reader.path}: files have other sizes or times than when the run began", stacklevel=3
            )
        return reader

    def loader(self, stretch: Stretch) -> Loader:
        """Return a loader that makes the batches of a stretch."""
        process = stretch.process
        key = json.dumps([process["options"], stretch.batch_size, stretch.settings], sort_keys=True)
        if key not in self._loaders:
            self._loaders[key] = self._make_loader(stretch)
        return self._loaders[key]

    def _make_loader(self, stretch: Stretch) -> Loader:
        reader = self.reader
        missing = set(stretch.process["not recorded"]) & {"order", "indices", "pack"}
        skip = skip_of(stretch.settings.get("skip"), None)
        changes = {"rank": 0, "world_size": 1, "batch_size": stretch.batch_size, "skip": skip, "workers": 1}
        if self._loader is not None:
            loader = self._loader._copy(reader, mesh=None, **changes)
            loader._ordering.change(stretch.settings.get("weights", ()))
            return loader
        if missing:
            raise OptionError(
                f"{', '.join(sorted(missing))} of the run are code, or too long for its record: give a "
                "loader with the options of the run",
                path=self.path,
            )
        options = {name: _decoded(text, self.path) for name, text in stretch.process["options"].items()}
        loader = Loader(reader, **{**options, **changes})
        loader._ordering.change(stretch.settings.get("weights", ()))
        return loader

    def shard(self, stretch: Stretch, rank: int) -> Any:
        """Return the batches of a rank in a stretch."""
        if not 0 <= rank < stretch.world_size:
            raise OptionError(f"the step had {stretch.world_size} ranks; there is no rank {rank}")
        loader = self.loader(stretch)
        if loader._packing is not None and stretch.window is not None:
            loader._packing.go_to(stretch.epoch, stretch.window)
        return loader._shard(stretch.epoch, stretch.start, (rank, stretch.world_size))

    # -- steps and samples -----------------------------------------------------------------------------

    def planned(self, step: int, rank: int = 0) -> I64:
        """Return the samples of a batch, with those that could not be read."""
        stretch = self.stretch(step)
        return self.loader(stretch).ids_at(self.shard(stretch, rank).batch(step - stretch.step))

    def ids(self, step: int, rank: int = 0) -> I64:
        """Return the samples of a batch, as ``ids`` of the loader; without those that could not be read."""
        ids = self.planned(step, rank)
        failed = self.notes(rank).failed(step)
        return ids[~np.isin(ids, failed)] if len(failed) else ids

    def batch(self, step: int, rank: int = 0) -> Batch:
        """Make a batch once more, with the same draws."""
        stretch = self.stretch(step)
        return self.loader(stretch)._executor.run(self.ids(step, rank), stretch.epoch)

    def augmented(self, seen: Iterable[SeenSample]) -> tuple[dict[str, Any], dict[str, Field]]:
        """Return columns of samples as the training loop got them, and the kinds of those that are images.

        Images of floats are scaled to be seen.
        """
        columns: dict[str, list[Any]] = {"sample": []}
        images: dict[str, Field] = {}
        for (step, rank), entries in itertools.groupby(seen, key=lambda entry: (entry.step, entry.rank)):
            batch = self.batch(step, rank)
            outputs = {output.name: output for output in self.loader(self.stretch(step)).plan.images}
            for entry in entries:
                columns["sample"].append(entry.sample)
                for name, value in batch.values.items():
                    cell = part_of(value, entry.row)
                    cell = _visible(np.asarray(cell)) if name in outputs else cell
                    columns.setdefault(name, []).append(cell)
                    if name in outputs and cell.ndim == 3 and cell.shape[2] in (1, 3, 4):
                        images[name] = Image(encoding="raw", mode=None)
        return columns, images

    def with_draws(self, seen: SeenSample) -> SeenSample:
        """Return a sample with the boxes that its images are made of."""
        loader, boxes = self.loader(self.stretch(seen.step)), {}
        for output in loader.plan.images:
            # An image that cannot be decoded has none.
            with contextlib.suppress(DataError):
                boxes[output.name] = cut_of(loader._executor, output, seen.sample, seen.epoch)
        return dataclasses.replace(seen, draws=boxes)

    def samples(self, step: int, rank: int | None = None, *, draws: bool = True) -> Iterator[SeenSample]:
        """Yield the samples of a step, of one rank or of all; ``draws``: with the boxes of their images."""
        stretch = self.stretch(step)
        for number in range(stretch.world_size) if rank is None else [rank]:
            ids = self.ids(step, number)
            for row in range(len(ids)):
                seen = self._seen(stretch, step, number, row, int(ids[row]))
                yield self.with_draws(seen) if draws else seen

    def _seen(self, stretch: Stretch, step: int, rank: int, row: int, sample: int) -> SeenSample:
        file_row, source, repeat = next(places(self.reader, np.array([sample])))[1], None, 0
        if isinstance(self.reader, Mix):
            group, _, lap = self.reader.origin([sample])
            source, repeat = self.reader.names[int(group[0])], int(lap[0])
        losses = self.notes(rank).losses(step)
        loss = float(losses[row]) if losses is not None and row < len(losses) else None
        return SeenSample(
            step, rank, row, stretch.epoch, sample, self.reader.where(sample), int(file_row[0]),
            self._key(sample), source, repeat, loss=loss,
        )  # fmt: skip

    def rows_of(self, ids: I64) -> I64:
        """Return the rows of the dataset, or of the sources of a mixture one after another."""
        return self.reader._base_rows(ids) if isinstance(self.reader, Mix) else ids

    def failed(self, steps: int) -> list[int]:
        """Return the samples of steps before this one that could not be read, as often as they came."""
        return [sample for notes in all_notes(self.path) for sample in notes.failed_before(steps)]

    def _key(self, sample: int) -> str | None:
        keys = self.reader._keys()
        if keys is None:
            return None
        value = decode_cell(keys.kind, keys.read(np.array([sample])), 0)
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

    def step_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the step and the rank that had a position of an epoch.

        Raises: SampleIndexError where no step had it.
        """
        for stretch in self.stretches:
            if stretch.epoch == epoch and (step := self._step_of(stretch, position)) is not None:
                for rank in range(stretch.world_size):
                    shard = self.shard(stretch, rank)
                    if isinstance(shard, SkippedShard):
                        positions = shard.shard.positions(shard.step(step))
                    else:
                        positions = shard.positions(step)
                    if position in positions:
                        return stretch.step + step, rank
        raise SampleIndexError(f"no step of the record had position {position:,} of epoch {epoch}")

    def _step_of(self, stretch: Stretch, position: int) -> int | None:
        """Return the step of a stretch, counted from its first, that reached a position."""
        if position < stretch.start or not stretch.lasting:
            return None
        shard = self.shard(stretch, 0)
        step = bisect.bisect_right(range(1, stretch.lasting + 1), position, key=shard.position_after)
        return step if step < stretch.lasting else None

    def appearances(self, sample: int | str) -> list[tuple[int, int, int]]:
        """Return every (step, rank, row) that a sample came in, given by its number or its key."""
        number = self.reader.keys().index(sample) if isinstance(sample, str) else sample
        number = int(self.rows_of(self.reader._check([number]))[0])
        appearances: list[tuple[int, int, int]] = []
        for stretch in self.stretches:
            steps: Iterable[int] = range(stretch.lasting)
            if stretch.lasting and self.loader(stretch)._packing is None:
                steps = sorted(set(self._candidates(stretch, number)))
            for step in steps:
                for rank in range(stretch.world_size):
                    rows = self.rows_of(self.ids(stretch.step + step, rank))
                    appearances += [
                        (stretch.step + step, rank, row) for row in np.flatnonzero(rows == number).tolist()
                    ]
        return appearances

    def _candidates(self, stretch: Stretch, number: int) -> Iterator[int]:
        """Yield the steps of a stretch that may have a sample, from the order alone."""
        loader = self.loader(stretch)
        order = loader._make_order(stretch.epoch)
        shard = self.shard(stretch, 0)
        stop = shard.position_after(stretch.lasting)
        replaced = loader._skipping.skip.replace == "next"
        for position in _positions(loader, order, number, 0 if replaced else stretch.start, stop):
            step = self._step_of(stretch, position)
            if step is not None:
                yield step
            while replaced and position:
                # It also stands for the skipped samples before it.
                position -= 1
                if not loader._skipping.is_skipped(order[position : position + 1])[0]:
                    break
                if (step := self._step_of(stretch, position)) is not None:
                    yield step

    # -- what was noted --------------------------------------------------------------------------------

    def notes(self, rank: int = 0) -> Notes:
        """Return the notes of a rank, as they were when it was first asked for."""
        if rank not in self._notes:
            self._notes[rank] = Notes(self.path, rank)
        return self._notes[rank]

    def worst(self, count: int = 100) -> list[SeenSample]:
        """Return the samples with the largest losses that were noted, of all ranks."""
        ranked = [(entry, notes.rank) for notes in all_notes(self.path) for entry in notes.worst(count)]
        ranked.sort(key=lambda item: -np.nan_to_num(item[0][0], nan=np.inf))
        worst = []
        for (_, step, row), rank in ranked[:count]:
            ids = self.ids(step, rank)
            if row < len(ids):
                worst.append(self._seen(self.stretch(step), step, rank, row, int(ids[row])))
        return worst

    def spikes(self, name: str = "loss", *, window: int = 50, threshold: float = 6.0) -> Spikes:
        """Return the steps whose value jumped, and what is in them more often than usual."""
        steps, values = self.notes().series(name)
        if not len(steps):
            raise OptionError(
                f"the record has no values of {name}: loader.note({name}=…) adds them", path=self.path
            )
        flags = spikes_in(values, window, threshold)
        spikes = [Spike(*pair) for pair in zip(steps[flags].tolist(), values[flags].tolist(), strict=True)]
        usual = steps[np.unique(np.linspace(0, len(steps) - 1, USUAL_STEPS).astype(np.int64))].tolist()
        inside = self._counts([spike.step for spike in spikes[:MAX_SPIKES]])
        outside = self._counts(usual)
        samples = [(int(name), count) for name, count in inside[0].most_common() if count > 1]
        return Spikes(spikes, samples, _ranked(inside[1], outside[1]), _ranked(inside[2], outside[2]))

    def _counts(self, steps: list[int]) -> tuple[Counter[int], Counter[str], Counter[str]]:
        samples: Counter[int] = Counter()
        for step in steps:
            for rank in range(self.stretch(step).world_size):
                samples.update(self.ids(step, rank).tolist())
        sources: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for sample, count in samples.items():
            files[self.reader.where(sample)] += count
            if isinstance(self.reader, Mix):
                sources[self.reader.names[int(self.reader.origin([sample])[0][0])]] += count
        return samples, sources, files


def places(reader: Reader, rows: I64) -> Iterator[tuple[Reader, I64, I64]]:
    """Yield the readers of files that samples lie in, the rows there, and which of the samples these are."""
    samples = np.arange(len(rows))
    if isinstance(reader, Concat):
        parts = [(part, chosen, samples[at]) for part, chosen, at in reader._groups(rows)]
    elif isinstance(reader, Join):
        parts = [(part, rows, samples) for part in reader.parts]
    elif isinstance(reader, ReaderWrapper) and type(reader).where is ReaderWrapper.where:
        parts = [(reader.base, reader._base_rows(rows), samples)]
    else:
        yield reader, rows, samples
        return
    for part, chosen, at in parts:
        for leaf, leaf_rows, inside in places(part, chosen):
            yield leaf, leaf_rows, at[inside]


def _visible(image: AnyArray) -> AnyArray:
    """Return an image as uint8, channels last, from its darkest value to its brightest."""
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[2] not in (1, 3, 4):
        image = image.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return image
    low, high = float(image.min(initial=0)), float(image.max(initial=0))
    return ((image - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)


def _ranked(inside: Counter[str], outside: Counter[str]) -> list[tuple[str, int, float]]:
    """Return (name, count, share inside / share outside), the largest ratio first."""
    total, usual = max(inside.total(), 1), max(outside.total(), 1)
    rows = [
        (name, count, (count / total) / (max(outside[name], 0.5) / usual)) for name, count in inside.items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def _positions(loader: Loader, order: Any, number: int, start: int, stop: int) -> list[int]:
    """Return the positions of a sample in an order, at most up to ``stop``."""
    reader, indices = loader.reader, loader.indices
    length = min(stop, order.length)
    if order._find is not None and not isinstance(reader, Mix):
        numbers = np.array([number]) if indices is None else np.flatnonzero(indices == number)
        positions = np.sort(order.find(numbers)) if len(numbers) else numbers
        return [position for position in positions.tolist() if start <= position < length]
    appearances: list[int] = []
    for first in range(start, length, CHUNK_POSITIONS):
        samples = loader.ids_at(order.take(np.arange(first, min(first + CHUNK_POSITIONS, length))))
        rows = reader._base_rows(samples) if isinstance(reader, Mix) else samples
        appearances += (first + np.flatnonzero(rows == number)).tolist()
    return appearances


def _decoded(text: str, path: str) -> Any:
    """Return a value of a record; nothing in it is code."""
    with exceptions_as(DamagedError, "not the record of a run", ValueError, path=path):
        data = base64.b64decode(text, validate=True)
    with located(path=path):
        return RecipeDecoder().load(data)
