"""What a process and its batches hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def rows(batch: dict[str, Any]) -> int:
    """How many samples a batch has."""
    value = next(iter(batch.values()))
    # Ragged values are (values, offsets), with an offset more than there are samples.
    return len(value[1]) - 1 if isinstance(value, tuple) else len(value)


def own_memory() -> int:
    """What the process holds now, without the pages of mapped files, which the system can take back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
