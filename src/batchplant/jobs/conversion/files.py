"""Files of a sharded conversion in their staging directory, and how they become a dataset.

Beside each finished file lies ``NAME.done``, its :class:`~.task.FileResult`. A file whose result has another
digest belongs to another conversion and is written again. So a conversion can be stopped at any time, and any
process that sees the directory can resume it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Literal

from ...codecs.tokens import limit_threads
from ...data.shards import ShardNames
from ...errors import ExistsError, WriteError
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
from .job import Job
from .spills import SPILLS_FOLDER, SpilledFeed, Spills
from .task import Feed, FileResult, Report, write_file

RESULT_SUFFIX = ".done"
# Below the staging directory: the progress of each file that is being written.
PROGRESS_FOLDER = "counts"
PROGRESS_INTERVAL_SECONDS = 0.2


class Files:
    """Files of a job, and their staging directory.

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
