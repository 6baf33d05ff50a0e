"""See a dataset in the browser: its samples, statistics, order and health.

examples:
  batchplant view photos/
  batchplant view 'train-*.tar' --where "label == 'cat'"    (quotes around a glob)
  batchplant view s3://bucket/train.parquet --port 8080
  batchplant view photos/ --pipeline train.py:augment       (samples as the Loader augments them)

The page is served on this machine only, under a link with a token. Nothing is uploaded or changed. Ctrl-C
ends it. On a server, forward its port: ssh -L PORT:127.0.0.1:PORT HOST, with --port PORT.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from ..data.reader import Reader
from ..errors import OptionError
from .terminal import add_reading, open_source, print_json, say

if TYPE_CHECKING:
    from ..tools.viewer.serve import Server


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="PATH", help="file, folder, URL, or a glob or braces of shards")
    add_reading(parser)
    parser.add_argument("--port", type=int, metavar="N", default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")
    parser.add_argument(
        "--pipeline",
        metavar="FILE.py:NAME",
        help="show samples after augmentation, too: NAME is a Loader, its arguments, its pipelines or a list "
        "of ops; FILE.py is run, so name only a file that you trust",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json of the tokenizers library: token numbers are shown with their text",
    )


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise OptionError(f"--port is a number from 1 to 65535, not {args.port}")
    with open_source(args) as reader:
        return _serve(args, reader)


def _serve(args: argparse.Namespace, reader: Reader) -> int:
    # The server imports much that no other command needs.
    from ..tools.viewer.serve import Server
    from ..tools.viewer.session import Session

    pipeline = None
    if args.pipeline is not None:
        from ..tools.viewer.augment import load, loader_arguments

        pipeline = loader_arguments(load(args.pipeline), reader)
    tokenizer = None
    if args.tokenizer is not None:
        from ..tools.viewer.cells import Tokenizer

        tokenizer = Tokenizer(args.tokenizer)
    session = Session(reader, pipeline=pipeline, tokenizer=tokenizer)
    server = Server(session, port=args.port)
    if args.json:
        print_json({"url": server.url, "samples": len(reader)})
        sys.stdout.flush()
    run_server(server, quiet=args.json, browser=not args.no_browser)
    return 0


def run_server(server: Server, *, quiet: bool = False, browser: bool = True) -> None:
    """Serve a page until Ctrl-C."""
    from ..tools.viewer.serve import open_browser

    if not quiet:
        say(server.url)
        sys.stdout.flush()
        if browser:
            open_browser(server.url)
    # Ctrl-C is the normal way to end it.
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
