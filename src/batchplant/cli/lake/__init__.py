"""Look after Delta, Iceberg and Lance tables: their history, old files, the way back, small files.

examples:
  batchplant lake history events.delta
  batchplant lake vacuum events.delta --dry-run
  batchplant lake rollback events.delta --to 12
  batchplant lake compact iceberg://production/logs.events
  batchplant lake vacuum --help
"""

from __future__ import annotations

import argparse

from ..parser import add_commands
from . import compact, history, rollback, vacuum

COMMANDS = (history, vacuum, rollback, compact)


def add_args(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, COMMANDS)
