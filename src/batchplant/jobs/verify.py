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
    from .verification import Job, TaskResult

# A file that has more problems is of no use, and each takes as long as many sound samples.
MAX_PROBLEMS = 10_000
# So many differing cells prove that two datasets are not the same.
MAX_DIFFERENCES = 100


@dataclasses.dataclass(frozen=True)
class Verification:
    """Checks and problems of a verification. ``remarks``: what was not checked, one sentence each."""

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
    max_problems: int | None = MAX_PROBLEMS,
    max_differences: int | None = MAX_DIFFERENCES,
    sample: int | None = None,
    seed: int = 0,
    quarantine: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Verification:
    """Check every sample and name every problem.

    ``source`` is a Reader, or what :func:`batchplant.open` takes; ``progress`` is called as samples are
    checked.

    Structure, bounds and checksums (the format's own, and a ``.crc`` side-car) always; ``decode`` also
    decodes every cell; ``against`` proves cell by cell that another dataset holds the same. It stops after
    ``max_problems``, and stops comparing after ``max_differences`` cells that differ; None: never.
    ``sample``: only so many samples, drawn with ``seed``, and no more of the structure than opening needs.
    ``quarantine``: a file that gets the list of bad samples, for ``open(…, skip=FILE)``.
    The ``sample`` of a problem is its number in the whole dataset, counted through all shards.

    ``engine``: ``"threads"`` of this process, ``"processes"``, ``"dask"``, ``"ray"``, or the result of
    :func:`batchplant.engines.make`. The report is the same with any of them. ``workers``: decoding threads of
    each task.

    Returns: a Verification, whose ``problems`` are :class:`Problem` objects with path, sample, field and
    offset. Damage is reported, not raised.

    Raises: what :func:`batchplant.open` raises, where the dataset cannot even be opened.
    """
    # Imported late: ``import batchplant`` need not wait for it.
    from .verification import Job, VerifyTask

    problem_limit = _limit("max_problems", max_problems)
    runner = scans.engine_of(engine)
    job = Job(
        dataset=scans.Dataset(source, format, options),
        sample=None if sample is None else _limit("sample", sample),
        seed=seed,
        reference=None if against is None else scans.Dataset(against),
        decode=decode,
        max_problems=problem_limit,
        max_differences=_limit("max_differences", max_differences),
    )
    for dataset in (job.dataset, job.reference):
        if dataset is not None:
            dataset.check(runner)
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
    findings = _Findings(job)
    comparison = job.comparison()
    if comparison is not None:
        checks.append(f"against {comparison.reference.path}")
        findings.dataset_problems += comparison.shape_differs()
    task = VerifyTask(job, workers or runner.threads)
    scans.in_order(runner, task, job.weight, len(job), findings.take, name=job.name, progress=progress)
    problems = findings.problems
    remarks: list[str] = []
    if job.reference is not None:
        remarks += findings.difference_limit.remarks(reader, job.reference.reader)
    if len(problems) >= problem_limit:
        del problems[problem_limit:]
        last = problems[-1].sample
        position = "" if last is None else f", at sample {last:,} of {len(reader):,}"
        remarks.append(f"it stopped after {problem_limit:,} problems{position}")
    count = job.plan.samples
    if drawn:
        remarks.append(f"{count:,} of {len(reader):,} samples were checked, drawn with seed {seed}")
    for folder in left_beside({file.path for files in job.files for file, _ in files} | {reader.path}):
        resumable = (folder / STATE).is_file()
        use = "a conversion with resume (--resume) goes on from it" if resumable else None
        remarks.append(
            f"{folder.name} beside it was left by a writer that was killed: "
            f"{use or 'it holds nothing that is needed'}; the next writer of that "
            "name clears it away, and you may delete it"
        )
    if quarantine is not None:
        lists.write(quarantine, reader, problems)
    return Verification(reader.path, count, tuple(checks), problems, tuple(remarks))


class _Findings:
    """Collects the problems of tasks, which come in order: files first, then samples."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files: list[Problem] = []
        self._samples: list[Problem] = []
        # Of side-cars, and of the dataset as a whole.
        self.dataset_problems = list(job.side_car[1])
        from .verification import DifferenceLimit

        self.difference_limit = DifferenceLimit(job.max_differences)

    @property
    def problems(self) -> list[Problem]:
        return [*self._files, *self.dataset_problems, *self._samples]

    def take(self, number: int, result: TaskResult) -> bool:
        """Add the problems of a task; return True where the limit is reached."""
        files = len(self._job.files)
        if number < files:
            self._files += [problem for problem, _ in result.problems]
        else:
            self._samples += self.difference_limit.within(result.problems, result.compared)
        count = len(self._files)
        if number >= files - 1:
            count += len(self.dataset_problems) + len(self._samples)
        return count >= self._job.max_problems


def _limit(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise OptionError(f"{name} is at least 1, or None for no limit, not {value}")
    return sys.maxsize if value is None else value
