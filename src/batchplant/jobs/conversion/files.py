"""The files of a sharded conversion in the hidden folder: which are done, and how they become a dataset.

Beside each finished file lies a note, ``NAME.done``: what :class:`~.task.Done` says. A file whose note has
another digest is of another conversion, and is made again. So a conversion can be stopped at any time, and
any process that sees the folder can go on with it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Literal

from ...codecs.tokenizers import limit_threads
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
from . import task
from .job import Job
from .spills import SPILLS, SpilledFeed, Spills
from .task import Done, Feed, Report, write_file

NOTE = ".done"
# Below the hidden folder: how far each file is that is being written.
COUNTS = "counts"


class Files:
    """The files of a job, and the hidden folder that they are made in.

    ``crew``: other processes do other files of it at the same time; ``first``: this one tells other machines
    that it was begun. ``here``: all workers are on this machine; others send what goes to a URL themselves.
    """

    def __init__(
        self, job: Job, *, resume: bool, crew: bool = False, here: bool = True, first: bool = True
    ) -> None:
        self.job = job
        self._began = time.monotonic()
        assert job.prepared.shards is not None
        self._names: ShardNames = job.prepared.shards
        self._adding = job.prepared.write.base is not None
        self.first = 0
        hidden = like(job.prepared.path, job.prepared.path.rstrip("/") + ".shards")
        with write_errors(job.prepared.path):
            self.partial = Partial(
                hidden, overwrite=True, resume=resume or crew, check=self._check_target, crew=crew
            )
        try:
            self.first = self._names.next() if self._adding else 0
            state = self.partial.state or {}
            # Others may go on from it, or did before.
            self._shared = crew or not here or bool(state)
            if state and not crew:
                job.check_same(state.get("identity"))
            self.partial.checkpoint({"identity": job.identity}, publish=first and not here)
        except BaseException:
            self.partial.suspend()
            raise
        self._here = here or self.partial.staging is None
        shared = None if self._here else self.partial.staging
        self.place = Place(job, shared or os.path.abspath(self.partial.folder), self.first)

    def _check_target(self) -> None:
        if self.job.parts:
            there = reached(self.job.target, split_options(self.job.target_options)[0])
            if tree.exists(there) and not (self.job.overwrite or self.job.append):
                raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=there)
            return
        found = self._names.existing()
        if found and not self.job.overwrite and not self._adding:
            message = "it exists; replace the shards with overwrite=True (--overwrite)"
            raise ExistsError(message, path=join(self._names.folder, found[0]))

    def done(self) -> dict[int, Done]:
        """Number → what became of it, of the files that need not be made any more."""
        self.partial.refresh()
        found = ((number, self.note(number)) for number in range(len(self.job.plan)))
        return {number: done for number, done in found if done is not None}

    def note(self, number: int) -> Done | None:
        name = self.place.name(number)
        said = self.partial.read(name + NOTE)
        try:
            done = Done.from_json(json.loads(said or b""))
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return done if done.digest == self.job.digest and self.partial.has(name) else None

    def stage(self, number: int) -> None:
        """A file is complete; what goes to a URL may go there already."""
        if self._here:
            self.partial.stage([*self._made(number), self.place.name(number) + NOTE])

    def _made(self, number: int) -> list[str]:
        """What a finished shard consists of."""
        shard = self.place.name(number)
        beside = [side_car(shard, template).name for template in self._names.side_cars]
        return [shard, *(one for one in beside if self.partial.has(one))]

    def commit(self) -> list[str]:
        """Give all of them their names, at once."""
        if not self._here:
            self.partial.refresh()
        self._check_target()
        count = len(self.job.plan)
        made = [name for number in range(count) for name in self._made(number)]
        gone = () if self._adding else set(self._names.existing()).difference(made)
        shards = [self.place.name(number) for number in range(count)]
        with write_errors(self.job.prepared.path, self.partial):
            self.partial.commit_all([(name, name) for name in made], sorted(gone), set(made) - set(shards))
        return [join(self._names.folder, name) for name in shards]

    def paths(self) -> list[str]:
        """Where they lie, before they have their names."""
        folder = self.partial.staging or str(self.partial.folder)
        return [join(folder, self.place.name(number)) for number in range(len(self.job.plan))]

    def explain(self, error: WriteError) -> None:
        """Say of a file that could not be written what that means for the dataset."""
        error.path = str(self.job.prepared.path)
        if not self.partial.is_decided():
            self._names.say_untouched(error)

    def leave(self) -> None:
        """Stop: what is done stays for a resume, unless it took no time to speak of."""
        brief = time.monotonic() - self._began < task.CHECKPOINT_SECONDS
        begun = any(self.partial.folder.glob(f".*.partial/{STATE}"))
        keep = self._shared or begun or not brief
        self.partial.suspend() if keep else self.partial.discard()


@dataclasses.dataclass(frozen=True)
class Place:
    """Where workers write files: all that one needs besides the job."""

    job: Job
    folder: str
    first: int

    def name(self, number: int) -> str:
        shards = self.job.prepared.shards
        assert shards is not None
        return shards.name(self.first + number)

    @property
    def spills(self) -> Spills | None:
        """What is spilled of a shuffled source; on a server there is no place for it."""
        if not self.job.spills or is_remote(self.folder):
            return None
        return Spills(self.job, os.path.join(self.folder, SPILLS))

    @property
    def _piece(self) -> Literal["aligned", "loose"] | None:
        if self.job.piece_samples is None:
            return None
        # Where samples may be left out, those behind them move up.
        return "aligned" if self.job.on_error == "raise" else "loose"

    def write(self, number: int, workers: int | None, report: Report) -> Done:
        """Make one file and its note."""
        if self.job.tokenize is not None and workers is not None:
            limit_threads(workers)
        name, span = self.name(number), self.job.plan.span(number)
        options = dataclasses.replace(
            self.job.prepared.write, overwrite=True, length=len(span), base=None, workers=workers,
            resume=True, first=span.start if self.job.parts else 0, piece=self._piece,
        )  # fmt: skip
        path = join(self.folder, name)
        writer = self.job.prepared.make(path, options)
        if writer.resumed is not None and writer.resumed["identity"] != self.job.identity:
            # Left by another conversion.
            writer.abort()
            writer = self.job.prepared.make(path, dataclasses.replace(options, resume=False))
        spills = self.spills
        feed = Feed(self.job, span) if spills is None else SpilledFeed(self.job, span, spills)
        done = write_file(self.job, writer, feed, report)
        with write_errors(path):
            _put(join(self.folder, name + NOTE), json.dumps(done.to_json()).encode())
        return done


def _put(path: str, data: bytes) -> None:
    put_bytes(path, data) if is_remote(path) else put_file(Path(path), data)
