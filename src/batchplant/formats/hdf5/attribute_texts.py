"""Attributes of varying length, read by the library in a process of its own: see ``layout.read_texts``.

That process runs this module as a script, and imports nothing of the package for a local file.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import numpy as np

# The names of a dataset's axes, by the name that Zarr and xarray have for them.
AXES = "_ARRAY_DIMENSIONS"


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _axes(dataset: Any) -> list[str]:
    """The names of a dataset's axes: their labels, or those of the datasets that are attached to them."""
    return [axis.label or (axis[0].name.rpartition("/")[2] if len(axis) else "") for axis in dataset.dims]


def main() -> None:
    """Answer a request from standard input on standard output."""
    import h5py

    path, options, requested = json.load(sys.stdin)
    texts: dict[str, dict[str, Any]] = {}
    opened = path
    if options is not None:
        from batchplant.storage import StorageOptions, Url, open_source

        opened = open_source(Url(path, StorageOptions(**options))).file()
    with h5py.File(opened, "r", locking=False) as file:
        for where, names in requested.items():
            for name in names:
                with contextlib.suppress(Exception):
                    value = _axes(file[where]) if name == AXES else plain(file[where].attrs[name])
                    if name != AXES or any(value):
                        texts.setdefault(where, {})[name] = value
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
