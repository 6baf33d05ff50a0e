"""LitData of Lightning: the suite, sets that LitData wrote, sets for it, and what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from batchplant.testing import FormatSuite

GOLDEN = Path(__file__).parent.parent / "golden"
OURS = GOLDEN / "litdata"


class TestLitData(FormatSuite):
    format = "litdata"
    suffix = ".litdata"
    golden = GOLDEN
    # Every few samples another chunk.
    options: ClassVar[dict[str, Any]] = {"chunk_bytes": 6000}
