"""Zstandard in LitData: of whole chunks, or inside of them of batches of samples or of each sample.

A chunk that is packed as a whole has another name, ``chunk-0-0.zstd.bin``. One that is packed in batches is,
little-endian: ``LDFZ01`` and two zeros; u16 version, 1; u16 flags; u32 samples, N; u32 samples of a batch;
u32 batches; N + 1 u32, where samples begin, counted from the first; for each batch u32 number of its first
sample, u32 samples, u64 place in the file, u32 packed and u32 unpacked size; the batches. One that is packed
by sample has the usual table, and each sample is packed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ...errors import BatchplantError, DamagedError, OptionError
from ...schema.columns import I64, U8, as_bytes, starts_of
from ...storage import Source
from ...storage.compressed import UnpackedSource, collect, limited, unzstd, zstd_compress

MAGIC = b"LDFZ01\0\0"
HEAD = 24
# Samples of a batch.
BATCH = 256
LEVEL = 4
FRAME = np.dtype([("first", "<u4"), ("rows", "<u4"), ("place", "<u8"), ("packed", "<u4"), ("size", "<u4")])


def pack(compression: str) -> Callable[[U8], bytes]:
    """Compressor by name: ``zstd``, ``zstd:7``."""
    name, colon, given = compression.partition(":")
    if name != "zstd" or (colon and not (given.isdecimal() and 1 <= int(given) <= 22)):
        raise OptionError(f"compression is zstd, with a level as in zstd:7, not {compression!r}")
    return zstd_compress(int(given) if given else LEVEL)


def packed_chunk(level: str, compress: Callable[[U8], bytes], head: list[U8], records: U8, sizes: I64) -> U8:
    """A chunk of these samples. ``head``: that of one which is not packed."""
    if level == "chunk":
        return as_bytes(compress(np.concatenate([*head, records])))
    bounds = starts_of(sizes)
    if level == "sample":
        parts = [as_bytes(compress(records[start:end])) for start, end in itertools.pairwise(bounds)]
        table = 4 * (len(sizes) + 2) + starts_of(np.array([len(part) for part in parts], np.int64))
        return np.concatenate([head[0], as_bytes(table.astype("<u4")), *parts])
    firsts = np.arange(0, len(sizes), BATCH)
    ends = np.minimum(firsts + BATCH, len(sizes))
    parts = [
        as_bytes(compress(records[bounds[start] : bounds[end]]))
        for start, end in zip(firsts, ends, strict=True)
    ]
    frames = np.zeros(len(firsts), FRAME)
    frames["first"], frames["rows"] = firsts, ends - firsts
    frames["packed"], frames["size"] = [len(part) for part in parts], bounds[ends] - bounds[firsts]
    before = HEAD + 4 * len(bounds) + frames.nbytes
    frames["place"] = before + starts_of(frames["packed"].astype(np.int64))[:-1]
    counts = np.array([1, len(sizes), BATCH, len(frames)], "<u4")
    pieces = [as_bytes(MAGIC), as_bytes(counts), as_bytes(bounds.astype("<u4")), as_bytes(frames), *parts]
    return np.concatenate(pieces)


def unpack(source: Source, level: str, samples: int, limit: int) -> UnpackedSource:
    """The chunk that is packed in a file, with its usual table; ``most``: of a whole one, its bytes."""
    if level == "chunk":
        return collect(source.path, _up_to(unzstd(source), limit, source.path), source.size)
    head = source.view(0, min(8, source.size)).tobytes()
    if level == "batch":
        if head != MAGIC:
            raise DamagedError("it does not begin as a chunk that is packed in batches", offset=0)
        return collect(source.path, _batches(source, samples), source.size)
    return collect(source.path, _samples(source, samples), source.size)


def _up_to(pieces: Iterator[U8], limit: int, path: str, offset: int | None = None) -> Iterator[U8]:
    left = limit
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise DamagedError(f"more than {limit} bytes are packed here", path=path, offset=offset)
        yield piece


def _usual_head(sizes: I64) -> U8:
    table = 4 * (len(sizes) + 2) + starts_of(sizes)
    if table[-1] >> 32:
        raise DamagedError("it unpacks to more than 4 GiB")
    return as_bytes(np.array([len(sizes), *table], "<u4"))


def _batches(source: Source, samples: int) -> Iterator[U8]:
    version, count, _, batches = source.array("<u4", 8, 4).tolist()
    # The flags, in the upper half, are none.
    if version != 1 or count != samples:
        message = f"it has {count} samples in a layout {version}, and the index says {samples}"
        raise DamagedError(message, offset=8)
    bounds = source.array("<u4", HEAD, count + 1).astype(np.int64)
    frames = source.array(FRAME, HEAD + 4 * (count + 1), batches)
    ends = frames["first"].astype(np.int64) + frames["rows"]
    follow = len(frames) and (frames["first"] == np.append(0, ends[:-1])).all() and ends[-1] == count
    sizes = np.diff(bounds)
    if not follow or bounds[0] or (sizes < 0).any():
        raise DamagedError("its batches are not one behind the other", offset=HEAD)
    if (frames["size"] != bounds[ends] - bounds[frames["first"]]).any():
        raise DamagedError("its batches have other sizes than their samples", offset=HEAD)
    yield _usual_head(sizes)
    for _, _, frame, packed, size in frames.tolist():
        yield from _frame(source, frame, packed, size)


def _frame(source: Source, start: int, packed: int, size: int | None) -> Iterator[U8]:
    """Decompress a range of a file."""
    part = UnpackedSource(source.path, source.view(start, packed))
    pieces = limited(unzstd(part), source.path, source.size) if size is None else unzstd(part)
    found = 0
    try:
        for piece in pieces if size is None else _up_to(pieces, size, source.path, start):
            found += len(piece)
            yield piece
    except BatchplantError as error:
        raise error.at(offset=start) from None
    if size not in (None, found):
        message = f"{found} bytes are packed here, and it says {size}"
        raise DamagedError(message, path=source.path, offset=start)


def _samples(source: Source, samples: int) -> Iterator[U8]:
    count = int(source.array("<u4", 0, 1)[0])
    if count != samples:
        raise DamagedError(f"it has {count} samples, and the index says {samples}", offset=0)
    bounds = source.array("<u4", 4, count + 1).astype(np.int64)
    bad = source.outside(bounds[:-1], np.diff(bounds), head=4 * (count + 2))
    if bad is not None:
        raise DamagedError(f"sample {bad} of it does not lie in it", offset=4 + 4 * bad)
    parts: list[U8] = []
    sizes = np.zeros(count, np.int64)

    def unpacked() -> Iterator[U8]:
        for row, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
            for piece in _frame(source, start, end - start, None):
                sizes[row] += len(piece)
                yield piece

    # All of them, before it is known where each begins.
    parts.extend(limited(unpacked(), source.path, source.size))
    yield _usual_head(sizes)
    yield from parts
