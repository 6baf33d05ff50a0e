"""Readers that are pickled, and read in another process: one for all suites, as starting one takes long."""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..data.reader import Reader

# Whatever is wrong is told, and ends nothing but this one question.
_READS = """
import os, pickle, sys, traceback
from batchplant.testing.cases import cells
source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while True:
    try:
        environ, path, pickled = pickle.load(source)
    except EOFError:
        # Not by the usual way: threads of some libraries trip over the interpreter's end now and then.
        os._exit(0)
    os.environ.update(environ)
    sys.path[:] = path
    try:
        views = [pickle.loads(one) for one in pickled]
        found = [cells(view) for view in views], None
        views[0].close()
    except Exception:
        found = None, traceback.format_exc()
    pickle.dump(found, sink)
    sink.flush()
"""


def read_elsewhere(views: Sequence[Reader]) -> list[Any]:
    """The cells of these readers, as another process reads them after it unpickled them one by one."""
    process = _process(os.getpid())
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump((dict(os.environ), sys.path, [pickle.dumps(view) for view in views]), process.stdin)
        process.stdin.flush()
        found, error = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError):
        _process.cache_clear()
        raise AssertionError(f"the process that reads ended with {process.wait()}") from None
    assert error is None, error
    return list(found)


@functools.cache
def _process(parent: int) -> subprocess.Popen[bytes]:
    """That of this process; a child of a fork has one of its own."""
    made = subprocess.Popen([sys.executable, "-c", _READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, made, parent)
    return made


def _end(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() == parent and process.stdin is not None and process.stdout is not None:
        process.stdin.close()
        process.stdout.close()
        process.wait()
