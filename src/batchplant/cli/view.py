"""See a dataset in the browser: its samples, statistics, order and health.

examples:
  batchplant view photos/
  batchplant view 'train-*.tar' --where "label == 'cat'"    (quotes around a glob)
  batchplant view s3://bucket/train.parquet --port 8080
  batchplant view train.beton photos/                       (two datasets, side by side)

The page is served on this machine only, under a link with a token. Nothing is uploaded or changed. Ctrl-C
ends it. On a server, forward its port: ssh -L PORT:127.0.0.1:PORT HOST, with --port PORT.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from typing import Any

from ..errors import OptionError
from ..reader import Reader
from ..registry import open as open_reader
from .terminal import add_reading, parse_options, print_json, say


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="PATH", help="file, folder, URL, or a glob or braces of shards")
    parser.add_argument(
        "other",
        metavar="OTHER",
        nargs="?",
        help="a dataset to compare it with; --where and --option hold for both",
    )
    add_reading(parser)
    parser.add_argument(
        "--other-format", metavar="NAME", help="the format of OTHER (default: found by content)"
    )
    parser.add_argument("--port", type=int, metavar="N", default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise OptionError(f"--port is a number from 1 to 65535, not {args.port}")
    with contextlib.ExitStack() as opened:
        reader = opened.enter_context(_first(args))
        other = None if args.other is None else opened.enter_context(_second(args))
        return _serve(args, reader, other)


def _first(args: argparse.Namespace) -> Reader:
    options = parse_options(args.option)
    return open_reader(args.source, format=args.format, skip=args.skip, where=args.where, **options)


def _second(args: argparse.Namespace) -> Reader:
    """OTHER, with those options that are of its format, too."""
    options: dict[str, Any] = parse_options(args.option)
    try:
        return open_reader(args.other, format=args.other_format, where=args.where, **options)
    except OptionError:
        if not options:
            raise
        return open_reader(args.other, format=args.other_format, where=args.where)


def _serve(args: argparse.Namespace, reader: Reader, other: Reader | None) -> int:
    # A server brings much, and no other command needs it.
    from ..viewer.serve import Server
    from ..viewer.session import Session

    server = Server(Session(reader, other), port=args.port)
    if args.json:
        print_json({"url": server.url, "samples": len(reader)})
    else:
        say(server.url)
    sys.stdout.flush()
    if not args.no_browser and not args.json:
        _show(server.url)
    # Ctrl-C is how it ends, and no mistake.
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0


def _show(url: str) -> None:
    """Opens the page, where there is a screen; a browser in the terminal would take it over."""
    if sys.platform.startswith("linux") and not ({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        print("no screen here: open the link in a browser (Ctrl-C ends it)", file=sys.stderr)
        return
    import webbrowser

    # Some browsers return only when they are closed.
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
