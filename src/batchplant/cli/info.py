"""Show what a dataset holds: format, samples, fields, sizes, image resolutions.

examples:
  batchplant info train.beton
  batchplant info photos/
  batchplant info 'shards/train-{000..015}.beton' --json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..summary import LOOK_AT, summarize
from .terminal import add_source, human_size, open_source, print_json


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--samples", type=int, default=LOOK_AT, metavar="N", help=f"how many to look at (default {LOOK_AT})"
    )


def run(args: argparse.Namespace) -> int:
    with open_source(args) as reader:
        found = summarize(reader, max(0, args.samples))
    if args.json:
        print_json(found)
        return 0
    rows = [
        ("path", found["path"]),
        ("format", found["format"]),
        ("samples", f"{found['samples']:,}"),
        ("size", human_size(found["bytes"])),
        *(
            (name, f"{value:,}" if type(value) is int else str(value))
            for name, value in found["facts"].items()
        ),
    ]
    for name, value in rows:
        print(f"{name:<14} {value}")
    if found["unreadable"]:
        print(f"{'unreadable':<14} {found['unreadable']} of the samples looked at; see batchplant verify")
    width = max(map(len, found["fields"]), default=0)
    for name, field in found["fields"].items():
        print(f"\n{name:<{width}}  {field['type']}")
        for said in filter(None, (_cells(field), *_content(field))):
            print(f"{'':<{width}}  {said}")
    if found["looked at"] < found["samples"]:
        print(f"\ncells and content: from {found['looked at']:,} samples spread over the dataset")
    return 1 if found["unreadable"] else 0


def _cells(field: dict[str, Any]) -> str:
    spread = field.get("bytes")
    said = [f"{field['missing']} missing"] if field.get("missing") else []
    if spread:
        low, mean, high = (human_size(spread[key]) for key in ("min", "mean", "max"))
        said.insert(0, low if low == high else f"{low} to {high}, mean {mean}")
    return "; ".join(said)


def _content(field: dict[str, Any]) -> Iterator[str]:
    values = field.get("values")
    if "encodings" in field:
        yield from _pictures(field)
    elif values and "true" in values:
        yield f"{values['true']:,} true, {values['false']:,} false"
    elif values:
        yield f"{values['min']:g} to {values['max']:g}, mean {values['mean']:.4g}"


def _pictures(field: dict[str, Any]) -> Iterator[str]:
    for what in ("encodings", "modes"):
        yield ", ".join(f"{count:,} {name}" for name, count in field[what].items())
    if "width" not in field:
        return
    width, height = field["width"], field["height"]
    if field["distinct resolutions"] == 1:
        yield f"all {width['min']:.0f}×{height['min']:.0f}"
        return
    for name, spread in (("width", width), ("height", height)):
        yield f"{name} {spread['min']:.0f}–{spread['max']:.0f}, median {spread['median']:.0f}"
    top = ", ".join(f"{one['width']}×{one['height']} ({one['count']:,})" for one in field["resolutions"][:3])
    yield f"{field['distinct resolutions']:,} resolutions, most often {top}"
