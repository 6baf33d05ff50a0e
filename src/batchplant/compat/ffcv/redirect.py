"""``import ffcv`` made to mean this package: what ``python -m batchplant.ffcv`` runs a script with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import Alias

# A folder with a package of that name, for processes that the script starts.
FOLDER = Path(__file__).parent / "alias"


def install() -> None:
    """From now on, in this process and in those it starts, ``import ffcv`` finds batchplant's mirror."""
    if not any(isinstance(finder, Alias) and finder.alias == "ffcv" for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias("ffcv", __name__.rpartition(".")[0]))
    # A process that is spawned gets this path; any other gets the variable.
    if str(FOLDER) not in sys.path:
        sys.path.insert(1, str(FOLDER))
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(FOLDER) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *known])
