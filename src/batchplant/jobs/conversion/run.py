"""Run a job: one file in this process, or many files by an engine, or this rank's share of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from ...codecs.media import image_rules
from ...data.writer import Writer
from ...errors import Problem, WriteError
from ...schema import Image
from ..engines import Engine, run
from ..engines.base import Inline, Ranks
from .files import PROGRESS_FOLDER, Files
from .job import Job
from .spills import SPILLS_FOLDER, SpilledFeed, Spills
from .task import Feed, FileResult, Report, write_file

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Result of a conversion. ``files`` is empty where other ranks are not done yet."""

    files: list[str]
    samples: int
    skipped: list[Problem]
    seconds: float
    resumed_at: int
    remarks: list[str]
    # Of text that was tokenized.
    tokens: int | None = None


class ProgressTally:
    """Progress of a job over all its files and workers."""

    def __init__(self, files: Files, results: dict[int, FileResult], progress: Progress | None) -> None:
        self._folder = files.partial.folder / PROGRESS_FOLDER
        self._total = len(files.job.order)
        self._results, self._progress = results, progress
        self._shown = 0

    def show(self, unfinished: int = 0) -> None:
        """Report the samples of finished files and so many others."""
        count = sum(result.samples for result in self._results.values()) + unfinished
        # Never back, although a file may be begun anew.
        self._shown = max(self._shown, min(count, self._total))
        if self._progress is not None:
            self._progress(self._shown, self._total)

    def poll(self) -> None:
        """Add up the progress files that workers write."""
        if self._progress is None:
            return
        count = 0
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError, ValueError):
                    if int(entry.name) not in self._results:
                        count += int(Path(entry.path).read_text())
        self.show(count)


def convert_to_file(job: Job, *, resume: bool, progress: Progress | None) -> Conversion:
    """Write all samples into one file or folder."""
    start = time.monotonic()
    total = len(job.order)
    options = dataclasses.replace(job.prepared.write, workers=job.options.workers, resume=resume)
    writer: Writer = job.prepared.make(job.prepared.path, options)
    first, second = _split_progress(progress) if job.spills else (None, progress)
    report: Report = (lambda count: None) if second is None else lambda count: second(count, total)
    feed = Feed(job, range(total))
    if job.spills:
        spills = Spills(job, str(writer.partial.folder / SPILLS_FOLDER))
        try:
            if writer.resumed is None:
                # The spilled runs stay for a resume.
                writer.checkpoint({"identity": job.identity, "unread": []})
            _spill(Inline(), spills, first)
        except BaseException:
            writer.give_up()
            raise
        feed = SpilledFeed(job, range(total), spills)
    result = write_file(job, writer, feed, report)
    return _conversion(job, writer.files, [result], result.resumed, start)


def convert_to_files(job: Job, engine: Engine, *, resume: bool, progress: Progress | None) -> Conversion:
    """Write files of limited size by an engine; all get their names at the end."""
    start = time.monotonic()
    crew, first = isinstance(engine, Ranks), engine.share(1) == range(1)
    files = Files(job, resume=resume, crew=crew, local=engine.local, first=first)
    results: dict[int, FileResult] = {}
    try:
        results |= files.results()
        resumed = sum(result.samples for result in results.values())
        spills = files.task.spills
        first_pass, second_pass = (None, progress) if spills is None else _split_progress(progress)
        tally = ProgressTally(files, results, second_pass)

        def finish(number: int, result: FileResult) -> None:
            nonlocal resumed
            resumed += result.resumed
            files.stage(number)
            results[number] = result
            tally.show()

        if spills is not None:
            _spill(engine, spills, first_pass)
        report = tally.show if isinstance(engine, Inline) and not crew else None
        task = dataclasses.replace(files.task, threads=job.options.workers or engine.threads, report=report)
        todo = [number for number in engine.share(len(job.plan)) if number not in results]
        run(engine, task, todo, finish, tick=tally.poll, name=task.name)
        if isinstance(engine, Ranks):
            results.update(files.results())
            # A bucket has no locks, so rank 0 finishes the job there.
            while files.partial.staging is not None and engine.rank == 0 and len(results) < len(job.plan):
                time.sleep(job.options.tuning.poll_seconds)
                results.update(files.results())
                tally.show()
            if len(results) < len(job.plan) or not _leads(files, engine):
                files.partial.suspend()
                share = [results[number] for number in engine.share(len(job.plan)) if number in results]
                return _waiting(job, share, start)
        if job.parts:
            files.partial.settled()
            paths = _join_parts(job, files.paths(), resume=resume)
            files.partial.discard()
        else:
            paths = files.commit()
    except BaseException as error:
        files.leave()
        if isinstance(error, WriteError):
            files.explain(error)
        raise
    return _conversion(job, paths, [results[number] for number in sorted(results)], resumed, start)


def _leads(files: Files, engine: Ranks) -> bool:
    """True where this rank commits, now that all files are done."""
    if files.partial.staging is None:
        return files.partial.lead_or_leave()
    # Other finished ranks of this machine are about to leave.
    while engine.rank == 0 and files.partial.folder.exists():
        if files.partial.lead():
            return True
        time.sleep(files.job.options.tuning.poll_seconds)
    return False


def _join_parts(job: Job, parts: list[str], *, resume: bool) -> list[str]:
    """Join parts into one file or folder."""
    if job.piece_samples is None:
        return convert_to_file(job.joining(parts), resume=resume, progress=None).files
    target = job.replace(parts=False).prepared
    with target.make(target.path, target.write) as writer:
        writer.add_pieces(parts)
    return writer.files


def _spill(engine: Engine, spills: Spills, progress: Progress | None) -> None:
    """Run the first pass of a shuffle."""
    plan, total = spills.plan, len(spills.job.order)
    done = {number for number in range(len(plan)) if spills.done(number)}

    def show(unfinished: int = 0) -> None:
        if progress is not None:
            samples = sum(len(plan.span(number)) for number in done) + unfinished
            progress(total * samples // max(1, plan.samples), total)

    def finish(number: int, samples: int) -> None:
        done.add(number)
        show()

    task = dataclasses.replace(spills, report=show) if isinstance(engine, Inline) else spills
    missing = [number for number in engine.share(len(plan)) if number not in done]
    run(engine, task, missing, finish, name=lambda number: f"run {number} of the first pass")
    # The second pass needs the runs of all ranks.
    while len(done) < len(plan):
        done.update(number for number in range(len(plan)) if number not in done and spills.done(number))
        show()
        if len(done) < len(plan):
            time.sleep(spills.job.options.tuning.poll_seconds)


def _split_progress(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """Progress of the first pass and of the second, each of which is half of the work."""
    if progress is None:
        return None, None
    return (
        lambda now, total: progress(now // 2, total),
        lambda now, total: progress((total + now) // 2, total),
    )


def _conversion(
    job: Job, files: list[str], results: list[FileResult], resumed: int, start: float
) -> Conversion:
    remarks = [remark for result in results for remark in result.remarks]
    return Conversion(
        files,
        sum(result.written for result in results),
        [problem for result in results for problem in result.skipped],
        time.monotonic() - start,
        resumed,
        list(dict.fromkeys([*remarks, *job.lost(), *_growth_remarks(job, results)])),
        sum(result.tokens for result in results) if job.tokenize is not None else None,
    )


def _growth_remarks(job: Job, results: Iterable[FileResult]) -> list[str]:
    """Remarks on image fields that take many times more bytes in the target, over all its files."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for result in results:
        for name, (source_bytes, target_bytes) in result.image_bytes.items():
            before[name] += source_bytes
            after[name] += target_bytes
    prepared = job.prepared
    writer = prepared.format.writer
    assert writer is not None
    remarks = []
    for name, field in prepared.schema.items():
        if isinstance(field, Image):
            remark = image_rules.growth_remark(
                before[name],
                after[name],
                prepared.write.images_of(name),
                writer.image_target(field),
                mask=field.mask,
                format=prepared.format.name,
            )
            remarks += [f"{name}: {remark}"] if remark else []
    return remarks


def _waiting(job: Job, results: list[FileResult], start: float) -> Conversion:
    """The result of a rank whose share is done while others still write."""
    remark = "this rank's files are done; the last rank to finish gives all files their names"
    conversion = _conversion(job, [], results, 0, start)
    return dataclasses.replace(conversion, remarks=[*conversion.remarks, remark])
