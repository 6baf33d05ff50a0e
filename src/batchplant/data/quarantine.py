"""Lists of bad samples: ``verify(…, quarantine=FILE)`` writes one, ``open(…, skip=FILE)`` leaves them out.

A list is JSON lines, one for each problem::

    {"path": "s3://b/train-3.tar", "sample": 17, "in_set": 3017, "field": "jpg", "offset": 812, "problem": …}

``sample`` counts within the file, ``in_set`` through all files that were verified; both are null for a
problem that is not one of a single sample. Files are known by their names, so a list is good for the same
files in another folder or bucket.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import DamagedError, Problem, exceptions_as, shown
from ..schema.columns import I64
from ..storage import NOTE_ERRORS, is_remote, parse_object, put_file, read_whole
from ..storage.remote import client_of, trying
from .concat import Concat
from .reader import Reader, View


class Location(NamedTuple):
    """Location of a sample: a file, its number there, and its number in all files."""

    path: str
    sample: int
    in_set: int


def locate(reader: Reader, sample: int) -> Location:
    """Return the file that a sample of a dataset lies in."""
    if isinstance(reader, View):
        return locate(reader.base, int(reader._base_rows(np.array([sample]))[0]))
    if isinstance(reader, Concat):
        part, row = reader.locate(sample)
        return locate(part, row)._replace(in_set=sample)
    return Location(reader.path, sample, sample)


def write(path: str | os.PathLike[str], reader: Reader | None, problems: Iterable[Problem]) -> None:
    """Write the list of a dataset's problems, atomically."""
    lines = [json.dumps(_entry(reader, problem), ensure_ascii=False) + "\n" for problem in problems]
    data = "".join(lines).encode("utf-8", "backslashreplace")
    path = os.fspath(path) if not isinstance(path, str) else path
    if not is_remote(path):
        put_file(path, data)
        return
    client, name = client_of(path)
    trying(lambda: client.put(name, data))


def _entry(reader: Reader | None, problem: Problem) -> dict[str, Any]:
    path, sample, in_set = problem.path, None, problem.sample
    if reader is not None and problem.sample is not None:
        path, sample, in_set = locate(reader, problem.sample)
    return {
        "path": None if path is None else shown(path),
        "sample": sample,
        "in_set": in_set,
        "field": problem.field,
        "offset": problem.offset,
        "problem": problem.message,
    }


def read(path: str) -> dict[str, set[int]]:
    """Return the bad samples of each file in a list."""
    samples_by_file: dict[str, set[int]] = {}
    offset = 0
    for line in read_whole(path).splitlines(keepends=True):
        if line.strip():
            with exceptions_as(
                DamagedError, "this is no list of bad samples", *NOTE_ERRORS, path=path, offset=offset
            ):
                entry = parse_object(line)
                file, sample = entry["path"], entry["sample"]
                if sample is not None:
                    if type(sample) is not int or not isinstance(file, str):
                        raise ValueError("path is text, and sample a number")
                    samples_by_file.setdefault(file, set()).add(sample)
        offset += len(line)
    return samples_by_file


def without(reader: Reader, path: str) -> Reader:
    """Return a dataset without the samples on a list; warns if the dataset lacks some of them."""
    sound = np.ones(len(reader), dtype=np.bool_)
    sound[bad_samples(reader, path)] = False
    return reader if sound.all() else reader.subset(np.flatnonzero(sound))


def bad_samples(reader: Reader, path: str) -> I64:
    """Return the samples of a dataset that are on a list; warns if the dataset lacks some of them."""
    if isinstance(reader, View):
        base_rows = reader._base_rows(np.arange(len(reader)))
        return np.flatnonzero(np.isin(base_rows, bad_samples(reader.base, path)))
    shards = list(_shards(reader))
    by_name: dict[str, list[int]] = {}
    for number, (shard, _, _) in enumerate(shards):
        by_name.setdefault(_parts(shard)[-1], []).append(number)
    bad: list[int] = []
    unknown = 0
    for file, numbers in read(path).items():
        nearest = _nearest(_parts(file), by_name, shards)
        first, length = (0, 0) if nearest is None else shards[nearest][1:]
        rows = [first + number for number in numbers if 0 <= number < length]
        bad += rows
        unknown += len(numbers) - len(rows)
    if unknown:
        warnings.warn(
            f"{shown(path)}: {unknown:,} of the samples to skip are not in {shown(reader.path)}: no such "
            "file, or fewer samples",
            stacklevel=4,
        )
    return np.unique(np.array(bad, dtype=np.int64))


def _shards(reader: Reader, first: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield the files of a dataset: path, number of the first sample, and samples."""
    if isinstance(reader, Concat):
        for part in reader.readers:
            yield from _shards(part, first)
            first += len(part)
    else:
        yield reader.path, first, len(reader)


def _parts(path: str) -> list[str]:
    return shown(path).rstrip("/").split("/")


def _nearest(
    parts: list[str], by_name: dict[str, list[int]], shards: list[tuple[str, int, int]]
) -> int | None:
    """Return the file of this name; of several, the one that shares most folders; None if that is open."""
    common_depth = {}
    for number in by_name.get(parts[-1], []):
        pairs = zip(reversed(parts), reversed(_parts(shards[number][0])), strict=False)
        common_depth[number] = next((depth for depth, (a, b) in enumerate(pairs) if a != b), len(parts))
    best = [number for number in common_depth if common_depth[number] == max(common_depth.values())]
    return best[0] if len(best) == 1 else None
