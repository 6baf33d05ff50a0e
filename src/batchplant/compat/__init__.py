"""Mirrors of the interfaces of FFCV, ffrecord and tf.data.

Users import them as ``batchplant.ffcv``, ``batchplant.ffrecord`` and ``batchplant.tfrecord``; aliases make
both names mean the same modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    # The real one would be imported with every ``import batchplant``, and takes 10 ms.
    Loader = object

MIRRORS = ("ffcv", "ffrecord", "tfrecord")


class Alias:
    """Finder that lets imports of ``alias`` and of all modules below it find those of ``target``."""

    def __init__(self, alias: str, target: str) -> None:
        self.alias = alias
        self.target = target

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.alias and not fullname.startswith(f"{self.alias}."):
            return None
        name = self.target + fullname.removeprefix(self.alias)
        spec = importlib.util.find_spec(name)
        if spec is None:
            message = f"{self.target}, which stands in for {self.alias} here, has no module {fullname!r}"
            raise ModuleNotFoundError(message, name=fullname)
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, _SameModule(name), is_package=is_package)


class _SameModule(Loader):
    """Loader of an existing module, so that its classes are the same under both names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has set the alias's spec.
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Code for ``python -m``."""
        spec = importlib.util.find_spec(self._name)
        # Editable installs wrap the loader of files in one of their own.
        get_code = getattr(spec.loader, "get_code", None) if spec else None
        return get_code(self._name) if get_code else None


def install_aliases() -> None:
    """Let ``import batchplant.ffcv`` and its siblings find the mirrors in this package."""
    parent = __name__.rpartition(".")[0]
    # Before the finder of files: the aliased packages have a folder, in which it would find a second copy.
    sys.meta_path[:0] = [Alias(f"{parent}.{mirror}", f"{__name__}.{mirror}") for mirror in MIRRORS]
