"""A side of a benchmark in a process of its own, which answers every question with a line of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any


def last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1]


class Process:
    """It is started at once; ``answer`` waits for its next line. What it says of errors goes into ``log``."""

    def __init__(self, name: str, command: list[Any], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("w") as errors:
            # Its group is its own: workers go with it.
            self.process = subprocess.Popen(
                [str(word) for word in command], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, start_new_session=True,
            )  # fmt: skip

    def ask(self, question: str = "epoch") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n".encode())

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self._wait()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError(f"{self.name} failed: {last_line(self.log.read_text())}")
        result: dict[str, Any] = json.loads(line)
        return result

    def _wait(self) -> None:
        """Until there is an answer; for those who look at the process meanwhile."""

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
