"""Build the index of files that have to be scanned before their samples can be read in any order.

examples:
  batchplant index train.tfrecord
  batchplant index 'shards/train-{00000..00099}.tar'
  batchplant index train.tar --force         (build it again)
  batchplant index train.tar --where         (tell where it lies, build nothing)
  batchplant index 'shards/*.tar' --remove
  batchplant index 'shards/*.beton'          (many shards open faster by it)
  batchplant index 's3://bucket/train-*.tar' (written to the bucket, for all machines)
  batchplant index 'shards/*.tar' --processes 8
  batchplant index '/data/*.tar' --engine dask --scheduler tcp://10.0.0.1:8786

Opening such a file builds its index too; this does it beforehand. The index of a file lies beside it as
NAME.bpindex, that of several files of a folder in _index.bpindex; where that place is read-only, in the
user's cache. _index.bpindex serves files of every format: by it, many are opened without a look at each.

In the cache lies, of every format, what was remembered of keys and filters: --where tells how much, --remove
removes it.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import time
from typing import Any, NamedTuple

from ..formats.base.options import accept
from ..formats.registry import AT_ONCE, Candidate, files_of
from ..jobs import indexing
from ..jobs.engines import Engine
from ..jobs.engines.inline import Inline
from ..storage import absolute, index, is_remote, noting, parent, reached, split_options, tree
from ..storage.index.progress import in_parallel
from .engines import add_engine, engine_of
from .terminal import add_source, human_size, parse_options, print_json, printable, progress_bar

HEADER = ("file", "samples", "index", "remembered", "state", "seconds", "place")
NUMBERS = ("samples", "index", "remembered", "seconds")


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser, where=False)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--force", action="store_true", help="build it also where a fresh one is there")
    what.add_argument("--where", action="store_true", help="only tell where it lies")
    what.add_argument("--remove", action="store_true", help="remove it")
    add_engine(parser, "scans the files")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    storage, options = split_options(parse_options(args.option))
    what = "where" if args.where else "remove" if args.remove else "rebuild" if args.force else "write"
    sources = [reached(one, storage) for one in args.source]
    engine = engine_of(args)
    apart: dict[str, indexing.Built] = {}
    if what in ("write", "rebuild") and not isinstance(engine, Inline):
        apart, what = _built_apart(args, engine, sources, options, what), "write"
    with tree.keeping():
        found = files_of(sources, args.format)
        shared = collections.Counter(map(_group, found))
        # Only what everybody sees is written down.
        plain = not options and args.format is None
        work = functools.partial(_one, options=options, what=what, shared=shared, apart=apart, plain=plain)
        done = in_parallel(work, found, threads=AT_ONCE[is_remote(found[0].path)])
        if what == "remove":
            index.forget(owner for one in done for owner in one.owners)
        elif what != "where":
            _combine(done)
    rows = [one.row for one in done]
    if args.json:
        print_json(rows)
    else:
        _print(rows)
    return 0


class Done(NamedTuple):
    """What was done about a dataset: its row, the files in it, and what goes into the index of a set."""

    row: dict[str, Any]
    owners: list[str]
    member: index.Member | None = None
    old: bool = False
    # A side-car that is not needed once the set is written.
    apart: str | None = None


def _built_apart(
    args: argparse.Namespace, engine: Engine, sources: list[str], options: dict[str, Any], what: str
) -> dict[str, indexing.Built]:
    """Workers leave the index of each file beside it; nothing that was listed before is right after it."""
    with tree.keeping():
        found = files_of(sources, args.format)
        with progress_bar("indexing", quiet=args.quiet or args.json) as progress:
            built = indexing.build(engine, found, options, rebuild=what == "rebuild", progress=progress)
        if what == "rebuild":
            # What is in the index of a set would be taken for them.
            index.forget(path for one in found for path in indexing.owners_of(one.path, one.format()))
    return built


def _group(one: Candidate) -> tuple[str, str]:
    """Files of one folder and suffix share an index."""
    return parent(absolute(one.path)), os.path.splitext(one.path)[1]


def _one(
    one: Candidate,
    options: dict[str, Any],
    what: str,
    shared: collections.Counter[tuple[str, str]],
    apart: dict[str, indexing.Built],
    plain: bool,
) -> Done:
    path, known = one.path, one.format()
    given = accept(known.name, known.reader, options)
    owners = indexing.owners_of(path, known)
    combined = shared[_group(one)] > 1 and owners == [path]
    old = next((there for there in map(index.existing, owners) if there is not None), None)
    scanned = indexing.needs_index(known)
    # Many files that tell themselves where their samples are need not be asked one by one, either.
    lists = combined and what in ("write", "rebuild") and not is_remote(path)
    if not scanned and not lists and old is None:
        state = f"{known.name} needs no index"
        if what == "remove" and index.remove(path):
            state = "what was remembered is removed"
        return Done({"file": path, "state": state, **_about(path, what)}, [])
    if what == "remove":
        removed = [place for owner in dict.fromkeys([*owners, path]) for place in index.remove(owner)]
        # One in the index of a set goes when all files are known that do.
        removed = removed or ([] if old is None else [old[0]])
        state = "removed" if removed else "there was none"
        return Done({"file": path, "state": state, **({"place": removed[-1]} if removed else {})}, owners)
    if what == "where":
        row = {"file": path, "state": "not built"} if old is None else _there(path, *old, "there")
        return Done({**_about(path, what), **row}, owners)
    start = time.monotonic()
    mode = {**given, "index": what} if scanned else given
    with index.watching(combined=combined) as seen, noting() as notes, known.reader(path, **mode) as reader:
        if not scanned:
            index.listed(path, what)
        row = {"samples": len(reader), "seconds": round(time.monotonic() - start, 3)}
        told = (len(reader), reader.schema) if plain else ()
    if not seen:
        return Done({"file": path, **row, "state": "none is needed"}, owners)
    last = seen[-1]
    row, replaced, place = {"file": path, **row}, old is not None, None
    if (made := apart.get(path)) is not None:
        row["seconds"], replaced = round(made.seconds, 3), made.old
        last.index.built |= made.built
        place = made.place if made.built else None
    if combined:
        return Done(row, owners, index.Member(last, known.name, notes, *told), replaced, place)
    return Done(_told(row, last.index, replaced), owners)


def _about(path: str, what: str) -> dict[str, Any]:
    """What --where tells of keys and filters that were looked for."""
    found = index.kept_about(path) if what == "where" else None
    return {} if found is None else {"remembered": found[1], "place": found[0]}


def _combine(done: list[Done]) -> None:
    """Write the indexes of sets, and tell so in the rows of their files."""
    sets: dict[str, list[Done]] = {}
    for one in done:
        if one.member is not None:
            sets.setdefault(parent(one.member.seen.car.source.path), []).append(one)
    for members in sets.values():
        problem = index.combine([one.member for one in members if one.member is not None])
        for one in members:
            assert one.member is not None
            found = one.member.seen.index
            found.remark = problem
            one.row.update(_told(one.row, found, one.old))
            if problem is None and one.apart is not None and one.apart != found.place:
                index.discard(one.owners[0], one.apart)


def _told(row: dict[str, Any], found: index.Index, old: bool) -> dict[str, Any]:
    if found.place is None:
        return {**row, "state": "in memory only"}
    built = "rebuilt" if old else "built"
    state = built if found.built else "written" if found.sent else "fresh"
    told = {**row, **_there(row["file"], found.place, found.stored, state)}
    return told if found.remark is None else {**told, "remark": found.remark}


def _there(path: str, place: str, size: int, state: str) -> dict[str, Any]:
    return {"file": path, "state": state, "index": size, "place": place}


def _print(found: list[dict[str, Any]]) -> None:
    """A table of the columns that have something in them."""
    names = [name for name in HEADER if any(name in one for one in found)]
    rows = [names, *([_cell(one, name) for name in names] for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    for row in rows:
        cells = [
            f"{cell:>{width}}"
            if name in ("samples", "index", "remembered", "seconds")
            else f"{cell:<{width}}"
            for name, cell, width in zip(names, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
    for remark in dict.fromkeys(one["remark"] for one in found if "remark" in one):
        print(f"  note: {printable(remark)}")


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if name in ("index", "remembered"):
        return human_size(value)
    if name == "place" and parent(value) == parent(absolute(row["file"])):
        return index.SET if value.endswith(index.SET) else "beside it"
    return f"{value:,}" if name == "samples" else f"{value:.2f}" if name == "seconds" else str(value)
