"""Base classes of formats that store columns in units: row groups (Parquet) or record batches (Arrow)."""

from __future__ import annotations

from .parquet_file import ParquetFile
from .parquet_rows import ParquetRows, cell_bounds
from .reader import TableReader

__all__ = ["ParquetFile", "ParquetRows", "TableReader", "cell_bounds"]
