"""Base classes of Delta Lake and Iceberg: Parquet files, and a log that says which of them are live."""

from __future__ import annotations

from ..tables.parquet_file import first_line
from .reader import LakeReader, Part, as_time, stored_schema, wrapped
from .upkeep import Compacted, State, Upkeep, Vacuumed
from .writer import LakeWriter, check_same_fields, conflict

__all__ = [
    "Compacted", "LakeReader", "LakeWriter", "Part", "State", "Upkeep", "Vacuumed", "as_time",
    "check_same_fields", "conflict", "first_line", "stored_schema", "wrapped",
]  # fmt: skip
