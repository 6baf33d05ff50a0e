"""What formats share that keep columns in units which are decoded whole: row groups, record batches."""

from __future__ import annotations

from .parquet import PartsReader, open_parts
from .part import ParquetPart
from .picked import File, ParquetRows, cell_bounds
from .reader import TableReader

__all__ = [
    "File", "ParquetPart", "ParquetRows", "PartsReader", "TableReader", "cell_bounds", "open_parts",
]  # fmt: skip
