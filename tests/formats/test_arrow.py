"""Arrow IPC, Feather and the folders of Hugging Face's datasets."""

from pathlib import Path
from typing import ClassVar

import pytest

from batchplant.testing import FormatSuite

pa = pytest.importorskip("pyarrow")
GOLDEN = Path(__file__).parent.parent / "golden"


class TestSuite(FormatSuite):
    format = "arrow"
    suffix = ".arrow"
    golden = GOLDEN


class TestStream(FormatSuite):
    format = "arrow"
    suffix = ".arrows"


class TestCompressed(FormatSuite):
    format = "arrow"
    suffix = ".feather"
    options: ClassVar = {"compression": "zstd"}
    in_place = False
