"""A table in a local folder. This module imports pyiceberg, and is itself imported only when it is needed.

Metadata names every file by its absolute path. :class:`FolderIO` looks for those below the table's location
in the folder where the table really lies, so that a table can be made in a hidden folder and renamed, and one
that was moved or copied can be read and added to.
"""

from __future__ import annotations

import os
import re
from typing import Any

from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from ...errors import UnsafeError


def local(path: str) -> str:
    """A location without its scheme, made plain."""
    return os.path.abspath(re.sub(r"^file:(?=/)(//)?", "", path))


class FolderIO(PyArrowFileIO):  # type: ignore[misc]
    """Properties: ``location``, what the table calls its folder; ``folder``, where that is; ``outside``,
    ``yes`` where its files may lie anywhere."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties)
        self._location, self._folder = local(properties["location"]), os.path.abspath(properties["folder"])

    def place(self, location: str) -> str:
        """Where a file of the table really lies."""
        path = local(location)
        if path.startswith(self._location + os.sep):
            return self._folder + path[len(self._location) :]
        if path.startswith(self._folder + os.sep) or self.properties.get("outside") == "yes":
            return path
        raise UnsafeError(
            f"it lists {path}, which is not its own; outside=True reads it all the same", path=self._folder
        )

    def new_input(self, location: str) -> Any:
        return PyArrowFile(location, self.place(location), LocalFileSystem())

    def new_output(self, location: str) -> Any:
        os.makedirs(os.path.dirname(self.place(location)), exist_ok=True)
        return self.new_input(location)

    def delete(self, location: Any) -> None:
        os.unlink(self.place(getattr(location, "location", location)))


class FolderCatalog(SqlCatalog):  # type: ignore[misc]
    """The catalog of one table, in its folder."""

    def __init__(self, name: str, file: str, files: FolderIO) -> None:
        given = {**files.properties, "py-io-impl": f"{FolderIO.__module__}.{FolderIO.__qualname__}"}
        super().__init__(name, uri=f"sqlite:///{file}", **given)
        self._files = files

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
        """Never a class that the table's own properties name."""
        return self._files
