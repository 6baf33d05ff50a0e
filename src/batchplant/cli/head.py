"""Show the first samples; pictures are drawn where the output is a terminal. Of a model, its tensors.

examples:
  batchplant head train.beton
  batchplant head train.beton -n 3 --start 1000
  batchplant head photos/ --fields label
  batchplant head model.safetensors -n 1000
"""

from __future__ import annotations

import argparse
import base64
import math
import shutil
from typing import Any

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ..codecs.image import expand, fit, mode_of
from ..codecs.video import Clip
from ..errors import BatchplantError
from ..reader import Reader
from ..schema import Field, Image
from ..tensors import Tensors, is_tensors, statistics
from .terminal import add_source, console, human_size, open_source, print_json

SAMPLES, TENSORS_SHOWN = 5, 50
TEXT_SHOWN = 300
PICTURE_WIDTH = 32


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "-n", type=int, metavar="N", help=f"how many samples (default {SAMPLES}) or tensors ({TENSORS_SHOWN})"
    )
    parser.add_argument(
        "--start", type=int, default=0, metavar="I", help="the first (default 0; -5: from the end)"
    )
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument("--no-pictures", action="store_true", help="do not draw pictures")


def run(args: argparse.Namespace) -> int:
    out = console()
    reader = open_source(args)
    if args.fields:
        reader = reader.select(args.fields.split(","))
    if is_tensors(reader.schema):
        return _run_model(args, reader)
    damaged = 0
    shown = []
    start = max(0, args.start + len(reader)) if args.start < 0 else args.start
    for number in range(start, min(start + (SAMPLES if args.n is None else args.n), len(reader))):
        try:
            sample = reader[number]
        except BatchplantError as error:
            damaged += 1
            sample = {}
            if args.json:
                shown.append({"sample": number, "error": str(error)})
            else:
                print(f"sample {number}: {error}")
            continue
        if args.json:
            values = {name: as_json(value) for name, value in sample.items()}
            shown.append({"sample": number, **values})
        else:
            _print(out, number, sample, dict(reader.schema), draw=out.is_terminal and not args.no_pictures)
    if args.json:
        print_json(shown)
    return 1 if damaged else 0


def _run_model(args: argparse.Namespace, reader: Reader) -> int:
    """A table of tensors: shape, dtype, mean, least and largest value."""
    tensors = Tensors(reader)
    start = max(0, args.start + len(tensors)) if args.start < 0 else args.start
    end = start + (TENSORS_SHOWN if args.n is None else max(0, args.n))
    rows: list[dict[str, Any]] = []
    for name in list(tensors)[start:end]:
        row: dict[str, Any] = {"name": name}
        rows.append(row)
        try:
            row["dtype"], row["shape"] = tensors.kind(name)
            row |= statistics(row["dtype"], row["shape"], tensors.bytes_of(name))
        except BatchplantError as error:
            row["error"] = str(error)
    if args.json:
        print_json([{key: _finite(value) for key, value in row.items()} for row in rows])
    else:
        _print_tensors(rows)
        if len(tensors) > end:
            print(f"… and {len(tensors) - end:,} more (-n {len(tensors) - start})")
    return 1 if any("error" in row for row in rows) else 0


def _print_tensors(rows: list[dict[str, Any]]) -> None:
    names = ("name", "dtype", "shape", "mean", "min", "max")
    lines = [list(names)]
    for row in rows:
        shape = "×".join(map(str, row["shape"])) or "()" if "shape" in row else ""
        numbers = [f"{row[key]:.6g}" if key in row else "–" for key in names[3:]]
        # A name could hold what a terminal obeys.
        name = row["name"] if row["name"].isprintable() else repr(row["name"])
        lines.append([name, row.get("dtype", ""), shape, *numbers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line[:3], widths[:3], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(line[3:], widths[3:], strict=True)]
        wrong = rows[number - 1] if number else {}
        said = (
            f"  {wrong['nan']:,} NaN" if "nan" in wrong else f"  {wrong['error']}" if "error" in wrong else ""
        )
        print(f"{'  '.join(cells)}{said}".rstrip())


def _finite(value: Any) -> Any:
    """JSON knows neither infinity nor complex numbers: as text."""
    odd = isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if odd else value


def _print(
    out: Console, number: int, sample: dict[str, Any], schema: dict[str, Field], *, draw: bool
) -> None:
    out.print(f"sample {number}", style="bold")
    width = max(map(len, sample), default=0)
    for name, value in sample.items():
        out.print(Text(f"  {name:<{width}}  {as_text(value, schema[name])}"))
        if draw and isinstance(schema[name], Image) and isinstance(value, np.ndarray):
            out.print(picture(value))


def as_text(value: Any, field: Field) -> str:
    """One line about a value."""
    names = getattr(field, "names", None)
    if isinstance(value, np.ndarray):
        if isinstance(field, Image):
            height, width = value.shape[:2]
            what = f"mask {len(np.unique(value))} classes" if field.mask else f"mean {value.mean():.4g}"
            return f"{width}×{height} {field.mode or mode_of(value)} {what}"
        inside = np.array2string(value.reshape(-1)[:8], separator=", ", threshold=8)
        return f"{value.dtype} {value.shape} {inside[:-1]}{', …]' if value.size > 8 else ']'}"
    if isinstance(value, Clip):
        return f"{human_size(len(value))} {value.described()}"
    if isinstance(value, bytes):
        return f"{human_size(len(value))} {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}"
    if names and isinstance(value, int) and 0 <= value < len(names):
        return f"{value} ({names[value]})"
    text = repr(value)
    return text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " …"


def as_json(value: Any) -> Any:
    """Whole values where they are small, a description where they are arrays."""
    if isinstance(value, np.ndarray):
        described: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
        if value.size <= 64 and value.dtype.kind in "biuf":
            described["values"] = value.tolist()
        return described
    if isinstance(value, bytes):
        return {"bytes": len(value), "base64": base64.b64encode(value[:64]).decode()}
    return value


def picture(pixels: np.ndarray[Any, Any]) -> Text:
    """The picture in half blocks, two pixels to a character."""
    columns = shutil.get_terminal_size().columns - 4
    small = expand(fit(pixels, max(8, min(PICTURE_WIDTH, columns))))
    if small.dtype != np.uint8:
        # What is white is not known: the brightest is.
        small = np.nan_to_num(small.astype(np.float64), posinf=0, neginf=0)
        span = max(float(small.max() - small.min()), 1e-12)
        small = ((small - small.min()) / span * 255).astype(np.uint8)
    small = small[:, :, :3] if small.shape[2] >= 3 else np.repeat(small[:, :, :1], 3, axis=2)
    if small.shape[0] % 2:
        small = np.concatenate([small, small[-1:]])
    text = Text()
    for top, bottom in zip(small[::2], small[1::2], strict=True):
        text.append("  ")
        for upper, lower in zip(top.tolist(), bottom.tolist(), strict=True):
            style = Style(
                color="#{:02x}{:02x}{:02x}".format(*upper), bgcolor="#{:02x}{:02x}{:02x}".format(*lower)
            )
            text.append("▀", style)
        text.append("\n")
    text.rstrip()
    return text
