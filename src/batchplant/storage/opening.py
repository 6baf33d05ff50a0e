"""Opening: :func:`open_source` gives the Source of a path or a URL."""

from __future__ import annotations

import os

from .. import limits
from ..errors import AccessError, BatchplantError, NotFoundError
from .files import is_remote
from .remote import RemoteSource, refused
from .source import MappedSource, Source


def open_source(path: str) -> Source:
    """The bytes of a local file or a URL."""
    if is_remote(path):
        return RemoteSource(path)
    try:
        return MappedSource(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such file", path=path) from None
    except IsADirectoryError:
        raise NotFoundError("this is a folder, a file is needed", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


def read_beside(path: str) -> bytes | None:
    """All bytes of a small file that may or may not be there: None where it is not."""
    try:
        return read_whole(path)
    except NotFoundError:
        # A folder of that name is not nothing.
        if not is_remote(path) and os.path.isdir(path):
            raise
        return None
    except AccessError as error:
        # A server may refuse to say whether a file is there.
        if is_remote(path) and refused(error):
            return None
        raise


def read_whole(path: str) -> bytes:
    """All bytes of a small file: a note, an index, a list."""
    source = open_source(path)
    try:
        limits.check("it", source.size)
        return source.view(0, source.size).tobytes()
    except BatchplantError as error:
        raise error.at(path=path) from None
    finally:
        source.close()
