"""Datasets of arrays in chunks: what Zarr and N5 share. A dataset is a group of arrays of equal length."""

from __future__ import annotations

from ....data.arrays import Index
from .grid import Grid, GridArray
from .layout import METADATA_KEY, Chunks, DatasetMetadata, OutputArray, Style
from .reader import GridReader, Grids, each_grid
from .store import Blob, ChunkLocation, FolderStore, Store, good_name, open_store, zip_top
from .writer import Attributes, GridWriter, allocate, unit_of, write_range

__all__ = [
    "METADATA_KEY", "Attributes", "Blob", "ChunkLocation", "Chunks", "DatasetMetadata", "FolderStore", "Grid",
    "GridArray", "GridReader", "GridWriter", "Grids", "Index", "OutputArray", "Store", "Style", "allocate",
    "each_grid", "good_name", "open_store", "unit_of", "write_range", "zip_top",
]  # fmt: skip
