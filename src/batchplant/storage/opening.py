"""Opening: :func:`open_source` gives the Source of a path or a URL."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from ..errors import AccessError, BatchplantError, DamagedError, NotFoundError
from . import limits, tree
from .local import MappedSource
from .remote import RefusedError, RemoteSource
from .source import Source
from .urls import is_remote

_LOCAL = threading.local()


def open_source(path: str, first: int = 0) -> Source:
    """Open a local file or a URL; ``first``: number of bytes of a local file that are read at once."""
    if is_remote(path):
        return RemoteSource(path, tree.known_entry(path), tree.heads())
    handed: MappedSource | None = getattr(_LOCAL, "handed", None)
    if handed is not None and handed.path == path:
        _LOCAL.handed = None
        return handed
    try:
        return MappedSource(path, first)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such file", path=path) from None
    except IsADirectoryError:
        raise NotFoundError("this is a folder, a file is needed", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


@contextlib.contextmanager
def handing(source: Source | None) -> Iterator[None]:
    """Within it, the first open of this file in this thread gets this source: it is open already."""
    if not isinstance(source, MappedSource) or source.closed:
        yield
        return
    _LOCAL.handed = source
    try:
        yield
    finally:
        _LOCAL.handed = None
        source.forget_first()


@contextlib.contextmanager
def noting() -> Iterator[dict[str, bytes]]:
    """Within it, collect by path what this thread reads by :func:`read_beside`."""
    _LOCAL.notes = notes = dict[str, bytes]()
    try:
        yield notes
    finally:
        _LOCAL.notes = None


def read_beside(path: str) -> bytes | None:
    """Return all bytes of a small file that may be missing: then None."""
    content = tree.content(path) if is_remote(path) else None
    if content is None and not (is_remote(path) and tree.is_absent(path)):
        try:
            content = read_whole(path)
        except NotFoundError:
            # A folder of that name is an error.
            if not is_remote(path) and os.path.isdir(path):
                raise
        # A server may refuse to say whether a file is there.
        except RefusedError:
            pass
    notes: dict[str, bytes] | None = getattr(_LOCAL, "notes", None)
    if notes is not None and content is not None:
        notes[path] = content
    return content


def read_text(path: str) -> str:
    """Return all text of a list in a file of its own, however long it is."""
    source = open_source(path)
    try:
        return source.view(0, source.size).tobytes().decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"not text: {error}", path=path) from None
    finally:
        source.close()


def read_whole(path: str) -> bytes:
    """Return all bytes of a small file: metadata, an index, a list."""
    source = open_source(path)
    try:
        limits.check("it", source.size)
        return source.view(0, source.size).tobytes()
    except BatchplantError as error:
        raise error.at(path=path) from None
    finally:
        source.close()
