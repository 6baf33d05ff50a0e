"""The server of a node: makes every batch once for all processes of a user that need it.

Readers ask for batches by epoch and samples. The server learns from their requests which batch follows which,
so it knows what a reader that is behind will ask for, and keeps that for it: at most a window of batches. A
reader that is ahead by more than the window waits for the others, at most ``MAX_WAIT_SECONDS`` at once and
``WAIT_SHARE`` of the time; then those who are slower are on their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ... import _native
from ...data import hooks
from ...data.buffers import BufferPool
from ...errors import DamagedError
from ...schema.columns import I64
from ...storage import platform
from ..decoded import DecodedImages
from ..executor import Executor
from ..images import Exports, OnCpu
from . import recipe as recipes
from . import wire
from .wire import BatchEncoder, Decoder, Encoder, SharedBatch, SharedBuffers

# Batches made at a time: the engine decodes one while the Python part of others runs; a device decodes more.
WORKERS, DEVICE_WORKERS = 3, 6
# Batches that are kept for a reader that is behind, whatever memory there is.
MIN_WINDOW, MAX_WINDOW = 2, 4
# How long at once, and which share of the time, a reader lets others wait.
MAX_WAIT_SECONDS, WAIT_SHARE = 2.0, 0.2
# Which batch follows which, for so many batches of a recipe.
MAX_LINKS = 4096
# Of one reader: requests without an answer, and batches that it has. Of the server: readers.
MAX_REQUESTS, MAX_LEASES, MAX_READERS = 64, 64, 512
# Samples of a batch.
MAX_BATCH_SAMPLES = 1 << 22
# A reader that takes nothing for so long is dropped; waiting batches are looked at again at this interval.
SEND_SECONDS, POLL_SECONDS = 2, 0.05
# The batch before the first, for readers that were there before anybody asked for one.
BEFORE_FIRST = b""


class Entry:
    """A batch that was asked for. ``waiting``: readers, and their numbers for it, that have no answer yet."""

    def __init__(self, key: bytes, before: bytes | None, epoch: int, ids: I64) -> None:
        self.key, self.before, self.epoch, self.ids = key, before, epoch, ids
        self.waiting: list[tuple[Reader, int]] = []
        self.started, self.done = False, False
        # None also for one that cannot be made.
        self.batch: SharedBatch | None = None


class Recipe:
    """A recipe with its readers, the batches that are kept for them, and which batch follows which."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        # None until the dataset is open.
        self.executor: Executor | None = None
        # Memory of the device that makes its images.
        self.exports: Exports | None = None
        self.readers: list[Reader] = []
        self.entries: dict[bytes, Entry] = {}
        self.next: dict[bytes, bytes] = {}
        # Of the largest batch; batches that were made, and given to readers.
        self.batch_bytes, self.decoded, self.delivered = 1, 0, 0

    def ahead(self, reader: Reader, window: int) -> list[bytes]:
        """Return the next batches of a reader, as far as they are known and within the window."""
        keys: list[bytes] = []
        key = reader.last
        while key is not None and len(keys) < window and (key := self.next.get(key)) is not None:
            keys.append(key)
        return keys

    def link(self, before: bytes | None, key: bytes) -> None:
        if before is not None:
            self.next[before] = key
            while len(self.next) > MAX_LINKS:
                del self.next[next(iter(self.next))]


class Reader:
    """A connection. ``last``: key of its last request. ``credit``: seconds that others still wait for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.recipe: Recipe | None = None
        self.last: bytes | None = None
        self.credit = MAX_WAIT_SECONDS
        self.requests = 0
        self.leases: dict[int, SharedBatch] = {}
        self.sending = threading.Lock()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send a message; a reader that does not take it is dropped."""
        try:
            with self.sending:
                wire.send(self.connection, Encoder().dump(message), descriptors or [])
        except OSError:
            self.end()

    def end(self) -> None:
        """End the connection; its thread notices."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Server:
    """Serves batches until ``stop``, or until no reader was there for ``idle`` seconds.

    workers: decoding threads (default: all cores). memory: bytes of batches that are kept for slower readers.
    report: is called with what happens, in words.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        workers: int | None = None,
        memory: int | None = None,
        idle: float | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._listener, self._idle, self._report = listener, idle, report
        self.memory = platform.memory_limit() // 8 if memory is None else memory
        self._buffers = SharedBuffers()
        self.workers = workers or platform.cpu_count()
        self._engine = _native.Engine(self.workers, None)
        self._pool = ThreadPoolExecutor(WORKERS, "batchplant-node")
        self._device_pool = ThreadPoolExecutor(DEVICE_WORKERS, "batchplant-node")
        self._lock = threading.RLock()
        self._recipes: dict[bytes, Recipe] = {}
        self._readers: set[Reader] = set()
        self._queue: list[tuple[Recipe, Entry]] = []
        self._stopped = False

    # -- life ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Accept readers, and let batches wait no longer than they may."""
        alone_since = before = time.monotonic()
        try:
            while not self._stopped:
                ready, _, _ = select.select([self._listener], [], [], POLL_SECONDS if self._queue else 0.5)
                if ready and not self._stopped:
                    self._accept()
                now = time.monotonic()
                with self._lock:
                    self._spend_credit(now - before)
                    before = now
                    if self._readers:
                        alone_since = now
                if self._idle is not None and now - alone_since > self._idle:
                    return
        finally:
            self._end()

    def stop(self) -> None:
        """Let ``run`` end."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        """End all connections and threads."""
        self._stopped = True
        with self._lock:
            readers = list(self._readers)
            self._queue.clear()
        for reader in readers:
            reader.end()
        self._pool.shutdown(cancel_futures=True)
        self._device_pool.shutdown(cancel_futures=True)
        self._engine.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(True)
        if platform.peer_of(connection)[1] != os.getuid() or len(self._readers) >= MAX_READERS:
            connection.close()
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        reader = Reader(connection)
        with self._lock:
            self._readers.add(reader)
        threading.Thread(target=self._serve, args=(reader,), name="batchplant-reader", daemon=True).start()

    def _serve(self, reader: Reader) -> None:
        """Answer one reader until it is gone: the body of a thread."""
        try:
            while not self._stopped:
                message, descriptors = wire.receive(reader.connection)
                wire.close(descriptors)
                if not message:
                    break
                self._handle(reader, Decoder().load(message))
        except (OSError, DamagedError, KeyError, TypeError, ValueError, AttributeError, MemoryError):
            # It is gone, or sends what is no request: all others go on.
            pass
        finally:
            self._forget(reader)

    # -- messages ------------------------------------------------------------------------------------------

    def _handle(self, reader: Reader, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "recipe" and reader.recipe is None:
            self._open(reader, bytes(message["recipe"]))
        elif kind == "batch" and reader.recipe is not None:
            self._request(reader, reader.recipe, message)
        elif kind == "release":
            with self._lock:
                reader.leases.pop(int(message["number"]), None)
        elif kind == "ping":
            reader.send({"kind": "pong"})
        else:
            raise ValueError("no such request")

    def _open(self, reader: Reader, data: bytes) -> None:
        """Give a reader its recipe; the first one has the dataset opened, and requests wait for that."""
        key = hashlib.blake2b(data, digest_size=16).digest()
        with self._lock:
            recipe, is_new = self._recipes.get(key), False
            if recipe is None:
                recipe, is_new = Recipe(key), True
                self._recipes[key] = recipe
            reader.recipe = recipe
            recipe.readers.append(reader)
            if not recipe.next and not recipe.entries:
                reader.last = BEFORE_FIRST
        reader.send({"kind": "expected"})
        if is_new:
            threading.Thread(target=self._follow, args=(recipe, data), daemon=True).start()

    def _follow(self, recipe: Recipe, data: bytes) -> None:
        """Open the dataset of a recipe and begin the batches that wait for it: the body of a thread."""
        try:
            executor = self._executor(recipes.load(data))
            exports = None if executor.on_device is None else executor.on_device.exports()
        # The readers make their batches themselves, and report what is wrong.
        except Exception as error:
            self._report(f"refused: {error}")
            with self._lock:
                self._recipes.pop(recipe.key, None)
                readers = list(recipe.readers)
            for reader in readers:
                reader.send({"kind": "refused", "why": str(error)})
                reader.end()
            return
        self._report(f"{executor.reader.path}: opened for {', '.join(executor.plan.names)}")
        with self._lock:
            recipe.executor, recipe.exports = executor, exports
            self._start_batches()

    def _executor(self, recipe: recipes.Recipe) -> Executor:
        decode, device, buffers = recipe.decode, None, BufferPool(0)
        delivery = None if recipe.device is None else hooks.part("torch").shared_delivery(recipe.device)
        if delivery is not None:
            # The device copies from it; only what it makes is shared.
            buffers = BufferPool(2 * DEVICE_WORKERS, delivery.allocate)
        on_cpu = OnCpu(
            self._engine, buffers if delivery else self._buffers, dct=decode.dct, fast_scale=decode.fast_scale
        )
        if delivery is not None:
            device = delivery.images(on_cpu, decode.backend, decode.gpu_share, DEVICE_WORKERS)
        decoded = None
        if recipe.cache is not None:
            decoded = DecodedImages(
                recipe.cache, recipe.plan, len(recipe.reader), on_cpu, fast_scale=decode.fast_scale
            )
        return Executor(recipe.reader, recipe.plan, on_cpu, device, seed=recipe.seed, decoded=decoded)

    def _request(self, reader: Reader, recipe: Recipe, message: dict[str, Any]) -> None:
        number, epoch, ids = int(message["number"]), int(message["epoch"]), message["ids"]
        if ids.dtype != np.int64 or ids.ndim != 1 or len(ids) > MAX_BATCH_SAMPLES:
            raise ValueError("these are no samples")
        key = hashlib.blake2b(ids.tobytes(), digest_size=16, key=str(epoch).encode()).digest()
        with self._lock:
            before, reader.last = reader.last, key
            recipe.link(before, key)
            reader.requests += 1
            if reader.requests > MAX_REQUESTS:
                raise ValueError("too many requests at a time")
            entry = recipe.entries.get(key)
            if entry is None:
                entry = recipe.entries[key] = Entry(key, before, epoch, ids)
                self._queue.append((recipe, entry))
            entry.waiting.append((reader, number))
            self._start_batches()
            answers = self._answers(recipe, entry)
            self._drop_unneeded(recipe)
        send_all(answers)

    def _forget(self, reader: Reader) -> None:
        """Forget a reader that is gone; it may still see its batches, so their memory is not used again."""
        reader.connection.close()
        with self._lock:
            self._readers.discard(reader)
            for batch in reader.leases.values():
                batch.retire()
            reader.leases.clear()
            recipe = reader.recipe
            if recipe is None:
                return
            recipe.readers.remove(reader)
            for entry in recipe.entries.values():
                entry.waiting = [request for request in entry.waiting if request[0] is not reader]
            self._drop_unneeded(recipe)
            self._start_batches()
            if not recipe.readers and self._recipes.get(recipe.key) is recipe:
                del self._recipes[recipe.key]
                if recipe.executor is not None:
                    counts = f"{recipe.decoded:,} batches made, {recipe.delivered:,} given out"
                    self._report(f"{recipe.executor.reader.path}: closed; {counts}")

    # -- batches -------------------------------------------------------------------------------------------

    def _window(self, recipe: Recipe) -> int:
        """Return how many batches are kept for a reader that is behind."""
        share = self.memory // max(1, len(self._recipes))
        return int(np.clip(share // recipe.batch_bytes, MIN_WINDOW, MAX_WINDOW))

    def _delayed(self) -> dict[tuple[Recipe, bytes], list[Reader]]:
        """Return the batches that have to wait, and the readers that each waits for."""
        delayed: dict[tuple[Recipe, bytes], list[Reader]] = {}
        for recipe, entry in self._queue:
            window, waiting = self._window(recipe), {reader for reader, _ in entry.waiting}
            slow = []
            for reader in recipe.readers:
                if reader not in waiting and reader.credit > 0 and entry.before is not None:
                    ahead = recipe.ahead(reader, window)
                    if len(ahead) == window and ahead[-1] == entry.before:
                        slow.append(reader)
            # A batch that was asked for in advance waits with the one before it.
            slow = slow or delayed.get((recipe, entry.before or BEFORE_FIRST), [])
            if slow:
                delayed[recipe, entry.key] = slow
        return delayed

    def _start_batches(self) -> None:
        """Begin the batches that need not wait."""
        delayed = self._delayed()
        for recipe, entry in list(self._queue):
            if recipe.executor is not None and (recipe, entry.key) not in delayed:
                self._queue.remove((recipe, entry))
                entry.started = True
                # The pool takes no work while the server ends.
                with contextlib.suppress(RuntimeError):
                    pool = self._device_pool if recipe.exports else self._pool
                    pool.submit(self._make, recipe, entry)

    def _spend_credit(self, seconds: float) -> None:
        slow = {reader for readers in self._delayed().values() for reader in readers}
        for reader in self._readers:
            if reader in slow:
                reader.credit -= seconds
                if reader.credit <= 0 and reader.last == BEFORE_FIRST:
                    # It may never ask.
                    reader.last = None
            else:
                reader.credit = min(MAX_WAIT_SECONDS, reader.credit + WAIT_SHARE * seconds)
        if slow:
            self._start_batches()

    def _make(self, recipe: Recipe, entry: Entry) -> None:
        """Make a batch and give it to the readers that wait for it."""
        batch: SharedBatch | None = None
        executor = recipe.executor
        assert executor is not None
        # A reader that gets no batch makes it itself, and meets the same error.
        with contextlib.suppress(Exception):
            executor.reader._check(entry.ids)
            values = executor.run(entry.ids, entry.epoch).values
            batch = BatchEncoder(self._buffers, recipe.exports).share(values)
        with self._lock:
            entry.done, entry.batch = True, batch
            recipe.decoded += batch is not None
            recipe.batch_bytes = max(recipe.batch_bytes, batch.bytes if batch else 1)
            answers = self._answers(recipe, entry)
            self._drop_unneeded(recipe)
        send_all(answers)

    def _answers(self, recipe: Recipe, entry: Entry) -> list[Callable[[], None]]:
        """Return functions that send a batch that is done to the readers that wait for it."""
        answers: list[Callable[[], None]] = []
        if not entry.done:
            return answers
        for reader, number in entry.waiting:
            reader.requests -= 1
            batch = entry.batch if len(reader.leases) < MAX_LEASES else None
            if batch is not None and reader in self._readers:
                recipe.delivered += 1
                if batch.needs_lease:
                    reader.leases[number] = batch
            size = self._buffers.bytes + (recipe.exports.bytes if recipe.exports else 0)
            stats = {"decoded": recipe.decoded, "delivered": recipe.delivered, "bytes": size}
            answers.append(_answer(reader, number, batch, stats))
        entry.waiting = []
        return answers

    def _drop_unneeded(self, recipe: Recipe) -> None:
        """Drop the batches that no reader waits for or will ask for within the window."""
        window = self._window(recipe)
        needed = {key for reader in recipe.readers for key in recipe.ahead(reader, window)}
        for entry in list(recipe.entries.values()):
            if entry.waiting or entry.key in needed or (entry.started and not entry.done):
                continue
            del recipe.entries[entry.key]
            if (recipe, entry) in self._queue:
                self._queue.remove((recipe, entry))


def _answer(
    reader: Reader, number: int, batch: SharedBatch | None, stats: dict[str, int]
) -> Callable[[], None]:
    if batch is None:
        return lambda: reader.send({"kind": "none", "number": number})
    message: dict[str, Any] = {"kind": "batch", "number": number, "batch": batch.message, "stats": stats}
    if batch.exported is not None:
        message["exported"] = (batch.exported.handle, batch.exported.size)
    return lambda: reader.send(message, [segment.fd for segment in batch.segments])


def send_all(answers: list[Callable[[], None]]) -> None:
    for answer in answers:
        answer()
