"""A Delta table as the package deltalake opens it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import DamagedError, MissingLibraryError, NotFoundError, OptionError
from ...storage import check_regular, is_remote, join, tree
from ...storage.remote.store_options import options_for
from ..base.lake import first_line, wrapped

LOG = "_delta_log"


def library() -> Any:
    try:
        import deltalake
    except ImportError:
        raise MissingLibraryError(
            'Delta Lake needs the package deltalake: pip install "batchplant[delta]"'
        ) from None
    return deltalake


def open_table(path: str, version: int | None = None, storage: Mapping[str, str] | None = None) -> Any:
    deltalake = library()
    _check_log(path)
    options = {**options_for(path), **(storage or {})} or None
    with wrapped(path):
        try:
            latest = deltalake.DeltaTable(path, storage_options=options) if version is not None else None
            # The library would look for each of the versions up to there.
            if latest is not None and not 0 <= (version or 0) <= latest.version():
                raise OptionError(f"there is no version {version}; the latest is {latest.version()}")
            return deltalake.DeltaTable(path, version=version, storage_options=options)
        except deltalake.exceptions.TableNotFoundError as error:
            raise NotFoundError(f"there is no Delta table: {first_line(error)}") from None
        except deltalake.exceptions.DeltaError as error:
            if version is not None and "version" in str(error).lower():
                raise OptionError(f"there is no version {version}: {first_line(error)}") from None
            raise


def _check_log(path: str) -> None:
    """The library takes an entry of no bytes for one that changed nothing, and waits for pipes."""
    log = join(path, LOG)
    if is_remote(path):
        for one in tree.entries(log) if tree.is_folder(log) else ():
            if one.name.endswith(".json") and not one.folder and not one.size:
                raise DamagedError("this entry of the log is empty", path=join(log, one.name))
        return
    if not os.path.isdir(log):
        return
    with os.scandir(log) as entries:
        for entry in entries:
            check_regular(entry.path)
            if entry.name.endswith(".json") and entry.is_file() and not entry.stat().st_size:
                raise DamagedError("this entry of the log is empty", path=entry.path)
