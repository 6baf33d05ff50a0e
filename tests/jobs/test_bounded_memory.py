"""Converting takes a bounded amount of memory, however many rows there are.

A process of its own converts a table from format to format. What counts are the bytes that it allocates (by
malloc, which Python, NumPy, Arrow and the native core use here), not the pages that the system keeps: how
many those are depends on what else the machine does. A look that is missed makes the figure smaller.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import pytest

import processes
from batchplant.testing.cases import EXHAUSTIVE

ROWS = 200_000
ROW_BYTES = 616
# An index of some numbers for each row, batches under way, and a row group may be held; the table may not.
MOST_HELD_BYTES = 96 << 20

# Unpacked row groups are kept up to this; by default it is more than the table has here.
CACHE = 32 << 20

CHAIN = ["csv", "parquet", *(["tfrecord", "msgpack"] if EXHAUSTIVE else []), "beton"]

SCRIPT = """
import ctypes, json, os, sys, threading
import numpy as np
import batchplant as bp
from batchplant.formats.registry import get_format
from batchplant.schema.columns import Columns, Ragged

folder, rows, chain = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info

class Peak(threading.Thread):
    "The most bytes that were allocated, looked at again and again."
    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.done = 0, threading.Event()
    def look(self, *_):
        found = mallinfo()
        self.most = max(self.most, found.uordblks + found.hblkhd)
    def run(self):
        while not self.done.wait(0.005):
            self.look()

def path(name):
    return f"{folder}/{rows}-{name}{get_format(name).suffixes[0]}"

def held(what):
    peak = Peak()
    peak.look()
    before = peak.most
    peak.start()
    what(peak.look)
    peak.done.set()
    peak.join()
    return peak.most - before

letters = np.random.default_rng(0).integers(97, 123, (10_000, 600), dtype=np.uint8)

def tables():
    for start in range(0, rows, len(letters)):
        numbers = np.arange(start, start + len(letters))
        offsets = np.arange(len(letters) + 1, dtype=np.int64) * 600
        yield Columns(id=numbers, x=numbers / 7, text=Ragged(letters.reshape(-1), offsets))

def create(look):
    schema = {"id": bp.Int(), "x": bp.Float(), "text": bp.Text()}
    with bp.create(path(chain[0]), schema, workers=2) as out:
        for columns in tables():
            out.append(columns)
            look()

def convert(source, target):
    return lambda look: bp.convert(
        path(source),
        path(target),
        progress=look,
        source_options={"format": source},
        options=bp.ConvertOptions(workers=2),
    )

found = {f"to {chain[0]}": held(create)}
for source, target in zip(chain, chain[1:]):
    found[f"{source} to {target}"] = held(convert(source, target))
    os.remove(path(source))
reader = bp.open(path(chain[-1]))
assert len(reader) == rows and reader[rows - 1]["id"] == rows - 1
# What is held is seen.
found["held"] = held(lambda look: (reader.read(range(rows)), look()))
print(json.dumps(found))
"""


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("this C library does not say what is allocated")
    assert ROWS * ROW_BYTES > MOST_HELD_BYTES
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(ROWS), *CHAIN]
    plain = {"ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONMALLOC": "malloc"}
    environment = {**os.environ, **plain, "BATCHPLANT_CHUNK_CACHE": str(CACHE)}
    done = processes.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    held: dict[str, int] = json.loads(done.stdout)
    assert held.pop("held") > MOST_HELD_BYTES
    assert {step: most >> 20 for step, most in held.items() if most > MOST_HELD_BYTES} == {}
