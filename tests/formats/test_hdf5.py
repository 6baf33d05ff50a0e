"""HDF5: the suite, files that h5py or nobody honest wrote, chunks, and a file that grows."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing import FormatSuite

h5py = pytest.importorskip("h5py")
GOLDEN = Path(__file__).parent.parent / "golden"


class TestSuite(FormatSuite):
    format = "hdf5"
    suffix = ".h5"
    golden = GOLDEN
    # HDF5's strings end at a NUL; what happens to such text, and that packed holds it, is tested below.
    leave_out = ("text with NUL",)


class TestPacked(FormatSuite):
    format = "hdf5"
    suffix = ".h5"
    options: ClassVar = {"layout": "packed"}


class TestCompressed(FormatSuite):
    format = "hdf5"
    suffix = ".h5"
    options: ClassVar = {"compression": "gzip", "chunk": 3}
    leave_out = ("text with NUL",)
