"""The documents of a Zarr store: which arrays there are, read and written."""

from __future__ import annotations

import base64
import functools
import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...errors import DamagedError, NotFoundError, SchemaError, UnsafeError, located
from ...schema.columns import AnyDType, Ragged, as_bytes
from ...storage import NOTE_ERRORS
from ..base.arrays import ChunkLocation, Grid, Grids, Index, OutputArray, Store, each_grid, good_name
from ..base.arrays.compression import Coding, numcodecs, unpack
from ..base.arrays.reader import from_text

# -- codecs -------------------------------------------------------------------------------------------
# Decoding of chunks to arrays: the codecs of Zarr 2 and 3, and shards.
#
# Only codecs on our list are used: one of numcodecs is a pickle, which runs code.

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


# -- documents ----------------------------------------------------------------------------------------

# -- attributes ---------------------------------------------------------------------------------------
# Attributes of arrays: the names of their axes and the value that means none, as xarray keeps them.
#
# Zarr 2 has the names in the attribute ``_ARRAY_DIMENSIONS``, and takes the fill value for the missing one.
# Zarr 3 has ``dimension_names`` beside the attributes, and a ``_FillValue`` of floats in base64.

AXES, MISSING = "_ARRAY_DIMENSIONS", "_FillValue"


def attributes_v2(document: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array of Zarr 2; ``array``: its metadata."""
    fill = array.get("fill_value")
    if AXES not in document or MISSING in document or fill is None or isinstance(fill, bool):
        return dict(document)
    value = from_text(fill) if isinstance(fill, str) else fill
    return {**document, MISSING: value} if isinstance(value, int | float) else dict(document)


def attributes_v3(document: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an array of Zarr 3."""
    stated, names = document.get("attributes"), document.get("dimension_names")
    result = dict(stated) if isinstance(stated, dict) else {}
    if isinstance(names, list) and any(names) and all(isinstance(name, str | None) for name in names):
        result.setdefault(AXES, [name or "" for name in names])
    if isinstance(result.get(MISSING), str) and (value := from_text(result[MISSING])) is not None:
        result[MISSING] = value
    return result


def axes_of(part: OutputArray) -> list[str] | None:
    """The names of an array's axes, where its attributes have one for each."""
    names = part.attributes.get(AXES)
    if not isinstance(names, list | tuple) or len(names) != len(part.counted):
        return None
    return list(names) if all(isinstance(name, str) for name in names) else None


def written_v2(part: OutputArray) -> tuple[dict[str, Any], Any]:
    """The attributes of an array that is written, and its fill value."""
    attributes = dict(part.attributes)
    if axes_of(part) is None:
        return attributes, _default_fill(part.dtype)
    value = attributes.pop(MISSING, None)
    if not isinstance(value, int | float) or part.dtype.kind not in "iuf":
        # No value means that there is none.
        return attributes, None
    if isinstance(value, float) and not np.isfinite(value):
        # JSON has no such numbers.
        return attributes, "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return attributes, value


def written_v3(part: OutputArray) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of an array that is written, and what else its document has."""
    attributes, names = dict(part.attributes), axes_of(part)
    if names is not None:
        del attributes[AXES]
        value = attributes.get(MISSING)
        if part.dtype.kind == "f" and isinstance(value, int | float):
            attributes[MISSING] = base64.b64encode(struct.pack("<d", value)).decode()
    # A name that is empty is none.
    beside = {} if names is None else {"dimension_names": [name or None for name in names]}
    return attributes, {"fill_value": _default_fill(part.dtype), **beside}


def _default_fill(dtype: AnyDType) -> Any:
    return {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)


# -- metadata -----------------------------------------------------------------------------------------

V3, GROUP, ARRAY, ATTRIBUTES, TOGETHER = "zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"
ROOTS = (V3, GROUP, ARRAY)
DEEPEST, NODES_MOST = 32, 100_000
TEXT = np.dtype("O")
BYTES = np.dtype("O", metadata={"bytes": True})

Document = dict[str, Any]


class StoreContents(NamedTuple):
    """Contents of a store. ``consolidated``: documents that the root repeats, by name."""

    version: int
    grids: Grids
    attributes: dict[str, Any]
    consolidated: dict[str, Document]


def find(store: Store) -> StoreContents:
    """All arrays of a store."""
    top = store.read_json(V3)
    if top is not None:
        return _find_v3(store, top)
    group, array = store.read_json(GROUP), store.read_json(ARRAY)
    if group is None and array is None:
        raise NotFoundError(f"there is no {V3}, {GROUP} or {ARRAY}; it is not a Zarr store", path=store.path)
    return _find_v2(store, array)


def _find_v3(store: Store, top: Document) -> StoreContents:
    if top.get("zarr_format") != 3:
        raise DamagedError(f"zarr_format is {top.get('zarr_format')!r} in {V3}")
    attributes = _document(top.get("attributes") or {})
    if top.get("node_type") == "array":
        return StoreContents(3, {"": _grid_v3(store, "", top)}, attributes, {})
    inside = _consolidated(top.get("consolidated_metadata"))
    nodes = (
        dict(_walk(store, (V3,)))
        if inside is None
        else {name: {V3: document} for name, document in inside.items()}
    )
    _check_names(nodes)
    grids = each_grid(
        functools.partial(_grid_v3, store),
        {name: node[V3] for name, node in nodes.items() if node[V3].get("node_type") == "array"},
    )
    consolidated = {} if inside is None else {f"{name}/{V3}": document for name, document in inside.items()}
    return StoreContents(3, grids, attributes, consolidated)


def _find_v2(store: Store, array: Document | None) -> StoreContents:
    if array is not None:
        return StoreContents(2, {"": _grid_v2(store, "", array)}, store.read_json(ATTRIBUTES) or {}, {})
    consolidated = _consolidated(store.read_json(TOGETHER))
    if consolidated is None:
        nodes = dict(_walk(store, (ARRAY, GROUP)))
        attributes = store.read_json(ATTRIBUTES) or {}
    else:
        nodes = {}
        for key, document in consolidated.items():
            name, _, kind = key.rpartition("/")
            nodes.setdefault(name, {})[kind] = document
        attributes = nodes.pop("", {}).get(ATTRIBUTES) or {}
    _check_names(nodes)
    grids = each_grid(
        functools.partial(_grid_v2, store),
        {name: node[ARRAY] for name, node in nodes.items() if ARRAY in node},
    )
    return StoreContents(2, grids, attributes, consolidated or {})


def _consolidated(value: Any) -> dict[str, Document] | None:
    """The documents that the top repeats; None where it repeats none."""
    inside = _document(value or {}).get("metadata")
    return None if inside is None else {name: _document(node) for name, node in _document(inside).items()}


def _document(document: Any) -> Document:
    if not isinstance(document, dict):
        raise DamagedError(f"the metadata is damaged: {str(document)[:40]!r} is not a JSON object")
    return document


def _check_names(names: Any) -> None:
    for name in names:
        if not good_name(name):
            raise DamagedError(f"an array is called {name!r}")


def _walk(
    store: Store, kinds: Sequence[str], below: str = "", deep: int = 0
) -> Iterator[tuple[str, dict[str, Document]]]:
    for child in store.children(below)[:NODES_MOST] if deep < DEEPEST else ():
        name = f"{below}/{child}" if below else child
        documents = {
            kind: document for kind in kinds if (document := store.read_json(f"{name}/{kind}")) is not None
        }
        if documents:
            yield name, documents
        array = ARRAY in documents or documents.get(V3, {}).get("node_type") == "array"
        if documents and not array:
            yield from _walk(store, kinds, name, deep + 1)


# --- arrays -------------------------------------------------------------------------------------------


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(size) is int and 0 <= size < 2**62 for size in values):
        raise DamagedError(f"the shape is {values!r}")
    return tuple(values)


def _grid_v2(store: Store, name: str, document: Document) -> Grid:
    try:
        dtype = _dtype_v2(document)
        shape, chunks = _sizes(document["shape"]), _sizes(document["chunks"])
        chain = chain_v2(document, dtype, chunks)
        separator = document.get("dimension_separator", ".")
        if separator not in (".", "/"):
            raise DamagedError(f"dimension_separator is {separator!r}")
    except NOTE_ERRORS as error:
        raise DamagedError(f"the metadata is damaged: {error!r}", path=store.full(name)) from None
    prefix = f"{name}/" if name else ""

    def locate(index: Index) -> ChunkLocation:
        return ChunkLocation(prefix + (separator.join(map(str, index)) or "0"))

    fill = functools.partial(_fill, dtype, document.get("fill_value"))
    return Grid(
        store,
        name,
        shape,
        chunks,
        dtype.newbyteorder("="),
        locate,
        chain.decode,
        fill,
        chain.plain,
        chain.description,
        coding=chain.coding,
    )


def _dtype_v2(document: Document) -> AnyDType:
    stored_dtype = document["dtype"]
    if not isinstance(stored_dtype, str):
        raise SchemaError("arrays of records have no field kind; they are not read")
    if stored_dtype == "|O":
        kinds = [codec["id"] for codec in document.get("filters") or ()]
        return BYTES if "vlen-bytes" in kinds else TEXT
    dtype = np.dtype(stored_dtype)
    if dtype.kind not in "biufcmMSU" or not dtype.itemsize:
        raise SchemaError(f"arrays of {stored_dtype} have no field kind")
    return dtype


_V3_NAMED = {"string": TEXT, "variable_length_utf8": TEXT, "bytes": BYTES, "variable_length_bytes": BYTES}
_V3_KINDS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "complex64", "complex128",
}  # fmt: skip


def _dtype_v3(dtype: Any) -> AnyDType:
    name = dtype if isinstance(dtype, str) else dtype["name"]
    config = {} if isinstance(dtype, str) else dtype.get("configuration") or {}
    if name in _V3_KINDS:
        return np.dtype(name)
    if name in _V3_NAMED:
        return _V3_NAMED[name]
    if name in ("numpy.datetime64", "numpy.timedelta64"):
        step, unit = config.get("scale_factor", 1), config.get("unit", "generic")
        kind = name.removeprefix("numpy.")
        return np.dtype(kind if unit == "generic" else f"{kind}[{int(step)}{unit}]")
    if name in ("fixed_length_utf32", "null_terminated_bytes"):
        size = int(config["length_bytes"])
        if 0 < size < 2**31:
            return np.dtype(f"U{size // 4}" if name == "fixed_length_utf32" else f"S{size}")
    raise SchemaError(f"arrays of {name} have no field kind")


def _grid_v3(store: Store, name: str, document: Document) -> Grid:
    try:
        dtype = _dtype_v3(document["data_type"])
        grid = document["chunk_grid"]
        if grid["name"] != "regular":
            raise SchemaError(f"the chunk grid {grid['name']!r} is not read; only regular ones are")
        shape, chunks = _sizes(document["shape"]), _sizes(grid["configuration"]["chunk_shape"])
        key = _key_v3(f"{name}/" if name else "", document.get("chunk_key_encoding") or {"name": "default"})
        codecs = document["codecs"]
        description, per_file, summed = "", 1, False
        locate: Callable[[Index], ChunkLocation | None] = lambda index: ChunkLocation(key(index))  # noqa: E731
        if isinstance(codecs[0], dict) and codecs[0].get("name") == "sharding_indexed":
            if len(codecs) > 1:
                raise SchemaError("shards compressed as a whole cannot be read")
            shards = Shards(store, codecs[0]["configuration"], chunks, key)
            description, summed = f" in shards of {'×'.join(map(str, chunks))}", shards.summed
            per_file = chunks[0] // shards.inner[0] if chunks else 1
            locate, chunks, codecs = shards.locate, shards.inner, codecs[0]["configuration"]["codecs"]
        chain = chain_v3(codecs, dtype, chunks)
    except NOTE_ERRORS as error:
        raise DamagedError(f"the metadata is damaged: {error!r}", path=store.full(name)) from None
    fill = functools.partial(_fill, dtype, document.get("fill_value"))
    description = chain.description + description
    return Grid(
        store, name, shape, chunks, dtype, locate, chain.decode, fill, chain.plain, description,
        per_file=per_file, summed=summed, coding=chain.coding,
    )  # fmt: skip


def _key_v3(prefix: str, encoding: Any) -> Callable[[Index], str]:
    kind = encoding["name"]
    separator = (encoding.get("configuration") or {}).get("separator", "/" if kind == "default" else ".")
    if separator not in ("/", ".") or kind not in ("default", "v2"):
        raise DamagedError(f"chunk_key_encoding is {encoding!r}")
    if kind == "default":
        return lambda index: prefix + separator.join(["c", *map(str, index)])
    return lambda index: prefix + (separator.join(map(str, index)) or "0")


def _fill(dtype: AnyDType, value: Any) -> Any:
    try:
        if dtype.hasobject:
            if isinstance(value, str) and dtype is BYTES:
                return base64.b64decode(value)
            return (value or "").encode() if isinstance(value, str | None) else bytes(value or b"")
        if value is None or value == "" or (dtype.kind in "SU" and value == 0):
            return np.zeros((), dtype)[()]
        if dtype.kind == "S" and isinstance(value, str):
            return np.array(base64.b64decode(value), dtype)[()]
        if dtype.kind in "mM" and isinstance(value, int):
            return np.array(value, "i8").view(dtype.newbyteorder("="))[()]
        if isinstance(value, list):
            return np.array(complex(*(float(part) for part in value)), dtype)[()]
        if isinstance(value, str) and value.startswith("0x"):
            raw = int(value, 16).to_bytes(dtype.itemsize, "little")
            return np.frombuffer(raw, dtype.newbyteorder("<"))[0]
        return np.array(float(value) if isinstance(value, str) and dtype.kind in "fc" else value, dtype)[()]
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError(f"the fill value {value!r} is damaged: {error}") from None


# --- writing ------------------------------------------------------------------------------------------
