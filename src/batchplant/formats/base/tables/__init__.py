"""Base classes of formats that store columns in units: row groups (Parquet) or record batches (Arrow)."""

from __future__ import annotations

from .parquet import ParquetFilesReader, open_parts
from .parquet_file import ParquetFile
from .parquet_rows import ParquetRows, TableFile, cell_bounds
from .reader import TableReader

__all__ = [
    "ParquetFile",
    "ParquetFilesReader",
    "ParquetRows",
    "TableFile",
    "TableReader",
    "cell_bounds",
    "open_parts",
]  # fmt: skip
