"""Try a way to store a dataset on a few of its samples: bytes, and how long writing and reading take."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..columns import I64, Columns
from ..convert import convert
from ..errors import BatchplantError
from ..loading.loader import Loader
from ..measure.pipelines import pipelines
from ..measure.staging import size_of
from ..measure.worker import COLUMN_ROWS, SCAN_BYTES, touch
from ..reader import Reader
from ..registry import open as open_reader
from ..schema import Schema
from ..storage import tree
from .clock import Clock
from .facts import Facts
from .ways import Way

SAMPLES = 20_000
BYTES = 12 << 20
LEAST = 8
# Runs of neighbours, spread over the dataset: what compresses well does so by its neighbours.
RUNS = 8
# An epoch that is tried: at least so many batches, at most so many.
FEW, MANY = 4, 4096
BATCH_BYTES = 4 << 20
# Samples of the first conversion, which shows what every conversion costs whatever its size.
FIRST = 8


class Held(Reader):
    """Samples whose cells are in memory, so that no trial pays for reading the source."""

    def __init__(self, path: str, schema: Schema, columns: Columns) -> None:
        self.path, self.schema, self.length, self._columns = path, schema, columns.rows, columns

    @property
    def sample_bytes(self) -> int:
        return size_of(self._columns) // max(len(self), 1)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._columns[name]) for name in fields).take(indices)


def hold(reader: Reader, facts: Facts) -> tuple[Held, float]:
    """Some samples in memory, and the seconds that reading one of them took."""
    count = int(np.clip(BYTES / max(facts.sample_bytes, 1), LEAST, SAMPLES))
    rows = pilot_rows(len(reader), count)
    clock = Clock()
    columns = reader.read(rows)
    return Held(reader.path, reader.schema, columns), clock.read()[0] / max(len(rows), 1)


def pilot_rows(samples: int, count: int) -> I64:
    """``count`` samples in runs of neighbours; all, where there are no more."""
    if samples <= count:
        return np.arange(samples)
    each = max(1, count // RUNS)
    starts = np.linspace(0, samples - each, RUNS).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(each)).ravel())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What a way showed on a few samples. Rates are samples/s, None where they were not tried.

    bytes and seconds of a conversion grow by so much with each sample, from what every conversion costs.
    parts: where the time of an epoch went, by the loader's own account.
    """

    way: Way
    samples: int = 0
    bytes_each: float = 0.0
    bytes_fixed: float = 0.0
    seconds_each: float = 0.0
    seconds_fixed: float = 0.0
    epoch_rate: float | None = None
    sequential_rate: float | None = None
    column_rate: float | None = None
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # Whether the format tells in which block a sample lies, as orders by blocks need it.
    blocks: bool = False
    # The part of the time that other processes took meanwhile; the rates are without it.
    busy: float = 0.0
    error: str | None = None

    def disk(self, samples: int) -> float:
        return self.bytes_fixed + self.bytes_each * samples


class Bench:
    """Tries ways in a scratch folder. Files stay there, so that a way can be tried again."""

    def __init__(self, held: Held, facts: Facts, folder: str, *, batch_size: int, size: int) -> None:
        self.held, self.facts, self.folder, self.size = held, facts, folder, size
        self.batch_size = batch_size
        self._files: dict[str, Reader] = {}

    @property
    def batch(self) -> int:
        """Large samples in small batches: one should not take a second."""
        most = max(2, BATCH_BYTES // max(self.held.sample_bytes, 1))
        return max(1, min(self.batch_size, len(self.held), most))

    def write(self, way: Way) -> Trial:
        """Convert the samples; a way that cannot hold them says why."""
        try:
            # Once for nothing: importing a library is no part of a conversion.
            self._convert(way, 1)
            small, few, least = self._convert(way, min(FIRST, len(self.held)))
            size, seconds, most = self._convert(way, len(self.held))
        except (BatchplantError, OSError) as error:
            return Trial(way=way, error=str(error))
        more = max(most - least, 1)
        each = (size - small) / more if most > least else size / most
        paid = max(seconds - few, 0.02 * seconds) / more if most > least else seconds / most
        return Trial(
            way=way, samples=most, bytes_each=each, bytes_fixed=max(0.0, size - each * most),
            seconds_each=paid, seconds_fixed=max(0.0, seconds - paid * most),
            blocks=self.reader(way).blocks() is not None,
        )  # fmt: skip

    def _convert(self, way: Way, samples: int) -> tuple[int, float, int]:
        """Bytes, seconds and samples of a conversion."""
        target = os.path.join(self.folder, f"{way.format}-{len(os.listdir(self.folder))}{way.suffix}")
        clock = Clock()
        done = convert(
            self.held, target, target_format=way.format, images=way.image_options, limit=samples,
            target_options=dict(way.options),
        )  # fmt: skip
        took = clock.read()[0]
        self._files[way.label] = open_reader(done.files if len(done.files) > 1 else target, format=way.format)
        return sum(map(tree.size_below, done.files)), took, done.samples

    def reader(self, way: Way) -> Reader:
        return self._files[way.label]

    def stay(self, way: Way, reader: Reader) -> Trial:
        """The dataset as it lies; nothing is written."""
        self._files[way.label] = reader
        size = self.facts.bytes or 0
        return Trial(
            way=way, samples=len(self.held), bytes_each=size / max(len(reader), 1),
            blocks=reader.blocks() is not None,
        )  # fmt: skip

    def epoch(self, trial: Trial, seconds: float) -> Trial:
        """A shuffled epoch through the Loader, as long as ``seconds`` allow."""
        reader = self.reader(trial.way)
        rows = pilot_rows(len(reader), len(self.held)) if trial.way.stays else np.arange(len(reader))
        try:
            batches = FEW
            for _ in range(2):
                took, busy, parts = self._run(reader, rows, batches)
                rate = batches * self.batch / took
                # The first is slower than what follows; it counts only where a second would take long.
                if took > 2 * seconds:
                    break
                batches = int(np.clip(seconds * rate / self.batch, FEW, MANY))
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))
        return dataclasses.replace(trial, epoch_rate=rate, parts=parts, busy=busy)

    def _run(self, reader: Reader, rows: I64, batches: int) -> tuple[float, float, dict[str, float]]:
        """Seconds of an epoch, the part of it that other processes took, and where the time went."""
        loader = Loader(
            reader, self.batch, order="random", indices=np.resize(rows, batches * self.batch),
            pipelines=pipelines(reader.schema, "train", self.size),
        )  # fmt: skip
        with contextlib.closing(loader), warnings.catch_warnings():
            # What an order costs over a network is what is being found out.
            warnings.simplefilter("ignore")
            clock = Clock()
            for _ in loader:
                pass
            took, wall = clock.read()
            stats = loader.stats()
        parts = {name: float(stats[name]) for name in ("storage", "decode", "transforms")}
        return took, 1 - took / wall, parts

    def scan(self, trial: Trial, seconds: float, field: str | None = None) -> Trial:
        """Samples/s from start to end; of one field, where it is named."""
        reader = self.reader(trial.way)
        fields = None if field is None else [field]
        # As `measure` does it, so that both count the same.
        rows = COLUMN_ROWS if fields else int(np.clip(SCAN_BYTES / max(self.facts.sample_bytes, 1), 1, 4096))
        try:
            # Once for nothing, as an epoch is: libraries are imported, and files opened.
            _touched(next(iter(reader.scan(rows, fields))))
            rate, busy = _rate(lambda: map(_touched, reader.scan(rows, fields)), seconds)
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))
        if field is not None:
            return dataclasses.replace(trial, column_rate=rate, busy=busy)
        return dataclasses.replace(trial, sequential_rate=rate, busy=busy)

    def close(self) -> None:
        for way, reader in self._files.items():
            if not way.endswith(" as it is"):
                reader.close()


def _touched(columns: Columns) -> int:
    """How many samples, whose bytes are really read: cells may be views of a file."""
    touch(columns)
    return columns.rows


def _rate(again: Callable[[], Iterator[int]], seconds: float) -> tuple[float, float]:
    """How many a second, of an iteration begun anew until the time is over; what part others took of it."""
    done, clock, began = 0, Clock(), time.perf_counter()
    while True:
        before = done
        for count in again():
            done += count
            if time.perf_counter() - began > seconds:
                break
        if time.perf_counter() - began > seconds or done == before:
            took, wall = clock.read()
            return done / took, 1 - took / wall
