"""Do a job: one file in this process, or many files by an engine, or this rank's share of them."""

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
from ...storage import is_remote
from ..engines import Engine, run
from ..engines.inline import Inline
from ..engines.ranks import Ranks
from .files import COUNTS, Files, Place
from .job import Job
from .spills import SPILLS, SpilledFeed, Spills
from .task import Done, Feed, Report, write_file

# Seconds between two notes of how far a file is, and between two looks at what others have sent.
TELL = 0.2
WAIT = 1.0

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What a conversion did. ``files`` is empty where other ranks are not done yet."""

    files: list[str]
    samples: int
    skipped: list[Problem]
    seconds: float
    resumed_at: int
    remarks: list[str]
    # Of text that was tokenized.
    tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """What a worker does for a number: one file. ``report`` only where that is this process."""

    place: Place
    threads: int | None
    report: Report | None = None

    def __call__(self, number: int) -> Done:
        return self.place.write(number, self.threads, self.report or self._counted(number))

    def _counted(self, number: int) -> Report:
        """Leave a note of how far it is for the process that shows it."""
        folder = Path(self.place.folder, COUNTS)
        if is_remote(self.place.folder):
            return lambda count: None
        folder.mkdir(exist_ok=True)
        said = -TELL

        def report(count: int) -> None:
            nonlocal said
            if time.monotonic() - said >= TELL:
                said = time.monotonic()
                with contextlib.suppress(OSError):
                    (folder / str(number)).write_text(str(count))

        return report


class Tally:
    """How far a job is, over all its files and workers."""

    def __init__(self, files: Files, done: dict[int, Done], progress: Progress | None) -> None:
        self._folder = files.partial.folder / COUNTS
        self._total = len(files.job.order)
        self._done, self._progress = done, progress
        self._sum = sum(one.samples for one in done.values())
        self._said = 0

    def ended(self, number: int, one: Done) -> None:
        self._done[number] = one
        self._sum += one.samples
        self.show(0)

    def told(self, done: dict[int, Done]) -> None:
        """What other ranks have done."""
        self._sum = sum(one.samples for one in done.values())
        self.show(0)

    def show(self, more: int) -> None:
        # Never back, although a file may be begun anew.
        self._said = max(self._said, min(self._sum + more, self._total))
        if self._progress is not None:
            self._progress(self._said, self._total)

    def look(self) -> None:
        """What workers have noted of files that are not done."""
        if self._progress is None:
            return
        more = 0
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError, ValueError):
                    if int(entry.name) not in self._done:
                        more += int(Path(entry.path).read_text())
        self.show(more)


def convert_to_file(job: Job, *, workers: int | None, resume: bool, progress: Progress | None) -> Conversion:
    """All samples into one file or folder."""
    began = time.monotonic()
    total = len(job.order)
    options = dataclasses.replace(job.prepared.write, workers=workers, resume=resume)
    writer: Writer = job.prepared.make(job.prepared.path, options)
    first, second = _passes(progress) if job.spills else (None, progress)
    report: Report = (lambda count: None) if second is None else lambda count: second(count, total)
    feed = Feed(job, range(total))
    if job.spills:
        spills = Spills(job, str(writer.partial.folder / SPILLS))
        try:
            if writer.resumed is None:
                # What is spilled stays for a resume.
                writer.checkpoint({"identity": job.identity, "unread": []})
            _spill(Inline(), spills, first)
        except BaseException:
            writer.give_up()
            raise
        feed = SpilledFeed(job, range(total), spills)
    done = write_file(job, writer, feed, report)
    return _told(job, writer.files, [done], done.resumed, began)


def convert_to_files(
    job: Job, engine: Engine, *, workers: int | None, resume: bool, progress: Progress | None
) -> Conversion:
    """Files of limited size, by an engine; all get their names at the end."""
    began = time.monotonic()
    crew, first = isinstance(engine, Ranks), engine.share(1) == range(1)
    files = Files(job, resume=resume, crew=crew, here=engine.here, first=first)
    done: dict[int, Done] = {}
    try:
        done = files.done()
        before = sum(one.samples for one in done.values())
        spills = files.place.spills
        first_pass, second_pass = (None, progress) if spills is None else _passes(progress)
        tally = Tally(files, done, second_pass)
        resumed: list[int] = []

        def ended(number: int, one: Done) -> None:
            resumed.append(one.resumed)
            files.stage(number)
            tally.ended(number, one)

        inline = isinstance(engine, Inline)
        if spills is not None:
            _spill(engine, spills, first_pass)
        work = Work(files.place, workers or engine.threads, tally.show if inline and not crew else None)
        todo = [number for number in engine.share(len(job.plan)) if number not in done]
        run(engine, work, todo, ended, tick=tally.look, name=files.place.name)
        if isinstance(engine, Ranks):
            done = files.done()
            # Nobody can lock a bucket: there, one of them is the last to finish.
            while files.partial.staging is not None and engine.rank == 0 and len(done) < len(job.plan):
                time.sleep(WAIT)
                done = files.done()
                tally.told(done)
            if len(done) < len(job.plan) or not _leads(files, engine):
                files.partial.suspend()
                return _waiting(job, [done[one] for one in engine.share(len(job.plan)) if one in done], began)
        if job.parts:
            files.partial.settled()
            paths = _joined(job, files.paths(), resume=resume)
            files.partial.discard()
        else:
            paths = files.commit()
    except BaseException as error:
        files.leave()
        if isinstance(error, WriteError):
            files.explain(error)
        raise
    return _told(job, paths, [done[number] for number in sorted(done)], before + sum(resumed), began)


def _leads(files: Files, engine: Ranks) -> bool:
    """All files are done: whether it is this rank that finishes."""
    if files.partial.staging is None:
        return files.partial.lead()
    # Others of this machine that are done, too, are about to go.
    while engine.rank == 0 and files.partial.folder.exists():
        if files.partial.lead():
            return True
        time.sleep(WAIT)
    return False


def _joined(job: Job, parts: list[str], *, resume: bool) -> list[str]:
    """One file or folder of its parts."""
    if job.piece_samples is None:
        return convert_to_file(job.joining(parts), workers=None, resume=resume, progress=None).files
    whole = job.replace(parts=False).prepared
    with whole.make(whole.path, whole.write) as writer:
        writer.add_pieces(parts)
    return writer.files


def _spill(engine: Engine, spills: Spills, progress: Progress | None) -> None:
    """The first pass of a shuffle."""
    plan, total = spills.plan, len(spills.job.order)
    done = {number for number in range(len(plan)) if spills.done(number)}

    def show(more: int = 0) -> None:
        if progress is not None:
            read = sum(len(plan.span(number)) for number in done) + more
            progress(total * read // max(1, plan.samples), total)

    def ended(number: int, samples: int) -> None:
        done.add(number)
        show()

    work = dataclasses.replace(spills, report=show) if isinstance(engine, Inline) else spills
    missing = [number for number in engine.share(len(plan)) if number not in done]
    run(engine, work, missing, ended, name=lambda number: f"run {number} of the first pass")
    # What other ranks read is needed as well.
    while len(done) < len(plan):
        done.update(number for number in range(len(plan)) if number not in done and spills.done(number))
        show()
        if len(done) < len(plan):
            time.sleep(WAIT)


def _passes(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """The progress of the first pass and of the second, each of which is half of the work."""
    if progress is None:
        return None, None
    return (
        lambda now, total: progress(now // 2, total),
        lambda now, total: progress((total + now) // 2, total),
    )


def _told(job: Job, files: list[str], done: Iterable[Done], resumed: int, began: float) -> Conversion:
    done = list(done)
    remarks = dict.fromkeys(
        [remark for one in done for remark in one.remarks] + job.lost() + _grown(job, done)
    )
    return Conversion(
        files,
        sum(one.written for one in done),
        [problem for one in done for problem in one.skipped],
        time.monotonic() - began,
        resumed,
        list(remarks),
        sum(one.tokens for one in done) if job.tokenize is not None else None,
    )


def _grown(job: Job, done: Iterable[Done]) -> list[str]:
    """Remarks on the image fields that take many times more room in the target, over all its files."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for file in done:
        for name, sizes in file.image_bytes.items():
            before[name] += sizes[0]
            after[name] += sizes[1]
    prepared = job.prepared
    writer = prepared.format.writer
    assert writer is not None
    remarks = []
    for name, field in prepared.schema.items():
        if isinstance(field, Image):
            remark = image_rules.growth_remark(
                before[name], after[name], prepared.write.images_of(name), writer.image_target(field),
                mask=field.mask, format=prepared.format.name,
            )  # fmt: skip
            remarks += [f"{name}: {remark}"] if remark else []
    return remarks


def _waiting(job: Job, mine: list[Done], began: float) -> Conversion:
    """This rank has done its share."""
    said = "this rank's files are done; the last rank to finish gives all files their names"
    found = _told(job, [], mine, 0, began)
    return dataclasses.replace(found, remarks=[*found.remarks, said])
