"""Open a dataset: a file, several, or many files of one folder by the index that they share.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...data import hooks, quarantine
from ...data.concat import Concat, LazyReaders
from ...data.filters import parse_condition
from ...data.reader import Reader
from ...data.writer import Writer
from ...errors import DataError, NotFoundError, OptionError
from ...schema.columns import I64
from ...storage import handing, index, is_remote, limits, reached, recover, split_options, tree
from ...storage.files import stat_files
from ...storage.index import sets
from ...storage.index.progress import in_parallel
from ...storage.patterns import braces, naturally
from .._table import OUTLINES
from ..base.format import Outline, Probe
from ..base.options import accept, own_options
from .find import Candidate, files_of, find_format, get_format, outlines, own_format, suffixed

if TYPE_CHECKING:
    from ...data.expressions import Condition


# Files that are opened side by side, unless there are more cores: local ones, and those on a server.
AT_ONCE = (4, 16)
# URLs of servers that ship samples of a dataset; see loading.service.
SERVICE = "batchplant://"


class Files(LazyReaders):
    """Files of one folder; ``ready``: those that are open, by number."""

    def __init__(
        self,
        before: str,
        names: Sequence[str],
        lengths: I64,
        kinds: I64,
        file_kinds: Sequence[sets.Kind],
        ready: Mapping[int, Reader],
    ) -> None:
        super().__init__(lengths, kinds, [kind.schema for kind in file_kinds])
        self._before, self._names, self._ready = before, names, ready
        self._formats = [kind.label for kind in file_kinds]

    def path(self, number: int) -> str:
        return self._before + self._names[number]

    def _open(self, number: int) -> Reader:
        if number in self._ready:
            return self._ready[number]
        return get_format(self._formats[self.kinds[number]]).reader(self.path(number))

    def close(self) -> None:
        super().close()
        for reader in self._ready.values():
            reader.close()


def many_files(
    texts: Sequence[str], format: str | None, open_one: Callable[[Candidate], Reader]
) -> Files | None:
    """Return the files behind these paths if they are many and the index of their folder knows them."""
    listing = _list_folder(texts)
    if listing is None or len(listing.names) < index.tuning.min_shared_files:
        return None
    index_set = sets.of(listing.before + index.SET)
    listed = None if index_set is None else index_set.listed
    if index_set is None or listed is None:
        return None
    folder = Folder(listing, index_set, listed)
    names = folder.shards()
    if names is None or len(names) < index.tuning.min_shared_files:
        return None
    sizes, mtimes = stat_files(listing.before, names)
    # Missing files and folders go the usual way.
    if (sizes < 0).any():
        return None
    rows = np.array(list(map(index_set.numbers.get, names, itertools.repeat(-1))), dtype=np.int64)
    is_indexed = (rows >= 0) & (sizes == listed.sizes[rows]) & (mtimes == listed.mtimes[rows])
    is_indexed &= listed.samples[rows] >= 0
    usable = np.array([*(_is_usable(kind.label, format) for kind in listed.known), False])
    is_indexed &= usable[listed.kinds[rows]]
    changed = set(folder.changed_beside())
    if changed:
        is_indexed &= [name not in changed for name in names]
    # A shuffled order takes memory for each sample, so implausible counts are refused.
    likely = 8 * listed.samples[rows[is_indexed]].sum(dtype=np.float64) <= limits.allowed(int(sizes.sum()))
    if not likely or np.count_nonzero(is_indexed) < index.tuning.min_shared_files:
        return None
    unindexed, named = np.flatnonzero(~is_indexed).tolist(), None if format is None else get_format(format)
    readers = in_parallel(open_one, [Candidate(listing.before + names[row], named) for row in unindexed])
    lengths, kinds, every = listed.samples[rows], listed.kinds[rows], list(listed.known)
    for number, reader in zip(unindexed, readers, strict=True):
        schemas = [kind.schema for kind in every]
        if reader.schema not in schemas:
            schemas.append(reader.schema)
            every.append(sets.Kind("", reader.schema))
        lengths[number], kinds[number] = len(reader), schemas.index(reader.schema)
    return Files(listing.before, names, lengths, kinds, every, dict(zip(unindexed, readers, strict=True)))


class FolderListing(NamedTuple):
    """Selected files of one folder. ``before``: prefix of their paths; ``listing``: all names in the folder.

    ``grouping``: they were named one by one ("names"), match a "glob", or are all of the "folder".
    """

    before: str
    listing: list[str]
    names: list[str]
    grouping: str


def _list_folder(texts: Sequence[str]) -> FolderListing | None:
    """Return the files behind paths, a glob, braces or a folder, if all are in one folder with an index."""
    if any(map(is_remote, texts)):
        return None
    first = texts[0]
    if len(texts) == 1 and os.path.isfile(first):
        return None
    if len(texts) == 1 and os.path.isdir(first):
        return _select(os.path.join(first, ""), "folder", "*")
    if len(texts) == 1 and tree.has_magic(first):
        before, pattern = _split(first)
        plain = not tree.has_magic(before) and "**" not in pattern and "{" not in first
        return _select(before, "glob", pattern) if plain and not os.path.exists(first) else None
    paths = list(braces(first)) if len(texts) == 1 else list(texts)
    is_short = len(paths) < index.tuning.min_shared_files
    if is_short or any("{" in path or "\0" in path or tree.has_magic(path) for path in paths):
        return None
    splits = list(map(_split, paths))
    before = splits[0][0]
    if any(folder != before for folder, _ in splits) or not all(name for _, name in splits):
        return None
    return _select(before, "names", [name for _, name in splits])


def _select(before: str, grouping: str, chosen: str | list[str]) -> FolderListing | None:
    """Select files of a folder by a pattern or their names; None if the folder has no index."""
    if not os.path.isfile(before + index.SET):
        return None
    recover(before)
    listing = os.listdir(before or ".")
    if isinstance(chosen, str):
        shown = listing if chosen.startswith(".") else [name for name in listing if not name.startswith(".")]
        chosen = shown if chosen == "*" else fnmatch.filter(shown, chosen)
    return FolderListing(before, listing, chosen, grouping)


def _split(path: str) -> tuple[str, str]:
    before, slash, name = path.rpartition("/")
    return before + slash, name


class Folder:
    """A folder of files with an index: knows the files of the dataset and those that changed."""

    def __init__(self, listing: FolderListing, index_set: sets.IndexSet, listed: sets.Listed) -> None:
        self._selection, self._index_set, self._listed = listing, index_set, listed

    def shards(self) -> list[str] | None:
        """Return the names of the dataset's files in order; None if the folder holds other data, too."""
        before, _, names, grouping = self._selection
        if grouping == "names":
            return names
        numbers = self._index_set.numbers
        new = self._without_side_cars(set(names).difference(numbers) - {index.SET}, self._tails)
        # Plug-ins are asked only about names that our formats do not know.
        new = new and self._without_side_cars(new, _tails_of(outlines()))
        if grouping == "folder":
            # As in find.py: names without a known suffix do not count.
            labels = {kind.label for kind in self._listed.known}
            formats = {
                name: format_name for name in new if (format_name := suffixed(name, outlines())) is not None
            }
            if len(labels) != 1 or not set(formats.values()) <= labels or self._is_dataset(before, new):
                return None
            new = set(formats)
        return naturally([*filter(numbers.__contains__, names), *new])

    @staticmethod
    def _is_dataset(before: str, other_names: set[str]) -> bool:
        """True if the folder is a dataset of another format; without other files, only media count."""
        probe = Probe(os.path.dirname(before))
        if other_names:
            return find_format(probe) is not None
        return any(
            own_format(name).matches(probe) for name, outline in OUTLINES.items() if outline.media is not None
        )

    @functools.cached_property
    def _stems(self) -> dict[str, list[str]]:
        stems: dict[str, list[str]] = {}
        for name in self._index_set:
            stems.setdefault(os.path.splitext(name)[0], []).append(name)
        return stems

    @functools.cached_property
    def _tails(self) -> list[tuple[str, bool]]:
        return _tails_of(OUTLINES)

    def _without_side_cars(self, names: set[str], tails: list[tuple[str, bool]]) -> set[str]:
        """Drop names of side-cars of files of the index, or of these."""
        every = names
        for tail, by_name in tails:
            beside = [name for name in names if name.endswith(tail)]
            owners: Collection[str] = self._index_set.numbers if by_name or not beside else self._stems
            stems = ((name, name[: -len(tail)]) for name in beside)
            names = names.difference(
                name for name, stem in stems if stem in owners or (by_name and stem in every)
            )
        return names

    def changed_beside(self) -> Iterator[str]:
        """Yield files of the index beside which a side-car, such as a schema, was written later."""
        # These change neither samples nor fields.
        plain = (index.SUFFIX, ".crc")
        tails = tuple(tail for tail, _ in self._tails if tail not in plain)
        beside = [name for name in self._selection.listing if name.endswith(tails)]
        built_ns = os.stat(self._index_set.place).st_mtime_ns
        for number in np.flatnonzero(stat_files(self._selection.before, beside)[1] > built_ns).tolist():
            for tail, by_name in self._tails:
                if beside[number].endswith(tail):
                    stem = beside[number].removesuffix(tail)
                    yield from [stem] if by_name else self._stems.get(stem, [])


def _tails_of(candidates: Mapping[str, Outline]) -> list[tuple[str, bool]]:
    """Return the endings of side-cars: appended to the whole name (True) or to its stem.

    The longest come first: these are of schemas, which many formats have beside every file.
    """
    templates = {
        *Writer.all_side_cars(),
        *(template for outline in candidates.values() for template in outline.side_cars),
    }
    tails = {(template.partition("}")[2], template.startswith("{name}")) for template in templates}
    return sorted(tails, key=lambda tail: (-len(tail[0]), tail))


def _is_usable(label: str, format: str | None) -> bool:
    """True if files of this format can be opened one by one, and as the named format."""
    outline = OUTLINES.get(label) or outlines().get(label)
    return outline is not None and not outline.has_parts and not outline.describes and format in (None, label)


def open(
    path: Any,
    *,
    format: str | None = None,
    skip: str | os.PathLike[str] | None = None,
    where: str | Condition | None = None,
    media: Mapping[str, Any] | str | None = None,
    **options: Any,
) -> Reader:
    """Open a dataset: a file, a folder, a URL, a list, a glob or braces of shards, or data in memory.

    ``path``: one of these, or a list of them, which are concatenated. The format is found by content, then by
    suffix, unless ``format`` names it. ``skip``: a list of samples to leave out, as ``verify`` writes it
    (``quarantine``). ``where``: only the samples of which this is true, as ``"label == 'cat'"``; see
    :meth:`Reader.filter`. ``media``: columns of a table that hold paths or URLs of files, and what these are,
    as in ``{"path": Image()}``; the samples have the files there. They lie below the folder of the table,
    unless ``outside=True``. Further options are the format's own; `batchplant formats NAME` lists them. Of a
    URL, also those of its store, as in ``open("s3://bucket/train.tar", endpoint="https://minio.example",
    cache="/data/cache")``; see :class:`batchplant.storage.StorageOptions`. Data in memory are a dict of
    columns, a list of dicts, a data frame, an Arrow table, a TensorDataset, a Dataset of Hugging Face.

    Returns: a :class:`Reader`, which is closed by ``with`` or ``close()``.

    Raises: NotFoundError where nothing is at the path; UnknownFormatError where no format knows it;
    MissingLibraryError where the format's library is not installed; DamagedError where what opening reads is
    damaged; UnsafeError where reading it could run code; OptionError for options that the format does not
    have; AccessError where a disk or a server does not give the bytes.
    """
    condition = None if where is None else parse_condition(where)
    options = options if media is None else {**options, "media": media}
    if not isinstance(path, str | os.PathLike):
        # It brings all that tables need, and most datasets are files.
        from ..base.memory import is_data

        # What gives its parts once is kept.
        if not is_data(path):
            if not isinstance(path, Iterable):
                raise OptionError(f"a path, a list of paths or data in memory can be opened, not {path!r}")
            path = list(path)
        if is_data(path):
            opened = _open_data(path, format, options if skip is None else {**options, "skip": skip})
            return opened if condition is None else opened.filter(condition)
    again = functools.partial(open, path, format=format, skip=skip, **options)
    items = list(map(os.fspath, [path] if isinstance(path, str | os.PathLike) else path))
    if not items:
        raise OptionError("there is no path to open")
    if len(items) == 1 and items[0].startswith(SERVICE):
        service: Reader = hooks.part("service").ServiceReader(items[0], **options)
        service = service if skip is None else quarantine.without(service, os.fspath(skip))
        return service if condition is None else service.filter(condition)
    storage, options = split_options(options)
    with tree.keeping():
        # A list of samples to skip counts those of the whole table.
        work = functools.partial(_open_one, options=options, where=condition if skip is None else None)
        paths = [reached(text, storage) for text in items]
        readers: Sequence[Reader] | None = None if options else many_files(paths, format, work)
        if readers is None:
            candidates = files_of(paths, format)
            readers = in_parallel(work, candidates, threads=AT_ONCE[is_remote(candidates[0].path)])
        opened = readers[0] if len(readers) == 1 else Concat(readers)
    opened = opened if skip is None else quarantine.without(opened, os.fspath(skip))
    opened._reopen = again
    return opened if condition is None else opened.filter(condition)


def _open_data(data: Any, format: str | None, options: dict[str, Any]) -> Reader:
    from ..base.memory import memory_reader

    if format is not None:
        raise OptionError(f"data in memory have no format, and {format!r} was named")
    reader = memory_reader(data)
    return reader(data, **accept("memory", reader, options))


def _open_one(candidate: Candidate, options: dict[str, Any], where: Condition | None = None) -> Reader:
    detected, source = candidate.probed()
    # Whoever can leave out whole files does so before they are opened.
    skips = {"where": where} if where is not None and "where" in own_options(detected.reader) else {}
    chosen: dict[str, Any] = {}
    if "media" in options:
        from ..base.manifest import MediaReader

        names = own_options(detected.reader)
        chosen = {name: options[name] for name in ("media", "outside") if name in options}
        options = {name: value for name, value in options.items() if name in names or name not in chosen}
        chosen = accept("media", MediaReader, chosen)
    with handing(source):
        try:
            reader = detected.reader(
                candidate.path, **accept(detected.name, detected.reader, options), **skips
            )
            return MediaReader(reader, **chosen) if chosen else reader
        except DataError:
            # A reader of a folder lists it, and takes one that is not there for damaged.
            if detected.folder and not is_remote(candidate.path) and not os.path.lexists(candidate.path):
                raise NotFoundError("no such folder", path=candidate.path) from None
            raise
