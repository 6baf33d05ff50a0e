"""The command line: ``batchplant formats | info | head | convert | verify | index | bench``.

Exit codes: 0 all is well, 1 a problem was found in the data, 2 the command was used wrongly, 130 stopped.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from .. import __version__
from ..errors import BatchplantError, DataError
from . import bench, convert, formats, head, index, info, verify
from .terminal import add_commands, print_json

COMMANDS = (formats, info, head, convert, verify, index, bench)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="batchplant",
        description="Open, check and convert machine-learning data, whatever format it is in.",
        epilog="exit codes: 0 ok, 1 a problem was found in the data, 2 wrong use\n"
        "`batchplant COMMAND --help` shows examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"batchplant {__version__}")
    # Here, for the commands only set it where it is given: `bench --json loader` is one of two places.
    parser.set_defaults(json=False)
    add_commands(parser, COMMANDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = build_parser().parse_args(argv)
    # A kill is treated like Ctrl-C: the writer stops in order.
    # Outside of the main thread (ValueError) signals are the caller's.
    before = None
    with contextlib.suppress(ValueError):
        before = signal.signal(signal.SIGTERM, _stop)
    hook, sys.unraisablehook = sys.unraisablehook, _again
    try:
        return int(args.run(args))
    except BatchplantError as error:
        if args.json:
            print_json({"error": {"kind": type(error).__name__, "message": str(error), **_place(error)}})
        print(f"batchplant: {error}", file=sys.stderr)
        return 1 if isinstance(error, DataError) else 2
    except KeyboardInterrupt:
        print("batchplant: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (| head); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"batchplant: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    finally:
        sys.unraisablehook = hook
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _place(error: BatchplantError) -> dict[str, object]:
    return {"path": error.path, "sample": error.sample, "field": error.field, "offset": error.offset}


def _again(ignored: Any) -> None:
    """Python ignores what is raised while it lets an object go; a Ctrl-C must not be lost by that."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        # A little later: here it would be ignored again.
        timer = threading.Timer(0.05, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(ignored)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
