"""Threads and processes that ops run in."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import queue
import select
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ..errors import DataError, OptionError, WorkerError
from ..order import default_threads
from ..storage.platform import anonymous_file
from .base import Batch, CellErrors, Op, RowError

Result = TypeVar("Result")


class Threads:
    """A few threads, started when they are needed; each process that it comes to has its own."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers is a number from 1 on, not {workers}")
        self.workers = workers
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"workers": self.workers, "_pools": {}}

    def each(self, count: int, function: Callable[[int], Result]) -> list[Result]:
        """``function(row)`` of every row. Collects DataErrors and raises them together, as CellErrors."""
        errors: dict[int, DataError] = {}

        def run_row(row: int) -> Batch:
            try:
                return function(row)
            except DataError as error:
                # Without what leads to the batch's memory.
                errors[row] = error.with_traceback(None)
                return None

        workers = min(count, self.workers or default_threads())
        results: list[Result] = list(
            map(run_row, range(count)) if workers < 2 else self._pool().map(run_row, range(count))
        )
        if errors:
            raise CellErrors(errors)
        return results

    def close(self) -> None:
        """End the threads; they are started again if they are needed."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown(wait=False)

    def _pool(self) -> ThreadPoolExecutor:
        # After a fork, the parent's threads are not there.
        pool = self._pools.get(os.getpid())
        if pool is None:
            workers = self.workers or default_threads()
            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(workers, "batchplant-cells"))
        return pool


# Alignment of arrays in shared memory, for vector instructions.
ALIGNMENT_BYTES = 64
# A worker that has not answered for this long is checked.
POLL_SECONDS = 1.0
MAIN_GUARD_HINT = (
    'is what your script does under `if __name__ == "__main__":`? Workers import the script, too'
)


class Shared:
    """Memory that two processes see; it has no name, grows as needed, and is gone with the last of them."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls) -> Shared:
        return cls(anonymous_file("batchplant"))

    def view(self, size: int) -> memoryview:
        """The first ``size`` bytes."""
        if self._map is None or len(self._map) < size:
            # What lies in the old one may be in use still; it goes when that goes.
            if os.fstat(self.file).st_size < size:
                os.ftruncate(self.file, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._map = mmap.mmap(self.file, os.fstat(self.file).st_size)
        return memoryview(self._map)[:size]

    def __del__(self) -> None:
        os.close(self.file)


def send(connection: Connection, shared: Shared, value: object) -> None:
    """Give a value to the other side: arrays through shared memory, everything else pickled."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    starts, end = [], 0
    for part in parts:
        starts.append(end)
        end += -(-part.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    # Arrays may be empty.
    if end:
        memory = shared.view(end)
        for start, part in zip(starts, parts, strict=True):
            memory[start : start + part.nbytes] = part
    places = [(start, part.nbytes) for start, part in zip(starts, parts, strict=True)]
    connection.send_bytes(pickle.dumps((data, places, end)))


def receive(connection: Connection, shared: Shared) -> Any:
    """Receive a value that the other side sent, with arrays of its own."""
    data, places, end = pickle.loads(connection.recv_bytes())
    memory = shared.view(end) if end else memoryview(b"")
    return pickle.loads(data, buffers=[bytearray(memory[start : start + size]) for start, size in places])


# -- in the worker ------------------------------------------------------------------------------------------


def work(connection: Connection) -> None:
    """Main function of a worker: receive an op and two memories, then run batches until the parent closes."""
    # Ctrl-C is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_watch, args=(connection.fileno(),), daemon=True).start()
    # The parent is gone, or has no use for us.
    with contextlib.suppress(EOFError, ConnectionError):
        inputs, outputs = (Shared(reduction.recv_handle(connection)) for _ in range(2))
        encoded = connection.recv_bytes()
        try:
            op: Op = pickle.loads(encoded)
        except Exception as error:
            send(connection, outputs, _portable(error))
            return
        send(connection, outputs, None)
        while True:
            batch, ids, draws = receive(connection, inputs)
            try:
                result = op.run(batch, ids, draws)
                del batch
                send(connection, outputs, (result, None))
            except Exception as error:
                send(connection, outputs, (None, _portable(error)))


def _watch(socket: int) -> None:
    """End with the parent, also amid a function."""
    ends = select.poll()
    ends.register(socket, getattr(select, "POLLRDHUP", 0))
    ends.poll()
    os._exit(0)


def _portable(error: Exception) -> tuple[Exception, str]:
    """An exception that the parent can unpickle, and the traceback as text."""
    inner = error.error if isinstance(error, RowError) else error
    text = "".join(traceback.format_exception(inner))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = WorkerError(f"{type(inner).__name__}: {inner}")
        return (RowError(error.row, plain) if isinstance(error, RowError) else plain), text
    return error, text


# -- in the parent ------------------------------------------------------------------------------------------


class Worker:
    """One process, as its parent sees it. One thread at a time uses it."""

    def __init__(self, op: Op, context: Any, starting: threading.Lock) -> None:
        # Busy until it has answered.
        self.op_name, self.busy = repr(op), True
        ours, theirs = context.Pipe()
        self.connection, self.inputs, self.outputs = ours, Shared.make(), Shared.make()
        self.process = context.Process(target=work, args=(theirs,), name="batchplant-worker", daemon=True)
        try:
            with starting, _without_ctrl_c():
                self.process.start()
            theirs.close()
            for shared in (self.inputs, self.outputs):
                reduction.send_handle(ours, shared.file, self.process.pid)
            ours.send_bytes(pickle.dumps(op))
            problem = self._answer()
        except (OSError, EOFError, RuntimeError) as error:
            self.end()
            why = error.message if isinstance(error, WorkerError) else repr(error)
            raise WorkerError(f"no worker process can be started: {why}; {MAIN_GUARD_HINT}") from None
        if problem is not None:
            self.end()
            raise WorkerError(f"a worker process cannot load {self.op_name}: {problem[0]}\n{problem[1]}")

    def run(self, *arguments: object) -> Batch:
        """Run the op on (batch, ids, draws)."""
        self.busy = True
        try:
            send(self.connection, self.inputs, arguments)
        except OSError:
            raise WorkerError(f"a worker process died while it ran {self.op_name}: {self._why()}") from None
        result, problem = self._answer()
        if problem is not None:
            error, text = problem
            inner = error.error if isinstance(error, RowError) else error
            if not isinstance(error, CellErrors):
                inner.add_note(f"in a worker process:\n{text.rstrip()}")
            try:
                raise error
            finally:
                # Else its traceback would hold it.
                del error, inner, problem
        return result

    def _answer(self) -> Any:
        try:
            # Its socket may be held open by processes that it started.
            while not self.connection.poll(POLL_SECONDS):
                if not self.process.is_alive():
                    raise EOFError
                os.kill(self.process.pid, 0)
            answer = receive(self.connection, self.outputs)
            self.busy = False
            return answer
        except (EOFError, OSError):
            raise WorkerError(f"a worker process died while it ran {self.op_name}: {self._why()}") from None

    def _why(self) -> str:
        """Describe how the process ended."""
        self.process.join(POLL_SECONDS)
        code = self.process.exitcode
        if code is None or code >= 0:
            return "it ended" if code is None else f"it ended with exit code {code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"signal {-code} ({signal.Signals(-code).name}) ended it{hint}"

    def end(self) -> None:
        """Kill it. Shared memory stays while it is in use: a thread may wait for an answer."""
        if self.process.pid is not None:
            self.process.kill()
            self.process.join(POLL_SECONDS)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block SIGINT while a process starts, until it ignores the signal itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Processes:
    """Up to ``workers`` processes that run an op; any number of threads may call ``run`` at once."""

    def __init__(self, op: Op, workers: int) -> None:
        self._op, self._workers = op, workers
        self._reset()

    def _reset(self) -> None:
        self._process, self._closed = os.getpid(), False
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        # None stands for a worker that can still be started.
        for _ in range(self._workers):
            self._idle.put(None)
        self._all: list[Worker] = []
        self._starting = threading.Lock()
        self._ending = weakref.finalize(self, _end, self._all, self._process)

    def __getstate__(self) -> dict[str, object]:
        return {"_op": self._op, "_workers": self._workers}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._reset()

    def run(self, *arguments: object) -> Batch:
        """Run the op on (batch, ids, draws) in one of the processes."""
        if self._process != os.getpid():
            # Those are the parent's.
            self._reset()
        worker = self._idle.get()
        try:
            if worker is None and not self._closed:
                worker = Worker(self._op, _context(), self._starting)
                self._all.append(worker)
            if self._closed:
                # The thread that closed it may have missed this worker.
                _end(self._all, self._process)
                raise WorkerError(f"the loader was closed while {self._op!r} ran")
            assert worker is not None
            return worker.run(*arguments)
        finally:
            # It died, or Ctrl-C came: then its answer would be taken for that to the next question.
            if worker is not None and worker.busy:
                worker.end()
                with contextlib.suppress(ValueError):
                    self._all.remove(worker)
                worker = None
            self._idle.put(worker)

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        if self._process == os.getpid():
            self._closed = True
            self._ending()


def _end(workers: list[Worker], process: int) -> None:
    if os.getpid() == process:
        while workers:
            workers.pop().end()


def _context() -> Any:
    if multiprocessing.current_process().daemon:
        raise OptionError(
            "worker processes cannot start processes of their own, and this is one (of a DataLoader?): use "
            'parallel="threads" here, or num_workers=0 there'
        )
    # Never a fork of this process: its threads would not come along, but their locks would.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    server = getattr(forkserver, "_forkserver", None)
    # Imported once, by the server that forks the workers, unless the user chose its imports.
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        context.set_forkserver_preload(["__main__", __name__])
    return context


def check_picklable(function: Callable[..., Any]) -> None:
    """An OptionError where a process could not be given the function."""
    name = getattr(function, "__qualname__", repr(function))
    hint = 'define it at the top level of a module, or use parallel="threads"'
    try:
        pickle.dumps(function)
    except Exception:
        raise OptionError(
            f"{name} cannot go to another process, which finds functions by their name: {hint}"
        ) from None
    main = sys.modules.get("__main__")
    named = getattr(main, "__spec__", None) or os.path.isfile(getattr(main, "__file__", ""))
    if getattr(function, "__module__", None) == "__main__" and not named:
        raise OptionError(f"{name} is of a session that other processes cannot import: {hint}")
