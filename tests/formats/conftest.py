"""Tests that write many small files have their folders in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
# A container may have very little of it.
MIN_FREE_BYTES = 2 << 30


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; in memory where the module is marked so, and there is room."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE_BYTES
    if has_room and request.node.get_closest_marker("in_memory"):
        with tempfile.TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        yield tmp_path
