"""Verify a dataset: structure, bounds, checksums, decoding; or that two datasets hold the same."""

from __future__ import annotations

import dataclasses
import os
import reprlib
import sys
from typing import TYPE_CHECKING, Any

from ..data import quarantine as lists
from ..errors import DamagedError, OptionError, Problem
from ..storage.work import STATE, left_beside
from . import scans
from .engines import Engine
from .scans import Progress

if TYPE_CHECKING:
    from .verification.task import Found, Job

# A file that has more problems is of no use, and each takes as long as many sound samples.
MOST = 10_000
# So many cells that differ tell that two datasets are not the same.
DIFFERENCES = 100


@dataclasses.dataclass(frozen=True)
class Verification:
    """What verify looked at and what it found. ``remarks``: what it did not look at, one sentence each."""

    path: str
    samples: int
    checks: tuple[str, ...]
    problems: list[Problem]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    source: Any,
    *,
    decode: bool = False,
    against: Any = None,
    format: str | None = None,
    engine: str | Engine = "threads",
    workers: int | None = None,
    progress: Progress | None = None,
    most: int | None = MOST,
    differences: int | None = DIFFERENCES,
    sample: int | None = None,
    seed: int = 0,
    quarantine: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Verification:
    """Check every sample and name every problem.

    Structure, bounds and checksums (the format's own, and a ``.crc`` side-car) always; ``decode`` also
    decodes every cell; ``against`` proves cell by cell that another dataset holds the same. ``most``: stop
    after so many problems; ``differences``: compare no further after so many cells that differ; None: never.
    ``sample``: only so many samples, drawn with ``seed``, and no more of the structure than opening needs.
    ``quarantine``: a file that gets the list of bad samples, for ``open(…, skip=FILE)``.
    The ``sample`` of a problem is its number in what is verified, counted through all shards.

    ``engine`` says who checks: ``"threads"`` of this process, ``"processes"``, ``"dask"``, ``"ray"``, or one
    that :func:`batchplant.engines.make` gave. Whoever does, the result is the same. ``workers``: decoding
    threads of each task.
    """
    # Whoever imports batchplant need not wait for it.
    from .verification.task import Job, Work

    most, differences = _limit("most", most), _limit("differences", differences)
    by = scans.engine_of(engine)
    job = Job(
        scans.Dataset(source, format, options), None if against is None else scans.Dataset(against), decode,
        most, differences, None if sample is None else _limit("sample", sample), seed,
    )  # fmt: skip
    for one in (job.dataset, job.other):
        if one is not None:
            one.check(by)
    try:
        reader = job.reader
    except DamagedError as error:
        if quarantine is not None:
            lists.write(quarantine, None, [Problem.of(error)])
        # Data in memory may be large.
        path = str(source) if isinstance(source, str | os.PathLike) else reprlib.repr(source)
        return Verification(path, 0, ("structure",), [Problem.of(error)])
    drawn = job.drawn is not None
    checks = ["bounds"] if drawn else ["structure", "bounds", *reader.own_checks()]
    checks += ["checksums"] if job.side_car[0] is not None else []
    checks += ["decode"] if decode else []
    found = _Findings(job)
    comparison = job.comparison()
    if comparison is not None:
        checks.append(f"against {comparison.other.path}")
        found.whole += comparison.shape_differs()
    work = Work(job, workers or by.threads)
    scans.in_order(by, work, job.weight, len(job), found.take, name=job.name, progress=progress)
    problems = found.problems
    remarks = [] if job.other is None else list(found.differences.remarks(reader, job.other.reader))
    if len(problems) >= most:
        del problems[most:]
        place = "" if (last := problems[-1].sample) is None else f", at sample {last:,} of {len(reader):,}"
        remarks.append(f"it stopped after {most:,} problems{place}")
    count = job.plan.samples
    if drawn:
        remarks.append(f"{count:,} of {len(reader):,} samples were checked, drawn with seed {seed}")
    for folder in left_beside({one.path for part in job.files for one, _ in part} | {reader.path}):
        kept = "a conversion with resume (--resume) goes on from it" if (folder / STATE).is_file() else None
        what = kept or "it holds nothing that is needed"
        remarks.append(
            f"{folder.name} beside it was left by a writer that was killed: {what}; the next writer of that "
            "name clears it away, and you may delete it"
        )
    if quarantine is not None:
        lists.write(quarantine, reader, problems)
    return Verification(reader.path, count, tuple(checks), problems, tuple(remarks))


class _Findings:
    """The problems that tasks found, which come in order: files first, then samples."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files: list[Problem] = []
        self._samples: list[Problem] = []
        # Of side-cars, and of the dataset as a whole.
        self.whole = list(job.side_car[1])
        from .verification.comparison import Differences

        self.differences = Differences(job.differences)

    @property
    def problems(self) -> list[Problem]:
        return [*self._files, *self.whole, *self._samples]

    def take(self, number: int, found: Found) -> bool:
        """Whether these are all that were asked for."""
        files = len(self._job.files)
        if number < files:
            self._files += [one for one, _ in found.problems]
        else:
            self._samples += self.differences.kept(found.problems, found.compared)
        more = 0 if number < files - 1 else len(self.whole) + len(self._samples)
        return len(self._files) + more >= self._job.most


def _limit(name: str, given: int | None) -> int:
    if given is not None and given < 1:
        raise OptionError(f"{name} is at least 1, or None for no limit, not {given}")
    return sys.maxsize if given is None else given
