"""Decoding of chunks to arrays: the codecs of Zarr 2 and 3, and shards.

Only codecs on our list are used: one of numcodecs is a pickle, which runs code.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...errors import DamagedError, SchemaError, UnsafeError, located
from ...schema.columns import AnyDType, Ragged, as_bytes
from ..base.arrays import ChunkLocation, Index, Store
from ..base.arrays.compression import Coding, numcodecs, unpack

# Their name in numcodecs and Zarr → ours.
COMPRESSIONS = {
    "gzip": "gzip", "zlib": "gzip", "bz2": "bzip2", "lzma": "xz", "zstd": "zstd", "blosc": "blosc",
    "lz4": "lz4",
}  # fmt: skip
FILTERS = {
    "shuffle", "delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits", "crc32", "crc32c",
    "adler32", "fletcher32", "jenkins_lookup3",
}  # fmt: skip
# Filters behind which values have another dtype: what their settings call the one before and the one behind.
RETYPED = {
    "delta": ("dtype", "astype"), "fixedscaleoffset": ("dtype", "astype"), "quantize": ("dtype", "astype"),
    "astype": ("decode_dtype", "encode_dtype"),
}  # fmt: skip
STRINGS = {"vlen-utf8": "VLenUTF8", "vlen-bytes": "VLenBytes"}
ABSENT = 2**64 - 1
SHARDS_KNOWN = 256

Step = Callable[[Any], Any]


class Chain(NamedTuple):
    """From bytes to an array."""

    decode: Step
    # Whether the bytes are the values, in C order and native byte order.
    plain: bool
    description: str
    # The same for native threads, where they can.
    coding: Coding | None = None


def _coding(packed: Sequence[str], dtype: AnyDType) -> Coding | None:
    """Return the steps by which native threads undo these codecs of bytes; None where they cannot."""
    if dtype.kind not in "biufmM":
        return None
    steps = tuple((COMPRESSIONS.get(kind, kind), 0) for kind in packed)
    return Coding(steps, swap=1 if dtype.isnative else dtype.itemsize)


def _step(kind: str, config: dict[str, Any], limit: int) -> Step:
    if kind in COMPRESSIONS:
        if kind == "lzma" and config.get("format", 1) not in (0, 1):
            raise SchemaError("lzma without its container cannot be read")
        return functools.partial(unpack, COMPRESSIONS[kind], max_bytes=limit)
    if kind in ("pickle", "msgpack2", "json2") or kind not in FILTERS:
        wrong = UnsafeError if kind == "pickle" else SchemaError
        raise wrong(f"the codec {kind!r} is not read" + (": a pickle can run any code" * (kind == "pickle")))
    for name in ("dtype", "astype", "encode_dtype", "decode_dtype"):
        if name in config and np.dtype(config[name]).kind not in "biufcmM":
            raise DamagedError(f"the codec {kind!r} of {config[name]}")
    return numcodecs().get_codec({"id": kind, **config}).decode


def _without_crc(data: Any) -> Any:
    data = np.frombuffer(data, dtype=np.uint8)
    if len(data) < 4 or _native.crc32c(data[:-4]) != int.from_bytes(data[-4:].tobytes(), "little"):
        raise DamagedError("the checksum of the chunk is wrong")
    return data[:-4]


def _texts(kind: str, count: int, data: Any) -> Ragged:
    """Text or bytes of any length: a count, and each with its length before it."""
    data = bytes(data)
    # The library would take memory for as many as it says.
    if int.from_bytes(data[:4], "little") != count or len(data) < 4 * count:
        raise DamagedError(f"the chunk does not hold {count} texts")
    # Bytes are text without its decoding; decoding a cell that is no text raises the error.
    return Ragged.from_cells(list(numcodecs().get_codec({"id": "vlen-bytes"}).decode(data)))


def _array(dtype: AnyDType, shape: tuple[int, ...], order: str, turned: Sequence[int], data: Any) -> Any:
    """The values as an array in C order, native byte order; ``turned``: the axes as they were stored."""
    values = as_bytes(np.asarray(data) if isinstance(data, np.ndarray) else data).view(dtype)
    stored = tuple(shape[axis] for axis in turned)
    if len(values) != math.prod(stored):
        raise DamagedError(f"the chunk has {len(values)} values, and {math.prod(stored)} are needed")
    array = values.reshape(stored, order="F" if order == "F" else "C").transpose(np.argsort(turned))
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("="))


def _run(steps: Sequence[Step], data: Any) -> Any:
    for step in steps:
        data = step(data)
    return data


def _max_unpacked_bytes(dtype: AnyDType, chunks: tuple[int, ...], changed: bool) -> int:
    """The most bytes that a chunk unpacks to; filters may change the size. 0: not known."""
    if dtype.hasobject:
        return 0
    size = dtype.itemsize * math.prod(chunks)
    return 8 * size + 1024 if changed else size


def chain_v2(document: dict[str, Any], dtype: AnyDType, chunks: tuple[int, ...]) -> Chain:
    """Filters forward, then the compressor: backwards here."""
    filters = list(document.get("filters") or ())
    compressor = document.get("compressor")
    order = document.get("order", "C")
    if order not in ("C", "F"):
        raise DamagedError(f"the order {order!r}")
    texts = [codec for codec in filters if codec["id"] in STRINGS]
    if bool(texts) != dtype.hasobject or (texts and filters[0] is not texts[0]):
        raise SchemaError("an array of objects without a codec for text or bytes is not read")
    plain_filters = filters[1:] if texts else filters
    limit = _max_unpacked_bytes(dtype, chunks, bool(plain_filters))
    last_packed = [] if compressor is None else [compressor]
    packed = last_packed + plain_filters[::-1]
    steps = [_step(codec["id"], {k: v for k, v in codec.items() if k != "id"}, limit) for codec in packed]
    last = functools.partial(_array, dtype, chunks, order, range(len(chunks)))
    if texts:
        last = functools.partial(_texts, texts[0]["id"], math.prod(chunks))
    plain = not steps and order == "C" and dtype.isnative and not texts
    description = " + ".join(codec["id"] for codec in filters + last_packed) or "none"
    coding = None if texts or plain_filters or order != "C" else _coding([c["id"] for c in packed], dtype)
    return Chain(functools.partial(_run, [*steps, last]), plain, description, coding)


def chain_v3(codecs: Sequence[Any], dtype: AnyDType, chunks: tuple[int, ...]) -> Chain:
    """Codecs of arrays, one to bytes, codecs of bytes: backwards here."""
    named = [_named(codec) for codec in codecs]
    kinds = [kind for kind, _ in named]
    offset = next((n for n, kind in enumerate(kinds) if kind == "bytes" or kind in STRINGS), None)
    if offset is None or (kinds[offset] == "bytes") == dtype.hasobject:
        raise SchemaError(f"the codecs {', '.join(kinds)} of {dtype} cannot be read")
    limit = _max_unpacked_bytes(dtype, chunks, any(kind.startswith("numcodecs.") for kind in kinds))
    limit += 4 * kinds.count("crc32c") if limit else 0
    steps: list[Step] = []
    for kind, config in named[:offset:-1]:
        bare = kind.removeprefix("numcodecs.")
        steps.append(_without_crc if kind == "crc32c" else _step(bare, config, limit))
    turned = list(range(len(chunks)))
    filters: list[Step] = []
    # What the values are behind each filter, and how many of them there are.
    packed, count = dtype, math.prod(chunks)
    for kind, config in named[:offset]:
        if kind == "transpose" and not filters:
            order = list(config["order"])
            if sorted(order) != list(range(len(chunks))):
                raise DamagedError(f"the axes {order}")
            turned = [turned[axis] for axis in order]
        elif kind.startswith("numcodecs."):
            bare = kind.removeprefix("numcodecs.")
            if bare in RETYPED:
                mine, theirs = RETYPED[bare]
                config = {**config, mine: config.get(mine) or packed.str}
                packed = np.dtype(config.get(theirs) or packed)
            filters.insert(0, _step(bare, config, limit))
            if bare == "packbits":
                packed, count = np.dtype(np.uint8), 1 + -(-count // 8)
        else:
            raise SchemaError(f"the codec {kind!r} is not read")
    if kinds[offset] == "bytes":
        stored = packed.newbyteorder(">" if named[offset][1].get("endian") == "big" else "<")
        last = functools.partial(_array, dtype if filters else stored, chunks, "C", turned)
        if filters:
            steps += [functools.partial(_array, stored, (count,), "C", (0,)), *filters]
        steps.append(last)
    else:
        stored = dtype
        steps.append(functools.partial(_texts, kinds[offset], math.prod(chunks)))
    plain = len(steps) == 1 and turned == sorted(turned) and stored.isnative and not dtype.hasobject
    description = " + ".join(kind for kind in kinds if kind != "bytes") or "none"
    bare_kinds = [kind.removeprefix("numcodecs.") for kind in kinds[:offset:-1]]
    coding = None if offset or kinds[0] != "bytes" else _coding(bare_kinds, stored)
    return Chain(functools.partial(_run, steps), plain, description, coding)


def _named(codec: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(codec, str):
        return codec, {}
    return str(codec["name"]), dict(codec.get("configuration") or {})


class Shards:
    """Locations of an array's chunks in its shards: a table at the end, or the start, of each."""

    def __init__(
        self, store: Store, config: dict[str, Any], shape: tuple[int, ...], key: Callable[[Index], str]
    ):
        self.inner = tuple(config["chunk_shape"])
        fit = len(self.inner) == len(shape) and all(type(size) is int and size > 0 for size in self.inner)
        if not fit or any(outer % size for outer, size in zip(shape, self.inner, strict=True)):
            raise DamagedError(f"shards of {shape} with chunks of {self.inner}")
        self._per = tuple(outer // size for outer, size in zip(shape, self.inner, strict=True))
        kinds = [_named(codec) for codec in config.get("index_codecs") or ["bytes", "crc32c"]]
        if [kind for kind, _ in kinds] not in (["bytes"], ["bytes", "crc32c"]):
            raise SchemaError("a compressed table of shards cannot be read")
        self._order = ">u8" if kinds[0][1].get("endian") == "big" else "<u8"
        self.summed = len(kinds) == 2
        self._at_end = config.get("index_location", "end") == "end"
        self._store, self._key = store, key
        self._table = functools.lru_cache(SHARDS_KNOWN)(self._load)

    def _load(self, shard: Index) -> tuple[str, Any]:
        name = self._key(shard)
        size = 16 * math.prod(self._per) + 4 * self.summed
        data = self._store.read(name, -size if self._at_end else 0, size)
        if data is None:
            return name, None
        with located(path=self._store.full(name)):
            if len(data) != size:
                raise DamagedError(f"the shard has {len(data)} bytes, and its table alone has {size}")
            data = _without_crc(data) if self.summed else data
        return name, data.view(self._order)

    def locate(self, index: Index) -> ChunkLocation | None:
        name, table = self._table(tuple(map(operator.floordiv, index, self._per)))
        if table is None:
            return None
        number = 0
        for offset, per in zip(index, self._per, strict=True):
            number = number * per + offset % per
        start, size = table.item(2 * number), table.item(2 * number + 1)
        if start == ABSENT and size == ABSENT:
            return None
        if start + size > 2**62:
            message = f"the table of the shard says {size} bytes at {start}"
            raise DamagedError(message, path=self._store.full(name))
        return ChunkLocation(name, start, size)


def pack_shard(chunks: Sequence[Any], room: int) -> bytes:
    """A shard of these chunks, the table behind them."""
    table = np.full((room, 2), ABSENT, dtype="<u8")
    offset = 0
    for number, chunk in enumerate(chunks):
        size = len(memoryview(chunk).cast("B"))
        table[number] = offset, size
        offset += size
    tail: bytes = table.tobytes()
    return b"".join([*map(bytes, chunks), tail, _native.crc32c(tail).to_bytes(4, "little")])
