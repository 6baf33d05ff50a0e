"""Processes that tests start: none outlives its test, however that ends."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import Any

import pytest

from batchplant.cli import main

# Longer than any machine needs, however busy: what waits as long has hung. pytest's own time-out is later.
PATIENCE = 600.0
# How a command ends that Ctrl-C stopped. Python dies of the signal where it came amid code that was compiled
# from text, as dataclasses are, even if it was caught; a shell says 130 of both.
STOPPED = (130, -2)


@contextlib.contextmanager
def start(command: Any, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """``subprocess.Popen``; at the end of the block the process is killed, and whatever it started."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            # The group lasts as long as anything in it, also when the process itself is gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(
    command: Any, *, input: Any = None, capture_output: bool = False, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` that waits no longer than PATIENCE and leaves nothing behind."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, **options) as process:
        out, error = process.communicate(input, timeout=PATIENCE)
    done = subprocess.CompletedProcess(command, process.returncode, out, error)
    if check:
        done.check_returncode()
    return done


def run_together(*commands: Any, **options: Any) -> list[subprocess.CompletedProcess[Any]]:
    """``run`` of many at a time; none has to wait for another to be started."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(start(command, **options)) for command in commands]
        outputs = [process.communicate(timeout=PATIENCE) for process in running]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *parts)
        for process, parts in zip(running, outputs, strict=True)
    ]


def answers(queue: Any, *children: BaseProcess, count: int = 1) -> list[Any]:
    """Return what children put into a queue; fail at once when one of them fails before it did."""
    received: list[Any] = []
    while len(received) < count:
        failed = [child for child in children if child.exitcode]
        try:
            received.append(queue.get(timeout=1.0))
        except Empty:
            assert not failed, f"{failed[0]} ended with {failed[0].exitcode}, and its answer did not come"
    return received


def run_in_terminal(command: Any, columns: int, **environment: str) -> str:
    """Return the terminal output, standard error included, of a command that succeeds."""
    ours, theirs = pty.openpty()
    usual = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(columns)}
    seen = b""
    with start(command, stdout=theirs, stderr=theirs, env={**os.environ, **usual, **environment}) as process:
        os.close(theirs)
        # Read as it comes: a full terminal makes the process wait. EIO says that the other end is closed.
        with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
            while part := terminal.read(1 << 16):
                seen += part
        assert process.wait(PATIENCE) == 0, seen
    return seen.decode().replace("\r\n", "\n")


def main_in_terminal(argv: Sequence[str], columns: int, **environment: str) -> str:
    """Return what a command of batchplant that succeeds writes to a terminal, run in this process."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def collect() -> None:
        # EIO says that the other end is closed.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 1 << 16):
                seen.extend(part)

    reading = threading.Thread(target=collect)
    reading.start()
    usual = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(columns)}
    try:
        with pytest.MonkeyPatch.context() as patch, open(theirs, "w", encoding="utf-8") as terminal:
            for name, value in {**usual, **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            assert main(argv) == 0
    finally:
        reading.join()
        os.close(ours)
    return seen.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def started(*children: BaseProcess) -> Iterator[None]:
    """Processes of multiprocessing: started, and killed at the end of the block."""
    try:
        for child in children:
            child.start()
        yield
    finally:
        for child in children:
            if child.pid is not None:
                child.kill()
                child.join()


def in_fork(work: Callable[[], bool]) -> bool:
    """Run ``work`` in a fork that exits at once, and return whether it returned True."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if good else 1)
    status = None
    try:
        status = os.waitpid(child, 0)[1]
    finally:
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return status == 0
