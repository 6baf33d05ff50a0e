"""See a dataset in the browser: its samples, statistics, order and health.

examples:
  batchplant view photos/
  batchplant view 'train-*.tar' --where "label == 'cat'"
  batchplant view s3://bucket/train.parquet

The page is served on this machine only, under a link with a token. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import webbrowser

from ..viewer.serve import Server
from ..viewer.session import Session
from .terminal import add_source, open_source


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--port", type=int, metavar="N", default=0, help="of the page (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")


def run(args: argparse.Namespace) -> int:
    with open_source(args) as reader:
        server = Server(Session(reader), port=args.port)
        print(server.url, flush=True)
        if not args.no_browser:
            webbrowser.open(server.url)
        server.run()
    return 0
