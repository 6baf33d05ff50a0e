"""The side-car index: what scanning a file once found out, remembered as ``NAME.bpindex`` beside it.

A format that has to scan its file calls :func:`load`. sidecar.py says what stands in the file and how it is
written; progress.py has the bar.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ...errors import OptionError
from .. import Source, is_remote, side_car
from .progress import Report, reporting
from .sidecar import DTYPES, Arrays, Draft, Facts, Index, SideCar, TooLongError, draft_path

__all__ = [
    "MODES", "SIDE_CAR", "SMALL", "SUFFIX", "Arrays", "Build", "Facts", "Index", "Report",
    "existing", "load", "places", "remove", "watching",
]  # fmt: skip

SUFFIX = ".bpindex"
SIDE_CAR = "{name}" + SUFFIX
MODES = ("auto", "write", "memory", "rebuild")
# Scanning less than this is quicker than looking after another file.
SMALL = 8 << 20

Build = Callable[[Source, Report], tuple[Arrays, Facts]]

_LOCAL = threading.local()


def load(
    source: Source,
    kind: str,
    build: Build,
    *,
    mode: str = "auto",
    version: int = 1,
    check: Callable[[Index], bool] | None = None,
) -> Index:
    """The index of a file: from its side-car where that is fresh, else by ``build(source, report)``.

    ``build`` scans the whole file, returns (arrays, facts), and calls ``report(bytes_done)`` now and then,
    from where an exception may come to stop it. ``kind`` names the scanner, ``version`` its layout of arrays
    and facts. ``check``: whether a side-car makes sense to the reader; where not, it is made anew. Offsets
    out of a side-car are no more to be trusted than those in any other file.

    ``mode``: "auto" uses a fresh side-car, else builds, and writes one where the file is not small; "write"
    writes also for small files; "rebuild" builds and writes in any case; "memory" neither reads nor writes.
    """
    if mode not in MODES:
        raise OptionError(f"index is one of {', '.join(MODES)}, not {mode!r}", path=source.path)
    car = SideCar(source, kind, version, check)
    found, built = _load(car, build, mode)
    found.built = built is not None
    seen = getattr(_LOCAL, "seen", None)
    if seen is not None:
        seen.append(found)
    return found


def _load(car: SideCar, build: Build, mode: str) -> tuple[Index, Index | None]:
    """The index, and what was built for it."""
    source, built = car.source, None
    where = [] if mode == "memory" else places(source.path)
    if mode != "rebuild":
        for place in where:
            found = car.read(place)
            if found is not None:
                return found, None
    if (mode == "auto" and source.size < SMALL) or (where and car.stamp() is None):
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


@contextlib.contextmanager
def watching() -> Iterator[list[Index]]:
    """Collects every index that this thread loads within it."""
    seen: list[Index] = []
    _LOCAL.seen = seen
    try:
        yield seen
    finally:
        _LOCAL.seen = None


def places(path: str) -> list[Path]:
    """Where the index of a file may lie, the best place first.

    Beside the file, else in the user's cache. The variable BATCHPLANT_INDEX_DIR names a folder for all.
    """
    full = path if is_remote(path) else os.path.abspath(path)
    name = hashlib.blake2b(os.fsencode(full), digest_size=16).hexdigest() + SUFFIX
    folder = os.environ.get("BATCHPLANT_INDEX_DIR")
    if folder:
        return [Path(folder, name)]
    found = [] if is_remote(path) else [side_car(full, SIDE_CAR)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A user without a home has no cache.
    return [*found, Path(cache, "batchplant", "index", name)] if os.path.isabs(cache) else found


def existing(path: str) -> Path | None:
    """The side-car that a file has, whether it is fresh or not."""
    return next((one for one in places(path) if one.is_file()), None)


def remove(path: str) -> list[Path]:
    """Remove every index of a file, also what a killed process left; returns what was removed."""
    found = []
    for place in places(path):
        if draft_path(place).is_file():
            # Where a process is at work on it, it stays.
            with contextlib.suppress(TooLongError), Draft(place, wait=0):
                found.append(draft_path(place))
        if place.is_file():
            place.unlink(missing_ok=True)
            found.append(place)
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
