"""A table in a local folder. This module imports pyiceberg, and is itself imported only when it is needed.

Metadata names every file by its absolute path. :class:`FolderIO` looks for those below the table's location
in the folder where the table really lies, so that a table can be made in a hidden folder and renamed, and one
that was moved or copied can be read and added to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyarrow import PythonFile
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from ...errors import OptionError, UnsafeError
from ...storage import absolute, check_regular, is_remote, like, open_source, tree
from ..base.lake import wrapped
from .table import CATALOG, CATALOG_NAME, NAME, local, newest, transaction

# Properties that name code to be run.
CODE = ("py-io-impl", "write.py-location-provider.impl", "py-catalog-impl")


class RemoteFile(InputFile):  # type: ignore[misc]
    """A file of a table on a server."""

    def __init__(self, location: str, path: str) -> None:
        super().__init__(location)
        self._place = path

    def __len__(self) -> int:
        return tree.size_below(self._place)

    def exists(self) -> bool:
        return tree.is_file(self._place)

    def open(self, seekable: bool = True) -> PythonFile:
        return PythonFile(open_source(self._place).file(), mode="r")


class FolderIO(PyArrowFileIO):  # type: ignore[misc]
    """Properties: ``location``, what the table calls its folder; ``folder``, where that is; ``outside``,
    ``yes`` where its files may lie anywhere."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties)
        folder = absolute(properties["folder"])
        self._location, self._folder = local(properties["location"]), like(folder, folder.rstrip("/"))

    def place(self, location: str) -> str:
        """Resolve the location of a file of the table."""
        path = local(location)
        up = is_remote(path) and ".." in path.split("/")
        if path.startswith(self._location + "/") and not up:
            return like(self._folder, self._folder + path[len(self._location) :])
        if (path.startswith(self._folder + "/") and not up) or self.properties.get("outside") == "yes":
            return like(self._folder, path)
        raise UnsafeError(
            f"the table lists {path}, which lies outside its folder; outside=True reads it anyway",
            path=self._folder,
        )

    def new_input(self, location: str) -> InputFile:
        path = self.place(location)
        if is_remote(path):
            return RemoteFile(location, path)
        check_regular(path)
        return PyArrowFile(location, path, LocalFileSystem())

    def new_output(self, location: str) -> InputFile:
        os.makedirs(os.path.dirname(self.place(location)), exist_ok=True)
        return self.new_input(location)

    def delete(self, location: object) -> None:
        os.unlink(self.place(str(getattr(location, "location", location))))


class FolderCatalog(SqlCatalog):  # type: ignore[misc]
    """The catalog of one table, in its folder."""

    def __init__(self, name: str, file: str, files: FolderIO) -> None:
        properties = {**files.properties, "py-io-impl": f"{FolderIO.__module__}.{FolderIO.__qualname__}"}
        super().__init__(name, uri=f"sqlite:///{file}", **properties)
        self._files = files

    def _load_file_io(self, properties: object = None, location: str | None = None) -> FolderIO:
        """Never a class that the table's own properties name."""
        return self._files


def from_folder(folder: str, outside: bool = False) -> Table:
    """The table in a folder, to be read."""
    file = newest(folder)
    where = {"folder": folder, "outside": "yes" if outside else "no"}
    with wrapped(file):
        table_metadata = FromInputFile.table_metadata(FolderIO({**where, "location": folder}).new_input(file))
        # Not StaticTable: it would import whatever class the metadata names.
        files = FolderIO({**where, "location": table_metadata.location})
        return Table(NAME, table_metadata, file, files, NoopCatalog(CATALOG_NAME))


@contextlib.contextmanager
def writable(path: str, catalog: Catalog | None = None) -> Iterator[Table]:
    """A table to commit to: of a catalog, or of the one in its folder."""
    with transaction(path), contextlib.ExitStack() as stack:
        if catalog is None:
            yield stack.enter_context(contextlib.closing(folder_catalog(path))).load_table(NAME)
        else:
            yield catalog.load_table(path)


def folder_catalog(folder: str, location: str | None = None) -> FolderCatalog:
    """The catalog in a table's folder, to write to; ``location``: what a new table calls the folder."""
    if "?" in folder:
        raise OptionError("the path of an SQLite catalog cannot have a question mark", path=folder)
    if location is None:
        metadata = from_folder(folder).metadata
        location = metadata.location
        for name in CODE:
            if name in metadata.properties:
                raise UnsafeError(f"the table's property {name} names code to be run", path=folder)
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.path.abspath(folder), CATALOG)
    return FolderCatalog(CATALOG_NAME, file, FolderIO({"location": location, "folder": folder}))
