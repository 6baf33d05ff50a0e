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
from ..jobs.engines.base import Inline
from ..storage import absolute, index, is_remote, noting, parent, reached, split_options, tree
from ..storage.index.progress import in_parallel
from ..tools import Document
from . import terminal
from .terminal import human_size, printable

HEADER = ("file", "samples", "index", "remembered", "state", "seconds", "place")
NUMBERS = ("samples", "index", "remembered", "seconds")


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser, where=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--force", action="store_true", help="build it also where a fresh one is there")
    group.add_argument("--where", action="store_true", help="only tell where it lies")
    group.add_argument("--remove", action="store_true", help="remove it")
    terminal.add_engine(parser, "scans the files")
    terminal.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    storage, options = split_options(terminal.parse_options(args.option))
    action = "where" if args.where else "remove" if args.remove else "rebuild" if args.force else "write"
    sources = [reached(source, storage) for source in args.source]
    engine = terminal.engine_of(args)
    apart: dict[str, indexing.Built] = {}
    if action in ("write", "rebuild") and not isinstance(engine, Inline):
        apart, action = _built_apart(args, engine, sources, options, action), "write"
    with tree.keeping():
        datasets = files_of(sources, args.format)
        shared = collections.Counter(map(_group, datasets))
        # Only what everybody sees is written down.
        plain = not options and args.format is None
        work = functools.partial(
            _one, options=options, action=action, shared=shared, apart=apart, plain=plain
        )
        done = in_parallel(work, datasets, threads=AT_ONCE[is_remote(datasets[0].path)])
        if action == "remove":
            index.forget(owner for result in done for owner in result.owners)
        elif action != "where":
            _combine(done)
    rows = [result.row for result in done]
    if args.json:
        terminal.print_json(rows)
    else:
        _print(rows)
    return 0


class Done(NamedTuple):
    """Result for a dataset: its row, its files, and its part of the index of a set."""

    row: Document
    owners: list[str]
    member: index.Member | None = None
    old: bool = False
    # A side-car that is not needed once the set is written.
    apart: str | None = None


def _built_apart(
    args: argparse.Namespace, engine: Engine, sources: list[str], options: dict[str, Any], action: str
) -> dict[str, indexing.Built]:
    """Workers leave the index of each file beside it; nothing that was listed before is right after it."""
    with tree.keeping():
        datasets = files_of(sources, args.format)
        with terminal.progress_bar("indexing", quiet=args.quiet or args.json) as progress:
            built = indexing.build(engine, datasets, options, rebuild=action == "rebuild", progress=progress)
        if action == "rebuild":
            # What is in the index of a set would be taken for them.
            index.forget(
                path
                for dataset in datasets
                for path in indexing.indexed_files(dataset.path, dataset.format())
            )
    return built


def _group(dataset: Candidate) -> tuple[str, str]:
    """Files of one folder and suffix share an index."""
    return parent(absolute(dataset.path)), os.path.splitext(dataset.path)[1]


def _one(
    dataset: Candidate,
    options: dict[str, Any],
    action: str,
    shared: collections.Counter[tuple[str, str]],
    apart: dict[str, indexing.Built],
    plain: bool,
) -> Done:
    path, format = dataset.path, dataset.format()
    accepted = accept(format.name, format.reader, options)
    owners = indexing.indexed_files(path, format)
    combined = shared[_group(dataset)] > 1 and owners == [path]
    old = next((entry for entry in map(index.existing, owners) if entry is not None), None)
    scanned = indexing.needs_index(format)
    # Many files that tell themselves where their samples are need not be asked one by one, either.
    lists = combined and action in ("write", "rebuild") and not is_remote(path)
    if not scanned and not lists and old is None:
        state = f"{format.name} needs no index"
        if action == "remove" and index.remove(path):
            state = "what was remembered is removed"
        return Done({"file": path, "state": state, **_about(path, action)}, [])
    if action == "remove":
        removed = [location for owner in dict.fromkeys([*owners, path]) for location in index.remove(owner)]
        # One in the index of a set goes when all files are known that do.
        removed = removed or ([] if old is None else [old[0]])
        state = "removed" if removed else "there was none"
        return Done({"file": path, "state": state, **({"place": removed[-1]} if removed else {})}, owners)
    if action == "where":
        row = {"file": path, "state": "not built"} if old is None else _there(path, *old, "there")
        return Done({**_about(path, action), **row}, owners)
    start = time.monotonic()
    mode = {**accepted, "index": action} if scanned else accepted
    with index.watching(combined=combined) as seen, noting() as notes, format.reader(path, **mode) as reader:
        if not scanned:
            index.listed(path, action)
        row = {"samples": len(reader), "seconds": round(time.monotonic() - start, 3)}
        summary = (len(reader), reader.schema) if plain else ()
    if not seen:
        return Done({"file": path, **row, "state": "none is needed"}, owners)
    last = seen[-1]
    row, replaced, location = {"file": path, **row}, old is not None, None
    if (built := apart.get(path)) is not None:
        row["seconds"], replaced = round(built.seconds, 3), built.old
        last.index.built |= built.built
        location = built.place if built.built else None
    if combined:
        return Done(row, owners, index.Member(last, format.name, notes, *summary), replaced, location)
    return Done(_told(row, last.index, replaced), owners)


def _about(path: str, action: str) -> Document:
    """Text of --where about the keys and filters that were searched."""
    about = index.kept_about(path) if action == "where" else None
    return {} if about is None else {"remembered": about[1], "place": about[0]}


def _combine(done: list[Done]) -> None:
    """Write the indexes of sets, and tell so in the rows of their files."""
    sets: dict[str, list[Done]] = {}
    for result in done:
        if result.member is not None:
            sets.setdefault(parent(result.member.seen.car.source.path), []).append(result)
    for members in sets.values():
        problem = index.combine([result.member for result in members if result.member is not None])
        for result in members:
            assert result.member is not None
            index_file = result.member.seen.index
            index_file.remark = problem
            result.row.update(_told(result.row, index_file, result.old))
            if problem is None and result.apart is not None and result.apart != index_file.place:
                index.discard(result.owners[0], result.apart)


def _told(row: Document, index_file: index.Index, old: bool) -> Document:
    if index_file.place is None:
        return {**row, "state": "in memory only"}
    built = "rebuilt" if old else "built"
    state = built if index_file.built else "written" if index_file.sent else "fresh"
    summary = {**row, **_there(row["file"], index_file.place, index_file.stored, state)}
    return summary if index_file.remark is None else {**summary, "remark": index_file.remark}


def _there(path: str, location: str, size: int, state: str) -> Document:
    return {"file": path, "state": state, "index": size, "place": location}


def _print(results: list[Document]) -> None:
    """A table of the columns that have something in them."""
    names = [name for name in HEADER if any(name in result for result in results)]
    numbers = [number for number, name in enumerate(names) if name in NUMBERS]
    terminal.print_columns([names, *([_cell(result, name) for name in names] for result in results)], numbers)
    for remark in dict.fromkeys(result["remark"] for result in results if "remark" in result):
        print(f"  note: {printable(remark)}")


def _cell(row: Document, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if name in ("index", "remembered"):
        return human_size(value)
    if name == "place" and parent(value) == parent(absolute(row["file"])):
        return index.SET if value.endswith(index.SET) else "beside it"
    return f"{value:,}" if name == "samples" else f"{value:.2f}" if name == "seconds" else str(value)
