"""Build the index of files that have to be scanned before their samples can be read in any order.

examples:
  batchplant index train.tfrecord
  batchplant index 'shards/train-{00000..00099}.tar'
  batchplant index train.tar --force         (build it again)
  batchplant index train.tar --where         (tell where it lies, build nothing)
  batchplant index 'shards/*.tar' --remove

Opening such a file builds its index too; this does it beforehand. The index lies beside the file as
NAME.bpindex or, where that place is read-only, in the user's cache.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from typing import Any

from ..options import accept, own_options
from ..registry import Found, files_of
from ..storage import index
from ..storage.index.progress import in_parallel
from .terminal import add_source, human_size, parse_options, print_json

HEADER = ("file", "samples", "index", "state", "seconds", "place")


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--force", action="store_true", help="build it also where a fresh one is there")
    what.add_argument("--where", action="store_true", help="only tell where it lies")
    what.add_argument("--remove", action="store_true", help="remove it")


def run(args: argparse.Namespace) -> int:
    options = parse_options(args.option)
    what = "where" if args.where else "remove" if args.remove else "rebuild" if args.force else "write"
    work = functools.partial(_one, options=options, what=what)
    found = in_parallel(work, files_of(args.source, args.format))
    if args.json:
        print_json(found)
    else:
        _print(found)
    return 0


def _one(one: Found, options: dict[str, Any], what: str) -> dict[str, Any]:
    path, known = one.path, one.format()
    if "index" not in own_options(known.reader):
        return {"file": path, "state": f"{known.name} needs no index"}
    given = accept(known.name, known.reader, options)
    # A dataset that is a folder has a file in it that is indexed.
    owners = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    if what == "remove":
        removed = [str(one) for owner in owners for one in index.remove(owner)]
        state = "removed" if removed else "there was none"
        return {"file": path, "state": state, **({"place": removed[-1]} if removed else {})}
    old = next((str(one) for one in map(index.existing, owners) if one is not None), None)
    if what == "where":
        return {"file": path, "state": "not built"} if old is None else _there(path, old, "there")
    start = time.monotonic()
    with index.watching() as seen, known.reader(path, **{**given, "index": what}) as reader:
        row = {"samples": len(reader), "seconds": round(time.monotonic() - start, 3)}
    if not seen:
        return {"file": path, **row, "state": "none is needed"}
    last = seen[-1]
    if last.place is None:
        return {"file": path, **row, "state": "in memory only"}
    state = "fresh" if not last.built else "rebuilt" if old is not None else "built"
    return {**_there(path, last.place, state), **row}


def _there(path: str, place: str, state: str) -> dict[str, Any]:
    return {"file": path, "state": state, "index": os.path.getsize(place), "place": place}


def _print(found: list[dict[str, Any]]) -> None:
    """A table of the columns that have something in them."""
    names = [name for name in HEADER if any(name in one for one in found)]
    rows = [names, *([_cell(one, name) for name in names] for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    for row in rows:
        cells = [
            f"{cell:>{width}}" if name in ("samples", "index", "seconds") else f"{cell:<{width}}"
            for name, cell, width in zip(names, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if name == "index":
        return human_size(value)
    if name == "place" and os.path.dirname(value) == os.path.dirname(os.path.abspath(row["file"])):
        return "beside it"
    return f"{value:,}" if name == "samples" else f"{value:.2f}" if name == "seconds" else str(value)
