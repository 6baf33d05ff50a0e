"""Redirection of ``import ffcv`` to this package, for ``python -m batchplant.ffcv``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import Alias

# A folder with a package of that name, for processes that the script starts.
ALIAS_FOLDER = Path(__file__).parent / "alias"


def install() -> None:
    """Let ``import ffcv`` find batchplant's mirror, in this process and in those it starts."""
    if not any(isinstance(finder, Alias) and finder.alias == "ffcv" for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias("ffcv", __name__.rpartition(".")[0]))
    # A process that is spawned gets this path; any other gets the variable.
    if str(ALIAS_FOLDER) not in sys.path:
        sys.path.insert(1, str(ALIAS_FOLDER))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(ALIAS_FOLDER) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ALIAS_FOLDER), *paths])
