"""Show and clear the cache of remote data on this machine.

examples:
  batchplant cache info
  batchplant cache info --cache /data/cache --json
  batchplant cache clear s3://bucket/train/
  batchplant cache clear --help
"""

from __future__ import annotations

import argparse

from ..terminal import add_commands
from . import clear as clear
from . import info as info

COMMANDS = (info, clear)


def add_args(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, COMMANDS)
