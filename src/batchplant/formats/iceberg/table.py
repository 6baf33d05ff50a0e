"""Tables of pyiceberg: from a folder, or from a catalog."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import (
    BatchplantError,
    DamagedError,
    MissingLibraryError,
    NotFoundError,
    OptionError,
    UnsafeError,
)
from ...lake import conflict, first_line, wrapped

METADATA = "metadata"
CATALOG = "catalog.db"
# The name of the table and of its catalog, in the catalog that lies in its folder.
NAME, CATALOG_NAME = ("default", "table"), "batchplant"
# Field number → our description of it.
FIELDS = "batchplant.fields"
# Properties that name code to be run.
CODE = ("py-io-impl", "write.py-location-provider.impl", "py-catalog-impl")


def library() -> Any:
    try:
        import pyiceberg
    except ImportError:
        raise MissingLibraryError(
            'Iceberg needs the package pyiceberg: pip install "batchplant[iceberg]"'
        ) from None
    return pyiceberg


def newest(folder: str) -> str:
    """The file with the current metadata of the table in a folder."""
    inside = os.path.join(folder, METADATA)
    catalog, hint = os.path.join(folder, CATALOG), os.path.join(inside, "version-hint.text")
    if os.path.exists(catalog):
        return os.path.join(inside, os.path.basename(_from_catalog(catalog)))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(hint) as file:
            said = file.read(100).strip()
        named = said if said.endswith(".metadata.json") else f"{'v' * said.isdigit()}{said}.metadata.json"
        if os.path.exists(os.path.join(inside, os.path.basename(named))):
            return os.path.join(inside, os.path.basename(named))
    try:
        names = [name for name in os.listdir(inside) if name.endswith(".metadata.json")]
    except OSError:
        names = []
    if not names:
        raise NotFoundError("there is no Iceberg table: no metadata/….metadata.json", path=folder)
    return max((os.path.join(inside, name) for name in names), key=_age)


def _age(path: str) -> tuple[int, int]:
    number = re.match(r"v?(\d+)", os.path.basename(path))
    return int(number[1]) if number else -1, os.stat(path).st_mtime_ns


def _from_catalog(file: str) -> str:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{_quoted(file)}?mode=ro", uri=True)) as opened:
            rows = opened.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    except (sqlite3.Error, UnicodeError) as error:
        raise DamagedError(f"the catalog cannot be read: {error}", path=file) from None
    if len(rows) != 1 or not isinstance(rows[0][0], str):
        raise DamagedError(f"the catalog lists {len(rows)} tables, not this one", path=file)
    return str(rows[0][0])


def _quoted(path: str) -> str:
    return re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", os.path.abspath(path))


def from_folder(folder: str, outside: bool = False) -> Any:
    """The table in a folder, to be read."""
    library()
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    from .folder import FolderIO

    file = newest(folder)
    where = {"folder": folder, "outside": "yes" if outside else "no"}
    with wrapped(file):
        found = FromInputFile.table_metadata(FolderIO({**where, "location": folder}).new_input(file))
        # Not StaticTable: it would import whatever class the metadata names.
        files = FolderIO({**where, "location": found.location})
        return Table(NAME, found, file, files, NoopCatalog(CATALOG_NAME))


def open_catalog(given: str | Mapping[str, str]) -> Any:
    """Any catalog: the name of one in pyiceberg's configuration, or its properties."""
    library()
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(given) if isinstance(given, str) else load_catalog(CATALOG_NAME, **given)
    except Exception as error:
        raise OptionError(f"the catalog cannot be opened: {first_line(error)}") from None


def folder_catalog(folder: str, location: str | None = None) -> Any:
    """The catalog in a table's folder, to write to; ``location``: what a new table calls the folder."""
    library()
    from .folder import FolderCatalog, FolderIO

    if "?" in folder:
        raise OptionError("the path of an SQLite catalog cannot have a question mark", path=folder)
    if location is None:
        found = from_folder(folder).metadata
        location = found.location
        for name in CODE:
            if name in found.properties:
                raise UnsafeError(f"the table's property {name} names code to be run", path=folder)
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.path.abspath(folder), CATALOG)
    return FolderCatalog(CATALOG_NAME, file, FolderIO({"location": location, "folder": folder}))


@contextlib.contextmanager
def transaction(path: str) -> Iterator[None]:
    """Conflicts and other failures of a commit as our own errors."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except (CommitFailedException, ValidationException, OperationalError) as error:
        raise conflict(path, error) from None
    except BatchplantError:
        raise
    except Exception:
        with wrapped(path):
            raise
