"""Show what a dataset or a model holds: format, samples, fields, sizes, tensors, operators.

examples:
  batchplant info train.beton
  batchplant info photos/
  batchplant info s3://bucket/train.tar
  batchplant info model.safetensors
  batchplant info 'shards/train-{000..015}.beton' --json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..data.tensors import is_tensors
from ..jobs.summary import SUMMARY_SAMPLES, summarize
from ..tools import Document
from .show import duration, moment
from .terminal import add_source, human_size, open_source, print_json, printable, say


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--samples",
        type=int,
        default=SUMMARY_SAMPLES,
        metavar="N",
        help=f"how many to look at (default {SUMMARY_SAMPLES})",
    )


def run(args: argparse.Namespace) -> int:
    with open_source(args) as reader:
        summary = summarize(reader, max(0, args.samples))
        model = is_tensors(reader.schema)
    if args.json:
        print_json(summary)
        return 0
    rows = [
        ("path", summary["path"]),
        ("format", summary["format"]),
        ("tensors" if model else "samples", f"{summary['samples']:,}"),
        ("size", human_size(summary["bytes"])),
    ]
    for name, value in rows:
        say(f"{name:<14} {value}")
    for name, value in summary["facts"].items():
        for line in _fact(name, value):
            say(line)
    if summary["unreadable"]:
        print(f"{'unreadable':<14} {summary['unreadable']} of the samples looked at; see batchplant verify")
    if model:
        return 0
    width = max((len(printable(name)) for name in summary["fields"]), default=0)
    for name, field in summary["fields"].items():
        print()
        say(f"{printable(name):<{width}}  {field['type']}")
        for line in filter(None, (_cells(field), *_content(field))):
            say(f"{'':<{width}}  {line}")
    if summary["looked at"] < summary["samples"]:
        print(f"\ncells and content: from {summary['looked at']:,} samples spread over the dataset")
    return 1 if summary["unreadable"] else 0


def _fact(name: str, value: Any) -> Iterator[str]:
    """A fact in one line, or in a line for each of its parts."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts or (isinstance(value, list) and len(_one_line(value)) <= 90 and not _nested(value)):
        yield f"{name:<14} {_one_line(value)}"
        return
    yield name
    keys = [str(key) for key, _ in parts] if isinstance(value, dict) else []
    width = min(40, max(map(len, keys), default=0))
    for key, item in parts:
        label = f"{key:<{width}}  " if keys else ""
        yield f"  {label}{_one_line(item)}"


def _nested(value: list[Any]) -> bool:
    return any(isinstance(item, dict | list) for item in value)


def _one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            human_size(item) if key == "bytes" else f"{key} {_one_line(item)}" for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_one_line, value))
        return inside if value and isinstance(value[0], str | dict) else f"[{inside}]"
    return f"{value:,}" if type(value) is int else str(value)


def _cells(field: Document) -> str:
    spread = field.get("bytes")
    details = [f"{field['missing']} missing"] if field.get("missing") else []
    if spread:
        low, mean, high = (human_size(spread[key]) for key in ("min", "mean", "max"))
        details.insert(0, low if low == high else f"{low} to {high}, mean {mean}")
    return "; ".join(details)


def _content(field: Document) -> Iterator[str]:
    values = field.get("values")
    if "modes" in field:
        yield from _images(field)
    elif "encodings" in field or "unknown" in field:
        yield from _recordings(field)
    elif values and "true" in values:
        yield f"{values['true']:,} true, {values['false']:,} false"
    elif values and "first" in values:
        first, last = (moment(values[key]) for key in ("first", "last"))
        yield f"{first} to {last}" if first != last else first
    elif values:
        spread = "{min:g} to {max:g}, mean {mean:.4g}".format(**values) if "min" in values else ""
        yield ", ".join(filter(None, (spread, f"{values['nan']:,} NaN" if "nan" in values else "")))


def _recordings(field: Document) -> Iterator[str]:
    """Properties of sounds and videos: one word where all share it, else values with counts."""
    for attribute, unit in (
        ("encodings", ""), ("rates", " Hz"), ("channels", " channels"), ("sizes", ""),
        ("frame rates", " frames a second"),
    ):  # fmt: skip
        counts = field.get(attribute, {})
        if len(counts) == 1:
            yield f"{next(iter(counts))}{unit}".replace("1 channels", "1 channel")
        elif counts:
            yield ", ".join(f"{count:,} {value}{unit}" for value, count in counts.items())
    if "seconds" in field:
        spread = field["seconds"]
        low, mean, high = (duration(spread[key]) for key in ("min", "mean", "max"))
        yield low if low == high else f"{low} to {high}, mean {mean}"
    if "unknown" in field:
        yield f"{field['unknown']:,} that cannot be read"


def _images(field: Document) -> Iterator[str]:
    for attribute in ("encodings", "modes"):
        yield ", ".join(f"{count:,} {name}" for name, count in field[attribute].items())
    if "width" not in field:
        return
    width, height = field["width"], field["height"]
    if field["distinct resolutions"] == 1:
        yield f"all {width['min']:.0f}×{height['min']:.0f}"
        return
    for name, spread in (("width", width), ("height", height)):
        yield f"{name} {spread['min']:.0f}–{spread['max']:.0f}, median {spread['median']:.0f}"
    top = ", ".join(
        f"{resolution['width']}×{resolution['height']} ({resolution['count']:,})"
        for resolution in field["resolutions"][:3]
    )
    yield f"{field['distinct resolutions']:,} resolutions, most often {top}"
