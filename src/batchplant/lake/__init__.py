"""What Delta Lake and Iceberg share: tables that are Parquet files and a log which says which of them count."""

from __future__ import annotations

from .reader import LakeReader, Part, as_time, first_line, wrapped
from .types import stored_schema
from .writer import LakeWriter, check_same_fields

__all__ = [
    "LakeReader", "LakeWriter", "Part", "as_time", "check_same_fields", "first_line", "stored_schema", "wrapped",
]  # fmt: skip
