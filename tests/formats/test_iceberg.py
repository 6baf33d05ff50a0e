"""Iceberg: the suite."""

import pytest

from batchplant.testing import FormatSuite, damage

pytest.importorskip("pyiceberg")


@pytest.fixture(autouse=True)
def few_places(monkeypatch):
    """A table is several files, and the log is read anew each time."""
    for name, value in (("CUT_EVERYWHERE", 0), ("CUT_ENDS", 40), ("CUT_BETWEEN", 40), ("FLIPS", 120)):
        monkeypatch.setattr(damage, name, value)


class TestSuite(FormatSuite):
    format = "iceberg"
    suffix = ".iceberg"
    in_place = False
    # A log that ends at the end of a line is one that did less.
    notices_cuts = False
