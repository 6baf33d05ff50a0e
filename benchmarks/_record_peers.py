"""The peers of records.py: each writes the records its own way and gives a function that reads a batch.

A peer whose library is missing raises ImportError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

Cells = np.ndarray[Any, Any]
Read = Callable[[Any], Any]
Peer = Callable[[Path, Cells, ExitStack], Read]


def pread(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    path = folder / "plain.bin"
    cells.tofile(path)
    size = cells.shape[1]
    file = os.open(path, os.O_RDONLY)
    stack.callback(os.close, file)
    return lambda rows: [os.pread(file, size, row * size) for row in rows.tolist()]


def lmdb_package(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    import lmdb

    path = str(folder / "peer.lmdb")
    with lmdb.open(path, map_size=4 * cells.nbytes + (1 << 24)) as file, file.begin(write=True) as changes:
        for number, cell in enumerate(cells):
            changes.put(b"%08d" % number, cell.tobytes())
    opened = lmdb.open(path, readonly=True, lock=False, readahead=False)
    view = opened.begin()
    stack.callback(opened.close)
    return lambda rows: [view.get(b"%08d" % row) for row in rows.tolist()]


def pyarrow_take(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    import pyarrow as pa

    path = str(folder / "peer.arrow")
    column = pa.array([cell.tobytes() for cell in cells], pa.large_binary())
    table = pa.table({"data": column})
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    mapped = pa.ipc.open_file(pa.memory_map(path)).read_all().combine_chunks()["data"].chunk(0)
    return lambda rows: mapped.take(pa.array(rows))


def array_record(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    path = str(folder / "peer.array_record")
    out = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for cell in cells:
        out.write(cell.tobytes())
    out.close()
    reader = ArrayRecordReader(path)
    stack.callback(reader.close)
    return lambda rows: reader.read(rows.tolist())


def mds(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    from streaming import LocalDataset, MDSWriter

    path = str(folder / "mds")
    with MDSWriter(out=path, columns={"data": "bytes"}) as out:
        for cell in cells:
            out.write({"data": cell.tobytes()})
    dataset = LocalDataset(path)
    return lambda rows: [dataset[row]["data"] for row in rows.tolist()]


def h5py_rows(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    import h5py

    path = folder / "peer.h5"
    with h5py.File(path, "w") as file:
        file["data"] = cells
    file = stack.enter_context(h5py.File(path))
    data = file["data"]
    return lambda rows: [data[row] for row in rows.tolist()]


def ffrecord_package(folder: Path, cells: Cells, stack: ExitStack) -> Read:
    import ffrecord

    path = str(folder / "peer.ffr")
    out = ffrecord.FileWriter(path, len(cells))
    for cell in cells:
        out.write_one(cell.tobytes())
    out.close()
    reader = ffrecord.FileReader(path, check_data=False)
    stack.callback(reader.close)
    return lambda rows: reader.read(rows.tolist())


PEERS: dict[str, Peer] = {
    "pread": pread,
    "lmdb": lmdb_package,
    "pyarrow take": pyarrow_take,
    "array_record": array_record,
    "MDS": mds,
    "h5py": h5py_rows,
    "ffrecord": ffrecord_package,
}

# Answers every line with the seconds that parsing all Examples took.
TF_EXAMPLES = """
import json, sys, time
import tensorflow as tf
path, batch = sys.argv[1], int(sys.argv[2])
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
features = {
    "image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64),
    "score": tf.io.FixedLenFeature([], tf.float32), "box": tf.io.FixedLenFeature([4], tf.float32),
    "ids": tf.io.FixedLenFeature([16], tf.int64), "name": tf.io.FixedLenFeature([], tf.string),
}
data = tf.data.TFRecordDataset(path).batch(batch).map(lambda one: tf.io.parse_example(one, features))
for _ in sys.stdin:
    began = time.perf_counter()
    for _ in data:
        pass
    print(json.dumps(time.perf_counter() - began), flush=True)
"""
