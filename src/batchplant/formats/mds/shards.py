"""The files of shards: which one to read, and whether it is what the index says."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import BatchplantError, DamagedError, NotFoundError
from ...storage import Source, is_remote, join, limits, open_source, tree
from ...storage.files import stat_files
from ..base.shards import Opened, table_of
from .index import Shard
from .packing import unpack


def open_file(folder: str, shard: Shard) -> Source:
    """The file of a shard, which has the size that the index says."""
    path, packed = file_of(folder, shard)
    try:
        source = open_source(path)
    except NotFoundError:
        raise DamagedError("the index lists it, but it is not there", path=path) from None
    told = shard.raw if packed is None else shard.packed
    if told is None or source.size != told.size:
        said = 0 if told is None else told.size
        raise DamagedError(f"it has {source.size} bytes, and the index says {said}", path=path)
    return source


def load(folder: str, shard: Shard, source: Source) -> Opened:
    """A shard of this file, unpacked where it is packed."""
    path, packed = file_of(folder, shard)
    if packed is not None:
        source = unpack(source, packed, shard.raw.size)
    try:
        return Opened(source, table_of(source, shard.samples, path))
    except BatchplantError as error:
        raise error.at(path=path) from None


def check_sizes(folder: str, every: Sequence[Shard]) -> None:
    """DamagedError where a file has not the bytes that the index says."""
    known = [-1] * len(every)
    if not is_remote(folder):
        known = stat_files(folder, [one.raw.name for one in every])[0].tolist()
    for shard, at_least in zip(every, known, strict=True):
        if shard.raw.size <= at_least and shard.packed is None:
            continue
        path, packed = file_of(folder, shard)
        size = tree.size_below(path)
        if shard.raw.size > (size if packed is None else limits.allowed(size)):
            raise DamagedError(f"the index says {shard.raw.size} bytes, and it has {size}", path=path)


def file_of(folder: str, shard: Shard) -> tuple[str, str | None]:
    """The file to read, and how it is packed; Streaming may have unpacked it already."""
    raw = join(folder, shard.raw.name)
    if shard.packed is None or (not is_remote(raw) and tree.is_file(raw)):
        return raw, None
    return join(folder, shard.packed.name), shard.compression
