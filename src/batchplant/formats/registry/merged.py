"""Many files of one folder, opened by the index that they share: none is looked at before it is read.

A folder of a hundred thousand files costs one listing, their sizes and times, and the index
(storage/index/sets.py), which says how many samples of which fields each has. Those that changed since, or
are new, are opened at once, as all are where there is no such index. One that changes later is noticed when
it is opened to be read.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...data.concat import Unopened
from ...data.reader import Reader
from ...data.writer import Writer
from ...schema.columns import I64
from ...storage import index, is_remote, limits, recover, tree
from ...storage.files import stat_files
from ...storage.index import sets
from ...storage.index.progress import in_parallel
from ...storage.patterns import braces, naturally
from .._table import OUTLINES
from ..base.format import Outline, Probe
from .find import Found, find_format
from .known import get_format, outlines, own_format, suffixed

# Fewer are opened at once: that is quick, and tells at once what is wrong with one of them.
MANY = 64


class Files(Unopened):
    """Files of one folder; ``ready``: those that are open, by number."""

    def __init__(
        self,
        before: str,
        names: Sequence[str],
        lengths: I64,
        kinds: I64,
        known: Sequence[sets.Kind],
        ready: Mapping[int, Reader],
    ) -> None:
        super().__init__(lengths, kinds, [one.schema for one in known])
        self._before, self._names, self._ready = before, names, ready
        self._formats = [one.label for one in known]

    def path(self, number: int) -> str:
        return self._before + self._names[number]

    def _open(self, number: int) -> Reader:
        if number in self._ready:
            return self._ready[number]
        reader: Reader = get_format(self._formats[self.kinds[number]]).reader(self.path(number))
        return reader

    def close(self) -> None:
        super().close()
        for one in self._ready.values():
            one.close()


def files(given: Sequence[str], format: str | None, open_one: Callable[[Found], Reader]) -> Files | None:
    """What lies behind these paths, where it is many files whose folder tells enough of them; else None."""
    wanted = _wanted(given)
    if wanted is None or len(wanted.names) < MANY:
        return None
    there = sets.of(wanted.before + index.SET)
    listed = None if there is None else there.listed
    if there is None or listed is None:
        return None
    folder = Folder(wanted, there, listed)
    names = folder.shards()
    if names is None or len(names) < MANY:
        return None
    sizes, mtimes = stat_files(wanted.before, names)
    # What is no file, or is not there, is looked at as it always is.
    if (sizes < 0).any():
        return None
    rows = np.array(list(map(there.numbers.get, names, itertools.repeat(-1))), dtype=np.int64)
    known = (rows >= 0) & (sizes == listed.sizes[rows]) & (mtimes == listed.mtimes[rows])
    known &= listed.samples[rows] >= 0
    usable = np.array([*(_is_usable(one.label, format) for one in listed.known), False])
    known &= usable[listed.kinds[rows]]
    changed = set(folder.changed_beside())
    if changed:
        known &= [name not in changed for name in names]
    # Whoever shuffles takes a number for each sample, so many have to be there.
    likely = 8 * listed.samples[rows[known]].sum(dtype=np.float64) <= limits.allowed(int(sizes.sum()))
    if not likely or np.count_nonzero(known) < MANY:
        return None
    others, named = np.flatnonzero(~known).tolist(), None if format is None else get_format(format)
    readers = in_parallel(open_one, [Found(wanted.before + names[one], named) for one in others])
    lengths, kinds, every = listed.samples[rows], listed.kinds[rows], list(listed.known)
    for number, reader in zip(others, readers, strict=True):
        schemas = [one.schema for one in every]
        if reader.schema not in schemas:
            schemas.append(reader.schema)
            every.append(sets.Kind("", reader.schema))
        lengths[number], kinds[number] = len(reader), schemas.index(reader.schema)
    return Files(wanted.before, names, lengths, kinds, every, dict(zip(others, readers, strict=True)))


class Wanted(NamedTuple):
    """Files of one folder. ``before``: what stands before their names in their paths; ``listing``: all names.

    ``how``: whether they were named one by one ("names"), match a "glob", or are all of the "folder".
    """

    before: str
    listing: list[str]
    names: list[str]
    how: str


def _wanted(given: Sequence[str]) -> Wanted | None:
    """The files behind paths, a glob, braces or a folder, if all are in one folder that has an index."""
    if any(map(is_remote, given)):
        return None
    first = given[0]
    if len(given) == 1 and os.path.isfile(first):
        return None
    if len(given) == 1 and os.path.isdir(first):
        return _found(os.path.join(first, ""), "*", "folder")
    if len(given) == 1 and tree.has_magic(first):
        before, pattern = _split(first)
        plain = not tree.has_magic(before) and "**" not in pattern and "{" not in first
        return _found(before, pattern, "glob") if plain and not os.path.exists(first) else None
    paths = list(braces(first)) if len(given) == 1 else list(given)
    if len(paths) < MANY or any("{" in one or "\0" in one or tree.has_magic(one) for one in paths):
        return None
    splits = list(map(_split, paths))
    before = splits[0][0]
    if any(one != before for one, _ in splits) or not all(name for _, name in splits):
        return None
    listing = _listing(before)
    return None if listing is None else Wanted(before, listing, [name for _, name in splits], "names")


def _found(before: str, pattern: str, how: str) -> Wanted | None:
    listing = _listing(before)
    if listing is None:
        return None
    shown = listing if pattern.startswith(".") else [name for name in listing if not name.startswith(".")]
    return Wanted(before, listing, shown if pattern == "*" else fnmatch.filter(shown, pattern), how)


def _split(path: str) -> tuple[str, str]:
    before, slash, name = path.rpartition("/")
    return before + slash, name


def _listing(before: str) -> list[str] | None:
    """What lies in a folder that has an index; None where it has none."""
    if not os.path.isfile(before + index.SET):
        return None
    recover(before)
    return os.listdir(before or ".")


class Folder:
    """A folder of files with an index: which of them are the dataset, and which have changed."""

    def __init__(self, wanted: Wanted, there: sets.IndexSet, listed: sets.Listed) -> None:
        self._wanted, self._there, self._listed = wanted, there, listed

    def shards(self) -> list[str] | None:
        """The names of the dataset's files, in their order; None where other things lie there, too."""
        before, _, names, how = self._wanted
        if how == "names":
            return names
        numbers = self._there.numbers
        new = self._without_side_cars(set(names).difference(numbers) - {index.SET}, self._tails)
        # Those of other packages are looked for only where there is something that ours do not know.
        new = new and self._without_side_cars(new, _tails_of(outlines()))
        if how == "folder":
            # As find.py does it: what has no suffix of a format does not count.
            labels = {one.label for one in self._listed.known}
            formats = {name: one for name in new if (one := suffixed(name, outlines())) is not None}
            if len(labels) != 1 or not set(formats.values()) <= labels or self._is_dataset(before, new):
                return None
            new = set(formats)
        return naturally([*filter(numbers.__contains__, names), *new])

    @staticmethod
    def _is_dataset(before: str, others: set[str]) -> bool:
        """Whether the folder is one of another format; without other files, only of images and the like."""
        probe = Probe(os.path.dirname(before))
        if others:
            return find_format(probe) is not None
        return any(own_format(name).matches(probe) for name, one in OUTLINES.items() if one.media is not None)

    @functools.cached_property
    def _stems(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._there:
            found.setdefault(os.path.splitext(name)[0], []).append(name)
        return found

    @functools.cached_property
    def _tails(self) -> list[tuple[str, bool]]:
        return _tails_of(OUTLINES)

    def _without_side_cars(self, names: set[str], tails: list[tuple[str, bool]]) -> set[str]:
        """These names without those of files that belong to one of the index, or one of these."""
        every = names
        for tail, whole in tails:
            beside = [name for name in names if name.endswith(tail)]
            owners: Collection[str] = self._there.numbers if whole or not beside else self._stems
            stems = ((name, name[: -len(tail)]) for name in beside)
            names = names.difference(
                name for name, stem in stems if stem in owners or (whole and stem in every)
            )
        return names

    def changed_beside(self) -> Iterator[str]:
        """Files of the index beside which something has been written since, a schema, say."""
        # Those say nothing of samples and fields.
        plain = (index.SUFFIX, ".crc")
        tails = tuple(tail for tail, _ in self._tails if tail not in plain)
        beside = [name for name in self._wanted.listing if name.endswith(tails)]
        made = os.stat(self._there.place).st_mtime_ns
        for at in np.flatnonzero(stat_files(self._wanted.before, beside)[1] > made).tolist():
            for tail, whole in self._tails:
                if beside[at].endswith(tail):
                    stem = beside[at].removesuffix(tail)
                    yield from [stem] if whole else self._stems.get(stem, [])


def _tails_of(known: Mapping[str, Outline]) -> list[tuple[str, bool]]:
    """How names of files end that belong to others: behind the whole name, or behind its stem.

    The longest come first: these are of schemas, which many formats have beside every file.
    """
    templates = {*Writer.all_side_cars(), *(one for each in known.values() for one in each.side_cars)}
    tails = {(one.partition("}")[2], one.startswith("{name}")) for one in templates}
    return sorted(tails, key=lambda one: (-len(one[0]), one))


def _is_usable(label: str, format: str | None) -> bool:
    """Whether a file of this format can be opened by itself, and as the one that was named."""
    known = OUTLINES.get(label) or outlines().get(label)
    return known is not None and not known.has_parts and not known.describes and format in (None, label)
