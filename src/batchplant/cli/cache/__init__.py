"""Show, clear and fill the cache of remote data on this machine.

examples:
  batchplant cache info
  batchplant cache info --cache /data/cache --json
  batchplant cache clear s3://bucket/train/
  batchplant cache warm s3://bucket/train.tar
  batchplant cache warm --help
"""

from __future__ import annotations

import argparse

from ..parser import add_commands
from . import clear, info, warm

COMMANDS = (info, clear, warm)


def add_args(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, COMMANDS)
