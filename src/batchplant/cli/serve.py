"""Serve a dataset to training machines: batches of a plan, or samples as they are stored.

examples:
  batchplant serve train.beton --plan plan.toml                (for this machine, at 127.0.0.1:7001)
  batchplant serve s3://bucket/train --plan plan.toml --listen 0.0.0.0:7001 --token-file token
  batchplant serve train.beton --listen 0.0.0.0:7001 --tls-cert me.pem --tls-key me.key --tls-ca ca.pem
  batchplant serve train.beton --plan plan.toml --metrics 127.0.0.1:9100

A Loader("batchplant://host1:7001,host2:7001", 256) takes batches from all servers; they need the same dataset
and plan. A plan is TOML, YAML or JSON:

  [pipelines]
  image = [{ op = "RandomResizedCrop", size = 224 }, "RandomHorizontalFlip"]

With --allow-code, it may name ops and functions of your own, as { op = "my_package.ops:Blur", radius = 3 }.
SIGTERM and Ctrl-C end it after the requests that are in flight.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from ..errors import OptionError
from .terminal import print_json, say


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", help="file, folder or URL")
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="pipelines that the server follows (default: none, it ships samples as stored)",
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="import ops and functions that the plan names as package.module:Name (default: refuse them)",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:7001", metavar="HOST:PORT", help="default: %(default)s; port 0: any"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="decoding threads (default: all cores)")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="secret that clients must have too (default: BATCHPLANT_TOKEN, BATCHPLANT_TOKEN_FILE)",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this server, for mutual TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument("--tls-ca", metavar="FILE", help="CA that the certificates of clients must be of")
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve figures for Prometheus at http://HOST:PORT/metrics"
    )


def run(args: argparse.Namespace) -> int:
    if args.workers is not None and args.workers < 1:
        raise OptionError(f"--workers is at least 1, not {args.workers}")
    from ..data.reader import open_reader
    from ..loading.service import plans
    from ..loading.service.channel import Security, listen
    from ..loading.service.server import Server, serve_metrics

    plan = None if args.plan is None else plans.read(args.plan, allow_code=args.allow_code)
    security = Security.of(args.token_file, args.tls_cert, args.tls_key, args.tls_ca)
    # Ctrl-C is the normal way to end it.
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        reader = stack.enter_context(open_reader(args.dataset))
        listener = stack.enter_context(listen(args.listen, security))
        report = ignore if args.json else report_line
        options = {"plan": plan, "allow_code": args.allow_code, "security": security}
        server = Server(reader, listener, **options, workers=args.workers, report=report)
        if args.metrics is not None:
            stack.callback(serve_metrics(args.metrics, server.metrics).shutdown)
        host, port = listener.getsockname()[:2]
        url = f"batchplant://[{host}]:{port}" if ":" in host else f"batchplant://{host}:{port}"
        if args.json:
            print_json({"url": url, "samples": len(reader), "workers": server.workers, **server.identity})
        content = "cells, as they are stored" if server.plan is None else ", ".join(server.plan.names)
        report(f"{args.dataset}: {len(reader):,} samples, serving {content} on {server.workers} threads")
        report(f"{url} (Ctrl-C ends it)")
        sys.stdout.flush()
        server.run()
    return 0


def report_line(line: str) -> None:
    say(line)
    sys.stdout.flush()


def ignore(line: str) -> None:
    pass
