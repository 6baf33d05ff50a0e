"""The index of a file: the result of scanning it once, stored as ``NAME.bpindex`` beside it.

A format that has to scan its file calls :func:`load`. sidecar.py has the layout of an index
file, checks whether it is fresh and writes it, sets.py has the combined index of many files of a folder,
progress.py the progress bar.

For a file on a server, :func:`load` looks in the user's cache, in the set of its folder and beside it, and
writes a new index to the cache. Only the modes "write" and "rebuild" write to the server.

Other results about a file (where its keys are, say) go to the cache by :func:`remember`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from ...errors import BatchplantError, OptionError
from .. import NOTE_ERRORS, MappedSource, Source, beside, is_remote, open_source, side_car, tree
from ..remote.source import LEAST
from . import sets, sidecar
from .progress import Report, reporting
from .sets import Member, Seen, prepare
from .sidecar import DTYPES, Arrays, Draft, Facts, FileGroup, Index, SideCar, TooLongError, draft_path

__all__ = [
    "MODES",
    "SET",
    "SIDE_CAR",
    "SUFFIX",
    "Arrays",
    "Build",
    "Facts",
    "FileGroup",
    "Index",
    "IndexTuning",
    "Member",
    "Report",
    "Seen",
    "combine",
    "existing",
    "forget",
    "kept_about",
    "listed",
    "load",
    "places",
    "prepare",
    "recall",
    "remember",
    "remove",
    "watching",
]

SUFFIX = ".bpindex"
SIDE_CAR = "{name}" + SUFFIX
SET = sets.NAME
MODES = ("auto", "write", "memory", "rebuild")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexTuning:
    """Numbers of this process's indexes: they change where an index is, never what is in it."""

    # Scanning a smaller file, local or on a server, is faster than maintaining an index.
    min_indexed_bytes: int = 8 << 20
    min_remote_bytes: int = LEAST
    # A folder of fewer shards is opened at once: that is quick, and tells what is wrong with one of them.
    min_shared_files: int = 64
    # Seconds to wait for another process that is building the same index.
    wait_seconds: float = 120.0


tuning = IndexTuning()

Build = Callable[[Source, Report], tuple[Arrays, Facts]]
# The same, with the index that the file had when it was shorter, and its size then.
Grow = Callable[[Source, Report, Index, int], tuple[Arrays, Facts]]


_LOCAL = threading.local()


def load(
    source: Source,
    kind: str,
    build: Build,
    *,
    mode: str = "auto",
    version: int = 1,
    check: Callable[[Index], bool] | None = None,
    grow: Grow | None = None,
) -> Index:
    """Return the index of a file: from its side-car if that is fresh, else by ``build(source, report)``.

    ``build`` scans the whole file, returns (arrays, facts), and calls ``report(bytes_done)`` now and then,
    which may raise an exception to stop it. ``kind`` names the scanner, ``version`` its layout of arrays and
    facts. ``check``: whether the reader accepts a side-car; otherwise it is made anew. Offsets in a side-car
    are no more to be trusted than those in any other file. ``grow``: like ``build``, for a file to which
    something was appended; it gets the older index and scans only the new part.

    ``mode``: "auto" uses a fresh side-car, else builds, and writes one unless the file is small; "write"
    writes also for small files; "rebuild" always builds and writes; "memory" neither reads nor writes.
    """
    if mode not in MODES:
        raise OptionError(f"index is one of {', '.join(MODES)}, not {mode!r}", path=source.path)
    car = SideCar(source, kind, version, check)
    if grow is not None and mode in ("auto", "write") and isinstance(source, MappedSource):
        build = functools.partial(_scan_appended, car, build, grow)
    seen: list[Seen] | None = getattr(_LOCAL, "seen", None)
    if seen is not None:
        car.stamp()
    index, built = _load(car, build, mode, combined=bool(getattr(_LOCAL, "combined", False)))
    index.built = built is not None
    if seen is not None:
        head = source.view(0, min(sets.HEAD_BYTES, source.size)).copy()
        seen.append(Seen(index, car, head, not index.built or car.unchanged()))
    return index


def listed(path: str, mode: str) -> None:
    """Load an empty index of a file that needs none, so that :func:`watching` sees the file."""
    with contextlib.closing(open_source(path)) as source:
        load(source, "listed", lambda source, report: ({}, {}), mode=mode)


def _scan_appended(
    car: SideCar, build: Build, grow: Grow, source: Source, report: Report
) -> tuple[Arrays, Facts]:
    """Scan a file; if it was shorter when it was last scanned, scan only the new part."""
    for path in places(source.path):
        shorter = car.read_shorter(path)
        if shorter is not None:
            # The file may have changed otherwise; then the whole scan gives the proper error.
            with contextlib.suppress(BatchplantError, *NOTE_ERRORS):
                return grow(source, report, *shorter)
    return build(source, report)


def _load(car: SideCar, build: Build, mode: str, combined: bool) -> tuple[Index, Index | None]:
    """Return the index, and what was built for it; ``combined``: it goes into a set, and nowhere else."""
    source = car.source
    if mode == "memory":
        built = _built(source, build)
        return built, built
    if not is_remote(source.path):
        index = _find(car, combined) if mode != "rebuild" else None
        return (index, None) if index is not None else _build_and_write(car, build, mode, combined)
    scanned: Index | None = None
    # Only modes that the user asks for write to a server.
    writes = mode != "auto" and not combined
    index = _find_remote(car, only_remote=mode != "auto") if mode != "rebuild" else None
    if index is not None and not (index.copied and writes):
        if index.copied:
            _keep(car, index)
        return index, None
    if index is None:
        index, scanned = _build_and_write(
            car, build, "rebuild" if mode == "rebuild" else "auto", combined=False
        )
    if writes:
        url = beside(source.path, SIDE_CAR)
        try:
            index.stored, index.place, index.sent = car.put(url, index), str(url), True
        except BatchplantError as error:
            index.remark = str(error)
            _keep(car, index)
    return index, scanned


def _find(car: SideCar, combined: bool) -> Index | None:
    """Return a fresh index of a local file; ``combined``: one in the set of its folder goes first."""

    def in_set() -> Index | None:
        index_set = sets.of(car.source.path)
        return None if index_set is None else index_set.find(car)

    index = in_set() if combined else None
    for path in places(car.source.path):
        index = index or car.read(path)
    return index or (None if combined else in_set())


def _find_remote(car: SideCar, *, only_remote: bool) -> Index | None:
    """Return a fresh index of a file on a server; ``only_remote``: only one that is on the server too."""
    source = car.source
    for path in () if only_remote else places(source.path):
        index = car.read(path)
        if index is not None:
            return index
    listed_set = sets.of(source.path)
    remote_index = None if listed_set is None else listed_set.find(car)
    remote_index = remote_index or car.read(beside(source.path, SIDE_CAR))
    # The folder was not listed. Asking for a set costs little compared with scanning the object.
    if (
        remote_index is None
        and listed_set is None
        and tree.listed(source.path.rpartition("/")[0]) is None
        and source.size > tuning.min_remote_bytes
    ):
        requested_set = sets.of(source.path, ask=True)
        remote_index = None if requested_set is None else requested_set.find(car)
    return remote_index


def _build_and_write(car: SideCar, build: Build, mode: str, combined: bool) -> tuple[Index, Index | None]:
    """Scan a file, and write its index to the first place that takes it; return it, and what was built."""
    paths = [] if combined else places(car.source.path)
    return _written(car, build, mode, paths)


def _written(car: SideCar, build: Build, mode: str, paths: list[Path]) -> tuple[Index, Index | None]:
    """Do the same for these paths."""
    source, built = car.source, None
    small = tuning.min_remote_bytes if is_remote(source.path) else tuning.min_indexed_bytes
    if (mode == "auto" and source.size < small) or (paths and car.stamp() is None):
        paths = []
    for path in paths:
        try:
            draft = Draft(path, tuning.wait_seconds)
        except TooLongError:
            break
        # A path that is read-only, full, or cannot lock: try the next one.
        except OSError:
            continue
        with draft:
            # Another process may have written it while this one waited for the lock.
            index = None if mode == "rebuild" else car.read(path)
            if index is not None:
                return index, built
            built = built or _built(source, build)
            with contextlib.suppress(OSError):
                return (car.read(path) if car.write(draft, built) else None) or built, built
    built = built or _built(source, build)
    return built, built


def remember(
    source: Source,
    kind: str,
    about: str,
    build: Build,
    *,
    mode: str = "auto",
    version: int = 1,
    check: Callable[[Index], bool] | None = None,
) -> Index:
    """Return what ``build`` finds out about a file besides its index: from the user's cache if that is fresh.

    ``about`` distinguishes several results about one file. Nothing is ever written beside the file, and for a
    small file only where ``mode`` asks for it. The rest is as with :func:`load`.
    """
    car, paths = SideCar(source, kind, version, check), _result_paths(source, kind, about)
    recalled = _recalled(car, paths) if mode != "rebuild" else None
    return recalled or _written(car, build, mode, paths)[0]


def recall(
    source: Source,
    kind: str,
    about: str,
    *,
    mode: str = "auto",
    version: int = 1,
    check: Callable[[Index], bool] | None = None,
) -> Index | None:
    """Return what :func:`remember` has put into the cache, if that is fresh."""
    if mode == "auto" and source.size < tuning.min_indexed_bytes:
        return None
    return _recalled(SideCar(source, kind, version, check), _result_paths(source, kind, about))


def _recalled(car: SideCar, paths: list[Path]) -> Index | None:
    return next(filter(None, map(car.read, paths)), None)


def _result_paths(source: Source, kind: str, about: str) -> list[Path]:
    """Return the paths where a result about a file is stored."""
    name = hashlib.blake2b(f"{kind}\0{about}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return [folder / (name + SUFFIX) for folder in _result_folders(source.path)]


def _result_folders(path: str) -> list[Path]:
    """Return the folder of all results about a file, if there is a cache."""
    return [index_path.with_suffix(".d") for index_path in places(path, beside_it=False)]


def kept_about(path: str) -> tuple[str, int] | None:
    """Return the folder of results about a dataset, fresh or not, and its size; None if there are none."""
    for folder in _result_folders(path):
        sizes = [index_path.stat().st_size for index_path in folder.glob("*" + SUFFIX)]
        if sizes:
            return str(folder), sum(sizes)
    return None


def _keep(car: SideCar, index: Index) -> None:
    """Write an index to the first place of this machine that takes it, with the stamp of its file."""
    for path in places(car.source.path):
        with contextlib.suppress(OSError, TooLongError), Draft(path, tuning.wait_seconds) as draft:
            if car.stamp() is not None and car.write(draft, index):
                index.place, index.stored = str(path), path.stat().st_size
                return


@contextlib.contextmanager
def watching(*, combined: bool = False) -> Iterator[list[Seen]]:
    """Within it, collect every index that this thread loads; ``combined``: they are to go into a set."""
    seen: list[Seen] = []
    _LOCAL.seen, _LOCAL.combined = seen, combined
    try:
        yield seen
    finally:
        _LOCAL.seen, _LOCAL.combined = None, False


def combine(members: Iterable[Member]) -> str | None:
    """Write one index for files of a folder.

    Return why it could not be written, or None; then each file gets an index of its own on this machine.
    """
    written = [sets.Member(*member) for member in members if member[0].lasts]
    if not written:
        return None
    set_path = str(sets.place_for(written[0].seen.car.source.path))
    if any(member.seen.index.place != set_path for member in written):
        try:
            sets.write(sets.place_for(written[0].seen.car.source.path), written)
        except (OSError, BatchplantError, TooLongError) as error:
            for member in written:
                if member.seen.index.place is None:
                    _keep(member.seen.car, member.seen.index)
            return str(error) or "another process is at work on it"
    for member in written:
        member.seen.index.sent = member.seen.index.place != set_path
        member.seen.index.place = set_path
        member.seen.index.stored = sum(array.nbytes for array in member.seen.index.arrays.values())
    return None


def forget(paths: Iterable[str]) -> None:
    """Remove files from the indexes of sets."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(sets.place_for(path), []).append(os.path.basename(path))
    for set_path, names in folders.items():
        sets.drop(set_path, names)


def places(path: str, *, beside_it: bool = True) -> list[Path]:
    """Return the paths of a file's index on this machine, the best one first.

    Beside the file (if ``beside_it``), else in the user's cache. The variable BATCHPLANT_INDEX_DIR names a
    folder for all.
    """
    full = path if is_remote(path) else os.path.abspath(path)
    name = hashlib.blake2b(os.fsencode(full), digest_size=16).hexdigest() + SUFFIX
    folder = os.environ.get("BATCHPLANT_INDEX_DIR")
    if folder:
        return [Path(folder, name)]
    candidates = [] if is_remote(path) or not beside_it else [side_car(full, SIDE_CAR)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A user without a home has no cache.
    return [*candidates, Path(cache, "batchplant", "index", name)] if os.path.isabs(cache) else candidates


def existing(path: str) -> tuple[str, int] | None:
    """Return where a file has an index, fresh or not, and its size."""
    if is_remote(path):
        url = beside(path, SIDE_CAR)
        if tree.is_file(url):
            return str(url), tree.size_below(url)
    # An index on the server serves all machines; a local one only this machine.
    local = [
        (str(index_path), index_path.stat().st_size) for index_path in places(path) if index_path.is_file()
    ]
    if local and not is_remote(path):
        return local[0]
    name, index_set = os.path.basename(path), sets.of(path, ask=True)
    if index_set is not None and index_set.entry(name) is not None:
        return index_set.place, index_set.stored(name)
    return local[0] if local else None


def discard(path: str, index_path: str) -> None:
    """Remove the side-car of a file, whose content is in the index of a set by now."""
    with contextlib.suppress(OSError, BatchplantError):
        if is_remote(index_path):
            # The path of the file knows how to reach the server.
            sidecar.delete(beside(path, SIDE_CAR))
        else:
            Path(index_path).unlink(missing_ok=True)


def remove(path: str) -> list[str]:
    """Remove every index of a file, also drafts of killed processes; return what was removed."""
    removed = []
    for index_path in (
        *places(path),
        *(remembered for folder in _result_folders(path) for remembered in folder.glob("*" + SUFFIX)),
    ):
        if draft_path(index_path).is_file():
            # Where a process is at work on it, it stays.
            with contextlib.suppress(OSError, TooLongError), Draft(index_path, wait=0):
                removed.append(str(draft_path(index_path)))
        if index_path.is_file():
            index_path.unlink(missing_ok=True)
            removed.append(str(index_path))
    if is_remote(path) and tree.is_file(beside(path, SIDE_CAR)):
        sidecar.delete(beside(path, SIDE_CAR))
        removed.append(str(beside(path, SIDE_CAR)))
    return removed


def _built(source: Source, build: Build) -> Index:
    with reporting(source) as report:
        arrays, facts = build(source, report)
    stored: Arrays = {}
    for name, array in arrays.items():
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view()
        if little_endian.dtype.str not in DTYPES:
            raise TypeError(f"an index cannot hold {little_endian.dtype} ({name})")
        little_endian.setflags(write=False)
        stored[name] = little_endian
    # As read from a side-car: lists instead of tuples, texts as keys.
    return Index(stored, json.loads(json.dumps(facts)))
