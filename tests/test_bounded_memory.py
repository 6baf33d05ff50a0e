"""Converting takes a bounded amount of memory, however many rows there are.

A process of its own converts a table from format to format. Its memory is measured (what is its own: pages of
mapped files are the system's, and go when they are needed), and limited: it could not hold the table even
once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import processes

MANY, FEW = 280_000, 20_000
ROW_BYTES = 616
# An index of some numbers for each row, and what allocators keep, may grow; the table itself may not be held.
GROWTH = 64 << 20
LIMIT = 160 << 20

# Unpacked row groups are kept up to this; by default it is more than the table has here.
CACHE = 32 << 20

CHAIN = ["csv", "parquet", "tfrecord", "msgpack", "beton"]

SCRIPT = """
import json, os, resource, sys, threading, time
import numpy as np
import batchplant as bp
from batchplant.columns import Columns, Ragged

folder, rows, limit, chain = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

def path(name):
    return f"{folder}/{rows}-{name}{bp.registry.get_format(name).suffixes[0]}"

class Peak(threading.Thread):
    "The most memory of its own that the process had, looked at again and again."
    def run(self):
        self.most, self.done = 0, threading.Event()
        while not self.done.wait(0.005):
            self.most = max(self.most, status("RssAnon"))

def bounded(what):
    before = status("RssAnon")
    peak = Peak(daemon=True)
    peak.start()
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + limit, -1))
    try:
        what()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
    peak.done.set()
    peak.join()
    return peak.most - before

letters = np.random.default_rng(0).integers(97, 123, (10_000, 600), dtype=np.uint8)

def tables():
    for start in range(0, rows, len(letters)):
        numbers = np.arange(start, start + len(letters))
        offsets = np.arange(len(letters) + 1, dtype=np.int64) * 600
        yield Columns(id=numbers, x=numbers / 7, text=Ragged(letters.reshape(-1), offsets))

def create():
    with bp.create(path(chain[0]), {"id": bp.Int(), "x": bp.Float(), "text": bp.Text()}) as out:
        for columns in tables():
            out.append(columns)

found = {f"to {chain[0]}": bounded(create)}
for source, target in zip(chain, chain[1:]):
    found[f"{source} to {target}"] = bounded(lambda: bp.convert(path(source), path(target), format=source))
    os.remove(path(source))
reader = bp.open(path(chain[-1]))
assert len(reader) == rows and reader[rows - 1]["id"] == rows - 1
print(json.dumps(found))
"""


def peaks(rows: int, folder: Path) -> dict[str, int]:
    """Step of the chain → bytes that its memory rose by."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(rows), str(LIMIT), *CHAIN]
    # The limit counts what is reserved too, so nobody may reserve more than is used.
    plain = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    environment = {**os.environ, **plain, "BATCHPLANT_CHUNK_CACHE": str(CACHE)}
    done = processes.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured by Linux")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert MANY * ROW_BYTES > LIMIT
    few, many = peaks(FEW, tmp_path), peaks(MANY, tmp_path)
    assert {step: most >> 20 for step, most in many.items() if most > few[step] + GROWTH} == {}
