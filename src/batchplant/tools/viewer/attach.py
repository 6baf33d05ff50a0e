"""Which loaders of this machine have a dashboard: a note for each process, with the link, for its user alone.

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
from typing import Any, NamedTuple

from ...errors import AccessError, NotFoundError, OptionError

LONGEST_NOTE = 1 << 16
LONGEST_ANSWER = 64 << 20
# What runs on this machine answers at once, unless it is very busy.
PATIENCE = 30.0


class Note(NamedTuple):
    pid: int
    port: int
    url: str
    path: str

    def __str__(self) -> str:
        return f"{self.pid} (port {self.port}, {self.path})"


def folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return Path(runtime, "batchplant")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "batchplant", "dashboards")


def write(url: str, path: str) -> Path | None:
    """Note that this process has a dashboard; None where that cannot be, and only the link leads to it."""
    note = folder() / f"{os.getpid()}.json"
    said = json.dumps({"pid": os.getpid(), "url": url, "path": path}).encode()
    # The link has the token in it.
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        one = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(one, "wb") as file:
            file.write(said)
        return note
    return None


def remove(note: Path | None) -> None:
    # A child of a fork has its parent's, which stays.
    if note is not None and note.stem == str(os.getpid()):
        with contextlib.suppress(OSError):
            note.unlink()


def running() -> list[Note]:
    """The dashboards of processes that are alive; notes of others go."""
    try:
        found = sorted(folder().glob("*.json"))
    except OSError:
        return []
    notes = [note for one in found if (note := _read(one)) is not None]
    return sorted(notes)


def _read(path: Path) -> Note | None:
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        one = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(one, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                return None
            said = json.loads(file.read(LONGEST_NOTE))
        pid, url = int(path.stem), str(said["url"])
        if not _alive(pid):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return Note(pid, urllib.parse.urlsplit(url).port or 0, url, str(said["path"]))
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def find(what: str) -> str:
    """The link to a dashboard: by the id of its process, its port, or the link itself; "": the only one."""
    if what.startswith(("http://", "https://")):
        return what
    notes = running()
    if what and not what.isdecimal():
        raise OptionError(f"--attach takes the id of a process, a port or a link, not {what[:100]!r}")
    fits = [one for one in notes if not what or int(what) == one.pid]
    fits = fits or [one for one in notes if int(what) == one.port]
    if len(fits) == 1:
        return f"{fits[0].url}#tab=live"
    if not notes:
        raise NotFoundError(
            "no running loader has a dashboard; start one with Loader(…, dashboard=True), or the program "
            "with BATCHPLANT_DASHBOARD=1"
        )
    said = "several loaders have one: name a process" if fits else f"there is no dashboard of {what}"
    raise NotFoundError(f"{said}; there are {', '.join(map(str, notes))}")


def ask(url: str, path: str) -> dict[str, Any]:
    """What a dashboard answers."""
    parts = urllib.parse.urlsplit(url)
    https = parts.scheme == "https"
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", f"{parts.path.rstrip('/')}/api/{path}")
            answer = connection.getresponse()
            body = answer.read(LONGEST_ANSWER)
        if answer.status != 200:
            raise AccessError(
                f"the dashboard answered {answer.status}: {body[:200].decode(errors='replace')}"
            )
        found: dict[str, Any] = json.loads(body)
        return found
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AccessError(f"cannot reach the dashboard at {parts.hostname}:{parts.port}: {error}") from error
