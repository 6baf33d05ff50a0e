"""Zarr: the suite, stores that zarr-python and tensorstore wrote, and those that nobody honest wrote."""

from pathlib import Path
from typing import ClassVar

from batchplant.testing import FormatSuite

GOLDEN = Path(__file__).parent.parent / "golden"


class TestSuite(FormatSuite):
    format = "zarr"
    suffix = ".zarr"
    golden = GOLDEN
