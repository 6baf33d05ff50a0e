"""The client: a Reader whose samples servers have, and an Executor whose batches they make."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ...data.layout import Layout
from ...data.reader import Reader
from ...errors import DamagedError, DataError, OptionError, exceptions_as, near
from ...ops.base import Spec
from ...ops.function import Function
from ...schema import Schema
from ...schema.columns import I64, AnyArray, AnyDType, Columns, Ragged
from ..epoch import EpochTotals
from ..executor import Batch, Executor, Prepared, RemoteExecutor
from ..images import DecodeOptions
from ..node.recipe import RecipeEncoder, divide_at
from ..node.wire import WRONG, NotPlainError
from ..plan import Output, Plan, make_plan
from ..stage import Step
from . import plans
from .channel import Security
from .pool import Pool, PoolTuning

SCHEME = "batchplant://"
SHIPS = ("auto", "decoded", "encoded", "smaller")
OPTIONS = ("ship", "token_file", "cert", "key", "ca", "streams", "patience_seconds", "answer_seconds")
# Smaller arrays are allocated anew; larger ones have one of so many sizes between two powers of two.
MIN_BUFFER_BYTES, SIZE_STEPS = 256 << 10, 8
# Of a message besides the arrays of fixed size in it.
SLACK_BYTES = 1 << 20
# A read of so many samples is spread over servers.
MIN_PART_SAMPLES = 64
MAX_NODES, MAX_PRODUCERS = 10_000, 32


def hosts_of(location: str) -> list[str]:
    """Return the hosts of ``a:7001,b:7001``; Slurm's ranges as in ``node[01-03,7]:7001`` become hosts."""
    hosts: list[str] = []
    for text in re.split(r",(?![^\[]*\])", location):
        match = re.fullmatch(r"([^\[\]]+)\[([\d,\-]+)\](.*)", text)
        if match is None:
            hosts.append(text)
            continue
        before, ranges, after = match.groups()
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first or -1), int(last or first or -1) + 1)
            if not numbers or numbers[0] < 0 or len(numbers) > MAX_NODES:
                raise OptionError(f"{part!r} is no range of hosts", path=SCHEME + location)
            hosts += [f"{before}{number:0{len(first)}d}{after}" for number in numbers]
    return hosts


class ServiceReader(Reader):
    """The dataset of servers, as in ``open("batchplant://host1:7001,host2:7001")``.

    path: hosts with ports, and options behind ``?``. ship: ``decoded`` has servers follow their plan,
    ``encoded`` has them ship cells, of which this machine makes the same batches, ``smaller`` chooses what
    has fewer bytes, and ``auto`` decides by what servers can make. allow_code: import the ops and functions
    that the servers' plan names; a URL cannot allow it. token_file: file with the token that the servers
    have, unless the environment has it. cert, key, ca: files of PEM, for TLS. streams: requests in flight to
    each server. patience_seconds: how long to wait where no server answers. answer_seconds: how long one
    server may take.
    """

    format = "service"

    def __init__(self, path: str, *, allow_code: bool = False, **options: Any) -> None:
        location, _, query = str(path).removeprefix(SCHEME).partition("?")
        options = {**dict(parse_qsl(query)), **options}
        for name in options:
            if name not in OPTIONS:
                raise OptionError(f"there is no option {name!r}{near(name, OPTIONS)}", path=path)
        self.path, self.allow_code = SCHEME + location, allow_code
        self.ship = options.pop("ship", "auto")
        if self.ship not in SHIPS:
            raise OptionError(f"ship is {', '.join(SHIPS)}, not {self.ship!r}", path=path)
        security = Security.of(*(options.pop(name, None) for name in ("token_file", "cert", "key", "ca")))
        with exceptions_as(OptionError, "an option is a number", ValueError, TypeError, path=path):
            kinds = {"streams": int, "patience_seconds": float, "answer_seconds": float}
            tuning = PoolTuning(**{name: kinds[name](value) for name, value in options.items()})
        if tuning.streams < 1:
            raise OptionError(f"streams is at least 1, not {tuning.streams}", path=path)
        self._make_pool = functools.partial(Pool, self.path, hosts_of(location), security, tuning)
        self._pool_lock = threading.Lock()
        self._thread = threading.local()
        self._pool: Pool | None = None
        self._facts: dict[object, Any] = {}
        facts = self.call({"kind": "describe"}, dict)
        with exceptions_as(DamagedError, "servers described the dataset wrongly", *WRONG, path=self.path):
            self.schema = Schema.from_json(facts["schema"])
            self.length, self.window = int(facts["length"]), facts["window"]
            self.plan_values: plans.PlanValues | None = facts["plan"]
            self.dataset = str(facts["path"])
            if self.length < 0 or not isinstance(self.window, int | None):
                raise ValueError("a length below 0")

    @property
    def pool(self) -> Pool:
        """The servers; a fork connects to them anew."""
        with self._pool_lock:
            if self._pool is None or self._pool.process != os.getpid():
                self._pool = self._make_pool()
                weakref.finalize(self, self._pool.close)
            return self._pool

    def call(self, request: dict[str, Any], check: Callable[[Any], Any]) -> Any:
        """Return what ``check`` makes of the answer to a request."""
        return self.pool.submit(request, check).result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    # -- cells ---------------------------------------------------------------------------------------------

    def request_cells(self, fields: Sequence[str], ids: I64, allocate: Any = np.empty) -> Any:
        """Ask for cells; the answer's result is their Columns."""
        request = {"kind": "cells", "fields": list(fields), "ids": np.asarray(ids, np.int64)}
        schema = self.schema.select(fields)
        return self.pool.submit(
            request, lambda answer: checked_cells(answer, schema, len(ids)), allocate=allocate
        )

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        batch = getattr(self._thread, "batch", None)
        if batch is not None and all(name in batch[2] for name in fields):
            order, ids, columns = batch
            rows = order[np.searchsorted(ids, indices)]
            return Columns((name, columns[name]) for name in fields).take(rows)
        if not fields:
            return Columns()
        count = min(len(self.pool.servers) * self.pool.tuning.streams, len(indices) // MIN_PART_SAMPLES)
        parts = [self.request_cells(fields, part) for part in np.array_split(indices, max(1, count))]
        return Columns.concat([part.result() for part in parts])

    @contextlib.contextmanager
    def holding(self, ids: I64, columns: Columns) -> Iterator[None]:
        """Let this thread read the cells of a batch out of ``columns``."""
        order = np.argsort(ids, kind="stable")
        self._thread.batch = order, ids[order], columns
        try:
            yield
        finally:
            del self._thread.batch

    def _fingerprint_source(self, fields: Sequence[str]) -> None:
        return None

    # -- what orders need ----------------------------------------------------------------------------------

    def _fact(self, name: str, check: Callable[[Any], Any], **details: Any) -> Any:
        key = name, repr(details)
        if key not in self._facts:
            self._facts[key] = self.call({"kind": "facts", "name": name, **details}, check)
        return self._facts[key]

    def _layout(self) -> Layout:
        def boundaries() -> I64:
            return self._fact("boundaries", lambda answer: checked_numbers(answer.get("boundaries"), None))

        def cell_sizes(field: str, indices: I64) -> I64 | None:
            sizes = self._sizes("cell sizes", field=field)
            return None if sizes is None else sizes[indices]

        return Layout(
            blocks=lambda: self._fact("blocks", self._checked_blocks)[1],
            block_sizes=lambda: self._fact("blocks", self._checked_blocks)[0],
            boundaries=boundaries,
            sizes=lambda: self._sizes("sizes"),
            cell_sizes=cell_sizes,
        )

    def _checked_blocks(self, answer: Any) -> tuple[I64 | None, I64 | None]:
        sizes, blocks = answer.get("sizes"), answer.get("blocks")
        if sizes is not None and (checked_numbers(sizes, None).sum() != self.length):
            raise DamagedError("blocks do not have as many samples as the dataset")
        return sizes, None if blocks is None else checked_numbers(blocks, self.length)

    def _sizes(self, name: str, **details: str) -> I64 | None:
        def check(answer: Any) -> I64 | None:
            sizes = answer.get("sizes")
            return None if sizes is None else checked_numbers(sizes, self.length)

        return self._fact(name, check, **details)

    def stored_bytes(self, fields: Sequence[str]) -> float | None:
        """Return the average size of the cells of a sample; None if servers do not know it."""
        size = self._fact("stored bytes", lambda answer: answer.get("bytes"), fields=list(fields))
        return size if isinstance(size, float) else None

    def where(self, sample: int) -> str:
        request = {"kind": "where", "ids": np.array([sample])}
        return str(self.call(request, lambda answer: answer.get("path")))

    def facts(self) -> dict[str, object]:
        pool = self.pool
        return {"dataset": self.dataset, "servers": len(pool.servers), "plan": self.plan_values is not None}

    # -- plans ---------------------------------------------------------------------------------------------

    def default_pipelines(self) -> list[Any] | None:
        """Return the ``pipelines`` of the plan that the servers follow."""
        if self.plan_values is None:
            return None
        with exceptions_as(DamagedError, "the servers' plan cannot be used", Exception, path=self.path):
            return plans.build(self.plan_values, allow_code=self.allow_code)


def checked_numbers(values: Any, length: int | None) -> I64:
    """Return integers that a server sent, none below 0; raise DamagedError if they are none."""
    is_wrong = not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu"
    if is_wrong or (length is not None and len(values) != length) or (values < 0).any():
        raise DamagedError("an answer has other numbers than expected")
    return values.astype(np.int64, copy=False)


def checked_cells(answer: Any, schema: Schema, rows: int) -> Columns:
    """Return the cells in an answer; raise DamagedError where they are not what the schema says."""
    with exceptions_as(DamagedError, "an answer has other cells than expected", *WRONG):
        columns = Columns(answer["cells"])
        for name, field in schema.items():
            column, dense = columns[name], field.cell
            if isinstance(column, Ragged):
                _check_ragged(column, rows)
                if dense is not None:
                    raise ValueError(f"{name} is ragged")
            elif dense is None or (column.dtype, column.shape) != (dense[0], (rows, *dense[1])):
                raise ValueError(f"{name} is {column.dtype} {column.shape}")
        return Columns((name, columns[name]) for name in schema)


def _fits(array: AnyArray, dtype: Any, *shape: int) -> bool:
    return array.dtype == dtype and array.shape == shape


def _check_ragged(cells: Ragged, rows: int) -> None:
    data, offsets, shape, valid = cells.data, cells.offsets, cells.shape, cells.valid
    if data.dtype != np.uint8 or not _fits(offsets, np.int64, rows + 1) or data.ndim != 1:
        raise ValueError("cells of another type")
    if offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("cells lie outside")
    if valid is not None and not _fits(valid, np.bool_, rows):
        raise ValueError("flags of another type")
    if shape is not None:
        if not _fits(shape, np.int32, rows, 3) or (shape < 0).any():
            raise ValueError("pixels of another type")
        raw = shape.any(axis=1)
        if (shape.astype(np.float64).prod(axis=1) != cells.sizes)[raw].any():
            raise ValueError("pixels of another size")


# -- batches -----------------------------------------------------------------------------------------------


def shared_part(plan: Plan, served: Plan) -> tuple[Plan, Plan | None] | str:
    """Return the part of a plan that servers make, and what follows it; or why they do not make it."""
    by_name = {output.name: output for output in served.outputs}
    counts: dict[str, int] = {}
    for output in plan.outputs:
        theirs = by_name.get(output.name)
        if theirs is None and output.beside is not None:
            # Padding in the client makes it.
            counts[output.name] = 0
            continue
        if theirs is None:
            return f"their plan has no output {output.name!r}"
        if _data_of(output) != _data_of(theirs):
            return f"their plan begins {output.name!r} otherwise: {theirs}"
        count = len(theirs.steps)
        if [_step_of(step) for step in output.steps[:count]] != [_step_of(step) for step in theirs.steps]:
            return f"their plan has other steps for {output.name!r}: {theirs}"
        counts[output.name] = count
    joint = len(served.joint)
    same_joint = [_step_of(step) for step in plan.joint[:joint]] == [_step_of(step) for step in served.joint]
    same_outputs = [(output.name, len(output.steps)) for output in plan.outputs] == [
        (output.name, len(output.steps)) for output in served.outputs
    ]
    if joint and not (same_joint and same_outputs):
        return "their plan has other steps behind pipelines"
    return divide_at(plan, counts, joint)


def _data_of(output: Output) -> str:
    return _as_data(dataclasses.replace(output, steps=(), spec=Spec(None), obstacle=""))


def _step_of(step: Step[Any]) -> str:
    return _as_data([step.op, step.key])


class StepEncoder(RecipeEncoder):
    """Encodes steps to compare them: ops and functions of users by their names, which import finds."""

    def custom(self, value: object) -> object:
        if isinstance(value, Function):
            options = value.dtype, value.shape, value.each, value.parallel, value.workers
            return ["function", self.tree([value.function, *options])]
        return ["code", self.name_of(value)] if isinstance(value, FunctionType) else super().custom(value)

    def name_of(self, kind: type | FunctionType) -> str:
        name = f"{kind.__module__}:{kind.__qualname__}"
        if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
            raise NotPlainError(f"{name} is not what its name says")
        return name


def _as_data(value: object) -> str:
    """Return text that is the same for the same data; code that no import finds is like nothing else."""
    try:
        text, parts = StepEncoder().parts(value)
    except NotPlainError:
        return f"{id(value)}"
    return f"{text!r}{b''.join(parts)!r}"


def checked_values(answer: Any, plan: Plan, rows: int) -> dict[str, Any] | None:
    """Return the values in an answer, None without any; raise DamagedError where they do not fit the plan."""
    with exceptions_as(DamagedError, "an answer has other values than expected", *WRONG):
        if answer.get("failed"):
            return None
        values: dict[str, Any] = {name: answer["values"][name] for name in plan.names}
        for output in plan.outputs if not plan.joint else ():
            _check_value(values[output.name], output, rows)
        return values


def _check_value(value: Any, output: Output, rows: int) -> None:
    spec = output.spec if not output.steps else output.steps[-1].spec
    if spec.dtype is None or spec.unequal:
        if len(value) != rows:
            raise ValueError(f"{output.name} has {len(value)} rows")
        return
    if spec.ragged:
        values, offsets = value
        checked_numbers(offsets, rows + 1)
        if values.dtype != spec.dtype or offsets[0] != 0 or offsets[-1] > len(values):
            raise ValueError(f"{output.name} is ragged otherwise")
        if (np.diff(offsets) < 0).any():
            raise ValueError(f"{output.name} has rows of a size below 0")
        return
    fits = len(value.shape) == len(spec.shape) + 1 and value.shape[0] == rows
    if value.dtype != spec.dtype or not fits:
        raise ValueError(f"{output.name} is {value.dtype} {value.shape}")
    if any(size not in (None, actual) for size, actual in zip(spec.shape, value.shape[1:], strict=True)):
        raise ValueError(f"{output.name} is of shape {value.shape}")


def sample_bytes(plan: Plan) -> int | None:
    """Return the bytes of a sample in a batch; None where samples differ, or are no numbers."""
    total = 0
    for output in plan.outputs:
        spec = output.spec if not output.steps else output.steps[-1].spec
        if spec.dtype is None or spec.ragged or spec.unequal or None in spec.shape or plan.joint:
            return None
        total += spec.dtype.itemsize * math.prod(size or 0 for size in spec.shape)
    return total


class ServiceExecutor(RemoteExecutor):
    """An Executor whose batches servers make, or whose cells they ship.

    ``alone`` makes batches of cells, and finds the error where a sample cannot be used: with the same
    errors as a Loader of local files.
    """

    name, waits_for = "service", "servers"

    def __init__(
        self, alone: Executor, decode: DecodeOptions, prefetch_batches: int, totals: EpochTotals
    ) -> None:
        reader = alone.reader
        assert isinstance(reader, ServiceReader)
        self.reader: ServiceReader
        part = self._part_of_servers(reader, alone.plan, decode)
        self._why, self._decode = part if isinstance(part, str) else "", decode
        if self._why and reader.ship == "decoded":
            raise OptionError(f'ship="decoded": {self._why}', path=reader.path)
        self._head: Plan | None
        self._head, tail = (None, None) if isinstance(part, str) else part
        super().__init__(alone, tail, prefetch_batches)
        pool = reader.pool
        # Its threads must not refer to this object, which can be collected.
        pool.load = self._load = functools.partial(_load_of, totals, pool)

    @staticmethod
    def _part_of_servers(
        reader: ServiceReader, plan: Plan, decode: DecodeOptions
    ) -> tuple[Plan, Plan | None] | str:
        """Return what servers make of the plan and what follows; or why they only ship cells."""
        if reader.ship == "encoded":
            return 'ship="encoded"'
        if decode.backend is not None:
            return "a device of this machine decodes"
        if reader.plan_values is None:
            return "the servers have no plan: start them with --plan"
        try:
            part = shared_part(plan, make_plan(reader, reader.default_pipelines()))
        except OptionError as error:
            # Code that is not allowed here.
            return error.message
        if reader.ship == "smaller" and not isinstance(part, str):
            stored, made = reader.stored_bytes(plan.fields), sample_bytes(part[0])
            if stored is not None and made is not None and stored < made:
                return f'ship="smaller": a sample has {stored:,.0f} bytes as stored, and {made:,} in a batch'
        return part

    def producers(self) -> int:
        """Return the number of threads that wait for batches: one for each that may be in flight."""
        pool = self.reader.pool
        return max(super().producers(), min(len(pool.servers) * pool.tuning.streams, MAX_PRODUCERS))

    def room(self) -> int:
        """Return the batches in flight: a request for each stream, beside batches that are ready."""
        room = self.producers() + self._prefetch_batches
        self.on_cpu.buffers.keep(room + 1)
        return room

    def ask(self, ids: I64, epoch: int) -> Any:
        """Ask for the values of a batch, or for its cells."""
        ids = np.asarray(ids, np.int64)
        if self._head is None:
            return self.reader.request_cells(self.plan.fields, ids, self._allocate)
        head, rows = self._head, len(ids)
        size = sample_bytes(head)
        request = {
            "kind": "batch", "ids": ids, "epoch": epoch, "seed": self.seed, "dct": self._decode.dct,
            "fast_scale": self._decode.fast_scale, "outputs": [output.name for output in head.outputs],
        }  # fmt: skip
        return self.reader.pool.submit(
            request, lambda answer: checked_values(answer, head, rows), allocate=self._allocate,
            max_bytes=None if size is None else size * rows + SLACK_BYTES,
        )  # fmt: skip

    def complete_answer(self, prepared: Prepared) -> Batch | None:
        """Return the batch that an answer leads to; None where it has to be made of its cells here."""
        if self._head is not None:
            return super().complete_answer(prepared)
        assert prepared.answer is not None
        began = time.perf_counter()
        try:
            columns: Any = prepared.answer()
        # It names no sample; reading one by one does.
        except DataError:
            return None
        self.timer.add(self.waits_for, began)
        with self.reader.holding(prepared.ids, columns):
            return self._alone.run(prepared.ids, prepared.epoch)

    def _allocate(self, shape: tuple[int, ...], dtype: AnyDType) -> AnyArray:
        """Return memory of batches that nothing refers to any more; it is pinned for a device."""
        size = math.prod(shape) * dtype.itemsize
        if size < MIN_BUFFER_BYTES:
            return np.empty(shape, dtype)
        step = (1 << size.bit_length() - 1) // SIZE_STEPS
        memory = self.on_cpu.buffers.take((-(-size // step) * step,), np.dtype(np.uint8))
        return memory[:size].view(dtype).reshape(shape)

    def stats(self) -> dict[str, Any]:
        """Return what each server did, and which batches were made here."""
        pool = self.reader.pool
        servers = {
            server.name: {
                "answers": server.answers, "bytes": server.bytes, "taken over": server.taken_over,
                "problem": server.reason,
            }
            for server in pool.servers.values()
        }  # fmt: skip
        return {
            "ship": "encoded" if self._head is None else "decoded", "why encoded": self._why,
            "from servers": self._from_server, "alone": self._from_here, "servers": servers,
            "load": self._load(),
        }  # fmt: skip

    def servers(self) -> int:
        """Return how many servers would make batches as fast as the loop uses them."""
        reachable = sum(not server.reason for server in self.reader.pool.servers.values())
        return math.ceil(reachable * self._load() - 1e-9)

    def close(self) -> None:
        """Leave the servers to the reader, which other loaders may use."""


def _load_of(totals: EpochTotals, pool: Pool) -> float:
    """Return the servers that a client needs for each that there is, as far as it knows."""
    waited, stepped = totals.waited, totals.stepped
    return pool.busy * (waited + stepped) / stepped if stepped else 0.0
