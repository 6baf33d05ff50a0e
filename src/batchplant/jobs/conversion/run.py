"""Run a job: one file in this process, or many files by an engine, or this rank's share of them.

:class:`Files` has the staging directory, the done notes and the commit of many files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from ...codecs.media import image_rules
from ...codecs.tokens import limit_threads
from ...data.shards import ShardNames
from ...data.writer import Writer
from ...errors import ExistsError, Problem, WriteError
from ...schema import Image
from ...storage import (
    Partial,
    is_remote,
    join,
    like,
    put_file,
    reached,
    side_car,
    split_options,
    tree,
    write_errors,
)
from ...storage.uploads import put_bytes
from ...storage.work import STATE
from ..engines import Engine, run
from ..engines.base import Inline, Ranks
from .job import Job
from .task import SPILLS_FOLDER, Feed, FileResult, Report, SpilledFeed, Spills, write_file

RESULT_SUFFIX = ".done"
# Below the staging directory: the progress of each file that is being written.
PROGRESS_FOLDER = "counts"
PROGRESS_INTERVAL_SECONDS = 0.2


class Files:
    """Files of a job, and their staging directory.

    Beside each finished file lies ``NAME.done``, its :class:`~.task.FileResult`. A file whose result has
    another digest belongs to another conversion and is written again. So a conversion can be stopped at any
    time, and any process that sees the directory can resume it.

    ``crew``: other processes write other files of it at the same time; ``first``: this one tells other
    machines that the job began. ``local``: all workers are on this machine; others upload their files
    themselves where the target is a URL.
    """

    def __init__(
        self, job: Job, *, resume: bool, crew: bool = False, local: bool = True, first: bool = True
    ) -> None:
        self.job = job
        self._start = time.monotonic()
        assert job.prepared.shards is not None
        self._names: ShardNames = job.prepared.shards
        self._appends = job.prepared.write.base is not None
        staging = like(job.prepared.path, job.prepared.path.rstrip("/") + ".shards")
        with write_errors(job.prepared.path):
            self.partial = Partial(
                staging, overwrite=True, resume=resume or crew, check=self._check_target, crew=crew
            )
        try:
            first_number = self._names.next() if self._appends else 0
            state = self.partial.state or {}
            # Other processes may resume it, or took part before.
            self._shared = crew or not local or bool(state)
            if state and not crew:
                job.check_same(state.get("identity"))
            self.partial.checkpoint({"identity": job.identity}, publish=first and not local)
        except BaseException:
            self.partial.suspend()
            raise
        self._local = local or self.partial.staging is None
        uploads = None if self._local else self.partial.staging
        self.task = FileTask(job, uploads or os.path.abspath(self.partial.folder), first_number)

    def _check_target(self) -> None:
        if self.job.parts:
            path = reached(self.job.target, split_options(self.job.target_options)[0])
            if tree.exists(path) and not (self.job.overwrite or self.job.append):
                raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=path)
            return
        existing = self._names.existing()
        if existing and not self.job.overwrite and not self._appends:
            message = "it exists; replace the shards with overwrite=True (--overwrite)"
            raise ExistsError(message, path=join(self._names.folder, existing[0]))

    def results(self) -> dict[int, FileResult]:
        """Results of the finished files by number."""
        self.partial.refresh()
        results = ((number, self._result(number)) for number in range(len(self.job.plan)))
        return {number: result for number, result in results if result is not None}

    def _result(self, number: int) -> FileResult | None:
        name = self.task.name(number)
        data = self.partial.read(name + RESULT_SUFFIX)
        try:
            result = FileResult.from_json(json.loads(data or b""))
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return result if result.digest == self.job.digest and self.partial.has(name) else None

    def stage(self, number: int) -> None:
        """Upload a complete file early, where the target is a URL."""
        if self._local:
            self.partial.stage([*self._with_side_cars(number), self.task.name(number) + RESULT_SUFFIX])

    def _with_side_cars(self, number: int) -> list[str]:
        shard = self.task.name(number)
        beside = [side_car(shard, template).name for template in self._names.side_cars]
        return [shard, *(name for name in beside if self.partial.has(name))]

    def commit(self) -> list[str]:
        """Give all files their names, at once."""
        if not self._local:
            self.partial.refresh()
        self._check_target()
        count = len(self.job.plan)
        names = [name for number in range(count) for name in self._with_side_cars(number)]
        replaced = () if self._appends else set(self._names.existing()).difference(names)
        shards = [self.task.name(number) for number in range(count)]
        with write_errors(self.job.prepared.path, self.partial):
            self.partial.commit_all(
                [(name, name) for name in names], sorted(replaced), set(names) - set(shards)
            )
        return [join(self._names.folder, name) for name in shards]

    def paths(self) -> list[str]:
        """Paths of the files in the staging directory."""
        folder = self.partial.staging or str(self.partial.folder)
        return [join(folder, self.task.name(number)) for number in range(len(self.job.plan))]

    def explain(self, error: WriteError) -> None:
        """Add to a file's error what it means for the dataset."""
        error.path = str(self.job.prepared.path)
        if not self.partial.is_decided():
            self._names.say_untouched(error)

    def leave(self) -> None:
        """Stop. Finished files stay for a resume, unless they took no time to speak of."""
        brief = time.monotonic() - self._start < self.job.options.tuning.checkpoint_seconds
        begun = any(self.partial.folder.glob(f".*.partial/{STATE}"))
        keep = self._shared or begun or not brief
        self.partial.suspend() if keep else self.partial.discard()


@dataclasses.dataclass(frozen=True)
class FileTask:
    """The function of a worker: called with a number, it writes that file and its result.

    ``report`` is given only where the worker is this process.
    """

    job: Job
    folder: str
    first_number: int
    threads: int | None = None
    report: Report | None = None

    def name(self, number: int) -> str:
        shards = self.job.prepared.shards
        assert shards is not None
        return shards.name(self.first_number + number)

    @property
    def spills(self) -> Spills | None:
        """Spilled runs of a shuffled source; a bucket cannot hold them."""
        if not self.job.spills or is_remote(self.folder):
            return None
        return Spills(self.job, os.path.join(self.folder, SPILLS_FOLDER))

    @property
    def _piece(self) -> Literal["aligned", "loose"] | None:
        if self.job.piece_samples is None:
            return None
        # Skipped samples move up those behind them.
        return "aligned" if self.job.on_error == "raise" else "loose"

    def __call__(self, number: int) -> FileResult:
        if self.job.tokenize is not None and self.threads is not None:
            limit_threads(self.threads)
        name, span = self.name(number), self.job.plan.span(number)
        options = dataclasses.replace(
            self.job.prepared.write,
            overwrite=True,
            length=len(span),
            base=None,
            workers=self.threads,
            resume=True,
            first=span.start if self.job.parts else 0,
            piece=self._piece,
        )
        path = join(self.folder, name)
        writer = self.job.prepared.make(path, options)
        if writer.resumed is not None and writer.resumed["identity"] != self.job.identity:
            # Another conversion left it.
            writer.abort()
            writer = self.job.prepared.make(path, dataclasses.replace(options, resume=False))
        spills = self.spills
        feed = Feed(self.job, span) if spills is None else SpilledFeed(self.job, span, spills)
        result = write_file(self.job, writer, feed, self.report or self._progress_file(number))
        data = json.dumps(result.to_json()).encode()
        result_path = join(self.folder, name + RESULT_SUFFIX)
        with write_errors(path):
            put_bytes(result_path, data) if is_remote(path) else put_file(Path(result_path), data)
        return result

    def _progress_file(self, number: int) -> Report:
        """A report that writes the progress of a file for the process that shows it."""
        folder = Path(self.folder, PROGRESS_FOLDER)
        if is_remote(self.folder):
            return lambda count: None
        folder.mkdir(exist_ok=True)
        written = -PROGRESS_INTERVAL_SECONDS

        def report(count: int) -> None:
            nonlocal written
            if time.monotonic() - written >= PROGRESS_INTERVAL_SECONDS:
                written = time.monotonic()
                with contextlib.suppress(OSError):
                    (folder / str(number)).write_text(str(count))

        return report


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
