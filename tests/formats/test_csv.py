"""CSV: the suite."""
from typing import ClassVar
from pathlib import Path
from batchplant.testing import FormatSuite
GOLDEN = Path(__file__).parent.parent / "golden"

class TestCsv(FormatSuite):
    format = "csv"
    suffix = ".csv"
    golden = GOLDEN
    in_place = False
class TestTsv(FormatSuite):
    format = "csv"
    suffix = ".tsv"
    in_place = False
class TestGzip(FormatSuite):
    format = "csv"
    suffix = ".csv.gz"
    in_place = False
class TestZstd(FormatSuite):
    format = "csv"
    suffix = ".csv.zst"
    in_place = False
