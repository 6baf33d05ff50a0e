"""Feed damaged files to every format: only exceptions of our tree may come out, in time and within memory.

Small datasets (see cases.py) are damaged (mutations.py), one file at a time: data, side-cars, notes. Each is
opened, read, decoded, verified and, where it has images, loaded with on_error="skip". All in a child
process with a limit on its memory and on the time of every file, so that a signal, a hang and a MemoryError
are findings like any other exception. A finding is a folder with the damaged dataset and what happened.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import importlib
import mmap
import multiprocessing
import os
import pkgutil
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cases
import hidden
from mutations import mutate

import batchplant as bp
from batchplant import ops
from batchplant.formats.registry import all_formats

# What a cell may unpack to while we fuzz, and what the process may take beyond what its libraries need.
CELL, ROOM = 32 << 20, 1 << 30
# Findings that look alike are kept so many times; a case with so many is left.
ALIKE, MOST = 2, 12
# pylance ends the process where it cannot allocate what a damaged page claims.
ENDED_BY_LIBRARY = ("lance", "golden-lance")
COUNTS = struct.Struct("<qqq")
# Loading these can run code, so they are not, damaged or not; so are some fields of files of others.
REFUSED = ("pickle", "joblib")


def look(one: cases.Case, rng: random.Random | None = None) -> bool:
    """Meet a dataset, damaged or not, as its user does; return whether nothing was wrong."""
    return one.check() if isinstance(one, hidden.HiddenCase) else check(one.format, one.path, rng)


def check(name: str | None, path: Path, rng: random.Random | None = None) -> bool:
    """Everything a user does with a file; whether nothing was found wrong. ``rng``: some of it."""
    if rng is None or rng.random() < 0.25:
        probe = bp.Probe(str(path))
        for item in all_formats().values():
            try:
                item.matches(probe)
            except bp.BatchplantError:
                break
    try:
        with bp.open(path, format=None if rng is not None and rng.random() < 0.25 else name) as dataset:
            return use(dataset, rng)
    except bp.BatchplantError:
        return False


def use(dataset: bp.Reader, rng: random.Random | None) -> bool:
    """Read it in several ways; with ``rng`` in one or two of them, so that there is time for more files."""
    few = range(min(len(dataset), 8))
    ways = [lambda: dataset.facts(), lambda: [dataset.spans(field, few) for field in dataset.schema]]
    ways += [lambda: dataset.read(few), *(functools.partial(dataset.__getitem__, number) for number in few)]
    if len(dataset) <= 1000:
        ways += [dataset.blocks, lambda: check_all(dataset)]
        if any(isinstance(field, bp.Image) for field in dataset.schema.values()):
            ways += [lambda: load(dataset, True), lambda: load(dataset, False)]
    if rng is not None:
        # Verifying finds most, and reads everything itself.
        ways = [*rng.sample(ways, 2), *([lambda: check_all(dataset)] * (len(dataset) <= 1000))]
    fine = True
    for way in ways:
        try:
            way()
        except bp.BatchplantError as error:
            str(error).encode()
            fine = False
    return fine


def check_all(dataset: bp.Reader) -> None:
    report = bp.verify(dataset, decode=True)
    if not report.ok:
        raise bp.DamagedError(str(report.problems[0]))


def load(dataset: bp.Reader, resize: bool) -> None:
    images = [name for name, field in dataset.schema.items() if isinstance(field, bp.Image)]
    # Boxes, outlines and keypoints move along.
    shapes = {name: [ops.Resize(8), ops.HorizontalFlip()] for name in images} if resize else None
    with contextlib.closing(bp.Loader(dataset, 2, pipelines=shapes, on_error="skip", workers=1)) as loader:
        for batch in loader:
            del batch


class OutsideError(Exception):
    """A file was opened that does not belong to the dataset."""


class OpenedFiles:
    """Watches the files that Python opens: they lie in the folder of the dataset, or belong to programs."""

    def __init__(self, folder: Path) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        programs = (sys.prefix, sys.base_prefix, *bp.__path__, "/proc/", "/sys/", "/usr/", "/dev/null")
        # The note of a commit, which lies beside the dataset, may be there.
        note = folder.parent / ".batchplant.commit"
        self._allowed = tuple(os.path.realpath(path) for path in (folder, note, cache, *programs))
        self._paths: set[str] = set()
        self._watching = False
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._watching and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(self._allowed):
                self._paths.add(path)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Raise OutsideError if other files are opened in this block."""
        self._paths, self._watching = set(), True
        try:
            yield
        finally:
            self._watching = False
        if self._paths:
            raise OutsideError(f"{', '.join(sorted(self._paths))} was opened")


class Run:
    """One case: its datasets, and how far it is. The counts are shared with the child."""

    # Seconds of CPU, and of waiting, that one file may take.
    busy_seconds, waiting_seconds = 10.0, 120.0

    def __init__(self, name: str, folder: Path, seed: int, keep: Path) -> None:
        self.name, self.seed, self.keep = name, seed, keep
        self.folder = folder / name
        self.log = folder / f"{name}.log"
        # In a process of its own: libraries with threads (deltalake) do not work in a fork of who used them.
        make = hidden.make if name in hidden.CASES else cases.make
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            self.sets = pool.submit(make, name, self.folder).result()
        self.files: list[list[Path]] = [[] for _ in self.sets]
        self.whole: dict[Path, bytes] = {}
        # An index is used only as long as the file that it was made of is the same.
        self.times: dict[Path, int] = {}
        for which in range(len(self.sets)):
            self._remember(which)
        self._shared = mmap.mmap(-1, COUNTS.size)
        self.at, self.findings = 0, 0
        self.alike: dict[str, int] = {}
        self.seconds = 0.0

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number that is next, those in which something was wrong, and findings, of the child."""
        return COUNTS.unpack(self._shared[:])

    def _remember(self, which: int) -> None:
        self.files[which] = self.sets[which].files()
        for path in self.files[which]:
            self.whole[path], self.times[path] = path.read_bytes(), path.stat().st_mtime_ns

    def damage(self, number: int) -> tuple[cases.Case, Path, random.Random]:
        """Damage one file; the same number damages the same file in the same way."""
        rng = random.Random(f"{self.name} {self.seed} {number}")
        which = rng.randrange(len(self.sets))
        one, path = self.sets[which], rng.choice(self.files[which])
        if rng.random() < 0.5 and one.path in self.whole and not self.name.endswith(".index"):
            path = one.path
        path.write_bytes(mutate(self.whole[path], rng, path.name))
        return one, path, rng

    def mend(self, one: cases.Case, path: Path) -> None:
        if isinstance(one, hidden.HiddenCase):
            one.rebuild()
            self._remember(self.sets.index(one))
            return
        self._lay_down(path)

    def _lay_down(self, path: Path) -> None:
        path.write_bytes(self.whole[path])
        os.utime(path, ns=(self.times[path],) * 2)

    def restore(self) -> None:
        """Everything as it was, and nothing else."""
        if self.name in hidden.CASES:
            return
        for item in self.sets:
            for extra in set(item.files()) - self.whole.keys():
                extra.unlink()
        for path, data in self.whole.items():
            if not path.exists() or path.read_bytes() != data:
                self._lay_down(path)

    # -- in the child ----------------------------------------------------------------------------------

    def work(self, count: int, until: float) -> None:
        """Damage and look, from ``self.at`` on."""
        warnings.simplefilter("ignore")
        with open(self.log, "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        faulthandler.enable(2)
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
            faulthandler.register(number, 2, chain=True)
        bp.max_bytes(CELL)
        # Libraries are loaded before memory is limited.
        for one in self.sets:
            fine = look(one) or one.format in REFUSED or self.name.startswith("golden")
            self.mend(one, one.path) if isinstance(one, hidden.HiddenCase) else None
            if not fine:
                raise RuntimeError(f"{one.path} is damaged before anybody has damaged it")
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        opened_files = OpenedFiles(self.folder)
        wrong = result = 0
        for number in range(self.at, self.at + count):
            self._shared[:] = COUNTS.pack(number, wrong, result)
            one, path, rng = self.damage(number)
            for timer, seconds in (
                (signal.ITIMER_PROF, self.busy_seconds),
                (signal.ITIMER_REAL, self.waiting_seconds),
            ):
                signal.setitimer(timer, seconds)
            try:
                with opened_files.inside():
                    wrong += not look(one, rng)
            # Whatever it is, it is the finding.
            except BaseException as error:
                result += self.found(number, type(error).__name__, _place(error), traceback.format_exc())
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0)
            self.mend(one, path)
            if number % 100 == 99:
                self.restore()
            if time.monotonic() > until or result >= MOST:
                break
        self._shared[:] = COUNTS.pack(number + 1, wrong, result)

    def found(self, number: int, kind: str, place: str, story: str) -> int:
        """Keep the damaged dataset, unless there are enough like it."""
        self.alike[kind + place] = self.alike.get(kind + place, 0) + 1
        if self.alike[kind + place] > ALIKE:
            return 1
        kept = self.keep / f"{self.name}-{self.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        if isinstance(which := self.sets[0], hidden.HiddenCase):
            which.folder.parent.mkdir(exist_ok=True)
            for case in self.sets:
                case.rebuild()
        one, path, _ = self.damage(number)
        shutil.copytree(one.folder, kept / "dataset")
        told = (
            f"{kind} at {place}\nof {path.relative_to(one.folder)}, in {one.path.relative_to(one.folder)}\n\n"
        )
        (kept / "finding.txt").write_text(told + story, errors="backslashreplace")
        with open(self.keep / "findings.txt", "a") as out:
            out.write(f"{kept.name}: {kind} at {place}\n")
        return 1

    # -- in the parent ---------------------------------------------------------------------------------

    def go(self, count: int, seconds: float) -> int:
        """So many files, or as many as there is time for; how many it were."""
        if not self.sets:
            return 0
        first, began, left = self.at, time.monotonic(), count
        while left > 0 and time.monotonic() - began < seconds and self.findings < MOST:
            self._shared[:] = COUNTS.pack(self.at, 0, 0)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    self.work(left, began + seconds)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            status = os.waitpid(child, 0)[1]
            at, _, answer = self.counts
            self.findings += answer
            if os.WIFSIGNALED(status):
                self.restore()
                tail = _tail(self.log)
                if self.name not in ENDED_BY_LIBRARY or "memory allocation of" not in tail:
                    self.findings += 1
                    self.found(at, signal.Signals(os.WTERMSIG(status)).name, _last(self.log), tail)
                at += 1
            elif status:
                raise RuntimeError(f"{self.name}: the fuzzer itself fails:\n{_tail(self.log)}")
            self.restore()
            left -= at - self.at
            self.at = at
        self.seconds += time.monotonic() - began
        return self.at - first


def _place(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "batchplant" in frame.filename] or list(frames)
    return f"{'/'.join(Path(ours[-1].filename).parts[-2:])}:{ours[-1].lineno}"


def _tail(log: Path) -> str:
    return log.read_bytes()[-6000:].decode("utf-8", "replace")


def _last(log: Path) -> str:
    lines = [line.strip() for line in _tail(log).splitlines() if "batchplant" in line and "File" in line]
    return lines[0] if lines else "an unknown place"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="for each case (default 60, without --count)")
    parser.add_argument("--count", type=int, help="so many damaged files in all, shared by the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", help="only this case; may be given several times")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz/found"), help="where findings go")
    args = parser.parse_args()
    # What changes on the disk meanwhile does not matter.
    for module in pkgutil.walk_packages(bp.__path__, "batchplant."):
        if "interop" not in module.name and not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, bp.MissingLibraryError):
                importlib.import_module(module.name)
    names = args.format or [*cases.names(), *hidden.CASES]
    seconds = args.seconds or (60.0 if args.count is None else 1e9)
    args.keep.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="batchplant-fuzz-", dir=memory) as folder:
        runs = []
        for number, name in enumerate(names):
            try:
                run = Run(name, Path(folder), args.seed, args.keep)
            except Exception as error:
                raise RuntimeError(f"{name}: there is nothing to damage") from error
            # What a slow case cannot do in its time, the quick ones after it do in its place.
            done = sum(run.at for run in runs)
            share = 10**12 if args.count is None else -(-(args.count - done) // (len(names) - number))
            run.go(share, seconds)
            runs.append(run)
            rate = run.at / max(run.seconds, 1e-9)
            print(f"{name}: {run.at} damaged files, {rate:.0f}/s, {run.findings} broke the rule", flush=True)
        done, broke = sum(run.at for run in runs), sum(run.findings for run in runs)
        print(f"in all: {done} damaged files, {broke} broke the rule")
        return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
