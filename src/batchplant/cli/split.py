"""Split a dataset into parts, such as train, val and test.

examples:
  batchplant split photos/ --into train=0.8 val=0.1 test=0.1 --to beton
  batchplant split train.csv --into train=90% val=10% --seed 7
  batchplant split photos/ --into train=0.8 val=0.2 --stratify label --out-dir parts/{part}.tar
  batchplant split visits.parquet --into train=0.8 test=0.2 --by-key patient
  batchplant split all.csv --by fold --dry-run     (a part for each value)

The same seed gives the same parts. Each part appears only when it is complete.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..data.reader import Reader
from ..data.split import check_name, split
from ..errors import ExistsError, OptionError
from ..formats.registry import by_suffix, create_with, get_format
from ..jobs.convert import convert
from ..jobs.convert_options import ConvertOptions
from . import terminal
from .terminal import counted, printable

PART = "{part}"


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    parser.add_argument(
        "--into", metavar="NAME=FRACTION", nargs="+", default=[], help="the parts: train=0.8 or train=80%%"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--stratify", metavar="FIELD", help="each part gets the same fraction of every class")
    group.add_argument("--by-key", metavar="FIELD", help="samples of one key all go into one part")
    group.add_argument("--by", metavar="FIELD", help="in place of --into: a part for each value of the field")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other parts (default 0)")
    parser.add_argument(
        "--out-dir", metavar="TEMPLATE",
        help="the folder of the parts, or their names with {part} in them (default: beside PATH)",
    )  # fmt: skip
    terminal.add_writing(parser, "PATH")
    parser.add_argument("--fields", metavar="A,B", help="only these fields, in this order")
    parser.add_argument("--workers", type=int, metavar="N", help="encoding threads (default: all cores)")
    parser.add_argument("--checksums", action="store_true", help="also write checksums, which verify uses")
    parser.add_argument("--overwrite", action="store_true", help="replace parts that are there")
    parser.add_argument("--dry-run", action="store_true", help="only say how large each part would be")
    terminal.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    with terminal.open_source(args) as reader:
        parts = split(
            reader, _fractions(args.into), stratify=args.stratify, by_key=args.by_key, by=args.by,
            seed=args.seed,
        )  # fmt: skip
        targets = {name: _target(args, reader, name) for name in parts}
        if not args.dry_run:
            _write(args, parts, targets)
        unused = len(reader) - sum(map(len, parts.values()))
    if args.json:
        summary = {name: {"samples": len(part), "path": targets[name]} for name, part in parts.items()}
        terminal.print_json({"parts": summary, "left out": unused, "written": not args.dry_run})
        return 0
    for name, part in parts.items():
        print(f"{printable(targets[name])}: {counted(len(part))}")
    if unused:
        print(f"left out: {counted(unused)}")
    return 0


def _write(args: argparse.Namespace, parts: dict[str, Reader], targets: dict[str, str]) -> None:
    for target in targets.values():
        # Before the first is written, which may take long.
        if os.path.lexists(target) and not args.overwrite:
            raise ExistsError("it exists; --overwrite replaces it", path=target)
    options = terminal.parse_options(args.to_option, create_with)
    for name, part in parts.items():
        with terminal.progress_bar(f"writing {name}", quiet=args.quiet or args.json) as progress:
            convert(
                part,
                targets[name],
                fields=terminal.names_of(args.fields) if args.fields else None,
                overwrite=args.overwrite,
                progress=progress,
                target_options={"format": args.to or _format(args, part), **options},
                options=ConvertOptions(workers=args.workers, checksums=args.checksums),
            )


def _fractions(texts: list[str]) -> dict[str, float]:
    fractions: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        try:
            number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            equals = ""
        if not equals:
            raise OptionError(f"--into takes NAME=FRACTION, such as train=0.8, not {text!r}")
        if name in fractions:
            raise OptionError(f"--into names {name!r} twice")
        fractions[name] = number
    return fractions


def _format(args: argparse.Namespace, reader: Reader) -> str | None:
    """The format to write by name; None where the targets' suffix tells it."""
    if args.to is not None:
        return str(args.to)
    if args.out_dir is not None and PART in args.out_dir and by_suffix(args.out_dir) is not None:
        return None
    inner: Any = getattr(reader, "readers", None) or getattr(reader, "base", None)
    name = reader.format or (
        _format(args, inner[0] if isinstance(inner, list | tuple) else inner) if inner else ""
    )
    format = get_format(name) if name else None
    if format is None or format.writer is None:
        raise OptionError(f"{name or 'this source'} is read only; choose a format to write with --to")
    return format.name


def _target(args: argparse.Namespace, reader: Reader, name: str) -> str:
    """Return the path of a part."""
    check_name(name)
    if args.out_dir is not None and PART in args.out_dir:
        return str(args.out_dir.replace(PART, name))
    format = _format(args, reader)
    assert format is not None
    source = args.source[0].rstrip("/") or "/"
    suffixes = [suffix for suffix in get_format(format).suffixes if source.lower().endswith(suffix)]
    suffix = max(suffixes, key=len) if suffixes else next(iter(get_format(format).suffixes), "")
    if args.out_dir is not None:
        return os.path.join(args.out_dir, name + suffix)
    if len(args.source) > 1 or "://" in source or not os.path.exists(source):
        raise OptionError("say where the parts are to go: --out-dir FOLDER")
    old = by_suffix(source)
    old_suffix = (
        max((suffix for suffix in old.suffixes if source.lower().endswith(suffix)), key=len) if old else ""
    )
    return f"{source[: len(source) - len(old_suffix)]}-{name}{suffix}"
