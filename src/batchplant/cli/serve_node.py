"""Serve batches to the processes of this machine: what several of them need is decoded once.

examples:
  batchplant serve-node                        (until Ctrl-C; every Loader(share="node") finds it)
  batchplant serve-node --workers 8 --memory 4GB
  taskset -c 0-15 batchplant serve-node        (decode on these cores)

A Loader(share="node") starts a server by itself where none runs, on all cores; it ends when no process
needs it any more. Only processes of the same user can use it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time

from ..errors import BusyError, OptionError
from .serve import ignore, report_line
from .terminal import print_json

# Seconds after which a server that a Loader started ends, if nobody uses it.
IDLE_SECONDS = 10.0


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="decoding threads (default: all cores)")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="of batches that are kept for slower readers, as in 4GB (default: an eighth of the memory)",
    )
    parser.add_argument(
        "--idle",
        type=float,
        metavar="SECONDS",
        help="end when nobody has used it for so long (default: never)",
    )
    parser.add_argument(
        "--detach", action="store_true", help=f"go on in the background; --idle is {IDLE_SECONDS:g} then"
    )


def run(args: argparse.Namespace) -> int:
    if args.workers is not None and args.workers < 1:
        raise OptionError(f"--workers is at least 1, not {args.workers}")
    from ..loading.node import wire
    from ..storage.settings import bytes_of

    memory = None if args.memory is None else bytes_of("--memory", args.memory)
    wire.check_platform()
    deadline = time.monotonic() + wire.START_SECONDS
    # Ctrl-C is the normal way to end it.
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                with wire.listening() as listener:
                    if args.detach:
                        _detach(listener)
                    _serve(args, listener, memory)
                break
            except BusyError:
                if not args.detach or time.monotonic() > deadline:
                    raise
                if wire.wait_for_server():
                    break
    return 0


def _serve(args: argparse.Namespace, listener: socket.socket, memory: int | None) -> None:
    # Readers can connect by now. What it imports may have threads, which a fork would lose.
    from ..loading.node.server import Server

    idle = IDLE_SECONDS if args.detach and args.idle is None else args.idle
    report = ignore if args.detach or args.json else report_line
    server = Server(listener, workers=args.workers, memory=memory, idle=idle, report=report)
    if args.json:
        print_json({"process": os.getpid(), "workers": server.workers, "memory": server.memory})
    report(f"serving on {server.workers} threads; Ctrl-C ends it")
    sys.stdout.flush()
    server.run()


def _detach(listener: socket.socket) -> None:
    """Go on in a child process without a terminal; the parent ends at once."""
    sys.stdout.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    # Readers see the process that listened last as their peer.
    listener.listen()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
