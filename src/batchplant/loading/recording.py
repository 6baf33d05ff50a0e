"""Run records: an append-only file of what a run loaded, from which every batch can be computed again.

``run.bprun`` has JSON lines: a *process* line for each process that ran (dataset, options, versions), a
*settings* line where skips or weights are other ones, and a *stretch* line for each run of steps: epoch,
position, ranks, batch size. It ends with the number of its steps, which is overwritten in place; nothing else
is. Only rank 0 writes the file, since the batches of all ranks follow from it. Beside it, each rank has
``run.bprun.notes-RANK``, entries of NOTE, ``run.bprun.names-RANK``, the names of values, and
``run.bprun.losses-RANK``, the float16 losses that notes point to.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._version import __version__
from ..data.concat import Concat
from ..data.join import Join
from ..data.mix import Mix
from ..data.reader import Reader
from ..errors import AccessError, BusyError, OptionError, Problem, exceptions_as
from ..storage import is_remote, platform
from ..storage.remote.clients import client_of
from .node.recipe import RecipeEncoder
from .node.wire import NotPlainError

VERSION = 1
# An entry of notes: the step, the number of the name, and the value; of LOSSES how many, and their place in
# the file of losses; of FAILED a sample that could not be read.
NOTE = np.dtype([("step", "<i8"), ("name", "<u4"), ("count", "<u4"), ("value", "<f8")])
LOSSES, FAILED = 0, 2**32 - 1
COUNT_DIGITS = 15
# Options of a loader whose encoding is longer are not recorded, nor is a dataset in memory.
MAX_OPTION_BYTES = 64 << 10
# Files of a dataset that a record lists, and whose sizes and times its digest covers.
LISTED_FILES, TAGGED_FILES = 64, 10_000
# Options that a batch does not depend on, or that are in every stretch.
NOT_RECORDED = ("rank", "world_size", "mesh", "workers", "device", "cache", "share", "skip",
                "prefetch_batches", "record", "batch_size")  # fmt: skip
FLOAT16_MAX = 65504.0


class Recorder:
    """Writes the record of a run; ``begin`` for every epoch, ``step`` for every batch that was taken."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if is_remote(self.path):
            raise OptionError(
                "a run is recorded in a local file: copy it when the run is over", path=self.path
            )
        self._fd, self._count_at, self._rank, self._first_step = -1, 0, 0, 0
        self._files: dict[str, Any] = {}
        self._names: dict[str, int] = {}
        self._settings: dict[str, Any] = {}
        self._process = os.getpid()

    def begin(self, stretch: Mapping[str, Any], describe: Callable[[], Mapping[str, Any]]) -> None:
        """Write that a stretch begins; before the first one of a process, what ``describe`` says of that."""
        self._rank, settings, self._first_step = stretch["rank"], stretch["settings"], stretch["step"]
        if self._rank or os.getpid() != self._process:
            return
        with exceptions_as(AccessError, "the record cannot be written", OSError, path=self.path):
            if self._fd < 0:
                self._open()
                self._append({"process": VERSION, **describe()})
            if settings != self._settings:
                # They may be long, and rarely change.
                self._append({"settings": settings})
                self._settings = settings
            stretch = {key: value for key, value in stretch.items() if key not in ("rank", "settings")}
            text = json.dumps({"stretch": stretch, "steps": 0}, separators=(",", ":"))[: -len("0}")]
            end = self._write(f"{text}{0:{COUNT_DIGITS}}}}\n".encode())
            self._count_at = end - COUNT_DIGITS - 2

    def _open(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not platform.try_lock(fd):
            os.close(fd)
            raise BusyError("another process records its run in this file", path=self.path)
        size = os.lseek(fd, 0, os.SEEK_END)
        if size and os.pread(fd, 1, size - 1) != b"\n":
            # A killed process left half a line.
            os.write(fd, b"\n")
        self._fd = fd

    def _append(self, line: Mapping[str, Any]) -> None:
        self._write(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")

    def _write(self, data: bytes) -> int:
        os.lseek(self._fd, 0, os.SEEK_END)
        os.write(self._fd, data)
        return os.lseek(self._fd, 0, os.SEEK_END)

    def step(self, count: int, failed: Sequence[Problem]) -> None:
        """Write how many batches of the stretch were taken, and which samples the last one lacks."""
        if failed:
            step = self._first_step + count - 1
            self._write_notes([(step, FAILED, 1, problem.sample or 0) for problem in failed])
        if self._fd >= 0:
            os.pwrite(self._fd, b"%*d" % (COUNT_DIGITS, count), self._count_at)

    def note(self, step: int, losses: Any, values: Mapping[str, Any]) -> None:
        """Write values of a step, and the losses of its samples in the order of the batch."""
        with exceptions_as(AccessError, "notes cannot be written", OSError, path=self.path):
            entries = [(step, self._name(name), 1, float(value)) for name, value in values.items()]
            if losses is not None:
                file = self._file("losses")
                data = _float16(losses)
                entries.append((step, LOSSES, len(data) // 2, file.tell() // 2))
                file.write(data)
            self._write_notes(entries)

    def _write_notes(self, entries: list[tuple[int, int, int, float]]) -> None:
        self._file("notes").write(np.array(entries, dtype=NOTE).tobytes())

    def _name(self, name: str) -> int:
        if name not in self._names:
            # Names are numbered as they come in the file, by the process that wrote it.
            names = notes_names(self._path("names"))
            if name not in names:
                names.append(name)
                self._file("names").write(name.replace("\n", " ").encode() + b"\n")
            self._names = {text: number + 1 for number, text in enumerate(names)}
        return self._names[name]

    def _path(self, kind: str) -> str:
        return f"{self.path}.{kind}-{self._rank}"

    def _file(self, kind: str) -> Any:
        if kind not in self._files:
            file = open(self._path(kind), "ab", buffering=0)  # noqa: SIM115
            width = {"notes": NOTE.itemsize, "losses": 2}.get(kind, 1)
            if torn := file.tell() % width:
                file.truncate(file.tell() - torn)
                file.seek(0, os.SEEK_END)
            self._files[kind] = file
        return self._files[kind]

    def close(self) -> None:
        """Close the files; the record is complete at every moment."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        for file in self._files.values():
            file.close()
        self._files = {}

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()


def notes_names(path: str) -> list[str]:
    """Return the names of values in notes, by number from 1 on; a torn last one is ignored."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace").split("\n")[:-1]


def _float16(losses: Any) -> bytes:
    if hasattr(losses, "detach"):
        losses = losses.detach().float().cpu().numpy()
    values = np.asarray(losses, dtype=np.float32).reshape(-1)
    return values.clip(-FLOAT16_MAX, FLOAT16_MAX).astype("<f2").tobytes()


# -- what a process loads -----------------------------------------------------------------------------------


def describe(reader: Reader, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON of the dataset and arguments of a loader, from which it can be made again."""
    options = {name: encoded(value) for name, value in arguments.items() if name not in NOT_RECORDED}
    return {
        "version": __version__, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "dataset": fingerprint(reader), "reader": encoded(reader),
        "options": {name: value for name, value in options.items() if value is not None},
        "not recorded": [name for name, value in options.items() if value is None],
    }  # fmt: skip


def encoded(value: Any) -> str | None:
    """Return a value as text, without code; None where it is not data, or too long."""
    try:
        data = RecipeEncoder().dump(value)
    except (NotPlainError, RecursionError):
        return None
    return base64.b64encode(data).decode() if len(data) <= MAX_OPTION_BYTES else None


def leaves(reader: Reader) -> Iterator[Reader]:
    """Yield the readers of files that a reader is composed of."""
    base = getattr(reader, "base", None)
    parts = reader.readers if isinstance(reader, Concat) else reader.parts if isinstance(reader, Join) else ()
    for part in [base] if isinstance(base, Reader) else parts:
        yield from leaves(part)
    if not parts and not isinstance(base, Reader):
        yield reader


def fingerprint(reader: Reader) -> dict[str, Any]:
    """Return what tells a dataset from others: samples, fields, and names, sizes and times of its files.

    Of the Hugging Face Hub it is the commit that the revision named when the dataset was opened.
    """
    files: list[tuple[str, int, int]] = []
    commits: dict[str, str] = {}
    samples = reader.planned_length if isinstance(reader, Mix) else len(reader)
    for leaf in leaves(reader):
        if not is_remote(leaf.path):
            files += _tagged(leaf.path, TAGGED_FILES - len(files))
        elif leaf.path.startswith("hf://"):
            client = client_of(leaf.path)[0]
            # Reading the dataset reports a Hub that does not answer.
            with contextlib.suppress(AccessError):
                if (commit := client.revision()) is not None:
                    commits[client.url] = commit
    facts = [reader.schema.to_json(), samples, files, *([commits] if commits else [])]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    listed = [
        {"path": path, "bytes": size, "mtime_ns": time_ns} for path, size, time_ns in files[:LISTED_FILES]
    ]
    return {"samples": samples, "path": reader.path, "digest": digest, "files": listed,
            "file count": len(files), **({"commits": commits} if commits else {})}  # fmt: skip


def _tagged(path: str, count: int) -> list[tuple[str, int, int]]:
    if os.path.isdir(path):
        tagged: list[tuple[str, int, int]] = []
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                if len(tagged) >= count:
                    return tagged
                tagged += _tagged(os.path.join(folder, name), 1)
        return tagged
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [(os.path.abspath(path), status.st_size, status.st_mtime_ns)][: max(count, 0)]
