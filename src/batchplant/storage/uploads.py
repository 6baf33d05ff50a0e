"""Uploads: parts in parallel, objects that appear complete or not at all, work that can be stopped.

Long work runs on threads, so that Ctrl-C reaches the waiting thread: the upload is aborted then, and the
server discards the parts that it has.
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

READ_BYTES = 4 << 20
# Larger files are sent in parts.
MAX_SINGLE_REQUEST_BYTES = 16 << 20
# Small files, copies and removals in flight at a time.
MAX_PARALLEL = 16
MAX_DELETES_PER_REQUEST = 500
POLL_SECONDS = 0.05
# Seconds after which a thread that does not run was not started.
START_SECONDS = 1.0
# Seconds that work has to stop. A request that waits for a server takes longer, and is left alone then.
MAX_STOP_SECONDS = 5.0

T = TypeVar("T")
# Per thread of parallel work: the event that tells all of them to stop.
_THREAD = threading.local()
# Called with the progress of large files: URL, bytes done, and size.
Watcher = Callable[[str, int, int], None]
_WATCHERS: list[Watcher] = []


@contextlib.contextmanager
def watching(report: Watcher) -> Iterator[None]:
    """Within it, ``report`` is called with the progress of large files."""
    _WATCHERS.append(report)
    try:
        yield
    finally:
        _WATCHERS.remove(report)


class Stopped(BaseException):
    """Raised to stop work that is no longer needed."""


def trying(run: Callable[[], T], stop: threading.Event | None = None, **options: Any) -> T:
    """Retry as storage.remote does; ends when ``stop`` is set, or the parallel work of this thread stops."""
    events = [event for event in (stop, getattr(_THREAD, "stopped", None)) if event is not None]
    return try_again(run, stop=lambda: any(flag.is_set() for flag in events), **options)


class Background:
    """Work on a thread of its own, which is given the event that tells it to stop."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self._work = work
        self.stopped, self.ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="batchplant-upload", daemon=True)

    def start(self) -> None:
        """Start the thread. A caller that is interrupted here has to stop it: it may or may not run."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self.stopped)
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def wait(self) -> None:
        """Wait until it is done, and raise its error. An interrupt meanwhile stops it."""
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
        while not self.ended.wait(POLL_SECONDS):
            waited = time.monotonic() - began
            if waited > (MAX_STOP_SECONDS if self._thread.is_alive() else START_SECONDS):
                return


class HeldUpload:
    """A file that is being uploaded, and appears on the server only when :meth:`complete` is called."""

    def __init__(self, url: str, path: Path) -> None:
        self._sent, self._go = threading.Event(), threading.Event()
        self._job = Background(lambda stopped: send(url, path, stopped, self._hold))

    def _hold(self) -> None:
        self._sent.set()
        self._go.wait()

    def start(self) -> None:
        """Begin, and wait until the server has all of it that it can have before; raises upload errors."""
        self._job.start()
        while not self._sent.wait(POLL_SECONDS):
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
            while piece := file.read(READ_BYTES):
                go_on()
                yield piece
                for report in tuple(_WATCHERS) if size > MAX_SINGLE_REQUEST_BYTES else ():
                    report(url, file.tell(), size)
        if hold is not None:
            hold()
        go_on()

    def put() -> str:
        if size > MAX_SINGLE_REQUEST_BYTES:
            return client.put(name, pieces(), size)
        # Sending parts takes three requests.
        return client.put(name, b"".join(pieces()), size)

    # The parts of a large file are retried one by one.
    tag = trying(put, stopped, **({"min_tries": 1} if size > MAX_SINGLE_REQUEST_BYTES else {}))
    if not check:
        return
    try:
        entry = trying(lambda: client.head(name))
    # Permission to write need not include permission to read.
    except RefusedError:
        return
    # The tag of an upload in parts is defined by the server.
    tags_differ = tag and entry.tag and "-" not in tag + entry.tag and tag != entry.tag
    if entry.size != size or tags_differ:
        message = (
            f"{entry.size} bytes lie there, and not the {size} that were sent: somebody else writes it too"
        )
        raise AccessError(message, path=url)


def send_all(files: Iterable[tuple[Path, str]], stopped: threading.Event | None = None) -> None:
    """Upload files to their URLs: small ones in parallel; large ones by parallel parts."""
    stopped = stopped or threading.Event()
    large: list[tuple[Path, str]] = []

    def small() -> Iterator[tuple[Path, str]]:
        for file in files:
            if file[0].stat().st_size > MAX_SINGLE_REQUEST_BYTES:
                large.append(file)
            else:
                yield file

    in_parallel(lambda item: send(item[1], item[0], stopped, check=False), small(), stopped)
    for path, url in large:
        send(url, path, stopped)


def in_parallel(
    work: Callable[[T], Any], arguments: Iterable[T], stopped: threading.Event | None = None
) -> None:
    """Call ``work`` with all arguments, on threads; the first error stops the rest."""
    remaining = iter(arguments)
    waiting: set[Future[Any]] = set()
    pool = ThreadPoolExecutor(MAX_PARALLEL, "batchplant-upload")
    ended = threading.Event()

    def run(argument: T) -> None:
        _THREAD.stopped = ended
        work(argument)

    try:
        while True:
            if stopped is not None and stopped.is_set():
                raise Stopped
            waiting |= {
                pool.submit(run, argument) for argument in islice(remaining, MAX_PARALLEL - len(waiting))
            }
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
    finally:
        ended.set()
        pool.shutdown(wait=True, cancel_futures=True)


def put_bytes(url: str, data: bytes) -> None:
    client, name = client_of(url)
    trying(lambda: client.put(name, data))


def get_bytes(url: str) -> bytes | None:
    """Return all bytes of a small object; None if there is none."""
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

    in_parallel(copy, pairs)


def remove_all(urls: Iterable[str]) -> None:
    """Delete objects; missing ones are ignored."""

    def remove(batch: list[str]) -> None:
        client, names = client_of(batch[0])[0], [client_of(url)[1] for url in batch]
        trying(lambda: client.delete(names))

    remaining = iter(urls)
    in_parallel(remove, iter(lambda: list(islice(remaining, MAX_DELETES_PER_REQUEST)), []))


def below(url: str) -> dict[str, Entry]:
    """Return all objects below a folder, by their names in it."""
    client, name = client_of(url)
    try:
        entries = trying(lambda: list(client.walk(name)))
    except NotFoundError:
        return {}
    return {entry.name[len(name) + 1 :]: entry for entry in entries if entry.name.startswith(f"{name}/")}


def level(url: str) -> tuple[set[str], set[str]]:
    """Return the names of the objects and of the folders directly in a folder."""
    client, name = client_of(url)
    cut = len(name) + 1 if name else 0
    try:
        objects, folders = trying(lambda: client.level(name))
    except NotFoundError:
        return set(), set()
    return {entry.name[cut:] for entry in objects}, {entry[cut:] for entry in folders}


def look(url: str) -> Entry | None:
    """Return the entry of a file; None if there is none."""
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
