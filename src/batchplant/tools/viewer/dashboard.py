"""Dashboard of running loaders: ``stats()`` once a second, stored for an hour, shown on a page.

One thread polls and one server answers for all loaders of a process. Neither keeps a loader alive: both end
when the last loader is closed or collected.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import threading
import time
import warnings
import weakref
from typing import ClassVar

import numpy as np

from ...errors import AccessError, BatchplantError, OptionError, shown
from ...loading.loader import DASHBOARD, Loader
from ...order import describe
from ...order.keyed import whole
from ...storage.platform import resident_memory
from .. import Document
from .augment import loader_arguments

# Measurements that are stored.
MAX_ROWS = 3600
# Columns of a measurement. All but the last seven are totals since the loader was made.
COLUMNS = (
    "samples", "batches", "waited", "step", "storage", "decode", "transforms", "device", "thread_decode",
    "thread_resize", "fetched", "requests", "skipped", "cpu",
    "time", "ready", "making", "memory", "epoch", "given", "of",
)  # fmt: skip
PAGE_BYTES = resource.getpagesize()


class Ring:
    """Ring buffer of measurements. Written by one thread, read by any."""

    def __init__(self, rows: int = MAX_ROWS) -> None:
        self._rows = np.zeros((rows, len(COLUMNS)))
        self._lock = threading.Lock()
        self.count = 0

    def add(self, row: dict[str, float]) -> None:
        with self._lock:
            self._rows[self.count % len(self._rows)] = [row[name] for name in COLUMNS]
            self.count += 1

    def since(self, first: int) -> tuple[int, list[list[float]]]:
        """Return the number of the next row, and the rows from ``first`` on that are still stored."""
        with self._lock:
            first = max(first, self.count - len(self._rows), 0)
            return self.count, self._rows[np.arange(first, self.count) % len(self._rows)].tolist()


class Watch:
    """Measurements of one loader; holds only a weak reference to it."""

    def __init__(self, number: int, loader: Loader, board: Dashboard) -> None:
        self.number, self.board = number, board
        self._loader = weakref.ref(loader)
        self.ring = Ring()
        self.last: Document = {}
        self.about = _about(loader)
        self.ended = False
        self.look()

    @property
    def url(self) -> str:
        """Link to this loader on the page."""
        return f"{self.board.server.url}#tab=live" + (f"&live_loader={self.number}" if self.number else "")

    def __repr__(self) -> str:
        return f"<dashboard of {self.about['path']}: {self.url}>"

    def look(self) -> None:
        """Add a measurement while the loader lives."""
        loader = self._loader()
        if loader is None or loader._closed:
            self.ended = True
        if loader is None or self.board.process != os.getpid():
            return
        stats = loader.stats()
        self.last = {name: stats[name] for name in ("bottleneck", "advice", "functions") if name in stats}
        progress = loader._progress
        row = {
                **{name: float(stats.get(name, 0)) for name in COLUMNS[:8]},
                "thread_decode": stats["workers"]["decode"],
                "thread_resize": stats["workers"]["resize"],
                "fetched": stats.get("bytes fetched", 0),
                "requests": stats.get("requests", 0),
                "skipped": stats["skipped"],
                "cpu": time.process_time(),
                "time": time.time(),
                "ready": stats["queue"]["ready"],
                "making": stats["queue"]["making"],
                "memory": resident_memory(),
                "epoch": -1 if progress is None else progress.epoch,
                "given": 0 if progress is None else progress.delivered,
                "of": 0 if progress is None else len(progress.shard),
        }  # fmt: skip
        self.ring.add(row)

    def report(self, first: int) -> Document:
        """Return the measurements since that row, for the page."""
        next_row, rows = self.ring.since(first)
        return {
            "loader": self.number, "about": self.about, "ended": self.ended, **self.last,
            "every": self.board.interval_seconds, "columns": COLUMNS, "rows": rows, "next": next_row,
        }  # fmt: skip

    def close(self) -> None:
        """Stop measuring; the page ends with the last loader."""
        self.board.drop(self)


class Dashboard:
    """The watched loaders of this process, and their page."""

    # Between two measurements.
    interval_seconds: ClassVar[float] = 1.0

    def __init__(self, port: int, first: Loader) -> None:
        from .serve import Server
        from .session import Session

        self.process = os.getpid()
        self.watches: list[Watch] = []
        self._lock, self._wake, self._ended = threading.Lock(), threading.Event(), False
        session = Session(first.reader, pipeline=loader_arguments(first, first.reader), live=self)
        try:
            self.server = Server(session, port=port)
        except AccessError as error:
            if not port:
                raise
            # A training run must not fail because a port is taken.
            warnings.warn(f"the dashboard takes another port: {error}", stacklevel=5)
            self.server = Server(session, port=0)
        self.server.start()
        self._thread = threading.Thread(target=self._look, name="batchplant-dashboard", daemon=True)
        self._thread.start()

    def add(self, loader: Loader) -> Watch:
        with self._lock:
            watch = Watch(len(self.watches), loader, self)
            self.watches = [*self.watches, watch]
        return watch

    def drop(self, watch: Watch) -> None:
        if os.getpid() != self.process:
            return
        watch.look()
        watch.ended = True
        if self.finished:
            self.close()

    @property
    def finished(self) -> bool:
        return bool(self.watches) and all(watch.ended for watch in self.watches)

    def find(self, number: int) -> Watch | None:
        return next((watch for watch in self.watches if watch.number == number), None)

    def _look(self) -> None:
        while not self._wake.wait(self.interval_seconds):
            for watch in self.watches:
                if not watch.ended:
                    watch.look()
            if self.finished:
                self._end()
                return

    def close(self) -> None:
        if os.getpid() != self.process:
            return
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self) -> None:
        self._wake.set()
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            self.server.stop()


_current: Dashboard | None = None
_lock = threading.Lock()


def watch(loader: Loader, port: int | None) -> Watch:
    """Show a loader on the page of this process."""
    global _current
    number = 0 if port is None else whole("port", port, 1, 65535)
    with _lock:
        old = _current
        if old is None or old.process != os.getpid() or old.finished:
            _current = old = Dashboard(number, loader)
            atexit.register(old.close)
        watched = old.add(loader)
    print(f"batchplant: dashboard of {watched.about['path']}: {watched.url}", file=sys.stderr, flush=True)
    return watched


def watch_as_told(loader: Loader, text: str) -> Watch | None:
    """Show a loader as the environment says, 1 or a port, which must not make a program fail."""
    try:
        if not text.isdecimal():
            raise OptionError(f"it is 1 or a port, not {text!r}")
        return watch(loader, None if int(text) == 1 else int(text))
    except BatchplantError as error:
        warnings.warn(f"no dashboard ({DASHBOARD}): {error}", stacklevel=3)
        return None


def _about(loader: Loader) -> Document:
    device, mesh = loader.config.device, loader.config.mesh
    places = (
        [] if mesh is None else [f"{axis} {n} of {mesh.axes[axis]}" for axis, n in mesh.coordinates().items()]
    )
    return {
        "path": shown(loader.reader.path), "pid": os.getpid(), "samples": loader.samples,
        "batch_size": loader.batch_size, "threads": loader.threads,
        "prefetch_batches": loader.prefetch_batches,
        "order": describe(loader.config.order), "device": str(device) if device else "",
        "rank": loader.rank, "world_size": loader.world_size, "plan": str(loader.plan),
        "mesh": ", ".join(places),
    }  # fmt: skip
