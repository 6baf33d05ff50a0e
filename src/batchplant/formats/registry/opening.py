"""Open a dataset."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...data import hooks, quarantine
from ...data.concat import Concat
from ...data.filters import parse_condition
from ...data.reader import Reader
from ...errors import DataError, NotFoundError, OptionError
from ...storage import handing, is_remote, reached, split_options, tree
from ...storage.index.progress import in_parallel
from ..base.options import accept, own_options
from . import merged
from .find import Candidate, files_of

if TYPE_CHECKING:
    from ...data.expressions import Condition

# Files that are opened side by side, unless there are more cores: local ones, and those on a server.
AT_ONCE = (4, 16)
# URLs of servers that ship samples of a dataset; see loading.service.
SERVICE = "batchplant://"


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
        readers: Sequence[Reader] | None = None if options else merged.files(paths, format, work)
        if readers is None:
            merged_files = files_of(paths, format)
            readers = in_parallel(work, merged_files, threads=AT_ONCE[is_remote(merged_files[0].path)])
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
