"""``import ffcv`` made to mean this package: what ``python -m batchplant.ffcv`` runs a script with."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = __name__.rpartition(".")[0]
THEIRS = "ffcv"
# A folder with a package of that name, for processes that the script starts.
FOLDER = Path(__file__).parent / "alias"


def install() -> None:
    """From now on, in this process and in those it starts, ``import ffcv`` finds batchplant's mirror."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    # A process that is spawned gets this path; any other gets the variable.
    if str(FOLDER) not in sys.path:
        sys.path.insert(1, str(FOLDER))
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(FOLDER) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *known])


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != THEIRS:
            return None
        ours = OURS + fullname.removeprefix(THEIRS)
        if importlib.util.find_spec(ours) is None:
            raise ModuleNotFoundError(
                f"{OURS}, which stands in for FFCV here, has no module {fullname!r}", name=fullname
            )
        return ModuleSpec(fullname, _Same(ours), is_package=True)


class _Same(Loader):
    """Gives the very module of ours, so that classes are the same under both names."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the other name into it.
        module.__spec__ = self._spec
