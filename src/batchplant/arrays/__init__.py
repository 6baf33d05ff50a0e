"""Datasets of arrays in chunks: what Zarr and N5 share. A dataset is a group of arrays of equal length."""

from __future__ import annotations

from .grid import Grid, Index, Place
from .layout import NOTE, Note
from .reader import GridReader
from .store import Blob, FolderStore, Store, good_name, open_store, zip_top
from .writer import GridWriter, Part, replace_file

__all__ = [
    "NOTE",
    "Blob",
    "FolderStore",
    "Grid",
    "GridReader",
    "GridWriter",
    "Index",
    "Note",
    "Part",
    "Place",
    "Store",
    "good_name",
    "open_store",
    "replace_file",
    "zip_top",
]
