"""Zarr 2 and 3: arrays in chunks, in a folder, a ZIP file or below a URL.

A dataset is a group whose arrays are equally long: each is a field, with samples along the first axis;
arrays in groups inside have dotted names. An array at the top is a dataset of one field, ``data``. What we
write has its schema in the attributes of the group (``batchplant``), and as arrays

- numbers and tensors of one shape: ``NAME``;
- with missing cells: ``NAME/values`` and ``NAME/valid``;
- cells of differing length: ``NAME/values``, all of them one after another, and ``NAME/offsets``, where they
  begin; ``NAME/shape`` for raw images, ``NAME/valid`` where cells may be missing.

Reading goes without zarr-python: chunks are found and unpacked here, one library call for each, without an
event loop that a fork would lose, and with every size checked before it is believed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from ...data.writer import WriteOptions
from ...errors import BatchplantError, OptionError, Problem
from ...schema import EVERY_KIND, Field, Schema
from ...schema.columns import Column
from ...storage import join, tree
from ...storage.zips import ZIP_ERRORS
from ..base.arrays import Attributes, Chunks, GridReader, Grids, GridWriter, Store, regions, zip_top
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from .attributes import attributes_v2, attributes_v3
from .metadata import ARRAY, ATTRIBUTES, ROOTS, V3, find
from .style import ZarrStyle

__all__ = ["FORMAT", "ZarrReader", "ZarrWriter", "allocate", "range_unit", "write_range"]


class ZarrReader(GridReader):
    """Reads Zarr. ``fields``: only these arrays; ``missing``: a chunk that is not there is fill values
    (fill) or an error (error), by default the latter in what we wrote; ``cache``: bytes of unpacked chunks
    kept; ``decode``: numbers become what they stand for by their attributes (scale_factor, add_offset,
    _FillValue, missing_value), or stay as they are stored, which without it is warned of."""

    roots = ROOTS

    def _find(self, store: Store) -> tuple[Grids, dict[str, Any]]:
        found = find(store)
        self._version, self._together = found.version, found.together
        return found.grids, found.attributes

    def _attributes_of(self, path: str) -> dict[str, Any]:
        if self._version == 2:
            return attributes_v2(self._document(path, ATTRIBUTES), self._document(path, ARRAY))
        return attributes_v3(self._document(path, V3))

    def _document(self, path: str, kind: str) -> dict[str, Any]:
        name = f"{path}/{kind}" if path else kind
        known = self._together.get(name)
        return known if known is not None else self.store.read_json(name) or {}

    def _differing(self) -> Iterator[Problem]:
        for name, document in self._together.items():
            if _bare(self.store.read_json(name)) != _bare(document):
                message = "the metadata repeated at the top differs from it; consolidate it again"
                yield Problem(message, self.store.full(name))

    def facts(self) -> dict[str, Any]:
        return {"version": f"Zarr {self._version}", **super().facts()}


def _bare(document: dict[str, Any] | None) -> str:
    """A document to compare: without what it repeats itself. No attributes are empty ones."""
    found = {name: one for name, one in (document or {}).items() if name != "consolidated_metadata"}
    return json.dumps(found, sort_keys=True)


class ZarrWriter(GridWriter):
    """Writes Zarr. ``zarr_format``: 2 or 3; ``compression``: none, zstd, gzip or blosc (auto: zstd, but not
    for images, sound and video, which are packed already and then used in place); ``level``: of the
    compression; ``chunk_samples``: rows of a chunk (default: about 1 MiB, without compression 64 MiB);
    ``chunks``: the shape of a chunk, samples first, for all fields with as many axes or by field;
    ``chunks_per_shard``: so many chunks in one file (Zarr 3); ``attributes``: ``{"": {…}, field: {…}}``."""

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, *, zarr_format: int = 3,
        compression: str = "auto", level: int | None = None, chunk_samples: int | None = None,
        chunks: Chunks | None = None, chunks_per_shard: int = 1, attributes: Attributes | None = None,
    ) -> None:  # fmt: skip
        if zarr_format == 2 and chunks_per_shard != 1:
            raise OptionError("shards need zarr_format=3", path=path)
        style = ZarrStyle(zarr_format)
        super().__init__(
            path,
            schema,
            options,
            style,
            compression,
            level,
            chunk_samples,
            chunks_per_shard,
            attributes=attributes,
            chunks=chunks,
        )

    def _style_of(self, base: GridReader) -> ZarrStyle:
        assert isinstance(base, ZarrReader)
        return ZarrStyle(base._version)


def allocate(path: str, schema: Schema | Mapping[str, Field], samples: int, **options: Any) -> None:
    """Make an empty dataset of so many samples, for several processes to fill with :func:`write_range`.

    Only for fields whose cells all have one size. Options are those of the writer, and ``overwrite``.
    """
    regions.allocate(ZarrWriter, path, schema, samples, **options)


def range_unit(path: str) -> int:
    """Ranges of samples begin and end at multiples of this; only the last may end at the end."""
    with ZarrReader(path) as reader:
        return regions.unit_of(reader)


def write_range(path: str, start: int, columns: Mapping[str, Column]) -> None:
    """Write samples from ``start`` on into a dataset that :func:`allocate` made.

    Safe from several processes at a time whose ranges do not overlap: each writes files of its own.
    """
    with ZarrReader(path) as reader:
        regions.write_range(reader, ZarrStyle(reader._version), start, columns)


def sniff(probe: Probe) -> bool:
    """The metadata at the top of a folder, or of a ZIP file."""
    if probe.folder:
        return any(tree.is_file(join(probe.path, name)) for name in ROOTS)
    if probe.head[:4] != b"PK\3\4":
        return False
    try:
        with zipfile.ZipFile(probe.source.file()) as archive:
            return zip_top(archive.namelist(), ROOTS) is not None
    except (*ZIP_ERRORS, BatchplantError):
        return False


FORMAT = Format(
    name="zarr",
    title="Zarr",
    suffixes=(".zarr", ".zarr.zip"),
    spec="https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html",
    reader=ZarrReader,
    writer=ZarrWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="zarr",
    notes="versions 2 and 3, shards; folders, ZIP files and URLs; plain chunks are used in place",
    can=Capabilities(
        random_access=True,
        checksums="chunk",
        compression=("zstd", "gzip", "blosc"),
        compressed="chunk",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        metadata=True,
        ecosystem=("zarr", "xarray", "Dask", "TensorStore"),
    ),
)
