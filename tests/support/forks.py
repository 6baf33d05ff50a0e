"""Runs scripts in forks of a process that has batchplant loaded, which takes half a second of each script.

For scripts that are killed or interrupted; not for what is about the start of a process or its imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes


class Forks:
    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._folder = server, folder

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script as ``python -c`` does, in the environment and the current folder of this process."""
        out, error = (self._folder / name for name in ("out", "error"))
        request = {
            "script": script, "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(),
            "out": str(out), "error": str(error),
        }  # fmt: skip
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the process that forks is gone"
        code = os.waitstatus_to_exitcode(int(answer))
        return subprocess.CompletedProcess(["-c", *arguments], code, out.read_text(), error.read_text())


@contextlib.contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """``modules``: what is loaded once, for all scripts."""
    command = [sys.executable, __file__, *modules]
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        yield Forks(server, Path(folder))


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            work(request)
        print(os.waitpid(child, 0)[1], flush=True)


def work(request: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["-c", *request["arguments"]]
    failed = False
    try:
        exec(compile(request["script"], "<string>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        failed = True
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        __import__(module)
    serve()
