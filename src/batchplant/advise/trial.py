"""Try a way to store a dataset on a few of its samples: bytes, and how long writing and reading take."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..columns import I64, Columns
from ..convert import convert
from ..errors import BatchplantError
from ..measure import timing
from ..measure.staging import QUICK_SAMPLES, size_of
from ..reader import Reader
from ..registry import open as open_reader
from ..registry import size_of as bytes_of
from ..schema import Schema
from .facts import Facts
from .ways import Way

# A pass over few samples is mostly its start, and there are fewer formats to scan than to load from.
BYTES, SCANNED_BYTES = 12 << 20, 32 << 20
LEAST = 8
# Runs of neighbours, spread over the dataset: what compresses well does so by its neighbours.
RUNS = 8
# A whole epoch over the network, unless it takes longer.
DISTANT_SECONDS = 0.5
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


def hold(reader: Reader, facts: Facts, size: int = BYTES) -> tuple[Held, float]:
    """Some samples in memory, of about so many bytes, and the seconds that reading one of them took."""
    count = int(np.clip(size / max(facts.sample_bytes, 1), LEAST, QUICK_SAMPLES))
    rows = pilot_rows(len(reader), count)
    began = time.perf_counter()
    columns = reader.read(rows)
    return Held(reader.path, reader.schema, columns), (time.perf_counter() - began) / max(len(rows), 1)


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
    error: str | None = None

    def disk(self, samples: int) -> float:
        return self.bytes_fixed + self.bytes_each * samples


class Bench:
    """Tries ways in a scratch folder. Files stay there, so that a way can be tried again."""

    def __init__(
        self, held: Held, facts: Facts, folder: str, *, batch_size: int, size: int,
        url: Callable[[str], str] | None = None,
    ) -> None:  # fmt: skip
        self.held, self.facts, self.folder, self.size = held, facts, folder, size
        # Where a file has a URL: epochs are then those that come over a network.
        self.url = url
        self.batch_size = batch_size
        self._files: dict[str, Reader] = {}
        self._written: dict[str, list[str]] = {}
        # One batch size for all ways, and one for the dataset itself.
        self._batch = {False: 0, True: 0}

    def write(self, way: Way) -> Trial:
        """Convert the samples; a way that cannot hold them says why."""
        try:
            # Once for nothing: importing a library is no part of a conversion.
            self._convert(way, 1)
            small, few, least = self._convert(way, max(1, min(FIRST, len(self.held) // 2)))
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
        began = time.perf_counter()
        done = convert(
            self.held, target, target_format=way.format, images=way.image_options, limit=samples,
            target_options=dict(way.options),
        )  # fmt: skip
        took = time.perf_counter() - began
        self._written[way.label] = done.files if len(done.files) > 1 else [target]
        self._files[way.label] = open_reader(done.files if len(done.files) > 1 else target, format=way.format)
        return sum(map(bytes_of, done.files)), took, done.samples

    def converted(self, way: Way) -> tuple[Reader, float]:
        """All samples in that way, and the seconds it took."""
        _, seconds, _ = self._convert(way, len(self.held))
        return self.reader(way), seconds

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

    def _bytes(self, way: Way) -> float:
        """Of a sample; its pictures may have been made smaller for all but the dataset itself."""
        return self.facts.sample_bytes if way.stays else self.held.sample_bytes

    def epoch(self, trial: Trial, seconds: float) -> Trial:
        """A shuffled epoch through the Loader, for about so many seconds."""
        reader = self.reader(trial.way)
        rows = pilot_rows(len(reader), len(self.held)) if trial.way.stays else None
        how = timing.How(self.batch_size, size=self.size)
        try:
            if self.url is not None:
                return self._distant(trial, how, reader, rows)
            timed, self._batch[trial.way.stays] = timing.quick_epoch(
                reader, how, sample_bytes=self._bytes(trial.way), seconds=seconds, indices=rows,
                batch=self._batch[trial.way.stays],
            )  # fmt: skip
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))
        return dataclasses.replace(trial, epoch_rate=timed.rate, parts=timed.parts)

    def _distant(self, trial: Trial, how: timing.How, reader: Reader, rows: I64 | None) -> Trial:
        """A first epoch over the network, with its start: what is kept from one is no measure of the next."""
        batch = how.small_batch(reader.schema, self._bytes(trial.way))
        with contextlib.ExitStack() as stack:
            if not trial.way.stays and self.url is not None:
                urls = [self.url(path) for path in self._written[trial.way.label]]
                where = urls if len(urls) > 1 else urls[0]
                reader = stack.enter_context(open_reader(where, format=trial.way.format))
            timed = timing.epoch(reader, how, batch=batch, seconds=DISTANT_SECONDS, once=True, indices=rows)
        return dataclasses.replace(trial, epoch_rate=timed.whole, parts=timed.parts)

    def scan(self, trial: Trial, seconds: float, field: str | None = None) -> Trial:
        """Samples/s from start to end; of one field, where it is named."""
        fields = None if field is None else [field]
        try:
            rate, _ = timing.scan(
                self.reader(trial.way), sample_bytes=self._bytes(trial.way), seconds=seconds, fields=fields
            )
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))
        if field is None:
            return dataclasses.replace(trial, sequential_rate=rate)
        return dataclasses.replace(trial, column_rate=rate)

    def close(self) -> None:
        for way, reader in self._files.items():
            if not way.endswith(" as it is"):
                reader.close()
