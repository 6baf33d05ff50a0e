"""Parquet: the suite, files of other programs, partitions, damage."""

from pathlib import Path

import pytest

from batchplant.testing import FormatSuite

pytest.importorskip("pyarrow")
GOLDEN = Path(__file__).parent.parent / "golden"


class TestSuite(FormatSuite):
    format = "parquet"
    suffix = ".parquet"
    in_place = False
    golden = GOLDEN
