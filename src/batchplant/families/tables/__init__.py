"""What formats share that keep columns in units which are decoded whole: row groups, record batches."""

from __future__ import annotations

from .parquet import ParquetPart, PartsReader, open_parts
from .reader import TableReader

__all__ = ["ParquetPart", "PartsReader", "TableReader", "open_parts"]
