"""The documents of a Zarr store: which arrays there are, read and written."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...arrays import NOTE, Grid, Grids, Index, Note, Part, Place, Store, Style, each_grid, good_name
from ...arrays.compression import pack
from ...columns import as_bytes
from ...errors import DamagedError, NotFoundError, OptionError, SchemaError
from ...storage import NOTE_ERRORS, parse_object
from .codecs import Shards, chain_v2, chain_v3, pack_shard

V3, GROUP, ARRAY, ATTRIBUTES, TOGETHER = "zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"
ROOTS = (V3, GROUP, ARRAY)
DEEPEST, NODES_MOST = 32, 100_000
TEXT = np.dtype("O")
BYTES = np.dtype("O", metadata={"bytes": True})

Document = dict[str, Any]


class Found(NamedTuple):
    """What a store holds. ``together``: the documents that the top repeats, by the name of each."""

    version: int
    grids: Grids
    attributes: dict[str, Any]
    together: dict[str, Document]


def load(store: Store, name: str) -> Document | None:
    data = store.read(name)
    if data is None:
        return None
    try:
        # Attributes of others hold NaN, as no JSON does.
        found = parse_object(data.tobytes(), finite=False)
    except ValueError as error:
        raise DamagedError(f"the metadata is damaged: {error}", path=store.full(name)) from None
    return found


def find(store: Store) -> Found:
    """All arrays of a store."""
    top = load(store, V3)
    if top is not None:
        return _find_v3(store, top)
    group, array = load(store, GROUP), load(store, ARRAY)
    if group is None and array is None:
        raise NotFoundError(f"there is no {V3}, {GROUP} or {ARRAY}; this is no Zarr store", path=store.path)
    return _find_v2(store, array)


def _find_v3(store: Store, top: Document) -> Found:
    if top.get("zarr_format") != 3:
        raise DamagedError(f"zarr_format is {top.get('zarr_format')!r} in {V3}")
    attributes = _document(top.get("attributes") or {})
    if top.get("node_type") == "array":
        return Found(3, {"": _grid_v3(store, "", top)}, attributes, {})
    inside = _together(top.get("consolidated_metadata"))
    nodes = dict(_walk(store, (V3,))) if inside is None else {name: {V3: one} for name, one in inside.items()}
    _check_names(nodes)
    grids = each_grid(
        functools.partial(_grid_v3, store),
        {name: one[V3] for name, one in nodes.items() if one[V3].get("node_type") == "array"},
    )
    together = {} if inside is None else {f"{name}/{V3}": one for name, one in inside.items()}
    return Found(3, grids, attributes, together)


def _find_v2(store: Store, array: Document | None) -> Found:
    if array is not None:
        return Found(2, {"": _grid_v2(store, "", array)}, load(store, ATTRIBUTES) or {}, {})
    together = _together(load(store, TOGETHER))
    if together is None:
        nodes = dict(_walk(store, (ARRAY, GROUP)))
        attributes = load(store, ATTRIBUTES) or {}
    else:
        nodes = {}
        for key, document in together.items():
            name, _, kind = key.rpartition("/")
            nodes.setdefault(name, {})[kind] = document
        attributes = nodes.pop("", {}).get(ATTRIBUTES) or {}
    _check_names(nodes)
    grids = each_grid(
        functools.partial(_grid_v2, store), {name: one[ARRAY] for name, one in nodes.items() if ARRAY in one}
    )
    return Found(2, grids, attributes, together or {})


def _together(found: Any) -> dict[str, Document] | None:
    """The documents that the top repeats; None where it repeats none."""
    inside = _document(found or {}).get("metadata")
    return None if inside is None else {name: _document(one) for name, one in _document(inside).items()}


def _document(found: Any) -> Document:
    if not isinstance(found, dict):
        raise DamagedError(f"the metadata is damaged: {str(found)[:40]!r} is no JSON object")
    return found


def _check_names(names: Any) -> None:
    for name in names:
        if not good_name(name):
            raise DamagedError(f"an array is called {name!r}")


def _walk(
    store: Store, kinds: Sequence[str], below: str = "", deep: int = 0
) -> Iterator[tuple[str, dict[str, Document]]]:
    """Every group and array below, where the top does not list them."""
    for child in store.children(below)[:NODES_MOST] if deep < DEEPEST else ():
        name = f"{below}/{child}" if below else child
        found = {kind: one for kind in kinds if (one := load(store, f"{name}/{kind}")) is not None}
        if found:
            yield name, found
        array = ARRAY in found or found.get(V3, {}).get("node_type") == "array"
        if found and not array:
            yield from _walk(store, kinds, name, deep + 1)


# --- arrays -------------------------------------------------------------------------------------------


def _sizes(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(size) is int and 0 <= size < 2**62 for size in found):
        raise DamagedError(f"the shape is {found!r}")
    return tuple(found)


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

    def locate(index: Index) -> Place:
        return Place(prefix + (separator.join(map(str, index)) or "0"))

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
        chain.said,
    )


def _dtype_v2(document: Document) -> np.dtype[Any]:
    found = document["dtype"]
    if not isinstance(found, str):
        raise SchemaError("arrays of records have no field kind; they are not read")
    if found == "|O":
        kinds = [one["id"] for one in document.get("filters") or ()]
        return BYTES if "vlen-bytes" in kinds else TEXT
    dtype = np.dtype(found)
    if dtype.kind not in "biufcmMSU" or not dtype.itemsize:
        raise SchemaError(f"arrays of {found} have no field kind")
    return dtype


_V3_NAMED = {"string": TEXT, "variable_length_utf8": TEXT, "bytes": BYTES, "variable_length_bytes": BYTES}
_V3_KINDS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "complex64", "complex128",
}  # fmt: skip


def _dtype_v3(found: Any) -> np.dtype[Any]:
    name = found if isinstance(found, str) else found["name"]
    config = {} if isinstance(found, str) else found.get("configuration") or {}
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
        said, per_file, summed = "", 1, False
        locate: Callable[[Index], Place | None] = lambda index: Place(key(index))  # noqa: E731
        if isinstance(codecs[0], dict) and codecs[0].get("name") == "sharding_indexed":
            if len(codecs) > 1:
                raise SchemaError("shards that are packed as a whole are not read")
            shards = Shards(store, codecs[0]["configuration"], chunks, key)
            said, summed = f" in shards of {'×'.join(map(str, chunks))}", shards.summed
            per_file = chunks[0] // shards.inner[0] if chunks else 1
            locate, chunks, codecs = shards.locate, shards.inner, codecs[0]["configuration"]["codecs"]
        chain = chain_v3(codecs, dtype, chunks)
    except NOTE_ERRORS as error:
        raise DamagedError(f"the metadata is damaged: {error!r}", path=store.full(name)) from None
    fill = functools.partial(_fill, dtype, document.get("fill_value"))
    said = chain.said + said
    return Grid(
        store, name, shape, chunks, dtype, locate, chain.decode, fill, chain.plain, said,
        per_file=per_file, summed=summed,
    )  # fmt: skip


def _key_v3(prefix: str, encoding: Any) -> Callable[[Index], str]:
    kind = encoding["name"]
    separator = (encoding.get("configuration") or {}).get("separator", "/" if kind == "default" else ".")
    if separator not in ("/", ".") or kind not in ("default", "v2"):
        raise DamagedError(f"chunk_key_encoding is {encoding!r}")
    if kind == "default":
        return lambda index: prefix + separator.join(["c", *map(str, index)])
    return lambda index: prefix + (separator.join(map(str, index)) or "0")


def _fill(dtype: np.dtype[Any], value: Any) -> Any:
    """The value of a chunk that is not there."""
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


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


class ZarrStyle(Style):
    """How arrays are written; the note is in the attributes of the top."""

    packings = ("none", "zstd", "gzip", "blosc")

    def __init__(self, version: int) -> None:
        if version not in (2, 3):
            raise OptionError(f"zarr_format is 2 or 3, not {version!r}")
        self.version = version

    def pack(self, part: Part, values: npt.NDArray[Any]) -> Any:
        if part.packing == "none" and part.chunks_per_file == 1:
            # The end of a plain chunk is a hole in the file.
            return as_bytes(values)
        chunks = []
        for start in range(0, len(values), part.chunk):
            rows = np.ascontiguousarray(values[start : start + part.chunk])
            if len(rows) < part.chunk:
                # A chunk has its full size, also at the end of the array.
                rows = np.concatenate([rows, np.zeros((part.chunk - len(rows), *part.row), part.dtype)])
            data = as_bytes(rows)
            size = part.dtype.itemsize
            chunks.append(pack(part.packing, part.level, data, size, checksum=self.version == 3))
        return chunks[0] if part.chunks_per_file == 1 else pack_shard(chunks, part.chunks_per_file)

    def full_size(self, part: Part) -> int | None:
        plain = part.packing == "none" and part.chunks_per_file == 1
        return part.chunk * part.width if plain else None

    def file(self, part: Part, number: int) -> str:
        rest = ["0"] * len(part.row)
        if self.version == 3:
            return "/".join([part.path, "c", str(number), *rest])
        return f"{part.path}/{'.'.join([str(number), *rest])}"

    def describe(self, parts: Sequence[Part], note: Note) -> dict[str, bytes]:
        attributes = {**self.attributes, NOTE: note.to_json()}
        groups = sorted({part.path.rpartition("/")[0] for part in parts} - {""})
        if self.version == 2:
            group, nodes = {"zarr_format": 2}, {}
            for name in groups:
                nodes[f"{name}/{GROUP}"] = group
            for part in parts:
                nodes[f"{part.path}/{ARRAY}"] = self._array_v2(part)
                if part.attributes:
                    nodes[f"{part.path}/{ATTRIBUTES}"] = dict(part.attributes)
            every = {GROUP: group, ATTRIBUTES: attributes, **nodes}
            documents = {**every, TOGETHER: {"zarr_consolidated_format": 1, "metadata": every}}
        else:
            inner = {name: {"zarr_format": 3, "node_type": "group", "attributes": {}} for name in groups}
            inner |= {part.path: self._array_v3(part) for part in parts}
            together = {"kind": "inline", "must_understand": False, "metadata": inner}
            top = {
                "zarr_format": 3, "node_type": "group", "attributes": attributes,
                "consolidated_metadata": together,
            }  # fmt: skip
            documents = {V3: top, **{f"{name}/{V3}": one for name, one in inner.items()}}
        return {name: _json(one) for name, one in documents.items()}

    def _array_v2(self, part: Part) -> Document:
        compressor: Any = {"id": part.packing, "level": part.level}
        if part.packing == "blosc":
            compressor = {"id": "blosc", "cname": "zstd", "clevel": part.level, "shuffle": 1, "blocksize": 0}
        return {
            "zarr_format": 2,
            "shape": list(part.counted),
            "chunks": _chunk_shape(part, 1),
            "dtype": part.dtype.str,
            "compressor": None if part.packing == "none" else compressor,
            "fill_value": _fill_of(part.dtype),
            "order": "C",
            "filters": None,
            "dimension_separator": ".",
        }

    def _array_v3(self, part: Part) -> Document:
        codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        config: dict[str, Any] = {"level": part.level}
        if part.packing == "zstd":
            config["checksum"] = True
        if part.packing == "blosc":
            config = {
                "typesize": part.dtype.itemsize, "cname": "zstd", "clevel": part.level, "shuffle": "shuffle",
                "blocksize": 0,
            }  # fmt: skip
        if part.packing != "none":
            codecs.append({"name": part.packing, "configuration": config})
        if part.chunks_per_file > 1:
            index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
            inner = {
                "chunk_shape": _chunk_shape(part, 1), "codecs": codecs, "index_codecs": index,
                "index_location": "end",
            }  # fmt: skip
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        grid = {"chunk_shape": _chunk_shape(part, part.chunks_per_file)}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(part.counted),
            "data_type": _name_v3(part.dtype),
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _fill_of(part.dtype),
            "codecs": codecs,
            "attributes": dict(part.attributes),
            "storage_transformers": [],
        }


def _chunk_shape(part: Part, times: int) -> list[int]:
    # A size of 0 has no chunk, but a chunk has no size of 0.
    return [part.chunk * times, *(max(1, size) for size in part.row)]


def _fill_of(dtype: np.dtype[Any]) -> Any:
    return {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)


def _name_v3(dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "mM":
        return dtype.name
    unit, step = np.datetime_data(dtype)
    kind = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
    return {"name": kind, "configuration": {"unit": unit, "scale_factor": step}}
