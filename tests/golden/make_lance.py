"""Write tests/golden/lance with pylance itself: a table for each version of its files.

usage: make_lance.py FOLDER
"""

import shutil
import sys
from pathlib import Path

import lance
import pyarrow as pa

ROWS = 6
BLOB = {"lance-encoding:blob": "true"}


def table(first: int, version: str) -> pa.Table:
    """Three rows: numbers, texts, lists, structs, and a blob, of which one is missing."""
    rows = range(first, first + 3)
    fields = [
        pa.field("n", pa.int32(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("point", pa.list_(pa.float32(), 2)),
        pa.field("blob", pa.large_binary(), metadata=BLOB),
    ]
    columns = [
        pa.array(rows, pa.int32()),
        pa.array([None if n == 4 else f"größe {n}" for n in rows]),
        pa.array([[n, n / 2] for n in rows], fields[2].type),
        pa.array([None if n == 1 else bytes([n]) * (n * 50) for n in rows], pa.large_binary()),
    ]
    if version != "2.0":
        fields.append(pa.field("inner", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])))
        inner = [None if n == 2 else {"a": n, "b": ["x"] * n} for n in rows]
        columns.append(pa.array(inner, fields[-1].type))
    return pa.table(columns, pa.schema(fields))


def main() -> None:
    for version in ("2.0", "2.1", "2.2"):
        path = Path(sys.argv[1]) / f"v{version.replace('.', '_')}.lance"
        shutil.rmtree(path, ignore_errors=True)
        lance.write_dataset(table(0, version), path, data_storage_version=version)
        lance.write_dataset(table(3, version), path, mode="append")
        lance.dataset(path).tags.create("whole", 2)
        lance.dataset(path).delete("n = 3")


if __name__ == "__main__":
    main()
