"""Dashboards of this machine: a note for each process, with the link, readable by its user only.

The notes lie in ``$XDG_RUNTIME_DIR/batchplant``, else in ``~/.cache/batchplant/dashboards``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import stat
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from ...errors import AccessError, NotFoundError, OptionError
from .. import Document

MAX_NOTE_BYTES = 1 << 16
MAX_ANSWER_BYTES = 64 << 20
TIMEOUT_SECONDS = 30.0


class Note(NamedTuple):
    """A dashboard of a process: its link, and the path of the dataset that it loads."""

    pid: int
    port: int
    url: str
    path: str

    def __str__(self) -> str:
        return f"{self.pid} (port {self.port}, {self.path})"


def folder() -> Path:
    """Return the folder of the notes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return Path(runtime, "batchplant")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "batchplant", "dashboards")


def write(url: str, path: str) -> Path | None:
    """Note that this process has a dashboard; None where no note can be written."""
    note = folder() / f"{os.getpid()}.json"
    content = json.dumps({"pid": os.getpid(), "url": url, "path": path}).encode()
    # The link contains the token: only the user may read it.
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return note
    return None


def remove(note: Path | None) -> None:
    """Remove the note of this process."""
    # A forked child must not remove its parent's note.
    if note is not None and note.stem == str(os.getpid()):
        with contextlib.suppress(OSError):
            note.unlink()


def running() -> list[Note]:
    """Return the dashboards of running processes; remove the notes of others."""
    try:
        paths = sorted(folder().glob("*.json"))
    except OSError:
        return []
    notes = [note for path in paths if (note := _read(path)) is not None]
    return sorted(notes)


def _read(path: Path) -> Note | None:
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                return None
            content = json.loads(file.read(MAX_NOTE_BYTES))
        pid, url = int(path.stem), str(content["url"])
        if not _alive(pid):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return Note(pid, urllib.parse.urlsplit(url).port or 0, url, str(content["path"]))
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def find(target: str) -> str:
    """Return the link to a dashboard: by process id, port, or the link itself; "" for the only one."""
    if target.startswith(("http://", "https://")):
        return target
    notes = running()
    if target and not target.isdecimal():
        raise OptionError(f"--attach takes the id of a process, a port or a link, not {target[:100]!r}")
    matches = [note for note in notes if not target or int(target) == note.pid]
    matches = matches or [note for note in notes if int(target) == note.port]
    if len(matches) == 1:
        return f"{matches[0].url}#tab=live"
    if not notes:
        raise NotFoundError(
            "no running loader has a dashboard; start one with Loader(…, dashboard=True), or the program "
            "with BATCHPLANT_DASHBOARD=1"
        )
    message = "several loaders have one: name a process" if matches else f"there is no dashboard of {target}"
    raise NotFoundError(f"{message}; there are {', '.join(map(str, notes))}")


def ask(url: str, path: str) -> Document:
    """Return the answer of a dashboard to a request."""
    parts = urllib.parse.urlsplit(url)
    https = parts.scheme == "https"
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", f"{parts.path.rstrip('/')}/api/{path}")
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES)
        if answer.status != 200:
            raise AccessError(
                f"the dashboard answered {answer.status}: {body[:200].decode(errors='replace')}"
            )
        content: Document = json.loads(body)
        return content
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AccessError(f"cannot reach the dashboard at {parts.hostname}:{parts.port}: {error}") from error
