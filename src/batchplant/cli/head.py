"""Show the first samples, or the last; a terminal shows images. Of a model, its tensors.

examples:
  batchplant head train.beton
  batchplant head train.beton -n 3 --start 1000
  batchplant head train.beton -n -3                (the last three)
  batchplant head table.csv --no-table             (sample by sample)
  batchplant head photos/ --fields label
  batchplant head s3://bucket/train.tar --option endpoint=https://minio.example:9000
  batchplant head model.safetensors -n 1000

Numbers, texts and dates stand in a table. What is too wide for a terminal is cut; a pipe gets all of it.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ..codecs.media.image import expand, fit
from ..data.reader import Reader
from ..errors import BatchplantError, OptionError, SampleIndexError
from ..formats.base.tensors import Tensors, is_tensors, statistics
from ..schema import Field, Image
from ..schema.columns import AnyArray
from ..tools import Document
from .show import as_cell, as_json, as_text, fit_widths, is_number, is_tabular, row_text
from .terminal import add_source, console, names_of, open_source, print_columns, print_json, printable

SAMPLES, TENSORS_SHOWN = 5, 50
# Rows of a table that are laid out together.
TABLE_ROWS = 1000
IMAGE_WIDTH = 32
# An image whose values are all below, 255 aside, would be black: they are classes.
MOST_CLASSES = 32
SHADES = " .:-=+*#%@"
# Of classes without colours: the first stands back.
SIGNS = "·123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Of classes: far apart from each other, the background dark.
BACKGROUND, VOID = (40, 40, 40), (235, 235, 235)
COLOURS = (
    (230, 25, 75), (60, 180, 75), (0, 130, 200), (255, 225, 25), (245, 130, 48), (145, 30, 180),
    (70, 240, 240), (240, 50, 230), (170, 110, 40), (0, 128, 128), (250, 190, 212), (128, 0, 0),
    (170, 255, 195), (128, 128, 0), (220, 190, 255), (0, 0, 160),
)  # fmt: skip


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "-n", type=int, metavar="N",
        help=f"how many samples (default {SAMPLES}) or tensors ({TENSORS_SHOWN}); -3: the last three",
    )  # fmt: skip
    parser.add_argument("--start", type=int, metavar="I", help="the first (default 0; -5: from the end)")
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument("--mask", metavar="A,B", help="fields whose images are classes, not colours")
    parser.add_argument("--no-images", action="store_true", help="do not draw images")
    parser.add_argument("--no-table", action="store_true", help="sample by sample, also what fits a table")


def run(args: argparse.Namespace) -> int:
    with open_source(args) as opened:
        reader = opened.select(names_of(args.fields)) if args.fields else opened
        reader = reader.with_masks(names_of(args.mask)) if args.mask else reader
        if is_tensors(reader.schema):
            return _run_model(args, reader)
        numbers = _chosen(args, len(reader), SAMPLES, reader.path)
        if args.json:
            return _run_json(reader, numbers)
        if not len(reader):
            print("no samples")
        if is_tabular(reader.schema) and not args.no_table:
            return _run_table(reader, numbers)
        return _run_each(args, reader, numbers)


def _chosen(args: argparse.Namespace, length: int, usual: int, path: str) -> range:
    """The numbers of what is to be shown."""
    count = usual if args.n is None else args.n
    if count < 0:
        if args.start is not None:
            raise OptionError(f"-n {count} shows the last {-count}; that does not go with --start")
        return range(max(0, length + count), length)
    start = args.start or 0
    if start and start >= length:
        raise SampleIndexError(f"there is no sample {start}; there are {length}", path=path)
    start = max(0, start + length) if start < 0 else start
    return range(start, min(start + count, length))


def _samples(reader: Reader, numbers: range) -> Iterator[tuple[int, Document | BatchplantError]]:
    for number in numbers:
        try:
            yield number, reader[number]
        except BatchplantError as error:
            yield number, error


def _run_json(reader: Reader, numbers: range) -> int:
    shown: list[Document] = []
    damaged = 0
    for number, sample in _samples(reader, numbers):
        if isinstance(sample, BatchplantError):
            damaged += 1
            shown.append({"sample": number, "error": str(sample)})
        else:
            shown.append({"sample": number} | {name: as_json(value) for name, value in sample.items()})
    print_json(shown)
    return 1 if damaged else 0


def _run_each(args: argparse.Namespace, reader: Reader, numbers: range) -> int:
    out = console()
    draw = out.is_terminal and not args.no_images
    damaged = 0
    for number, sample in _samples(reader, numbers):
        if isinstance(sample, BatchplantError):
            damaged += 1
            print(f"sample {number}: {printable(str(sample))}")
        else:
            _print(out, number, sample, dict(reader.schema), draw=draw)
    return 1 if damaged else 0


def _run_table(reader: Reader, numbers: range) -> int:
    """Rows below each other; where a terminal is too narrow even for cut columns, sample by sample."""
    out = console()
    schema = dict(reader.schema)
    right = [True, *map(is_number, schema.values())]
    header = ["sample", *map(printable, schema)]
    widths = list(map(cell_len, header))
    damaged = 0
    for start in range(0, len(numbers), TABLE_ROWS):
        rows: list[tuple[list[str], Document | BatchplantError]] = []
        for number, sample in _samples(reader, numbers[start : start + TABLE_ROWS]):
            cells = [str(number)]
            if isinstance(sample, BatchplantError):
                damaged += 1
            else:
                cells += [as_cell(sample[name], schema[name]) for name in schema]
            rows.append((cells, sample))
            widths[: len(cells)] = map(max, widths, map(cell_len, cells))
        fitting = fit_widths(widths, out.width)
        if start == 0 and fitting is not None:
            out.print(Text(row_text(header, fitting, right)), style="bold", soft_wrap=True)
        for cells, sample in rows:
            if isinstance(sample, BatchplantError):
                print(f"sample {cells[0]}: {printable(str(sample))}")
            elif fitting is None:
                _print(out, int(cells[0]), sample, schema, draw=False)
            else:
                print(row_text(cells, fitting, right))
    return 1 if damaged else 0


def _run_model(args: argparse.Namespace, reader: Reader) -> int:
    """A table of tensors: shape, dtype, mean, least and largest value."""
    tensors = Tensors(reader)
    chosen = _chosen(args, len(tensors), TENSORS_SHOWN, reader.path)
    names = list(tensors)[chosen.start : chosen.stop]
    rows: list[Document] = []
    for name in names:
        row: Document = {"name": name}
        rows.append(row)
        try:
            row["dtype"], row["shape"] = tensors.kind(name)
            row |= statistics(row["dtype"], row["shape"], tensors.bytes_of(name))
        except BatchplantError as error:
            row["error"] = str(error)
    if args.json:
        print_json(rows)
    else:
        _print_tensors(rows)
        if len(tensors) > chosen.stop:
            print(f"… and {len(tensors) - chosen.stop:,} more (-n {len(tensors) - chosen.start})")
    return 1 if any("error" in row for row in rows) else 0


def _print_tensors(rows: list[Document]) -> None:
    names = ("name", "dtype", "shape", "mean", "min", "max")
    lines = [[*names, ""]]
    for row in rows:
        shape = "×".join(map(str, row["shape"])) or "()" if "shape" in row else ""
        numbers = [f"{row[key]:.6g}" if key in row else "–" for key in names[3:]]
        note = f"{row['nan']:,} NaN" if "nan" in row else row.get("error", "")
        # A name could hold what a terminal obeys.
        lines.append([printable(row["name"]), row.get("dtype", ""), shape, *numbers, note])
    print_columns(lines, (3, 4, 5))


def _print(out: Console, number: int, sample: Document, schema: dict[str, Field], *, draw: bool) -> None:
    out.print(f"sample {number}", style="bold")
    width = max((len(printable(name)) for name in sample), default=0)
    for name, value in sample.items():
        out.print(Text(f"  {printable(name):<{width}}  {as_text(value, schema[name])}"))
        field = schema[name]
        if draw and isinstance(field, Image) and isinstance(value, np.ndarray):
            out.print(render(out, value, field))


def render(out: Console, pixels: AnyArray, field: Image) -> Text:
    """The image as text; the classes of a mask each in a colour of their own."""
    if not pixels.size:
        return Text()
    columns = shutil.get_terminal_size().columns - 4
    classes = field.mask or _are_classes(pixels)
    small = expand(fit(pixels, max(8, min(IMAGE_WIDTH, columns)), nearest=classes))
    coloured = out.color_system is not None and not out.no_color
    if classes and small.shape[2] == 1:
        return _mask(small[:, :, 0], coloured)
    if small.dtype != np.uint8:
        # What is white is not known: the brightest is.
        small = np.nan_to_num(small.astype(np.float64), posinf=0, neginf=0)
        span = max(float(small.max() - small.min()), 1e-12)
        small = ((small - small.min()) / span * 255).astype(np.uint8)
    small = small[:, :, :3] if small.shape[2] >= 3 else np.repeat(small[:, :, :1], 3, axis=2)
    return _blocks(small) if coloured else _shades(small)


def _are_classes(pixels: AnyArray) -> bool:
    """True where the values of an image that is not marked as a mask can only be classes: few and small."""
    if pixels.dtype.kind not in "iu" or (pixels.ndim > 2 and pixels.shape[2] > 1):
        return False
    values = np.unique(pixels)
    return len(values) > 1 and bool(((values < MOST_CLASSES) | (values == 255)).all()) and int(values[0]) >= 0


def colour_of(number: int) -> tuple[int, int, int]:
    """The colour of a class: 0 is dark, 255 (what many sets leave out) is light."""
    return BACKGROUND if number == 0 else VOID if number == 255 else COLOURS[(number - 1) % len(COLOURS)]


def _mask(numbers: AnyArray, coloured: bool) -> Text:
    values = np.unique(numbers)
    if coloured:
        colours = np.array([colour_of(int(value)) for value in values], np.uint8)
        text = _blocks(colours[np.searchsorted(values, numbers)])
        text.append("\n ")
        for value, colour in zip(values[: len(COLOURS)].tolist(), colours, strict=False):
            text.append(" ██", Style(color=_hex(colour.tolist())))
            text.append(f" {value}")
        return text
    places = np.searchsorted(values, numbers[::2])
    rows = ["  " + "".join(SIGNS[index % len(SIGNS)] for index in row) for row in places.tolist()]
    shown = enumerate(values[: len(COLOURS)].tolist())
    legend = "  ".join(f"{SIGNS[index % len(SIGNS)]}={value}" for index, value in shown)
    return Text("\n".join([*rows, f"  {legend}"]))


def _blocks(pixels: AnyArray) -> Text:
    """Half blocks: the upper pixel is the letter's colour, the lower that behind it."""
    if pixels.shape[0] % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    text = Text()
    for number, (top, bottom) in enumerate(zip(pixels[::2], pixels[1::2], strict=True)):
        text.append("\n  " if number else "  ")
        for upper, lower in zip(top.tolist(), bottom.tolist(), strict=True):
            text.append("▀", Style(color=_hex(upper), bgcolor=_hex(lower)))
    return text


def _shades(pixels: AnyArray) -> Text:
    """Letters that are the denser the brighter; every second row, for letters are high."""
    light = pixels[::2].mean(axis=2) / 256 * len(SHADES)
    return Text("\n".join("  " + "".join(SHADES[int(level)] for level in row) for row in light.tolist()))


def _hex(colour: Any) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
