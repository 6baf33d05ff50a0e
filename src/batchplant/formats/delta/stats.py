"""Statistics of files in the log of a Delta table, by which readers skip files."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import math
from typing import Any

from ...codecs import arrow

# As many columns as others describe, and texts as long as they keep.
COLUMNS, LETTERS = 32, 32


def stats_of(path: str, rows: int) -> str:
    """The statistics of a Parquet file that was just written, as the log has them."""
    import pyarrow.parquet as pq

    pa = arrow.pyarrow()
    found: dict[str, Any] = {"numRecords": rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    metadata = pq.read_metadata(path)
    schema = metadata.schema.to_arrow_schema()
    # Behind a list or a struct, columns of the file have other numbers.
    plain = itertools.takewhile(lambda field: not pa.types.is_nested(field.type), schema)
    for number, field in enumerate(itertools.islice(plain, COLUMNS)):
        groups = [metadata.row_group(one).column(number).statistics for one in range(metadata.num_row_groups)]
        if not groups or any(group is None or group.null_count is None for group in groups):
            continue
        found["nullCount"][field.name] = sum(group.null_count for group in groups)
        there = [group for group in groups if group.has_min_max]
        # A row group in which all is missing has no bounds, and needs none.
        if not there or any(group.num_values and not group.has_min_max for group in groups):
            continue
        # Python's dates end at the year 9999.
        with contextlib.suppress(OverflowError, ValueError):
            low = _said(min(one.min for one in there), lower=True)
            high = _said(max(one.max for one in there), lower=False)
            if low is not None and high is not None:
                found["minValues"][field.name], found["maxValues"][field.name] = low, high
    return json.dumps(found)


def _said(value: Any, *, lower: bool) -> Any:
    """A bound as JSON; None where there is no good one."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return value[:LETTERS] if lower or len(value) <= LETTERS else None
    if isinstance(value, datetime.datetime):
        # Cut off at milliseconds, the greatest one too: every reader knows that.
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, datetime.date) else None
