"""Writing of Zarr stores: the documents of arrays, and the bytes of chunks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import OptionError
from ...schema.columns import as_bytes
from ..base.arrays import NOTE, Note, Part, Style
from ..base.arrays.compression import pack
from .attributes import written_v2, written_v3
from .codecs import pack_shard
from .metadata import ARRAY, ATTRIBUTES, GROUP, TOGETHER, V3, Document


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


class ZarrStyle(Style):
    """Writes arrays; our metadata are in the attributes of the root."""

    packings = ("none", "zstd", "gzip", "blosc")

    def __init__(self, version: int) -> None:
        if version not in (2, 3):
            raise OptionError(f"zarr_format is 2 or 3, not {version!r}")
        self.version = version

    def pack(self, part: Part, values: npt.NDArray[Any]) -> Any:
        if self.full_size(part) is not None:
            # The end of a plain chunk is a hole in the file.
            return as_bytes(values)
        if part.chunks_per_file == 1:
            return self._pack_one(part, values)
        runs = (values[start : start + part.chunk] for start in range(0, len(values), part.chunk))
        chunks = [self._pack_one(part, tile) for rows in runs for _, tile in part.tiles(rows)]
        return pack_shard(chunks, part.chunks_per_file * math.prod(part.across))

    def _pack_one(self, part: Part, values: npt.NDArray[Any]) -> Any:
        full = (part.chunk, *part.cell) if part.width else (part.chunk, *part.row)
        if values.shape != full:
            # A chunk has its full size, also at the edges of the array.
            whole: npt.NDArray[Any] = np.zeros(full, part.dtype)
            whole[tuple(map(slice, values.shape))] = values
            values = whole
        data = as_bytes(np.ascontiguousarray(values))
        return pack(part.packing, part.level, data, part.dtype.itemsize, checksum=self.version == 3)

    def full_size(self, part: Part) -> int | None:
        plain = part.packing == "none" and part.chunks_per_file == 1 and part.cut is None
        return part.chunk * part.width if plain else None

    def file(self, part: Part, number: int, tile: tuple[int, ...]) -> str:
        rest = map(str, tile)
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
                if said := written_v2(part)[0]:
                    nodes[f"{part.path}/{ATTRIBUTES}"] = said
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
        return {name: _json(document) for name, document in documents.items()}

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
            "fill_value": written_v2(part)[1],
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
        attributes, beside = written_v3(part)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(part.counted),
            "data_type": _name_v3(part.dtype),
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": codecs,
            "attributes": attributes,
            "storage_transformers": [],
            **beside,
        }


def _chunk_shape(part: Part, times: int) -> list[int]:
    """Shape of a chunk, or of a file of several along the first axis with all others beside them."""
    if times == 1:
        return [part.chunk, *part.cell]
    return [part.chunk * times, *(size * many for size, many in zip(part.cell, part.across, strict=True))]


def _name_v3(dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "mM":
        return dtype.name
    unit, step = np.datetime_data(dtype)
    kind = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
    return {"name": kind, "configuration": {"unit": unit, "scale_factor": step}}
