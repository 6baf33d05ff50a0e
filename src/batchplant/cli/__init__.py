"""The command line: ``batchplant COMMAND …``, one module for each command.

Exit codes: 0 all is well, 1 a problem was found in the data, 2 the command was used wrongly, 130 stopped.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from .. import __version__
from ..errors import BatchplantError, DataError, printable
from .parser import Parser, add_commands

# With the first lines of their docstrings, so that help imports none of them.
COMMANDS = {
    "formats": "List the formats, compare what they can do, or tell all about one",
    "info": "Show what a dataset or a model holds: format, samples, fields, sizes, tensors, operators",
    "head": "Show the first samples, or the last; a terminal shows images. Of a model, its tensors",
    "convert": "Convert a dataset into another format",
    "merge": "Make one dataset of several, such as one file of the shards that many processes wrote",
    "split": "Split a dataset into parts, such as train, val and test",
    "verify": "Check every sample of a dataset and name every problem",
    "stats": "Tell what every field holds: counts, means, histograms, frequent values, resolutions, copies",
    "doctor": "Find what spoils a training run: damage, duplicates, sorted labels, odd images, awkward files",
    "why": "Say what a recorded run saw: samples of a step, steps of a sample, the worst, spikes of the loss",
    "receipt": "Write, verify and query the receipt of a run: a Merkle tree of the samples it saw",
    "check": "Check a dataset against a baseline: schema, counts, classes, ranges, duplicates, leakage",
    "view": "See a dataset in the browser: its samples, statistics, order and health",
    "advise": "Say which format and settings suit a dataset, this machine and a goal, and prove it",
    "simulate": "Say what a training run on many machines would do, from a plan: no data, no network",
    "mix": "Say what a training run over a mixture will see, from a plan: tokens, repeats, rows, per rank",
    "index": "Build the index of files that have to be scanned before their samples can be read in any order",
    "lake": "Look after Delta, Iceberg and Lance tables: their history, old files, the way back, small files",
    "cache": "Show, clear and fill the cache of remote data on this machine",
    "serve": "Serve a dataset to training machines: batches of a plan, or samples as they are stored",
    "serve-node": "Serve batches to the processes of this machine: what several of them need is decoded once",
    "bench": "Measure how fast a dataset can be used on this machine",
    "completion": "Print a script that completes commands, options and formats in your shell",
}
# What speaks of all the others.
WHOLE = "completion"
# Set, an error that is not ours is shown as Python shows it.
DEBUG = "BATCHPLANT_DEBUG"


def build_parser(command: str | None = None) -> Parser:
    """Return the parser of all commands, or of one; of a name that is no command, one that lists them all."""
    parser = Parser(
        prog="batchplant",
        description="Open, check and convert machine-learning data, whatever format it is in.",
        epilog="exit codes: 0 ok, 1 a problem was found in the data, 2 wrong use\n"
        "`batchplant COMMAND --help` shows examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"batchplant {__version__}")
    # Here, for the commands only set it where it is given: `bench --json loader` is one of two places.
    parser.set_defaults(json=False, root=parser)
    listed_only = COMMANDS if command is not None and command not in COMMANDS else {}
    names = () if listed_only else (command,) if command is not None else COMMANDS
    add_commands(parser, [importlib.import_module(module_of(name)) for name in names], listed_only)
    return parser


def module_of(command: str) -> str:
    """Return the module of a command."""
    return f"batchplant.cli.{command.replace('-', '_')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    with _any_letter():
        try:
            try:
                return _main(argv)
            finally:
                # What is raised when Python writes the rest at its own exit nobody can catch.
                if sys.stdout is not None:
                    sys.stdout.flush()
        except KeyboardInterrupt:
            # Also amid the imports of a command, and while one ends.
            _say("stopped")
            return 130
        except BrokenPipeError:
            # The reader of our output went away (| head).
            _drop_output()
            return 0
        except OSError as error:
            _drop_output()
            _say(f"the output cannot be written: {error.strerror or error}")
            return 2


def _main(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    command = words[0] if words else ""
    args = build_parser(None if command == WHOLE else command).parse_args(words)
    # A kill is treated like Ctrl-C: the writer stops in order.
    # Outside of the main thread (ValueError) signals are the caller's.
    before = None
    with contextlib.suppress(ValueError):
        before = signal.signal(signal.SIGTERM, _stop)
    hook, sys.unraisablehook = sys.unraisablehook, _again
    format_warning, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        return int(args.run(args))
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get(DEBUG) and not isinstance(error, BatchplantError | OSError):
            raise
        message = _message(error)
        if args.json:
            from .terminal import print_json

            location = _location(error) if isinstance(error, BatchplantError) else {}
            print_json({"error": {"kind": type(error).__name__, "message": message, **location}})
        _say(message)
        return 1 if isinstance(error, DataError) else 2
    finally:
        sys.unraisablehook, warnings.formatwarning = hook, format_warning
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _message(error: Exception) -> str:
    """One line about an error."""
    if isinstance(error, BatchplantError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{said} (a fault of batchplant; {DEBUG}=1 shows where)"


def _say(message: str) -> None:
    print(f"batchplant: {printable(message)}", file=sys.stderr)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning without the line of code that it comes from, which says nothing to a user."""
    return f"batchplant: warning: {printable(str(message))}\n"


def _drop_output() -> None:
    """Let what could not be written go: Python would try once more at its exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _any_letter() -> Iterator[None]:
    """A letter that the output's encoding lacks, or half a surrogate in a name, becomes an escape."""
    before = getattr(sys.stdout, "errors", None)
    if not isinstance(sys.stdout, io.TextIOWrapper):
        yield
        return
    out = sys.stdout
    out.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            out.reconfigure(errors=before)


def _location(error: BatchplantError) -> dict[str, object]:
    return {"path": error.path, "sample": error.sample, "field": error.field, "offset": error.offset}


def _again(ignored: Any) -> None:
    """Python ignores what is raised while it lets an object go; a Ctrl-C must not be lost by that."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        # A little later: here it would be ignored again.
        timer = threading.Timer(0.05, _interrupt)
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt() -> None:
    """Ctrl-C once more; a real signal, where it is ours, for only that ends a system call that waits."""
    if signal.getsignal(signal.SIGTERM) is _stop:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    else:
        _thread.interrupt_main()


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
