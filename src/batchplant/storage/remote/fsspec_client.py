"""Every other scheme (``ftp://``, ``sftp://``, ``memory://`` …) through fsspec."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import AccessError, BatchplantError, MissingLibraryError, NotFoundError, OptionError, needs
from ..settings import StorageOptions
from ..urls import Place
from .client import (
    NO_SIZE,
    REFUSED,
    Client,
    Data,
    Entry,
    Got,
    RefusedError,
    TransientError,
    as_array,
    checked_size,
    failure_of,
)

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, KeyError)
IN_PLACE = ("sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "file", "local")
# Names that drivers use for attributes that change with a file.
TAGS = (
    "etag", "mtime", "lastmodified", "last_modified", "last-modified", "updated", "created", "generation",
    "version_id", "versionid", "md5", "md5hash", "content_md5", "crc32c", "sha256", "checksum", "commit_hash",
    "modify", "blob_id",
)  # fmt: skip


class FsspecClient(Client):
    """Client of any file system of fsspec."""

    def __init__(self, url: str, place: Place, options: StorageOptions) -> None:
        super().__init__(place.root, options)
        with needs(f"{place.scheme}:// needs fsspec", "remote"):
            import fsspec
        # These protocols show a file while it grows.
        self._in_place = place.scheme in IN_PLACE
        arguments = {"anon": True} if options.anonymous else {}
        # In the name of an object, :: does not chain file systems.
        url = place.root if "::" in place.name else url
        try:
            # storage.tree caches listings while a dataset is opened, and no longer.
            self._fs, _ = fsspec.core.url_to_fs(url, use_listings_cache=False, **arguments)
        # fsspec says which package drives the protocol, or that it knows none.
        except (ImportError, ValueError) as error:
            kind = MissingLibraryError if isinstance(error, ImportError) else OptionError
            raise kind(str(error), path=url) from None

    def _path(self, name: str) -> str:
        return str(self._fs._strip_protocol(self._shown(name)))

    def _entry(self, info: dict[str, Any], name: str) -> Entry:
        tags = {str(key).lower(): value for key, value in info.items() if value}
        tag = " ".join(str(tags[key]) for key in TAGS if key in tags)
        if info.get("size") is None:
            raise AccessError(NO_SIZE, path=self._shown(name))
        return Entry(name, checked_size(info["size"], self._shown(name)), tag)

    def head(self, name: str) -> Entry:
        with self._asking(name):
            info = self._fs.info(self._path(name))
        if info.get("type") == "directory":
            raise NotFoundError("no such file", path=self._shown(name))
        return self._entry(info, name)

    def get(self, name: str, start: int, end: int) -> Got:
        """Return bytes only: drivers report no size or tag with them."""
        with self._asking(name, start):
            data = as_array(self._fs.cat_file(self._path(name), start=start, end=end))
        if len(data) > end - start:
            message = (
                f"{len(data)} bytes came, not {end - start}: the server gives no ranges; copy it to a disk"
            )
            raise AccessError(message, path=self._shown(name), offset=start)
        return self.count(Got(data, -1, ""))

    def get_whole(self, name: str) -> Got:
        with self._asking(name):
            return self.count(Got(as_array(self._fs.cat_file(self._path(name))), -1, ""))

    def _level(self, folder: str) -> tuple[list[Entry], list[str]]:
        try:
            with self._asking(folder):
                infos = self._fs.ls(self._path(folder), detail=True)
        except NotFoundError:
            return [], []
        top = self._path("").rstrip("/")
        entries, folders = [], []
        for info in infos:
            name = str(info["name"]).removeprefix(top).lstrip("/")
            if name.rstrip("/") == folder.rstrip("/"):
                continue
            if info.get("type") == "directory":
                folders.append(name.rstrip("/"))
            else:
                entries.append(self._entry(info, name))
        return sorted(entries), sorted(folders)

    def _walk(self, folder: str, after: str | None) -> Iterator[Entry]:
        try:
            with self._asking(folder):
                infos = self._fs.find(self._path(folder), detail=True)
        except NotFoundError:
            return
        top = self._path("").rstrip("/")
        for path, info in sorted(infos.items()):
            name = path.removeprefix(top).lstrip("/")
            if after is None or name > after:
                yield self._entry(info, name)

    def put(self, name: str, data: Data, size: int | None = None) -> str:
        path = self._path(name)
        draft = f"{path}.{secrets.token_hex(4)}.part" if self._in_place else path
        with self._asking(name, writing=True):
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            if isinstance(data, bytes):
                self._fs.pipe_file(draft, data)
            else:
                self._write(draft, data)
            if draft != path:
                self._rename(draft, path)
        return ""

    def _write(self, path: str, pieces: Iterable[Any]) -> None:
        file = self._fs.open(path, "wb")
        try:
            for piece in pieces:
                file.write(piece)
        except BaseException:
            # Closing it would complete it.
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise
        file.close()

    def _rename(self, draft: str, path: str) -> None:
        try:
            self._fs.mv(draft, path)
        except Exception:
            # Some drivers do not rename over an existing file.
            if not self._fs.exists(path):
                raise
            self._fs.rm_file(path)
            self._fs.mv(draft, path)

    def copy(self, name: str, to: str) -> None:
        with self._asking(name):
            self._fs.cp_file(self._path(name), self._path(to))

    def delete(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(NotFoundError), self._asking(name):
                self._fs.rm_file(self._path(name))

    def _translate(self, error: Exception, name: str, start: int | None, **doing: bool) -> BatchplantError:
        if isinstance(error, BatchplantError):
            return error
        if isinstance(error, NotImplementedError):
            reason = "it cannot be written to" if doing.get("writing") else "its driver cannot do that"
            return AccessError(reason, path=self._shown(name))
        cause: BaseException = error
        while isinstance(cause, FileNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        codes = (getattr(cause, attribute, None) for attribute in ("status", "code"))
        path, code = self._shown(name), next((code for code in codes if isinstance(code, int)), None)
        if isinstance(cause, MISSING):
            return NotFoundError("no such file", path=path)
        if isinstance(cause, PermissionError) or code in REFUSED:
            return RefusedError("the server refuses it: check the credentials", path=path, offset=start)
        if code is not None:
            message = f"the server answered {code} {getattr(cause, 'message', '')}".rstrip()
            return failure_of(code, message, path, start)
        if isinstance(cause, TimeoutError):
            return TransientError("the server did not answer in time", path=path, offset=start)
        first_line = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
        kind = TransientError if isinstance(cause, OSError) else AccessError
        return kind(f"the server does not give it: {first_line}", path=path, offset=start)
