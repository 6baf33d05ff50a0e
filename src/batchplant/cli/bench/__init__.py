"""Measure how fast a dataset can be used on this machine.

examples:
  batchplant bench loader train.beton
  batchplant bench loader train.beton --pipeline val --workers 4 --json
  batchplant bench codecs photos/
  batchplant bench formats photos/ --figure formats.svg
  batchplant bench chunks train.beton
  batchplant bench shuffle train.beton
  batchplant bench loader --help
"""

from __future__ import annotations

import argparse

from ..parser import add_commands
from . import chunks, codecs, formats, loader, shuffle

# A further bench is a module here, with a docstring, add_args and run.
BENCHES = (loader, formats, codecs, chunks, shuffle)


def add_args(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, BENCHES)
