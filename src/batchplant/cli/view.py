"""See a dataset in the browser: its samples, statistics, order and health.

examples:
  batchplant view photos/
  batchplant view 'train-*.tar' --where "label == 'cat'"    (quotes around a glob)
  batchplant view s3://bucket/train.parquet --port 8080
  batchplant view photos/ --pipeline train.py:augment       (samples as the Loader augments them)
  batchplant view --attach 4711                             (a running Loader with dashboard=True)

The page is served on this machine only, under a link with a token. Nothing is uploaded or changed. Ctrl-C
ends it. On a server, forward its port: ssh -L PORT:127.0.0.1:PORT HOST, with --port PORT.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from ..data.reader import Reader
from ..errors import OptionError
from ..formats.registry import open as open_reader
from .terminal import add_reading, parse_options, print_json, say

# A browser gets so long to start where this process ends at once.
BROWSER_START_SECONDS = 10.0


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH", nargs="?", help="file, folder, URL, or a glob or braces of shards"
    )
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
    parser.add_argument(
        "--attach",
        metavar="WHICH",
        nargs="?",
        const="",
        help="watch a Loader of this machine that runs with dashboard=True: by its process, port or link "
        "(default: the only one); with --json its figures now",
    )


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise OptionError(f"--port is a number from 1 to 65535, not {args.port}")
    if args.attach is not None:
        return _attach(args)
    if args.source is None:
        args.parser.error("the following arguments are required: PATH (or --attach)")
    options = parse_options(args.option)
    with open_reader(args.source, format=args.format, skip=args.skip, where=args.where, **options) as reader:
        return _serve(args, reader)


def _serve(args: argparse.Namespace, reader: Reader) -> int:
    # The server imports much that no other command needs.
    from ..tools.viewer.serve import Server, open_browser
    from ..tools.viewer.session import Session

    pipeline = None
    if args.pipeline is not None:
        from ..tools.viewer.pipelines import load, loader_arguments

        pipeline = loader_arguments(load(args.pipeline), reader)
    tokenizer = None
    if args.tokenizer is not None:
        from ..tools.viewer.cells import Tokenizer

        tokenizer = Tokenizer(args.tokenizer)
    session = Session(reader, pipeline=pipeline, tokenizer=tokenizer)
    session.warm()
    server = Server(session, port=args.port)
    if args.json:
        print_json({"url": server.url, "samples": len(reader)})
    else:
        say(server.url)
    sys.stdout.flush()
    if not args.no_browser and not args.json:
        open_browser(server.url)
    # Ctrl-C is the normal way to end it.
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0


def _attach(args: argparse.Namespace) -> int:
    """Show the page of a loader that runs in another process."""
    from ..tools.viewer import attach
    from ..tools.viewer.serve import open_browser

    if args.source is not None:
        args.parser.error("--attach shows a running Loader; it goes with no PATH")
    url = attach.find(args.attach)
    if args.json:
        print_json(attach.ask(url, "live"))
        return 0
    # Fails if the loader has ended.
    attach.ask(url, "dataset")
    say(url)
    sys.stdout.flush()
    if not args.no_browser and (thread := open_browser(url)) is not None:
        thread.join(BROWSER_START_SECONDS)
    return 0
