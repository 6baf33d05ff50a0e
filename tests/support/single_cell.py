"""Files of AnnData, laid out as anndata writes them."""

import os
from typing import Any

import h5py
import numpy as np

ROWS, COLUMNS = 60, 24
TYPES = ["B", "NK", "T"]


def matrix(rows: int = ROWS, columns: int = COLUMNS, seed: int = 3) -> Any:
    generator = np.random.default_rng(seed)
    values = generator.integers(1, 50, (rows, columns)) * (generator.random((rows, columns)) < 0.3)
    values[[0, rows - 1]] = 0
    return values.astype(np.float32)


def put(group: Any, kind: str, **attributes: Any) -> None:
    group.attrs["encoding-type"], group.attrs["encoding-version"] = kind, "0.1.0"
    for name, value in attributes.items():
        group.attrs[name] = value


def put_sparse(file: Any, path: str, dense: Any, kind: str = "csr_matrix", **options: Any) -> None:
    """A matrix by rows or columns, as anndata lays it out."""
    by = dense if kind == "csr_matrix" else dense.T
    group = file.create_group(path)
    put(group, kind, shape=np.array(dense.shape))
    where = np.nonzero(by)
    group.create_dataset("data", data=by[where], **options)
    group.create_dataset("indices", data=where[1].astype(np.int32), **options)
    group["indptr"] = np.concatenate([[0], np.cumsum((by != 0).sum(axis=1))]).astype(np.int32)


def put_frame(file: Any, name: str, names: Any, index: str = "_index", **columns: Any) -> None:
    group = file.create_group(name)
    put(group, "dataframe", _index=index)
    group.attrs["column-order"] = np.array(list(columns), dtype=h5py.string_dtype())
    group.create_dataset(index, data=names, dtype=h5py.string_dtype())
    for column, values in columns.items():
        if isinstance(values, dict):
            inner = group.create_group(column)
            put(inner, "categorical" if "codes" in values else "nullable-integer")
            for part, array in values.items():
                inner[part] = array
        else:
            group[column] = values


def codes(rows: int = ROWS) -> Any:
    return (np.arange(rows) % 4 - 1).astype(np.int8)


def make(
    path: str | os.PathLike[str], dense: Any = None, kind: str = "csr_matrix", genes: Any = None,
    categories: Any = TYPES, index: str = "_index", **options: Any,
) -> str:  # fmt: skip
    """Write a file with a matrix, a layer, obs and obsm, and return its path."""
    dense = matrix() if dense is None else dense
    with h5py.File(path, "w") as file:
        put(file, "anndata")
        if kind == "array":
            file["X"] = dense
        else:
            put_sparse(file, "X", dense, kind, **options)
        put_sparse(file, "layers/counts", dense * 2)
        rows = len(dense)
        put_frame(
            file, "obs", [f"cell{n}" for n in range(rows)], index,
            type={"codes": codes(rows), "categories": np.array(categories, dtype=h5py.string_dtype())},
            age={"values": np.arange(rows), "mask": np.arange(rows) % 5 == 0},
            size=np.linspace(0, 1, rows), number=np.arange(rows),
        )  # fmt: skip
        put_frame(file, "var", genes or [f"gene{n}" for n in range(dense.shape[1])], index)
        file["obsm/X_pca"] = np.arange(rows * 2.0).reshape(rows, 2)
    return os.fspath(path)
