"""Requests to several servers as one: split by who is free, taken over from servers that are slow or dead.

A few threads for each server have a connection each, and one request in flight on it: that bounds what is in
flight. They take requests from one queue, in order. A thread that has none repeats a request that another
server has had for long; the first answer counts.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ... import errors
from ...errors import AccessError, BatchplantError, DamagedError, exceptions_as, located, on_error, printable
from ...storage.remote.fetch import Answer
from ..node.wire import WRONG
from .channel import GREETING_SECONDS, Allocate, Channel, RefusedError, Security, introduce, split_address

DEFAULT_PORT = 7001
# A server that has had a request for so many times as long as usual, and for so long at least, is slow.
SLOW_FACTOR, SLOW_SECONDS, POLL_SECONDS = 4.0, 0.25, 0.05
# Pause before a server is tried again; twice as long after each failure.
MIN_PAUSE, MAX_PAUSE = 0.05, 2.0
# Names are looked up again at this interval: there may be more servers by now.
LOOKUP_SECONDS, BUSY_SECONDS = 15.0, 10.0
# Requests whose times tell what is usual; wrong answers after which a request is given up, and failures of
# any kind if it is older than the client's patience.
RECENT, MAX_FAILURES = 64, 3
MAX_SERVERS, MAX_OPENING = 256, 16
FAILURES = (OSError, EOFError, DamagedError, MemoryError)


@dataclasses.dataclass(frozen=True)
class PoolTuning:
    """streams: connections to each server. patience_seconds: how long to go on without any server.
    answer_seconds: how long a server may take for an answer. max_answer_bytes: of one answer.
    """

    streams: int = 3
    patience_seconds: float = 60.0
    answer_seconds: float = 120.0
    max_answer_bytes: int = (1 << 30) + (64 << 20)


class Job:
    """A request. check: turns its answer into a result; it raises DamagedError for a wrong one."""

    def __init__(
        self, request: dict[str, Any], check: Callable[[Any], Any], max_bytes: int, allocate: Allocate
    ) -> None:
        self.request, self.check, self.max_bytes = request, check, max_bytes
        self.allocate = allocate
        self.answer: Answer[Any] = Answer()
        self.submitted = self.began = self.taken = time.monotonic()
        # Servers that have it, how many failed, and how many of these with a wrong answer.
        self.servers: list[Server] = []
        self.failures, self.wrong = 0, 0


class Server:
    """An address, and how requests went there. reason: why it cannot be reached; empty if it can."""

    def __init__(self, host: str, address: tuple[str, int]) -> None:
        self.host, self.address = host, address
        self.reason, self.listed = "", True
        self.answers, self.taken_over, self.bytes = 0, 0, 0

    @property
    def name(self) -> str:
        host, port = self.address
        text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return text if host == self.host else f"{self.host} ({text})"


class Pool:
    """The servers at ``hosts``; ``submit`` sends a request to one of them."""

    def __init__(self, url: str, hosts: list[str], security: Security, tuning: PoolTuning) -> None:
        self.url, self.tuning, self.process = url, tuning, os.getpid()
        self._hosts, self._security, self._tls = hosts, security, security.context(server=False)
        self._changed = threading.Condition()
        self._queue: collections.deque[Job] = collections.deque()
        self._running: list[Job] = []
        self._channels: set[Channel] = set()
        self.servers: dict[tuple[str, int], Server] = {}
        # Hosts that cannot be resolved, and why.
        self._unknown: dict[str, str] = {}
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT)
        self.stopped, self._looked_up, self._last_answer = False, 0.0, time.monotonic()
        # What all servers must agree on.
        self.identity: dict[str, str] | None = None
        # A decaying average, and the sum of its weights.
        self._busy, self._busy_weight, self._busy_at = 0.0, 0.0, time.monotonic()
        # Servers that this client needs for each that there is; sent with requests.
        self.load: Callable[[], float] = lambda: 0.0
        self._open()

    # -- servers -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Reach the servers that are there, one at least; raise RefusedError where they differ."""
        deadline, pause = time.monotonic() + self.tuning.patience_seconds, MIN_PAUSE
        while True:
            self._look_up()
            servers = list(self.servers.values())
            with ThreadPoolExecutor(MAX_OPENING, "batchplant-service") as threads:
                if any(list(threads.map(self._reached, servers))):
                    break
            if time.monotonic() > deadline:
                raise self._all_gone()
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
        for server in servers:
            self._start(server)

    def _reached(self, server: Server) -> bool:
        try:
            self.forget(self.connect(server))
        except FAILURES as error:
            server.reason = _reason(error)
        return not server.reason

    def _look_up(self) -> list[Server]:
        """Resolve the names of hosts, of which each may stand for several servers; return new servers."""
        self._looked_up, new = time.monotonic(), []
        for text in self._hosts:
            host, port = split_address(text, DEFAULT_PORT)
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                # What it stood for before goes on.
                self._unknown[host] = _reason(error)
                continue
            self._unknown.pop(host, None)
            # A host with addresses of both families is one server.
            family = min(entry[0] for entry in entries)
            addresses = {(str(entry[4][0]), port) for entry in entries if entry[0] == family}
            for server in self.servers.values():
                if server.host == host and server.address[1] == port:
                    server.listed = server.address in addresses
            for address in sorted(addresses - self.servers.keys())[: MAX_SERVERS - len(self.servers)]:
                self.servers[address] = Server(host, address)
                new.append(self.servers[address])
        return new

    def _start(self, server: Server) -> None:
        for number in range(self.tuning.streams):
            name = f"batchplant-service-{number}"
            threading.Thread(target=_work, args=(self, server), name=name, daemon=True).start()

    def connect(self, server: Server) -> Channel:
        """Return a connection whose other end has proved what it is."""
        connection = socket.create_connection(server.address, GREETING_SECONDS)
        channel = Channel(connection)
        with on_error(channel.close):
            # Where nothing listens at a port that clients get, too, TCP may connect a socket with itself.
            if connection.getsockname() == connection.getpeername():
                raise ConnectionRefusedError("Connection refused")
            if self._tls is not None:
                channel.secure(self._tls, server=False, host=server.host)
            with located(path=f"batchplant://{server.name}"):
                identity = introduce(channel, self._security)
                with self._changed:
                    self._check_identity(identity)
                    self._channels.add(channel)
            server.reason = ""
            return channel

    def _check_identity(self, identity: dict[str, str]) -> None:
        common = self.identity = self.identity or identity
        for name in ("dataset", "plan"):
            if identity.get(name) != common.get(name):
                raise RefusedError(
                    f"this server has another {name} than the others of {self.url}: start them all with the "
                    f"same {name}"
                )

    def _all_gone(self) -> AccessError:
        reasons = [f"{server.name}: {server.reason or 'no answer'}" for server in self.servers.values()]
        reasons += [f"{host}: {reason}" for host, reason in self._unknown.items()]
        seconds = f"{self.tuning.patience_seconds:g}"
        return AccessError(f"no server has answered for {seconds} s ({'; '.join(reasons)})", path=self.url)

    @property
    def busy(self) -> float:
        """Part of the connections, lately, that had a request: their average over ``BUSY_SECONDS``."""
        with self._changed:
            self._update_busy()
            return self._busy / (self._busy_weight or 1.0)

    def _update_busy(self) -> None:
        """Count the time since the last change; called before each change."""
        now = time.monotonic()
        streams = sum(not server.reason for server in self.servers.values()) * self.tuning.streams
        in_flight = sum(len(job.servers) for job in self._running)
        weight = math.exp((self._busy_at - now) / BUSY_SECONDS)
        self._busy = weight * self._busy + (1 - weight) * min(1.0, in_flight / max(1, streams))
        self._busy_weight = weight * self._busy_weight + 1 - weight
        self._busy_at = now

    # -- requests ------------------------------------------------------------------------------------------

    def submit(
        self,
        request: dict[str, Any],
        check: Callable[[Any], Any],
        *,
        max_bytes: int | None = None,
        allocate: Allocate = np.empty,
    ) -> Answer[Any]:
        """Send a request to any server; the answer is what ``check`` makes of it."""
        limit = self.tuning.max_answer_bytes
        job = Job(request, check, limit if max_bytes is None else min(limit, max_bytes), allocate)
        with self._changed:
            if self.stopped:
                job.answer.set_exception(AccessError("the connection is closed", path=self.url))
                return job.answer
            self._queue.append(job)
            self._changed.notify()
        return job.answer

    def take(self, server: Server) -> Job | None:
        """Return the next request for a server, once there is one; None at the end."""
        with self._changed:
            while not self.stopped:
                job = self._queue.popleft() if self._queue else self._slow_job(server)
                if job is not None:
                    self._update_busy()
                    job.taken = time.monotonic()
                    if not job.servers:
                        job.began = job.taken
                        self._running.append(job)
                    job.servers.append(server)
                    return job
                self._changed.wait(POLL_SECONDS if self._running else None)
            return None

    def _slow_job(self, server: Server) -> Job | None:
        """Return the oldest request that other servers, and the last of them, have had for too long."""
        usual = statistics.median(self._recent) if self._recent else SLOW_SECONDS
        limit = time.monotonic() - max(SLOW_SECONDS, SLOW_FACTOR * usual)
        for job in self._running:
            if job.taken < limit and server not in job.servers:
                return job
        return None

    def done(self, server: Server, job: Job, result: Any, bytes_received: int) -> None:
        """Give a result to who waits for it, unless another server was faster."""
        now = time.monotonic()
        with self._changed:
            self._last_answer = now
            self._update_busy()
            server.answers, server.bytes = server.answers + 1, server.bytes + bytes_received
            is_first = job in self._running
            if is_first:
                self._running.remove(job)
                self._recent.append(now - job.began)
                for slower in job.servers:
                    slower.taken_over += slower is not server
        if is_first:
            if isinstance(result, BatchplantError):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)

    def failed(self, server: Server, job: Job | None, error: Exception) -> None:
        """Put a request back that a server failed to answer; give up where none has answered for long."""
        server.reason = _reason(error)
        given_up: list[tuple[Job, Exception]] = []
        limit = time.monotonic() - self.tuning.patience_seconds
        with self._changed:
            if job is not None:
                job.servers.remove(server)
                job.failures += 1
                job.wrong += isinstance(error, DamagedError)
                if not job.servers and job in self._running:
                    self._running.remove(job)
                    if job.wrong >= MAX_FAILURES:
                        given_up.append((job, error))
                    elif job.failures >= MAX_FAILURES and job.submitted < limit:
                        # No server survives it, perhaps.
                        given_up.append((job, self._all_gone()))
                    else:
                        self._queue.appendleft(job)
                        self._changed.notify()
            if self._last_answer < limit:
                old = [job for job in self._queue if job.submitted < limit]
                given_up += [(job, self._all_gone()) for job in old]
                self._queue = collections.deque(job for job in self._queue if job not in old)
        for job, why in given_up:
            job.answer.set_exception(why)

    def look_up_again(self) -> None:
        """Look for new servers if the last time is long ago."""
        with self._changed:
            if time.monotonic() - self._looked_up < LOOKUP_SECONDS:
                return
            self._looked_up = time.monotonic()
        for server in self._look_up():
            self._start(server)

    def rest(self, seconds: float) -> None:
        """Wait before a server is tried again."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped, seconds)

    def forget(self, channel: Channel) -> None:
        with self._changed:
            self._channels.discard(channel)
        channel.close()

    def close(self) -> None:
        """End all connections; requests without an answer fail."""
        if os.getpid() != self.process:
            return
        with self._changed:
            self.stopped = True
            jobs, channels = [*self._queue, *self._running], list(self._channels)
            self._queue.clear()
            self._running.clear()
            self._changed.notify_all()
        for channel in channels:
            channel.interrupt()
        for job in jobs:
            job.answer.set_exception(AccessError("the connection is closed", path=self.url))


def _work(pool: Pool, server: Server) -> None:
    """Send requests to a server over one connection until the pool is closed: the body of a thread."""
    channel: Channel | None = None
    pause = MIN_PAUSE
    while not pool.stopped:
        pool.look_up_again()
        job: Job | None = None
        try:
            if channel is None:
                channel = pool.connect(server)
            job = pool.take(server)
            if job is None:
                break
            received = channel.received
            channel.send({**job.request, "load": pool.load()})
            answer = channel.receive(
                job.max_bytes, patience=pool.tuning.answer_seconds, allocate=job.allocate
            )
            result = error_in(answer) or job.check(answer)
            del answer
        except (*FAILURES, RefusedError) as error:
            pool.failed(server, job, error)
            if channel is not None:
                pool.forget(channel)
                channel = None
            if not server.listed:
                # The name of its host stands for others by now.
                break
            pool.rest(pause)
            pause = min(2 * pause, MAX_PAUSE)
            continue
        pause = MIN_PAUSE
        pool.done(server, job, result, channel.received - received)
        del job, result
    if channel is not None:
        pool.forget(channel)


def error_in(answer: Any) -> BatchplantError | None:
    """Return the error that a server answered with."""
    if not isinstance(answer, dict):
        raise DamagedError("this is no answer")
    if "error" not in answer:
        return None
    with exceptions_as(DamagedError, "an error that is none", *WRONG):
        kind, message, path, sample, field, offset = answer["error"]
        make = getattr(errors, kind, None)
        if not (isinstance(make, type) and issubclass(make, BatchplantError)):
            make = AccessError
        path = None if path is None else printable(str(path))
        field = None if field is None else str(field)
        return make(printable(str(message)), path=path, sample=sample, field=field, offset=offset)


def _reason(error: Exception) -> str:
    if isinstance(error, BatchplantError):
        return error.message
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
