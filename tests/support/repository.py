"""Folders of the repository that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
# Files that other libraries wrote.
GOLDEN = TESTS / "golden"
