"""JSON: the suite."""
from typing import ClassVar
from pathlib import Path
from batchplant.testing import FormatSuite
GOLDEN = Path(__file__).parent.parent / "golden"

class TestLines(FormatSuite):
    format = "json"
    suffix = ".jsonl"
    golden = GOLDEN
    in_place = False
class TestArray(FormatSuite):
    format = "json"
    suffix = ".json"
    in_place = False
class TestGzip(FormatSuite):
    format = "json"
    suffix = ".jsonl.gz"
    in_place = False
class TestZstd(FormatSuite):
    format = "json"
    suffix = ".jsonl.zst"
    in_place = False
