"""A dataset whose samples come when a test lets them: whoever waits for one can be killed.

As a program: a conversion of it by an engine.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import batchplant as bp
from batchplant.formats.npz import NpzReader
from batchplant.jobs import engines

# Beside the dataset: how many samples come; the others do when the file is gone.
HOLD = "hold"
DELAY = "BATCHPLANT_TEST_DELAY"
HOW: dict[str, Any] = {
    "shard_samples": 5,
    "resume": True,
    "options": bp.ConvertOptions(checksums=True),
}


class SlowReader(NpzReader):
    def _read(self, indices: Any, fields: Any) -> Any:
        while indices.size and indices.max() >= self._free():
            time.sleep(0.02)
        time.sleep(float(os.environ.get(DELAY, "0")))
        return super()._read(indices, fields)

    def _free(self) -> float:
        try:
            return int(Path(self.path).with_name(HOLD).read_text())
        except (OSError, ValueError):
            return float("inf")


def main(source: str, target: str, engine: str, scheduler: str) -> None:
    workers = 2 if engine != "threads" and not scheduler else None
    by = engines.make(engine, workers=workers, scheduler=scheduler or None)
    try:
        bp.convert(SlowReader(source), target, engine=by, **HOW)
    except bp.BatchplantError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    # Under the name that workers know it by.
    import slow_source

    slow_source.main(*sys.argv[1:])
