"""Base classes of formats that store columns in units: row groups (Parquet) or record batches (Arrow)."""

from __future__ import annotations

from .parquet import ParquetFile, ParquetRows, cell_bounds
from .reader import TableReader

__all__ = ["ParquetFile", "ParquetRows", "TableReader", "cell_bounds"]
