"""Maps of embeddings: the first numbers of each sample as points, by class, for the page."""

from __future__ import annotations

import numpy as np

from ...data.reader import Reader
from ...errors import OptionError
from ...order.keyed import key_of, uniform
from ...schema.columns import I64, Masked, Ragged
from ...schema.kinds import Field, Int, Tensor
from .. import Document
from .cells import Dataset

# Points of a map, of more samples some are drawn at random; numbers of an embedding; groups with a name.
MAX_POINTS, MAX_NUMBERS, MAX_GROUPS = 8000, 4096, 24
# Texts in the name of an embedding of more than three numbers.
NAMES = ("obsm.", "umap", "tsne", "pca", "embed", "latent")
OTHERS = "others"


def maps_of(reader: Reader) -> list[str]:
    """Return the fields that are embeddings."""
    return [name for name, field in reader.schema.items() if _is_map(name, field)]


def _is_map(name: str, field: Field) -> bool:
    if not isinstance(field, Tensor) or field.optional or np.dtype(field.dtype).kind != "f":
        return False
    if len(field.shape) != 1 or not 2 <= (field.shape[0] or 0) <= MAX_NUMBERS:
        return False
    return field.shape[0] in (2, 3) or any(text in name.lower() for text in NAMES)


def map_of(dataset: Dataset, name: str, classes: str, rows: I64 | None) -> Document:
    """Return the points of an embedding in groups of one class."""
    reader = dataset.reader
    if name not in maps_of(reader):
        raise OptionError(f"{name[:100]!r} is no field of embeddings")
    rows = np.arange(len(reader)) if rows is None else rows
    count = len(rows)
    if count > MAX_POINTS:
        drawn = np.argsort(uniform(key_of(0, 0, 11), np.arange(count)), kind="stable")[:MAX_POINTS]
        rows = np.sort(rows[drawn])
    field = reader.schema.get(classes)
    names = field.names if isinstance(field, Int) else None
    columns = reader.read(rows, [name, classes] if names else [name])
    points = np.asarray(columns[name], np.float64).reshape(len(rows), -1)[:, :2]
    codes = np.zeros(len(rows), np.int64)
    if names:
        column = columns[classes]
        codes = np.array(column.values if isinstance(column, Masked) else column, np.int64)
        if isinstance(column, Ragged) and column.valid is not None:
            codes[~column.valid] = -1
    finite = np.isfinite(points).all(axis=1)
    groups = []
    present, sizes = np.unique(codes[finite], return_counts=True)
    largest = present[np.argsort(-sizes, kind="stable")][:MAX_GROUPS]
    titles = {code: title for code, title in enumerate(names or (name,)) if code in largest}
    # Missing values, codes of no class, and the smallest classes are one group.
    for code, title in (*titles.items(), (-1, OTHERS)):
        chosen = finite & (codes == code if code >= 0 else ~np.isin(codes, list(titles)))
        numbered = zip(points[chosen].tolist(), rows[chosen].tolist(), strict=True)
        if chosen.any():
            groups.append({"name": title, "points": [[*point, 1, sample] for point, sample in numbered]})
    return {"groups": groups, "samples": len(rows), "of": count, "odd": int((~finite).sum())}
