"""Which samples a predicate is true of: what ``Loader.filter`` keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..codecs.cells import decode_cell
from ..data.reader import Reader
from ..errors import BatchplantError
from ..schema.columns import I64

# Samples that are read at a time.
STEP = 1024


def matching(reader: Reader, numbers: I64, names: Sequence[str], predicate: Callable[..., bool]) -> I64:
    """Those of these samples whose values in the named fields fulfil ``predicate``."""
    schema = reader.schema.select(names)
    chosen = []
    for start in range(0, len(numbers), STEP):
        part = numbers[start : start + STEP]
        columns = reader.read(part, names)
        kept = np.zeros(len(part), dtype=np.bool_)
        for row, sample in enumerate(part):
            values = []
            for name in names:
                try:
                    values.append(decode_cell(schema[name], columns[name], row))
                except BatchplantError as error:
                    where = reader.where(int(sample))
                    raise error.at(path=where, sample=int(sample), field=name) from None
            kept[row] = bool(predicate(*values))
        chosen.append(part[kept])
    return np.concatenate(chosen) if chosen else numbers
