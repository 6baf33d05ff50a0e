"""Use the cache of blocks while one system call fails, or kills; then look at what is left. As drive.py.

Prints one JSON object: how many points were tried, and the bad ones. See test_faults.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from drive import MODES, SHIM, in_child

from batchplant.storage.remote.disk import DiskCache

MOST = 140_000
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
URL = "s3://bucket/a"


def data_of(key: str, start: int) -> np.ndarray:
    seed = int(key[:8], 16) + start
    return np.random.default_rng(seed).integers(0, 256, 8000 + seed % 20_000, dtype=np.uint8)


class Case:
    """A folder with some blocks, and all that a process does with one."""

    def __init__(self, folder: Path) -> None:
        self.template, self.root = folder / "template", folder / "root"
        in_child(self.prepare)

    def prepare(self) -> None:
        cache = DiskCache(self.template, MOST)
        for start in (0, 1):
            cache.put(KEYS[0], start, data_of(KEYS[0], start))
        # What a killed writer left.
        draft = cache.space.reserve(KEYS[1], 20_000, 1.0)
        assert draft is not None

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)

    def check(self, cache: DiskCache, key: str, start: int) -> bool:
        data = data_of(key, start)
        cached = cache.get(key, start, len(data))
        assert cached is None or np.array_equal(cached, data), "OUTSIDE wrong bytes"
        return cached is not None

    def use(self) -> str:
        cache = DiskCache(self.root, MOST)
        for start in (5, 6, 7):
            for key in KEYS:
                cache.describe(key, URL, "tag", 50_000)
                cache.put(key, start, data_of(key, start), 1e10 + start if start % 2 else None)
                # What failed is not tried again for a while.
                cache._pause_until = 0
                self.check(cache, key, start)
                cache.expect(key, [(start, len(data_of(key, start)), 1e10 + 3)])
        # A damaged one goes.
        (next(self.root.glob("??/*-7-*"), None) or self.root / "none").write_bytes(b"damage")
        for key in KEYS:
            self.check(cache, key, 7)
        cache.clear(URL)
        cache.put(KEYS[0], 9, data_of(KEYS[0], 9))
        return "done"

    def count(self) -> int:
        self.reset()

        def work() -> int:
            SHIM.faults_arm(str(self.root).encode(), -1, 0, 0)
            assert self.use() == "done"
            return int(SHIM.faults_count())

        result = in_child(work)
        assert isinstance(result, int), result
        return result

    def look(self) -> Any:
        """Return the problem of the folder that another process finds."""
        if not self.root.exists():
            return None
        cache = DiskCache(self.root, MOST)
        disk_bytes = sum(path.lstat().st_blocks * 512 for path in [self.root, *self.root.rglob("*")])
        if disk_bytes > MOST:
            return f"{disk_bytes} bytes are taken"
        with cache.space._total.locked(0):
            total, counted = cache.space._total.read(), cache.space.count()[0]
        if total is not None and total[0] < counted:
            return f"the total says {total[0]}, it is {counted}"
        for key in KEYS:
            for start in range(10):
                self.check(cache, key, start)
        # Larger than what is left: somebody has to count, and clears up.
        large = np.arange(110_000, dtype=np.uint8)
        cache.put(KEYS[2], 50, large)
        if not np.array_equal(cache.get(KEYS[2], 50, len(large)), large):
            return "nothing can be kept"
        if list(self.root.glob("??/.*")):
            return "a draft is left"
        return None

    def at(self, number: int, mode: str) -> str | None:
        """Return the problem after a fault at one point, or None."""
        self.reset()

        def work() -> str:
            SHIM.faults_arm(str(self.root).encode(), number, *MODES[mode])
            return self.use()

        result = in_child(work)
        if (isinstance(result, list) and "OUTSIDE" in result[1]) or (
            result[0] == "signal" and mode != "kill"
        ):
            return f"ended by {result}"
        problem = in_child(self.look)
        return None if problem is None else f"after {result}: {problem}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10**9, help="points for each kind of fault")
    parser.add_argument("--mode", action="append", choices=list(MODES))
    parser.add_argument("--point", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        case = Case(Path(temporary))
        calls = case.count()
        bad, tried = [], 0
        for mode in args.mode or MODES:
            points = np.unique(np.linspace(0, calls - 1, min(args.most, calls)).astype(int)).tolist()
            for point in points if args.point is None else [args.point]:
                tried += 1
                wrong = case.at(point, mode)
                if wrong is not None:
                    bad.append([mode, point, wrong])
    print(json.dumps({"calls": calls, "tried": tried, "bad": bad}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
