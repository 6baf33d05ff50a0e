"""Sending to servers: parts side by side, objects that appear whole or not at all, work that can be stopped.

What takes long runs on threads, so that Ctrl-C reaches the one who waits: the upload is broken off then, and
the server forgets the parts that it has.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ..errors import AccessError, NotFoundError
from .remote import Entry, RefusedError, client_of
from .remote import trying as try_again

PIECE = 4 << 20
# Up to here a file goes in one request.
SMALL = 16 << 20
# Small files, copies and removals under way at a time.
SIDE_BY_SIDE = 16
REMOVED_AT_ONCE = 500
POLL = 0.05
# Seconds after which a thread that does not run was not started.
NEVER_STARTED = 1.0
# Seconds that work has to break off. A request that waits for a server takes longer, and is left alone then.
MAX_STOP_SECONDS = 5.0

T = TypeVar("T")
# Of a thread that does work side by side with others: the event that tells all of them to stop.
_THREAD = threading.local()
# Told how far large files are: URL, bytes, and of how many.
Watcher = Callable[[str, int, int], None]
_WATCHERS: list[Watcher] = []


@contextlib.contextmanager
def watching(report: Watcher) -> Iterator[None]:
    """Within it, somebody is told how far large files are."""
    _WATCHERS.append(report)
    try:
        yield
    finally:
        _WATCHERS.remove(report)


class Stopped(BaseException):
    """Somebody does not want it any more."""


def trying(run: Callable[[], T], stop: threading.Event | None = None, **options: Any) -> T:
    """As in storage.remote; ends when ``stop`` is set, or the work that this thread is part of is stopped."""
    events = [one for one in (stop, getattr(_THREAD, "stopped", None)) if one is not None]
    return try_again(run, stop=lambda: any(one.is_set() for one in events), **options)


class Background:
    """Work on a thread of its own, which is given the event that tells it to stop."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self._work = work
        self.stopped, self.ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="batchplant-upload", daemon=True)

    def start(self) -> None:
        """Whoever is interrupted here does not know whether it runs, and has to stop it."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.stopped)
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def wait(self) -> None:
        """Until it is done; its error is raised here. Whoever is interrupted meanwhile stops it."""
        try:
            self.ended.wait()
        except BaseException:
            self.stop()
            raise
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.stopped.set()
        began = time.monotonic()
        while not self.ended.wait(POLL):
            waited = time.monotonic() - began
            if waited > (MAX_STOP_SECONDS if self._thread.is_alive() else NEVER_STARTED):
                return


class Held:
    """A file on its way to a server, where it appears when :meth:`complete` is called and not before."""

    def __init__(self, url: str, path: Path) -> None:
        self._sent, self._go = threading.Event(), threading.Event()
        self._job = Background(lambda stopped: send(url, path, stopped, self._hold))

    def _hold(self) -> None:
        self._sent.set()
        self._go.wait()

    def start(self) -> None:
        """Begin, and wait until the server has all of it that it can have before; errors come here."""
        self._job.start()
        while not self._sent.wait(POLL):
            if self._job.ended.is_set():
                self._job.wait()

    def complete(self) -> None:
        self._go.set()
        self._job.wait()

    def stop(self) -> None:
        self._job.stopped.set()
        self._go.set()
        self._job.stop()


def send(
    url: str,
    path: Path,
    stopped: threading.Event,
    hold: Callable[[], None] | None = None,
    *,
    check: bool = True,
) -> None:
    """Write an object from a file; ``hold`` is called before its last bytes, and may wait."""
    client, name = client_of(url)
    size = path.stat().st_size

    def go_on() -> None:
        if stopped.is_set():
            raise Stopped

    def pieces() -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(PIECE):
                go_on()
                yield piece
                for report in _WATCHERS if size > SMALL else ():
                    report(url, file.tell(), size)
        if hold is not None:
            hold()
        go_on()

    def put() -> str:
        if size > SMALL:
            return client.put(name, pieces(), size)
        # Pieces take three requests.
        return client.put(name, b"".join(pieces()), size)

    # The parts of a large file are tried again one by one.
    tag = trying(put, stopped, **({"least": 1} if size > SMALL else {}))
    if not check:
        return
    try:
        found = trying(lambda: client.head(name))
    # Who may write need not be allowed to read.
    except RefusedError:
        return
    # The tag of an upload in parts is the servers' own affair.
    other = tag and found.tag and "-" not in tag + found.tag and tag != found.tag
    if found.size != size or other:
        message = (
            f"{found.size} bytes lie there, and not the {size} that were sent: somebody else writes it too"
        )
        raise AccessError(message, path=url)


def send_all(files: Iterable[tuple[Path, str]], stopped: threading.Event | None = None) -> None:
    """Files to their URLs: small ones side by side; of large ones the parts are."""
    stopped = stopped or threading.Event()
    large: list[tuple[Path, str]] = []

    def small() -> Iterator[tuple[Path, str]]:
        for one in files:
            if one[0].stat().st_size > SMALL:
                large.append(one)
            else:
                yield one

    side_by_side(lambda one: send(one[1], one[0], stopped, check=False), small(), stopped)
    for path, url in large:
        send(url, path, stopped)


def side_by_side(
    work: Callable[[T], Any], given: Iterable[T], stopped: threading.Event | None = None
) -> None:
    """Call it with everything that is given, on threads; the first error stops the rest."""
    rest = iter(given)
    waiting: set[Future[Any]] = set()
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, "batchplant-upload")
    over = threading.Event()

    def run(one: T) -> None:
        _THREAD.stopped = over
        work(one)

    try:
        while True:
            if stopped is not None and stopped.is_set():
                raise Stopped
            waiting |= {pool.submit(run, one) for one in islice(rest, SIDE_BY_SIDE - len(waiting))}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
    finally:
        over.set()
        pool.shutdown(wait=True, cancel_futures=True)


def put_bytes(url: str, data: bytes) -> None:
    client, name = client_of(url)
    trying(lambda: client.put(name, data))


def get_bytes(url: str) -> bytes | None:
    """All bytes of a small object; None where there is none."""
    client, name = client_of(url)
    try:
        return trying(lambda: client.get_whole(name)).data.tobytes()
    except NotFoundError:
        return None


def copy_all(pairs: Iterable[tuple[str, str]]) -> None:
    """Copy objects on the server, (from, to)."""

    def copy(pair: tuple[str, str]) -> None:
        (client, name), to = client_of(pair[0]), client_of(pair[1])[1]
        trying(lambda: client.copy(name, to))

    side_by_side(copy, pairs)


def remove_all(urls: Iterable[str]) -> None:
    """Remove objects; those that are not there are none."""

    def remove(some: list[str]) -> None:
        client, names = client_of(some[0])[0], [client_of(one)[1] for one in some]
        trying(lambda: client.delete(names))

    rest = iter(urls)
    side_by_side(remove, iter(lambda: list(islice(rest, REMOVED_AT_ONCE)), []))


def below(url: str) -> dict[str, Entry]:
    """All objects below a folder, by their names in it."""
    client, name = client_of(url)
    try:
        found = trying(lambda: list(client.walk(name)))
    except NotFoundError:
        return {}
    return {one.name[len(name) + 1 :]: one for one in found if one.name.startswith(f"{name}/")}


def level(url: str) -> tuple[set[str], set[str]]:
    """The names of the objects and of the folders right in a folder."""
    client, name = client_of(url)
    cut = len(name) + 1 if name else 0
    try:
        objects, folders = trying(lambda: client.level(name))
    except NotFoundError:
        return set(), set()
    return {one.name[cut:] for one in objects}, {one[cut:] for one in folders}


def look(url: str) -> Entry | None:
    """What a file is like; None where there is none."""
    client, name = client_of(url)
    try:
        return trying(lambda: client.head(name))
    # A server may refuse to say whether a file is there.
    except (NotFoundError, RefusedError):
        return None


def is_file(url: str) -> bool:
    return look(url) is not None


def is_folder(url: str) -> bool:
    client, name = client_of(url)
    try:
        return any(trying(lambda: client.level(name)))
    except (NotFoundError, RefusedError):
        return False
