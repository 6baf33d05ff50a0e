"""See a dataset in the browser: its samples, statistics, order and health.

examples:
  batchplant view photos/
  batchplant view 'train-*.tar' --where "label == 'cat'"    (quotes around a glob)
  batchplant view s3://bucket/train.parquet --port 8080
  batchplant view train.beton photos/                       (two datasets, side by side)
  batchplant view photos/ --pipeline train.py:augment       (samples as the Loader augments them)
  batchplant view photos/ --export report.html              (one file to send; no server)
  batchplant view --attach 4711                             (a running Loader with dashboard=True)

The page is served on this machine only, under a link with a token. Nothing is uploaded or changed. Ctrl-C
ends it. On a server, forward its port: ssh -L PORT:127.0.0.1:PORT HOST, with --port PORT.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from ..data.reader import Reader
from ..errors import AccessError, OptionError, shown
from ..formats.registry import open as open_reader
from ..storage.commit import put_file
from .terminal import add_reading, human_size, parse_options, plain, print_json, progress_bar, say

# A browser gets so long to start where this process ends at once.
BROWSER_START_SECONDS = 10.0


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH", nargs="?", help="file, folder, URL, or a glob or braces of shards"
    )
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
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write a report to send: .html, or .json; - for standard output. Without a page",
    )
    parser.add_argument(
        "--samples", type=int, metavar="N", default=50, help="in the report (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise OptionError(f"--port is a number from 1 to 65535, not {args.port}")
    if args.attach is not None:
        return _attach(args)
    if args.source is None:
        args.parser.error("the following arguments are required: PATH (or --attach)")
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(args))
        if args.export is not None:
            return _export(args, reader)
        other = None if args.other is None else stack.enter_context(_open_other(args))
        return _serve(args, reader, other)


def _open(args: argparse.Namespace) -> Reader:
    options = parse_options(args.option)
    return open_reader(args.source, format=args.format, skip=args.skip, where=args.where, **options)


def _open_other(args: argparse.Namespace) -> Reader:
    """Open OTHER, with the options if its format has them."""
    options: dict[str, Any] = parse_options(args.option)
    try:
        return open_reader(args.other, format=args.other_format, where=args.where, **options)
    except OptionError:
        if not options:
            raise
        return open_reader(args.other, format=args.other_format, where=args.where)


def _serve(args: argparse.Namespace, reader: Reader, other: Reader | None) -> int:
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
    session = Session(reader, other, pipeline=pipeline, tokenizer=tokenizer)
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

    if args.source is not None or args.export is not None:
        args.parser.error("--attach shows a running Loader; it goes with no PATH and no --export")
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


def _export(args: argparse.Namespace, reader: Reader) -> int:
    from ..tools.viewer.cells import Side
    from ..tools.viewer.export import html
    from ..tools.viewer.report import collect_report

    name = args.export
    if args.samples < 0:
        raise OptionError(f"--samples is a number from 0 on, not {args.samples}")
    if name != "-" and not name.lower().endswith((".html", ".htm", ".json")):
        raise OptionError(f"--export writes .html or .json, not {name!r}")
    with progress_bar("report") as progress:
        report = collect_report(Side("a", reader, shown(args.source)), args.samples, progress=progress)
    if name != "-":
        text = (
            json.dumps(plain(report), ensure_ascii=False) if name.lower().endswith(".json") else html(report)
        )
        data = text.encode("utf-8", "replace")
        try:
            put_file(name, data)
        except OSError as error:
            raise AccessError(f"cannot write it: {error.strerror or error}", path=name) from error
    if args.json:
        print_json(report)
    elif name == "-":
        sys.stdout.write(html(report))
    else:
        say(f"{name}: {len(report['samples']):,} of {report['count']:,} samples, {human_size(len(data))}")
    return 0
