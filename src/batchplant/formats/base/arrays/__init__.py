"""Datasets of arrays in chunks: what Zarr and N5 share. A dataset is a group of arrays of equal length."""

from __future__ import annotations

from .grid import Grid, GridArray, Index
from .layout import METADATA_KEY, DatasetMetadata
from .parts import Chunks, OutputArray, Style
from .reader import GridReader, Grids, each_grid
from .store import Blob, ChunkLocation, FolderStore, Store, good_name, open_store, zip_top
from .writer import Attributes, GridWriter, allocate, unit_of, write_range

__all__ = [
    "METADATA_KEY", "Attributes", "Blob", "ChunkLocation", "Chunks", "DatasetMetadata", "FolderStore", "Grid",
    "GridArray", "GridReader", "GridWriter", "Grids", "Index", "OutputArray", "Store", "Style", "allocate",
    "each_grid", "good_name", "open_store", "unit_of", "write_range", "zip_top",
]  # fmt: skip
