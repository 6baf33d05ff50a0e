"""Cells as Arrow tables and back; what all formats share that pyarrow reads and writes.

Numbers, text and bytes are the same bytes in both. A tensor is a list of numbers, nested once for each axis;
one whose sizes vary beyond the first, or whose dtype Arrow lacks, is binary: a whole NPY file, or the bare
values where the field tells their shape. Images are the encoded files.
"""

from __future__ import annotations

from .cells import column_of, dataset_of, from_arrow, table_of, to_arrow, unfit
from .hugging_face import featured_schema, plain_batch
from .infer import schema_of
from .types import KEY, arrow_field, arrow_schema, is_file_struct, numbers, pyarrow, refuses, storage

__all__ = [
    "KEY", "arrow_field", "arrow_schema", "column_of", "dataset_of", "featured_schema", "from_arrow",
    "is_file_struct", "numbers", "plain_batch", "pyarrow", "refuses", "schema_of", "storage", "table_of",
    "to_arrow", "unfit",
]  # fmt: skip
