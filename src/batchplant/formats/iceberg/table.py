"""Name of a table, location of its metadata, and its catalog."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import (
    BatchplantError,
    DamagedError,
    NotFoundError,
    OptionError,
    exceptions_as,
    needs,
)
from ...storage import Url, check_regular, is_remote, join, like, read_beside, read_whole, tree
from ...storage.settings import PLAIN, StorageOptions
from ..base.lake import conflict, first_line, wrapped

METADATA = "metadata"
CATALOG = "catalog.db"
# The name of the table and of its catalog, in the catalog that lies in its folder.
NAME, CATALOG_NAME = ("default", "table"), "batchplant"
# Of a table's name in a catalog.
SCHEME = "iceberg"
# Field number → our description of it.
FIELDS = "batchplant.fields"


def library() -> Any:
    with needs("Iceberg needs the package pyiceberg", "iceberg"):
        import pyiceberg.catalog.sql
    return pyiceberg


def local(path: str) -> str:
    """A location without its scheme, made plain."""
    plain = re.sub(r"^file:(?=/)(//)?", "", path)
    return plain.rstrip("/") if is_remote(plain) else os.path.abspath(plain)


def newest(folder: str) -> str:
    """The file with the current metadata of the table in a folder."""
    inside = join(folder, METADATA)
    catalog, hint = join(folder, CATALOG), join(inside, "version-hint.text")
    check_regular(catalog)
    names = [name for name in tree.names(inside) if name.endswith(".metadata.json")]
    if tree.exists(catalog):
        return join(inside, os.path.basename(_from_catalog(catalog)))
    with contextlib.suppress(BatchplantError, UnicodeDecodeError):
        message = (read_beside(hint) or b"")[:100].decode().strip()
        named = (
            message
            if message.endswith(".metadata.json")
            else f"{'v' * message.isdigit()}{message}.metadata.json"
        )
        if os.path.basename(named) in names:
            return join(inside, os.path.basename(named))
    if not names:
        raise NotFoundError("there is no Iceberg table: no metadata/….metadata.json", path=folder)

    def age(path: str) -> tuple[int, int]:
        number = re.match(r"v?(\d+)", os.path.basename(path))
        return int(number[1]) if number else -1, 0 if is_remote(path) else os.stat(path).st_mtime_ns

    return max((join(inside, name) for name in names), key=age)


def _connect(file: str, mode: str) -> sqlite3.Connection:
    if not is_remote(file):
        quoted = re.sub(r"[%?#]", lambda match: f"%{ord(match[0]):02x}", os.path.abspath(file))
        return sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True)
    opened = sqlite3.connect(":memory:")
    opened.deserialize(read_whole(file))
    return opened


def _locations(file: str, mode: str = "ro") -> list[tuple[Any, ...]]:
    """Return the locations of its tables' metadata, from the catalog."""
    try:
        with contextlib.closing(_connect(file, mode)) as opened:
            return opened.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    except sqlite3.OperationalError as error:
        # A writer was killed amid a change. As with other formats, whoever opens it next brings it in order.
        if mode == "ro" and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
            return _locations(file, "rw")
        raise


def _from_catalog(file: str) -> str:
    with exceptions_as(DamagedError, "the catalog cannot be read", sqlite3.Error, UnicodeError, path=file):
        rows = _locations(file)
    if len(rows) != 1 or not isinstance(rows[0][0], str):
        raise DamagedError(f"the catalog lists {len(rows)} tables, not this one", path=file)
    return str(rows[0][0])


Catalog = str | Mapping[str, str] | None


def named(path: str, catalog: Catalog) -> tuple[str, Catalog]:
    """The name of a table in its catalog, and the catalog; None: the path is a folder."""
    scheme, separator, address = path.partition("://")
    if not separator or scheme.lower() != SCHEME:
        return path, catalog
    name, _, table = address.partition("/")
    table = table.strip("/").replace("/", ".")
    if not name or not all(table.split(".")) or "." not in table:
        raise OptionError(f"{SCHEME}://CATALOG/NAMESPACE.TABLE names a table of a catalog", path=path)
    if catalog is not None and catalog != name:
        raise OptionError(f"the name says which catalog it is: {name}; leave catalog out", path=path)
    return like(path, table), name


def open_catalog(catalog: str | Mapping[str, str]) -> Any:
    """Any catalog: the name of one in pyiceberg's configuration, or its properties.

    Among the properties, ``name`` is what it is called: one in an SQL database keeps its tables by that.
    """
    library()
    from pyiceberg.catalog import load_catalog

    try:
        if isinstance(catalog, str):
            return load_catalog(catalog)
        properties = dict(catalog)
        return load_catalog(str(properties.pop("name", CATALOG_NAME)), **properties)
    except Exception as error:
        raise OptionError(f"the catalog cannot be opened: {first_line(error)}") from None


def has_keys(table: Any) -> bool:
    """True if the catalog has the keys to its store, which we then need not have."""
    return "s3.access-key-id" in table.io.properties


def reached_by(table: Any, path: str, storage_options: StorageOptions = PLAIN) -> str:
    """A file of a table in a bucket: a catalog knows where its store is, unless whoever opens it does."""
    if isinstance(path, Url) or not is_remote(path):
        return path
    properties = table.io.properties
    endpoint = storage_options.endpoint or properties.get("s3.endpoint")
    region = storage_options.region or properties.get("s3.region")
    return Url(path, dataclasses.replace(storage_options, endpoint=endpoint, region=region))


@contextlib.contextmanager
def transaction(path: str) -> Iterator[None]:
    """Conflicts and other failures of a commit as our own errors."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise conflict(path, error) from None
    except OperationalError as error:
        # SQLite's: another process is at it, or the disk is full or broken.
        if "locked" in str(error):
            raise conflict(path, error) from None
        raise OSError(errno.EIO, first_line(error), path) from None
    except (BatchplantError, OSError):
        raise
    except Exception:
        with wrapped(path):
            raise
