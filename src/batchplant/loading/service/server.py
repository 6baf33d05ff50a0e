"""A server of batches: answers requests for samples with what a plan makes of them, or with their cells.

It has no state besides open files: each request names its samples, epoch and seed. The plan is the server's
own; a client names outputs of it, and can send no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...data.buffers import BufferPool
from ...data.reader import Reader
from ...data.sizes import known_sizes
from ...errors import BatchplantError, DamagedError, DataError, OptionError
from ...order.keyed import whole
from ...schema.columns import I64, Columns, Ragged
from ...storage import platform
from ..advice import stored_bytes
from ..executor import Executor
from ..images import OnCpu, Request, Result
from ..node.wire import Buffer, NotPlainError
from ..plan import Plan, make_plan
from . import plans
from .channel import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_TEXT,
    MESSAGE_SECONDS,
    Channel,
    RefusedError,
    Rows,
    Security,
    bind,
    greet,
    pack,
)

REQUEST_SECONDS = 10


# -- figures for Prometheus, as text and from a server of their own ----------------------------------------


class Figure(NamedTuple):
    """A number with its name, kind (counter or gauge) and meaning."""

    name: str
    kind: str
    text: str
    value: float


def exposition(prefix: str, figures: Iterable[Figure], labels: Mapping[str, object] | None = None) -> str:
    """Return figures in the text format of Prometheus, with the same labels for all."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
    labelled = f"{{{pairs}}}" if pairs else ""
    return "".join(
        f"# HELP {prefix}_{name} {text}\n# TYPE {prefix}_{name} {kind}\n{prefix}_{name}{labelled} {value}\n"
        for name, kind, text, value in figures
    )


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: Any

    def do_GET(self) -> None:
        is_known = self.path.partition("?")[0] == "/metrics"
        body = self.server.metrics().encode() if is_known else b"/metrics\n"
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, metrics: Callable[[], str]) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bind(address)
        self.server_name, self.server_port = self.server_address = self.socket.getsockname()[:2]
        self.metrics = metrics

    def shutdown(self) -> None:
        """End the thread, and close the socket."""
        super().shutdown()
        self.server_close()


def serve_metrics(address: str, metrics: Callable[[], str]) -> ThreadingHTTPServer:
    """Serve figures at ``http://ADDRESS/metrics`` from a thread; ``shutdown`` ends it."""
    server = _Server(address, metrics)
    threading.Thread(target=server.serve_forever, name="batchplant-metrics", daemon=True).start()
    return server


# Of one request: samples, and bytes of its answer. Samples read at a time where sizes are unknown.
MAX_SAMPLES, MAX_ANSWER_BYTES, READ_SAMPLES = 1 << 20, 1 << 30, 256
# Connections, requests that are answered at a time, and batches whose memory is kept for the next ones.
MAX_CONNECTIONS, MAX_AT_ONCE, BUFFERS = 512, 4, 8
# Pause where no connection can be accepted.
ACCEPT_SECONDS = 0.05
# Executors that are kept: one for each seed, set of outputs and way of decoding.
MAX_EXECUTORS = 16
# Samples whose cells tell datasets apart.
FINGERPRINT_SAMPLES = 16
# How long requests may take when the server ends; how long a client's load counts, and its bound.
END_SECONDS, LOAD_SECONDS, MAX_LOAD = 30.0, 30.0, 1e6

Message = dict[str, Any]


@dataclasses.dataclass
class Counts:
    """Counts of a server since it began. seconds: of making answers. load: see ``Server.load``."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    errors: int = 0
    refused: int = 0
    waiting: int = 0
    seconds: float = 0.0


def fingerprint(reader: Reader) -> str:
    """Return a checksum that tells datasets apart on any machine: fields, length, cells of a few samples."""
    facts = hashlib.blake2b(repr((len(reader), reader.schema.to_json())).encode(), digest_size=16)
    for sample in np.unique(np.linspace(0, max(0, len(reader) - 1), FINGERPRINT_SAMPLES).astype(np.int64)):
        for name in reader.schema if len(reader) else ():
            try:
                column = reader.read([sample], [name])[name]
            except DataError as error:
                facts.update(error.message.encode())
                continue
            cell = column[0] if isinstance(column, Ragged) else column
            facts.update(b"none" if cell is None else np.ascontiguousarray(cell).tobytes())
    return facts.hexdigest()


class StoredOnCpu(OnCpu):
    """Makes images; those that are stored as the batch has them are sent from where they lie."""

    def begin(self, request: Request) -> Callable[[], Result]:
        rows = request.stored_rows()
        if rows is None:
            return super().begin(request)
        values = Rows(rows, request.target.shape)
        return lambda: Result(values, {})


class Server:
    """Serves a dataset until ``stop``; ``run`` is the body of the main thread.

    plan: what pipelines it follows, see :mod:`.plans`; without one it ships cells. allow_code: the plan may
    name code. workers: decoding threads (default: all cores). max_answer_bytes: of one answer; a larger one
    is refused. report: is called with what happens, in words.
    """

    def __init__(
        self,
        reader: Reader,
        listener: socket.socket,
        *,
        plan: plans.PlanValues | None = None,
        allow_code: bool = False,
        security: Security | None = None,
        workers: int | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.reader, self._listener, self._report = reader, listener, report
        self._max_answer_bytes = max_answer_bytes
        self._plan_values, self.plan = plan, None
        if plan is not None:
            self.plan = make_plan(reader, plans.build(plan, allow_code=allow_code))
        self._security = security or Security()
        self._tls = self._security.context(server=True)
        self.workers = workers or platform.cpu_count()
        self._engine = _native.Engine(self.workers, None)
        self._buffers = BufferPool(BUFFERS)
        self._at_once = threading.Semaphore(MAX_AT_ONCE)
        self._changed = threading.Condition()
        # Bytes of answers that clients have not taken.
        self._unsent, self._max_unsent = 0, platform.memory_limit() // 4
        self._executors: dict[object, Executor] = {}
        self._channels: dict[Channel, threading.Thread] = {}
        # Load that clients told, and when.
        self._loads: dict[Channel, tuple[float, float]] = {}
        self._stopped = False
        self.counts, self.began = Counts(), time.monotonic()
        digest = "none" if plan is None else plans.digest(plan)
        self.identity = {"dataset": fingerprint(reader), "plan": digest}

    # -- life ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Accept clients until ``stop``; then finish the requests that are in flight."""
        try:
            while not self._stopped:
                ready, _, _ = select.select([self._listener], [], [], 0.5)
                if ready and not self._stopped:
                    try:
                        self._accept(*self._listener.accept())
                    except (OSError, RuntimeError):
                        # The client is gone by now, or there are no more descriptors or threads.
                        time.sleep(ACCEPT_SECONDS)
        finally:
            self._end()

    def stop(self) -> None:
        """Let ``run`` end. A handler of signals may call it."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._stopped = True
        self._listener.close()
        with self._changed:
            channels = dict(self._channels)
        for channel in channels:
            channel.interrupt()
        deadline = time.monotonic() + END_SECONDS
        for channel, thread in channels.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            channel.close()
        self._engine.close()

    def _accept(self, connection: socket.socket, address: Any) -> None:
        with self._changed:
            is_full = len(self._channels) >= MAX_CONNECTIONS
            self.counts.refused += is_full
        if is_full:
            connection.close()
            return
        channel = Channel(connection)
        name = f"{address[0]}:{address[1]}"
        thread = threading.Thread(target=self._serve, args=(channel, name), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            channel.close()
            raise

    def _serve(self, channel: Channel, name: str) -> None:
        """Answer one connection until it ends: the body of a thread."""
        with self._changed:
            self._channels[channel] = threading.current_thread()
        try:
            if self._tls is not None:
                channel.secure(self._tls, server=True)
            greet(channel, self._security, self.identity)
            while not self._stopped:
                request = channel.receive(MAX_REQUEST_BYTES, max_text=MAX_REQUEST_TEXT)
                message = self._answer(channel, request)
                size = sum(map(len, message))
                try:
                    channel.send_packed(message)
                finally:
                    del message
                    with self._changed:
                        self._unsent -= size
                        self._changed.notify_all()
                with self._changed:
                    self.counts.bytes += size
        except EOFError:
            pass
        except (OSError, DamagedError, RefusedError, MemoryError) as error:
            # A client is gone, or sends what is no request: all others go on.
            self._refuse(name, error)
        finally:
            channel.close()
            with self._changed:
                del self._channels[channel]
                self._loads.pop(channel, None)

    def _refuse(self, name: str, error: Exception) -> None:
        if not self._stopped:
            with self._changed:
                self.counts.refused += 1
            self._report(f"{name}: {error}")

    # -- requests ------------------------------------------------------------------------------------------

    def _answer(self, channel: Channel, request: Any) -> list[Buffer]:
        """Return the answer to a request, packed; an error of ours is an answer, too."""
        handlers = {
            "describe": self._describe, "facts": self._facts, "cells": self._cells, "batch": self._batch,
            "where": self._where,
        }  # fmt: skip
        if not isinstance(request, dict) or request.get("kind") not in handlers:
            raise DamagedError("this is no request")
        began, load = time.perf_counter(), request.get("load")
        with self._changed:
            self.counts.waiting += 1
            if isinstance(load, float) and 0 <= load < MAX_LOAD:
                self._loads[channel] = load, time.monotonic()
        try:
            with self._at_once:
                self._wait_for_memory()
                try:
                    message = pack(handlers[request["kind"]](request))
                except NotPlainError:
                    # What code of a user returns may be no data; the client has that code, too.
                    message = pack({"failed": True})
                except BatchplantError as error:
                    location = (getattr(error, name, None) for name in ("path", "sample", "field", "offset"))
                    text = getattr(error, "message", str(error))
                    message = pack({"error": [type(error).__name__, text, *location]})
                    self.counts.errors += 1
                except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
                    # What an op does not expect of a hostile request.
                    raise DamagedError(f"a request that cannot be answered: {error!r}") from None
                with self._changed:
                    self._unsent += sum(map(len, message))
                return message
        finally:
            with self._changed:
                self.counts.waiting -= 1
                self.counts.seconds += time.perf_counter() - began

    def _wait_for_memory(self) -> None:
        """Wait until clients have taken answers; those who do not must not fill the memory."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._unsent < self._max_unsent, MESSAGE_SECONDS):
                raise TimeoutError("clients do not take their answers")

    def _describe(self, request: Message) -> Message:
        return {
            "schema": self.reader.schema.to_json(), "length": len(self.reader), "path": self.reader.path,
            "window": self.reader.window, "plan": self._plan_values,
        }  # fmt: skip

    def _facts(self, request: Message) -> Message:
        """Return what orders need to know of all samples."""
        name, reader = request["name"], self.reader
        if name == "blocks":
            sizes = reader._layout().numbers("block_sizes")
            return {"sizes": sizes, "blocks": reader.blocks() if sizes is None else None}
        if name == "sizes":
            return {"sizes": reader.sizes()}
        if name == "boundaries":
            return {"boundaries": reader.boundaries()}
        if name == "cell sizes":
            every = np.arange(len(reader))
            return {"sizes": known_sizes(reader, reader._names([request["field"]]), every)}
        if name == "stored bytes":
            return {"bytes": stored_bytes(self.reader, self.reader._names(request["fields"]))}
        raise OptionError(f"a server knows no {name!r}")

    def _where(self, request: Message) -> Message:
        return {"path": self.reader.where(int(self._samples(request)[0]))}

    def _samples(self, request: Message) -> I64:
        ids = request["ids"]
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64:
            raise DamagedError("these are no samples")
        if len(ids) > MAX_SAMPLES:
            raise OptionError(f"a request is for at most {MAX_SAMPLES:,} samples, not {len(ids):,}")
        return self.reader._check(ids)

    def _cells(self, request: Message) -> Message:
        ids, fields = self._samples(request), self.reader._names(request["fields"])
        step = max(1, len(ids)) if self._check_cells(ids, fields) else READ_SAMPLES
        parts: list[Columns] = []
        size = 0
        for start in range(0, max(1, len(ids)), step):
            parts.append(self.reader.read(ids[start : start + step], fields))
            size += sum(map(_bytes_of, parts[-1].values()))
            self._check_answer(size, len(ids))
        columns = Columns.concat(parts)
        with self._changed:
            self.counts.samples += len(ids)
        return {"cells": dict(columns)}

    def _check_cells(self, ids: I64, fields: Sequence[str]) -> bool:
        """Refuse cells that are too large for an answer; return True if that is known."""
        try:
            sizes = known_sizes(self.reader, fields, ids)
        except DataError:
            return False
        if sizes is not None:
            self._check_answer(int(sizes.sum()), len(ids))
        return sizes is not None

    def _check_answer(self, size: int, samples: int) -> None:
        if size > self._max_answer_bytes:
            raise OptionError(
                f"{samples:,} samples are {size:,} bytes, and an answer has at most "
                f"{self._max_answer_bytes:,}: use smaller batches"
            )

    def _batch(self, request: Message) -> Message:
        """Return the values of a batch; nothing where a sample of it cannot be used."""
        ids, epoch = self._samples(request), whole("epoch", request["epoch"], 0)
        executor = self._executor(request)
        images, columns = executor.plan.images, list(executor.plan.columns)
        size = sum(
            len(ids) * int(np.prod(output.image.target.shape)) * output.image.target.dtype.itemsize
            for output in images
            if output.image is not None
        )
        self._check_answer(size, len(ids))
        if columns:
            self._check_cells(ids, columns)
        try:
            values = executor.run(ids, epoch).values
        # The client reads the cells, and meets the same error.
        except Exception:
            with self._changed:
                self.counts.errors += 1
            return {"failed": True}
        with self._changed:
            self.counts.batches += 1
            self.counts.samples += len(ids)
        return {"values": {name: values[name] for name in executor.plan.names}}

    def _executor(self, request: Message) -> Executor:
        """Return the executor of a seed, outputs and options of decoding."""
        seed, outputs = whole("seed", request["seed"], 0, 2**64 - 1), tuple(request["outputs"])
        dct, fast_scale = str(request["dct"]), bool(request["fast_scale"])
        if self.plan is None:
            raise OptionError("this server has no plan, and ships cells")
        if dct not in ("accurate", "fast"):
            raise OptionError(f"dct is accurate or fast, not {dct!r}")
        key = seed, outputs, dct, fast_scale
        with self._changed:
            executor = self._executors.pop(key, None)
            if executor is None:
                plan = part_of(self.plan, outputs)
                # Nothing else may see the images.
                as_stored = not plan.joint and not any(output.steps for output in plan.images)
                make = StoredOnCpu if as_stored else OnCpu
                on_cpu = make(self._engine, self._buffers, dct=dct, fast_scale=fast_scale)
                executor = Executor(self.reader, plan, on_cpu, seed=seed)
            self._executors[key] = executor
            while len(self._executors) > MAX_EXECUTORS:
                del self._executors[next(iter(self._executors))]
        return executor

    # -- figures -------------------------------------------------------------------------------------------

    @property
    def load(self) -> float:
        """Servers that clients need for each that there is: what an autoscaler multiplies their number by."""
        now = time.monotonic()
        with self._changed:
            loads = [load for load, since in self._loads.values() if now - since < LOAD_SECONDS]
        return max(loads, default=0.0)

    def metrics(self) -> str:
        """Return figures as text, as Prometheus reads them."""
        decode, resize = self._engine.seconds
        counts = self.counts
        figures = [
            Figure("batches_total", "counter", "Batches made.", counts.batches),
            Figure("samples_total", "counter", "Samples shipped, decoded or as cells.", counts.samples),
            Figure("sent_bytes_total", "counter", "Bytes sent to clients.", counts.bytes),
            Figure("errors_total", "counter", "Requests that an error answered.", counts.errors),
            Figure(
                "refused_total",
                "counter",
                "Connections refused, or ended for what they sent.",
                counts.refused,
            ),
            Figure("request_seconds_total", "counter", "Seconds spent on requests.", counts.seconds),
            Figure("decode_seconds_total", "counter", "Seconds of decoding threads.", decode + resize),
            Figure("connections", "gauge", "Connections of clients.", len(self._channels)),
            Figure("requests", "gauge", "Requests without an answer.", counts.waiting),
            Figure("workers", "gauge", "Decoding threads.", self.workers),
            Figure("load", "gauge", "Servers that are needed for each that there is.", self.load),
        ]
        return exposition("batchplant_serve", figures)


def part_of(plan: Plan, outputs: Sequence[str]) -> Plan:
    """Return the plan of some of the outputs, without the steps behind pipelines unless it is of all."""
    by_name = {output.name: output for output in plan.outputs}
    if missing := [name for name in outputs if name not in by_name]:
        raise OptionError(f"the plan has no output {missing[0]!r}")
    if not outputs:
        raise OptionError("a batch of no outputs")
    if plan.joint and tuple(outputs) != tuple(by_name):
        raise OptionError("joint steps need all outputs")
    return Plan(tuple(by_name[name] for name in dict.fromkeys(outputs)), plan.joint)


def _bytes_of(column: Any) -> int:
    return int(column.offsets[-1] - column.offsets[0]) if isinstance(column, Ragged) else column.nbytes
