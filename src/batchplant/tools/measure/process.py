"""The parent's end of a :mod:`worker`: ask, wait for the answer, notice when it died."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from ...errors import WorkerError
from . import worker
from .worker import Failed, Job

COMMAND = f"from {worker.__name__} import main; main()"
# Seconds to end in order.
GRACE = 5.0
# Of what a process that died said last.
SAID = 2000


class Process:
    """A process of its own, and all that it starts; ``end`` leaves none of them."""

    def __init__(self, log: Path, **environment: str) -> None:
        self._log = log
        with open(log, "wb") as said:
            self._process = subprocess.Popen(
                # What our own folder holds must not stand in for a module of Python.
                [sys.executable, "-P", "-c", COMMAND],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
                # It finds the same modules as we do.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
            )  # fmt: skip

    def begin(self, job: Job) -> None:
        self._send(job)

    def ask(self, method: str, *arguments: Any, patience: float | None = None) -> Any:
        """What a method answers; a WorkerError where it failed, or the process died or took too long."""
        self._send((method, arguments))
        answers = self._out(self._process.stdout)
        if patience is not None and not select.select([answers], [], [], patience)[0]:
            self.end()
            raise WorkerError(f"it took more than {patience:,.0f} s")
        try:
            answer = pickle.load(answers)
        except (EOFError, pickle.UnpicklingError):
            raise WorkerError(self._how_it_died()) from None
        if isinstance(answer, Failed):
            raise WorkerError(answer.message)
        return answer

    def _send(self, what: Any) -> None:
        pipe = self._out(self._process.stdin)
        try:
            pipe.write(pickle.dumps(what))
            pipe.flush()
        except BrokenPipeError:
            raise WorkerError(self._how_it_died()) from None

    @staticmethod
    def _out(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self.end()
        # The last line of a traceback says what it was.
        said = self._log.read_bytes()[-SAID:].decode("utf-8", "replace").strip().splitlines()
        how = worker.died(self._process.returncode)
        return f"its process died ({how}){f': {said[-1]}' if said else ''}"

    def end(self) -> None:
        """With whatever it started. Who is writing gets a moment to take back what it sent to a server."""
        with contextlib.suppress(BrokenPipeError):
            self._out(self._process.stdin).close()
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
