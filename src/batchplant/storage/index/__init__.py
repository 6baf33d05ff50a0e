"""The index of a file: what scanning it once found out, remembered as ``NAME.bpindex`` beside it.

A format that has to scan its file calls :func:`load`. container.py says what stands in such a file,
sidecar.py whether it is fresh and how it is written, sets.py has the one for many files of a folder,
progress.py the bar.

Of a file on a server, :func:`load` looks in the user's cache, in the set of its folder and beside it, and
puts what it scanned into the cache. Only the modes "write" and "rebuild" write to the server.

What else was found out about a file (where its keys are, say) goes to the cache by :func:`remember`; of a
dataset that is several files, whole.py says what tells whether it has changed.
"""

from __future__ import annotations

import contextlib
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
from .container import DTYPES, Arrays, Facts, Index
from .progress import Report, reporting
from .sets import Member, Seen, prepare
from .sidecar import Draft, SideCar, TooLongError, draft_path
from .whole import Whole

__all__ = [
    "MODES", "SET", "SIDE_CAR", "SMALL", "SUFFIX", "Arrays", "Build", "Facts", "Index", "Member", "Report",
    "Seen", "Whole", "combine", "existing", "forget", "kept_about", "listed", "load", "places", "prepare",
    "recall", "remember", "remove", "watching",
]  # fmt: skip

SUFFIX = ".bpindex"
SIDE_CAR = "{name}" + SUFFIX
SET = sets.NAME
MODES = ("auto", "write", "memory", "rebuild")
# Scanning less than this is quicker than looking after another file.
SMALL = 8 << 20

Build = Callable[[Source, Report], tuple[Arrays, Facts]]
# The same, from the index that the file had when it was only so long.
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
    """The index of a file: from its side-car where that is fresh, else by ``build(source, report)``.

    ``build`` scans the whole file, returns (arrays, facts), and calls ``report(bytes_done)`` now and then,
    from where an exception may come to stop it. ``kind`` names the scanner, ``version`` its layout of arrays
    and facts. ``check``: whether a side-car makes sense to the reader; where not, it is made anew. Offsets
    out of a side-car are no more to be trusted than those in any other file. ``grow``: as ``build``, for a
    file to which something was appended; it gets the older index and looks only at what is new.

    ``mode``: "auto" uses a fresh side-car, else builds, and writes one where the file is not small; "write"
    writes also for small files; "rebuild" builds and writes in any case; "memory" neither reads nor writes.
    """
    if mode not in MODES:
        raise OptionError(f"index is one of {', '.join(MODES)}, not {mode!r}", path=source.path)
    car = SideCar(source, kind, version, check)
    if grow is not None and mode in ("auto", "write") and isinstance(source, MappedSource):
        build = functools.partial(_longer, car, build, grow)
    seen: list[Seen] | None = getattr(_LOCAL, "seen", None)
    if seen is not None:
        car.stamp()
    found, built = _load(car, build, mode, combined=bool(getattr(_LOCAL, "combined", False)))
    found.built = built is not None
    if seen is not None:
        head = source.view(0, min(sets.HEAD, source.size)).copy()
        seen.append(Seen(found, car, head, not found.built or car.unchanged()))
    return found


def listed(path: str, mode: str) -> None:
    """Have a file that needs no index known to who watches, as one of which there is nothing to remember."""
    with contextlib.closing(open_source(path)) as source:
        load(source, "listed", lambda source, report: ({}, {}), mode=mode)


def _longer(car: SideCar, build: Build, grow: Grow, source: Source, report: Report) -> tuple[Arrays, Facts]:
    """What a scan finds: where the file was shorter when it was last scanned, a scan of the rest."""
    for place in places(source.path):
        shorter = car.read_shorter(place)
        if shorter is not None:
            # Maybe it is no longer what it was; the whole scan says so in its own words.
            with contextlib.suppress(BatchplantError, *NOTE_ERRORS):
                return grow(source, report, *shorter)
    return build(source, report)


def _load(car: SideCar, build: Build, mode: str, combined: bool) -> tuple[Index, Index | None]:
    """The index, and what was built for it; ``combined``: it goes into a set, and nowhere else."""
    source = car.source
    if mode == "memory":
        built = _built(source, build)
        return built, built
    if not is_remote(source.path):
        found = _find(car, combined) if mode != "rebuild" else None
        return (found, None) if found is not None else _made(car, build, mode, combined)
    scanned: Index | None = None
    # A server is written to only by those who ask for it.
    writes = mode != "auto" and not combined
    found = _find_remote(car, there=mode != "auto") if mode != "rebuild" else None
    if found is not None and not (found.copied and writes):
        if found.copied:
            _keep(car, found)
        return found, None
    if found is None:
        found, scanned = _made(car, build, "rebuild" if mode == "rebuild" else "auto", combined=False)
    if writes:
        place = beside(source.path, SIDE_CAR)
        try:
            found.stored, found.place, found.sent = car.put(place, found), str(place), True
        except BatchplantError as error:
            found.remark = str(error)
            _keep(car, found)
    return found, scanned


def _find(car: SideCar, combined: bool) -> Index | None:
    """A fresh index of a local file; ``combined``: one in the set of its folder goes first."""

    def in_set() -> Index | None:
        there = sets.of(car.source.path)
        return None if there is None else there.find(car)

    found = in_set() if combined else None
    for place in places(car.source.path):
        found = found or car.read(place)
    return found or (None if combined else in_set())


def _find_remote(car: SideCar, *, there: bool) -> Index | None:
    """A fresh index of a file on a server; ``there``: only one that lies on the server too."""
    source = car.source
    for place in () if there else places(source.path):
        kept = car.read(place)
        if kept is not None:
            return kept
    listed = sets.of(source.path)
    found = None if listed is None else listed.find(car)
    found = found or car.read(beside(source.path, SIDE_CAR))
    # Nobody listed the folder. To ask for a set costs little where the object would have to be scanned.
    if found is None and listed is None and tree.listed(_folder(source.path)) is None and source.size > LEAST:
        asked = sets.of(source.path, ask=True)
        found = None if asked is None else asked.find(car)
    return found


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _made(car: SideCar, build: Build, mode: str, combined: bool) -> tuple[Index, Index | None]:
    """What a scan finds, written to the first place that takes it; and what was built here for it."""
    where = [] if combined else places(car.source.path)
    return _written(car, build, mode, where)


def _written(car: SideCar, build: Build, mode: str, where: list[Path]) -> tuple[Index, Index | None]:
    """The same, for these places."""
    source, built = car.source, None
    small = LEAST if is_remote(source.path) else SMALL
    if (mode == "auto" and source.size < small) or (where and car.stamp() is None):
        where = []
    for place in where:
        try:
            draft = Draft(place)
        except TooLongError:
            break
        # A place that is read-only, full, or cannot lock: the next one.
        except OSError:
            continue
        with draft:
            # Another process may have made it while this one waited for the lock.
            found = None if mode == "rebuild" else car.read(place)
            if found is not None:
                return found, built
            built = built or _built(source, build)
            with contextlib.suppress(OSError):
                return (car.read(place) if car.write(draft, built) else None) or built, built
    built = built or _built(source, build)
    return built, built


def remember(
    source: Source,
    kind: str,
    about: str,
    build: Build,
    *,
    version: int = 1,
    check: Callable[[Index], bool] | None = None,
) -> Index:
    """What ``build`` finds out about a file besides its index: from the user's cache where that is fresh.

    ``about`` tells apart what one file has several of. Nothing is ever written beside the file, and of a
    small file nothing at all. The rest is as with :func:`load`.
    """
    car, where = SideCar(source, kind, version, check), _noted(source, kind, about)
    return _recalled(car, where) or _written(car, build, "auto", where)[0]


def recall(
    source: Source, kind: str, about: str, *, version: int = 1, check: Callable[[Index], bool] | None = None
) -> Index | None:
    """What :func:`remember` has put into the cache, where that is fresh."""
    small = source.size < SMALL
    return None if small else _recalled(SideCar(source, kind, version, check), _noted(source, kind, about))


def _recalled(car: SideCar, where: list[Path]) -> Index | None:
    for place in where:
        found = car.read(place)
        if found is not None:
            return found
    return None


def _noted(source: Source, kind: str, about: str) -> list[Path]:
    """Where something about a file is remembered."""
    name = hashlib.blake2b(f"{kind}\0{about}".encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return [folder / (name + SUFFIX) for folder in _remembered(source.path)]


def _remembered(path: str) -> list[Path]:
    """The folder in which everything lies that is remembered about a file, where there is a cache."""
    return [place.with_suffix(".d") for place in places(path, beside_it=False)]


def kept_about(path: str) -> tuple[str, int] | None:
    """Where something is remembered about a dataset, fresh or not, and its size; None where nothing is."""
    for folder in _remembered(path):
        sizes = [one.stat().st_size for one in folder.glob("*" + SUFFIX)]
        if sizes:
            return str(folder), sum(sizes)
    return None


def _keep(car: SideCar, index: Index) -> None:
    """Write an index to the first place of this machine that takes it, with the stamp of its file."""
    for place in places(car.source.path):
        with contextlib.suppress(OSError, TooLongError), Draft(place) as draft:
            if car.stamp() is not None and car.write(draft, index):
                index.place, index.stored = str(place), place.stat().st_size
                return


@contextlib.contextmanager
def watching(*, combined: bool = False) -> Iterator[list[Seen]]:
    """Collects every index that this thread loads within it; ``combined``: they are to go into a set."""
    seen: list[Seen] = []
    _LOCAL.seen, _LOCAL.combined = seen, combined
    try:
        yield seen
    finally:
        _LOCAL.seen, _LOCAL.combined = None, False


def combine(members: Iterable[Member]) -> str | None:
    """Write one index for files of a folder.

    Why it could not be written, where it could not; then each has one of its own on this machine.
    """
    found = [sets.Member(*one) for one in members if one[0].lasts]
    if not found:
        return None
    place = str(sets.place_for(found[0].seen.car.source.path))
    if any(one.seen.index.place != place for one in found):
        try:
            sets.write(sets.place_for(found[0].seen.car.source.path), found)
        except (OSError, BatchplantError, TooLongError) as error:
            for one in found:
                if one.seen.index.place is None:
                    _keep(one.seen.car, one.seen.index)
            return str(error) or "another process is at work on it"
    for one in found:
        one.seen.index.sent = one.seen.index.place != place
        one.seen.index.place = place
        one.seen.index.stored = sum(array.nbytes for array in one.seen.index.arrays.values())
    return None


def forget(paths: Iterable[str]) -> None:
    """Take files out of the indexes of sets."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(sets.place_for(path), []).append(os.path.basename(path))
    for place, names in folders.items():
        sets.drop(place, names)


def places(path: str, *, beside_it: bool = True) -> list[Path]:
    """Where the index of a file may lie on this machine, the best place first.

    Beside the file (unless that is not wanted), else in the user's cache. The variable BATCHPLANT_INDEX_DIR
    names a folder for all.
    """
    full = path if is_remote(path) else os.path.abspath(path)
    name = hashlib.blake2b(os.fsencode(full), digest_size=16).hexdigest() + SUFFIX
    folder = os.environ.get("BATCHPLANT_INDEX_DIR")
    if folder:
        return [Path(folder, name)]
    found = [] if is_remote(path) or not beside_it else [side_car(full, SIDE_CAR)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A user without a home has no cache.
    return [*found, Path(cache, "batchplant", "index", name)] if os.path.isabs(cache) else found


def existing(path: str) -> tuple[str, int] | None:
    """Where a file has an index, whether it is fresh or not, and its size."""
    if is_remote(path):
        place = beside(path, SIDE_CAR)
        if tree.is_file(place):
            return str(place), tree.size_below(place)
    # What lies on a server serves all machines; what lies here, this one.
    kept = [(str(here), here.stat().st_size) for here in places(path) if here.is_file()]
    if kept and not is_remote(path):
        return kept[0]
    name, found = os.path.basename(path), sets.of(path, ask=True)
    if found is not None and found.entry(name) is not None:
        return found.place, found.stored(name)
    return kept[0] if kept else None


def discard(path: str, place: str) -> None:
    """Remove the side-car of a file at this place, whose content is in the index of a set by now."""
    with contextlib.suppress(OSError, BatchplantError):
        if is_remote(place):
            # Which knows how to reach it.
            sidecar.delete(beside(path, SIDE_CAR))
        else:
            Path(place).unlink(missing_ok=True)


def remove(path: str) -> list[str]:
    """Remove every index of a file, also what a killed process left; returns what was removed."""
    found = []
    for place in (*places(path), *(one for folder in _remembered(path) for one in folder.glob("*" + SUFFIX))):
        if draft_path(place).is_file():
            # Where a process is at work on it, it stays.
            with contextlib.suppress(OSError, TooLongError), Draft(place, wait=0):
                found.append(str(draft_path(place)))
        if place.is_file():
            place.unlink(missing_ok=True)
            found.append(str(place))
    if is_remote(path) and tree.is_file(beside(path, SIDE_CAR)):
        sidecar.delete(beside(path, SIDE_CAR))
        found.append(str(beside(path, SIDE_CAR)))
    return found


def _built(source: Source, build: Build) -> Index:
    with reporting(source) as report:
        arrays, facts = build(source, report)
    made: Arrays = {}
    for name, array in arrays.items():
        one = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view()
        if one.dtype.str not in DTYPES:
            raise TypeError(f"an index cannot hold {one.dtype} ({name})")
        one.setflags(write=False)
        made[name] = one
    # As they would come out of a side-car: lists for tuples, texts for keys.
    return Index(made, json.loads(json.dumps(facts)))
