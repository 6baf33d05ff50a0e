"""obstore for this process.

Its threads do not survive a fork: a child that calls it after its parent did waits for ever. They belong to
the loaded library, not to a store. So such a child loads the library once more, from a copy of the file: what
is loaded from another file is another library, with threads of its own.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
from types import ModuleType
from typing import Any

from ...errors import AccessError, MissingLibraryError

PACKAGE, LIBRARY = "obstore", "obstore._obstore"

_LOCK = threading.Lock()
_LOADED: Any = None
# What parents loaded: not even destroyed here.
_ORPHANS: list[Any] = []


def _forked() -> None:
    global _LOCK, _LOADED
    _LOCK = threading.Lock()
    if _LOADED is not None:
        _ORPHANS.append(_LOADED)
        _LOADED = None


os.register_at_fork(after_in_child=_forked)


def obstore(scheme: str) -> Any:
    """The package; ``scheme``: what it is needed for."""
    global _LOADED
    with _LOCK:
        if _LOADED is None:
            _LOADED = _load_copy() if _ORPHANS else _load(scheme)
        return _LOADED


def _load(scheme: str) -> Any:
    try:
        import obstore.store
    except ImportError:
        raise MissingLibraryError(f'{scheme}:// needs obstore: pip install "batchplant[remote]"') from None
    return obstore


def _load_copy() -> Any:
    """The package on a library of its own; whoever else imports it gets what they had."""
    theirs = {name: found for name, found in sys.modules.items() if _is_part(name)}
    for name in theirs:
        del sys.modules[name]
    try:
        sys.modules[LIBRARY] = _library(theirs[LIBRARY].__file__)
        return _load(PACKAGE)
    except (ImportError, OSError, MissingLibraryError) as error:
        message = f"remote data cannot be read in a forked process here ({error}); start processes by spawn"
        raise AccessError(message) from None
    finally:
        for name in list(filter(_is_part, sys.modules)):
            del sys.modules[name]
        sys.modules.update(theirs)


def _is_part(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE


def _library(file: str | None) -> ModuleType:
    assert file is not None
    copy = os.memfd_create("obstore")
    try:
        with open(file, "rb") as original:
            size, at = os.fstat(original.fileno()).st_size, 0
            while at < size:
                at += os.sendfile(copy, original.fileno(), at, size - at)
        path = f"/proc/self/fd/{copy}"
        loader = importlib.machinery.ExtensionFileLoader(LIBRARY, path)
        spec = importlib.util.spec_from_file_location(LIBRARY, path, loader=loader)
        assert spec is not None
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
        return made
    finally:
        # It stays mapped.
        os.close(copy)
