"""One harness for all measurements of storage: write candidates to a scratch folder, time how they are read.

`bench chunks` and `advise` use a :class:`Harness` in their own process. `bench
formats` measures every candidate in a process of its own (:mod:`.worker`) with the same :mod:`.timing`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...codecs.media.image_rules import ImageOptions
from ...data.reader import Reader
from ...errors import BatchplantError
from ...formats.registry import open as open_reader
from ...formats.registry import size_of
from ...jobs.convert import convert
from ...jobs.convert_options import ConvertOptions
from ...schema.columns import I64
from . import timing
from .choice import Candidate
from .machine import core_seconds, core_share


@dataclasses.dataclass(frozen=True)
class StoredCandidate:
    """A candidate in the scratch folder: its files, their bytes, and the seconds that writing them took."""

    candidate: Candidate
    folder: Path
    files: Sequence[str]
    samples: int
    bytes: int
    seconds: float

    @property
    def paths(self) -> str | list[str]:
        """Its files as ``open`` takes them."""
        return self.files[0] if len(self.files) == 1 else list(self.files)

    def open(self, **options: Any) -> Reader:
        return open_reader(self.paths, format=self.candidate.format, **options)


class Stopwatch:
    """Seconds of a block of code; on a busy machine, without those that threads waited for a core."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lost = 0.0


class Harness:
    """Writes candidates below a scratch folder and times reads of them, in this process.

    ``busy``: other processes compete for the cores, and times are those that there would be without them.
    ``lost`` are the seconds that threads waited for a core.
    """

    def __init__(self, folder: str | Path, *, busy: bool = False) -> None:
        self.folder, self.busy = Path(folder), busy
        self.lost = 0.0
        self._number = 0

    def store(
        self,
        reader: Reader,
        candidate: Candidate,
        *,
        images: ImageOptions | None = None,
        limit: int | None = None,
        shard_size: int | None = None,
    ) -> StoredCandidate:
        """Convert the samples of a reader, in a folder of their own."""
        folder = self.folder / f"{self._number:03}-{candidate.format}"
        self._number += 1
        folder.mkdir()
        target = folder / f"data{candidate.suffix or ''}"
        with self.stopwatch() as watch:
            report = convert(
                reader,
                target,
                images=images,
                shard_size=shard_size,
                target_options={"format": candidate.format, **candidate.options},
                options=ConvertOptions(limit=limit),
            )
        files = report.files if len(report.files) > 1 else [str(target)]
        total = sum(map(size_of, report.files))
        return StoredCandidate(candidate, folder, files, report.samples, total, watch.seconds)

    def remove(self, stored: StoredCandidate) -> None:
        """Delete the files of a candidate."""
        shutil.rmtree(stored.folder, ignore_errors=True)

    @contextlib.contextmanager
    def stopwatch(self) -> Iterator[Stopwatch]:
        """Time a block of code."""
        watch = Stopwatch()
        began, cores = time.perf_counter(), core_seconds()
        yield watch
        watch.seconds = time.perf_counter() - began
        if self.busy:
            watch.lost = (1 - core_share(cores)) * watch.seconds
            watch.seconds -= watch.lost
            self.lost += watch.lost

    def open_seconds(self, paths: str | Sequence[str], format: str) -> float:
        """Return the seconds to open files again; 0 if they cannot be opened by their path."""
        with contextlib.suppress(BatchplantError, OSError), self.stopwatch() as watch:
            open_reader(paths, format=format).close()
        return watch.seconds

    def quick_epoch(
        self,
        reader: Reader,
        settings: timing.EpochSettings,
        *,
        sample_bytes: float,
        seconds: float,
        batch_size: int = 0,
        indices: I64 | None = None,
    ) -> tuple[timing.EpochTiming, int]:
        """Time epochs through the Loader for a short time; return the timing and the batch size."""
        began = time.perf_counter()
        epoch, batch_size = timing.quick_epoch(
            reader,
            settings,
            sample_bytes=sample_bytes,
            seconds=seconds,
            indices=indices,
            batch_size=batch_size,
            busy=self.busy,
        )
        if self.busy:
            self.lost += (1 - epoch.core_share) * (time.perf_counter() - began)
        return epoch, batch_size

    def scan_rate(self, reader: Reader, field: str, *, sample_bytes: float, seconds: float) -> float:
        """Return the rows/s of scans of one field."""
        cores = core_seconds()
        rate, _ = timing.scan(reader, sample_bytes=sample_bytes, seconds=seconds, fields=[field])
        if not self.busy:
            return rate
        share = core_share(cores)
        self.lost += (1 - share) * seconds
        return rate / share
