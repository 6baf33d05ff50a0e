"""The reader's side of a node: an Executor whose batches the server makes, or itself where that does not."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import select
import socket
import struct
import subprocess
import threading
import time
import weakref
from typing import Any

import numpy as np

from ...errors import BatchplantError, DamagedError, OptionError, on_error
from ...schema.columns import I64
from ...storage import platform
from ...storage.remote.fetch import Answer
from ..decoded import DecodedCache
from ..executor import Executor, RemoteExecutor
from ..images import DecodeOptions, Device
from . import recipe as recipes
from . import wire
from .wire import BatchDecoder, Decoder, Encoder, NotPlainError

# Batches whose memory a reader may hold; more are copied, as a list of all batches would need.
MAX_HELD_BATCHES = 24
# A server that is silent for so long is asked for a sign; after as long again, it counts as dead.
SILENT_SECONDS = 10.0
# Pause before a server is looked for again where there was none; twice as long after each failure.
RETRY_SECONDS = 30.0
# How long to try where servers end as soon as they are reached.
CONNECT_SECONDS = 5.0
# The dataset and the plan together.
MAX_RECIPE_BYTES = 64 << 20


class Lease:
    """The right to see the memory of a batch: its mappings refer to it."""


class Mapping(mmap.mmap):
    """Memory of the server, mapped here; arrays refer to it."""

    lease: Lease

    @classmethod
    def of(cls, fd: int, lease: Lease) -> Mapping:
        mapping = platform.map_copy(fd, cls)
        mapping.lease = lease
        return mapping


class Link:
    """A connection to the server: requests go out from any thread, a thread of its own takes the answers."""

    def __init__(self, connection: socket.socket, recipe: bytes, device: Device | None) -> None:
        self._connection, self.process = connection, os.getpid()
        with on_error(connection.close):
            self._imports = None if device is None else device.imports()
            self._introduce(recipe)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, Answer[dict[str, Any] | None]] = {}
        # Batches whose memory something here refers to.
        self._held: set[int] = set()
        self.alive, self.refused, self.stats = True, "", dict[str, int]()
        # Why a batch of the device could not be copied.
        self.reason = ""
        threading.Thread(target=self._receive, name="batchplant-node", daemon=True).start()

    def _introduce(self, recipe: bytes) -> None:
        """Send the recipe; the server then expects the same requests as from the readers beside this one."""
        connection = self._connection
        timeout = struct.pack("ll", int(SILENT_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._send({"kind": "recipe", "recipe": recipe})
        connection.settimeout(2 * SILENT_SECONDS)
        message, descriptors = wire.receive(connection)
        wire.close(descriptors)
        if not message or Decoder().load(message)["kind"] != "expected":
            raise ConnectionRefusedError("the server of the node does not take this reader")
        connection.settimeout(None)

    def ask(self, epoch: int, ids: I64) -> Answer[dict[str, Any] | None]:
        """Ask for a batch; the answer is None where the server does not make it."""
        answer: Answer[dict[str, Any] | None] = Answer()
        number = next(self._numbers)
        with self._lock:
            if not self.alive:
                answer.set_result(None)
                return answer
            self._answers[number] = answer
        try:
            self._send({"kind": "batch", "number": number, "epoch": epoch, "ids": np.asarray(ids, np.int64)})
        except OSError:
            self.close()
        return answer

    def _send(self, message: dict[str, Any], flags: int = 0) -> None:
        wire.send(self._connection, Encoder().dump(message), flags=flags)

    def close(self) -> None:
        """End the connection; its thread notices. In a fork, it is the parent's."""
        if os.getpid() == self.process:
            self.alive = False
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    # -- answers -------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take the answers until the server or this reader ends: the body of a thread."""
        try:
            while self._wait():
                message, descriptors = wire.receive(self._connection)
                if not message:
                    break
                try:
                    self._take(Decoder().load(message), descriptors)
                finally:
                    wire.close(descriptors)
        except (OSError, DamagedError, KeyError, TypeError, MemoryError):
            pass
        finally:
            with self._lock:
                self.alive = False
                self._connection.close()
                answers, self._answers = list(self._answers.values()), {}
            for answer in answers:
                answer.set_result(None)
            if self._imports is not None:
                self._imports.close()

    def _wait(self) -> bool:
        """Wait for a message; return False if the server is silent, and does not answer in time."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not poll.poll(SILENT_SECONDS * 1000):
            if self._answers:
                self._send({"kind": "ping"}, socket.MSG_DONTWAIT)
                return bool(poll.poll(SILENT_SECONDS * 1000))
        return True

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["kind"] == "refused":
            self.refused = message["why"]
        if message["kind"] not in ("batch", "none"):
            return
        number, values = message["number"], None
        if message["kind"] == "batch":
            self.stats = message["stats"]
            try:
                values = self._values(number, message["batch"], descriptors, message.get("exported"))
            # Memory of the device, or the device itself: the batch is made here.
            except (OSError, RuntimeError, MemoryError) as error:
                self.reason = str(error)
        with self._lock:
            answer = self._answers.pop(number, None)
        if answer is not None:
            answer.set_result(values)

    def _values(
        self, number: int, data: bytes, descriptors: list[int], exported: tuple[bytes, int] | None
    ) -> dict[str, Any] | None:
        """Return the values of a batch, in memory of the server; copies if very many batches are held.

        exported: handle and size of the memory of a device that it lies in.
        """
        mapped: list[mmap.mmap] = []
        if descriptors or exported:
            lease = Lease()
            weakref.finalize(lease, self._release, number).atexit = False
            self._held.add(number)
            # There may be too many mappings, or descriptors, in this process.
            with contextlib.suppress(OSError):
                mapped += [Mapping.of(fd, lease) for fd in descriptors]
            if len(mapped) < len(descriptors):
                return None
        tensor = None
        if exported is not None and self._imports is not None:
            tensor = self._imports.copy(*exported)
        values: dict[str, Any] = BatchDecoder(mapped, tensor).load(data)
        return _copied(values) if exported or len(self._held) > MAX_HELD_BATCHES else values

    def _release(self, number: int) -> None:
        """Tell the server that nothing here refers to a batch; called where the last such thing ends.

        It may be called in any thread at any moment, so it takes no lock and waits for nothing.
        """
        self._held.discard(number)
        if os.getpid() == self.process:
            # Without it, the server does not use the memory again.
            with contextlib.suppress(OSError):
                self._send({"kind": "release", "number": number}, socket.MSG_DONTWAIT)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value


class NodeExecutor(RemoteExecutor):
    """An Executor whose batches the server of the node makes, as far as they are made of data."""

    name = "node"

    def __init__(
        self, alone: Executor, decode: DecodeOptions, cache: DecodedCache | None, prefetch_batches: int
    ) -> None:
        plan, tail = recipes.divide(alone.plan)
        super().__init__(alone, tail, prefetch_batches)
        self._device = alone.on_device
        name = None if self._device is None else self._device.name
        fingerprint = recipes.fingerprint(alone.reader)
        recipe = recipes.Recipe(alone.reader, plan, alone.seed, decode, cache, fingerprint, name)
        try:
            self._recipe = recipes.dump(recipe)
        except NotPlainError as error:
            raise OptionError(
                f'share="node" needs a dataset that another process can open, and this is none: {error}',
                path=alone.reader.path,
            ) from None
        if len(self._recipe) > MAX_RECIPE_BYTES:
            raise OptionError(
                'share="node" needs a dataset in files: this one, or the list of its samples, is in '
                f"memory and takes {len(self._recipe):,} bytes",
                path=alone.reader.path,
            )
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._process, self._retry_at, self._reason = os.getpid(), 0.0, ""
        self._pause = RETRY_SECONDS
        # Servers keep the first batches for readers that are there when the first of them begins.
        self._linked()

    def producers(self) -> int:
        """Return the number of threads that wait for batches."""
        return max(super().producers(), self.room())

    def room(self) -> int:
        """Return how many batches are in flight: a device decodes several at a time."""
        return 0 if self._device is None else self._alone.producers()

    def ask(self, ids: I64, epoch: int) -> Answer[dict[str, Any] | None] | None:
        """Ask for the batch."""
        link = self._linked()
        return None if link is None else link.ask(epoch, ids)

    def _linked(self) -> Link | None:
        """Return the connection to the server, which is started where there is none; None without one."""
        if os.getpid() != self._process:
            return None
        with self._lock:
            link = self._link
            if link is not None and link.alive:
                return link
            if link is not None and link.refused:
                self._reason = link.refused
                return None
            if time.monotonic() < self._retry_at:
                return None
            try:
                self._link = _connect(self._recipe, self._device)
                self._reason, self._pause = "", RETRY_SECONDS
                # The thread of the connection does not know this object, which can be collected.
                weakref.finalize(self, self._link.close)
            except (OSError, BatchplantError, subprocess.SubprocessError) as error:
                self._link, self._reason = None, str(error)
                self._retry_at = time.monotonic() + self._pause
                self._pause *= 2
            return self._link

    def stats(self) -> dict[str, Any]:
        """Return how many batches came from the server and were made here, and what the server did in all."""
        link = self._link
        server = {f"server {name}": value for name, value in (link.stats if link else {}).items()}
        reason = self._reason or (link.reason if link else "")
        reader = {"shared": self._from_server, "alone": self._from_here, "why alone": reason}
        return {**reader, **server}

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()


def _connect(recipe: bytes, device: Device | None) -> Link:
    """Connect to the server, or start it."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        connection = wire.dial()
        if connection is None:
            wire.start_server()
            connection = wire.dial()
        try:
            if connection is not None:
                return Link(connection, recipe, device)
        # A server that ends, or was killed, accepts connections until the system has closed its socket.
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise ConnectionRefusedError("the server of the node ends as soon as it starts")
        time.sleep(wire.POLL_SECONDS)
