"""Convert a dataset into another format.

examples:
  batchplant convert photos/ train.beton
  batchplant convert photos/ train.beton --max-resolution 400 --quality 90 --checksums
  batchplant convert train.beton back/ --limit 100 --shuffle
  batchplant convert arrays.npz train.beton --fields x,y --rename x=image
  batchplant convert photos/ train.beton --shard-size 1GB
  batchplant convert photos/ train.tar --image-format webp --quality 80
  batchplant convert new.csv all.csv --append
  batchplant convert web.jsonl web.idx --tokenize tokenizer.json --field text --append-eos
  batchplant convert scans.h5 scans.zarr --chunks volume=1,64,64,64
  batchplant convert photos/ train.beton --resume        (go on after Ctrl-C or a kill)
  batchplant convert photos/ train.tar --shard-size 1GB --processes 8
  srun -n 64 batchplant convert photos/ train.tar --shard-size 1GB --engine ranks
  batchplant convert photos/ train.tar --shard-size 1GB --engine dask --scheduler tcp://10.0.0.1:8786
  batchplant convert s3://mine/photos/ s3://mine/train.tar --shard-size 1GB --to-option region=eu-west-1

Images that fit pass through byte for byte. The target appears only when it is complete.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..codecs.media.image_rules import IMAGE_FORMATS, WRITE_MODES, ImageOptions
from ..errors import DataError, OptionError
from ..formats.registry import create_with
from ..jobs.conversion.run import Conversion
from ..jobs.convert import convert
from ..jobs.convert_options import ConvertOptions
from ..storage import Url, is_remote, partial_folder, split_options
from ..storage.work import STATE
from ..tools import Document
from . import terminal
from .terminal import counted, human_size

SHOWN = 20


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="file, folder, URL, glob or braces of shards")
    parser.add_argument(
        "target", metavar="DST", help="the suffix says the format; a name without one: a folder"
    )
    terminal.add_reading(parser)
    terminal.add_writing(parser)
    chosen = parser.add_argument_group("what to write")
    chosen.add_argument("--fields", metavar="A,B", help="only these fields, in this order")
    chosen.add_argument("--rename", metavar="OLD=NEW,…", help="new names for fields")
    chosen.add_argument("--limit", type=int, metavar="N", help="at most N samples")
    chosen.add_argument("--shuffle", action="store_true", help="in random order")
    chosen.add_argument(
        "--seed", type=int, default=0, help="of --shuffle and of write mode proportion (default 0)"
    )
    chosen.add_argument(
        "--two-passes", action=argparse.BooleanOptionalAction,
        help="--shuffle reads SRC from end to end first (default: where reading at random is slow)",
    )  # fmt: skip
    images = parser.add_argument_group("images")
    images.add_argument(
        "--max-resolution", type=int, metavar="PX", help="shrink so that the longer side fits"
    )
    images.add_argument(
        "--image-format", choices=IMAGE_FORMATS, help="all images in this encoding (default: as they are)"
    )
    images.add_argument(
        "--quality", type=int, metavar="Q", help="of JPEG and lossy WebP that we encode (default 90)"
    )
    images.add_argument("--lossless", action="store_true", help="--image-format webp without loss")
    images.add_argument(
        "--orient", action="store_true", help="turn the pixels as EXIF says, and store them upright"
    )
    images.add_argument(
        "--mask", metavar="A,B", help="fields whose images are classes, not colours: kept exactly"
    )
    images.add_argument("--write-mode", choices=WRITE_MODES, help="default: keep JPEGs, the rest lossless")
    images.add_argument(
        "--smart-threshold", type=terminal.parse_size, default=256 * 256 * 3, metavar="SIZE",
        help="write mode smart: JPEG above this many raw bytes (default 196608)",
    )  # fmt: skip
    images.add_argument(
        "--compress-probability",
        type=float,
        default=0.5,
        metavar="P",
        help="write mode proportion (default 0.5)",
    )
    images.add_argument("--reencode", action="store_true", help="encode also what could pass through")
    images.add_argument("--to-rgb", action="store_true", help="drop alpha, convert CMYK and 16 bits")
    add_tokenizing(parser.add_argument_group("text"))
    group = parser.add_argument_group("how")
    group.add_argument(
        "--shard-size", type=terminal.parse_size, metavar="SIZE", help="several files of about this size each"
    )
    group.add_argument(
        "--shard-samples", type=int, metavar="N", help="several files of at most N samples each"
    )
    group.add_argument(
        "--chunks", metavar="[FIELD=]N,H,W", action="append", default=[], type=_chunks,
        help="the shape of a chunk, samples first, of zarr, n5 and hdf5 (-1: the whole axis)",
    )  # fmt: skip
    group.add_argument("--workers", type=int, metavar="N", help="encoding threads (default: all cores)")
    terminal.add_engine(group, "writes the shards", ranks=True)
    group.add_argument("--checksums", action="store_true", help="also write DST.crc, which verify uses")
    group.add_argument("--overwrite", action="store_true", help="replace DST")
    group.add_argument("--append", action="store_true", help="add to DST, which has the same fields")
    group.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="leave bad samples out and list them"
    )
    group.add_argument("--resume", action="store_true", help="go on where an interrupted conversion stopped")
    terminal.add_quiet(group)


def run(args: argparse.Namespace) -> int:
    images = ImageOptions(
        write_mode=args.write_mode, max_resolution=args.max_resolution, quality=args.quality,
        smart_threshold=args.smart_threshold, compress_probability=args.compress_probability,
        reencode=args.reencode, to_rgb=args.to_rgb, seed=args.seed, image_format=args.image_format,
        lossless=args.lossless, orient=args.orient,
    )  # fmt: skip
    try:
        with terminal.progress_bar("converting", quiet=args.quiet or args.json) as progress:
            done = convert(
                args.source,
                args.target,
                fields=terminal.names_of(args.fields) if args.fields else None,
                rename=_renames(args.rename),
                shuffle=args.shuffle,
                images=images,
                tokenize=tokenizing(args),
                shard_size=args.shard_size,
                shard_samples=args.shard_samples,
                engine=terminal.engine_of(args),
                overwrite=args.overwrite,
                append=args.append,
                on_error=args.on_error,
                resume=args.resume,
                progress=progress,
                source_options=terminal.reading(args),
                target_options={
                    "format": args.to,
                    **terminal.parse_options(args.to_option, create_with),
                    **_chunk_option(args.chunks),
                },
                options=ConvertOptions(
                    limit=args.limit,
                    seed=args.seed,
                    two_passes=args.two_passes,
                    masks=terminal.names_of(args.mask) if args.mask else (),
                    workers=args.workers,
                    checksums=args.checksums,
                ),
            )
    except (KeyboardInterrupt, DataError, OSError) as error:
        _say_how_to_go_on(args, stopped=isinstance(error, KeyboardInterrupt))
        raise
    report(args, done)
    return 1 if done.skipped else 0


def _say_how_to_go_on(args: argparse.Namespace, *, stopped: bool) -> None:
    """Say after an error, or Ctrl-C, what was kept of a conversion."""
    target = args.target
    if is_remote(target):
        target = Url(target, split_options(terminal.parse_options(args.to_option, create_with))[0])
    # Several processes write a single file as shards, too.
    folders = [partial_folder(target, sharded=sharded) for sharded in (False, True)]
    resumable = any((folder / STATE).is_file() for folder in folders)
    if resumable:
        print("batchplant: what was done is kept; the same with --resume goes on from there", file=sys.stderr)
    elif stopped:
        print("batchplant: nothing is kept of so short a run; the same command starts anew", file=sys.stderr)


def _chunks(text: str) -> tuple[str, list[int]]:
    """The field, or nothing for all, and the sizes of its chunks."""
    name, _, sizes = text.rpartition("=")
    try:
        return name, [int(size) for size in sizes.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write 1,256,256 or volume=1,64,64") from None


def _chunk_option(chunks: list[tuple[str, list[int]]]) -> Document:
    shapes = dict(chunks)
    if "" in shapes and len(chunks) > 1:
        raise OptionError("--chunks is one shape for all, or one for each field that is named")
    return {"chunks": shapes.get("", shapes)} if shapes else {}


def _renames(text: str | None) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")] if text else []
    for old, equals, new in pairs:
        if not (old and equals and new):
            raise OptionError("--rename takes OLD=NEW, several with commas between")
    return {old: new for old, _, new in pairs}


def report(args: argparse.Namespace, done: Conversion) -> None:
    rate = (done.samples - done.resumed_at) / max(done.seconds, 1e-9)
    size = terminal.size_of(done.files) if done.files else None
    if args.json:
        document: Document = {
            "files": done.files, "samples": done.samples, "bytes": size, "seconds": round(done.seconds, 3),
            "resumed at": done.resumed_at, "remarks": done.remarks,
            **({} if done.tokens is None else {"tokens": done.tokens}),
            "skipped": [vars(problem) for problem in done.skipped],
        }  # fmt: skip
        terminal.print_json(document)
        return
    details = f", {human_size(size)}" if size is not None else ""
    where = args.target
    if len(done.files) != 1:
        where = f"{len(done.files)} files from {done.files[0]} on" if done.files else "this rank's files"
    speed = f"{rate:,.0f} samples/s"
    if done.tokens is not None:
        details = f", {counted(done.tokens, 'token')}{details}"
        # Of what an earlier run tokenized, the time is not known.
        speed = speed if done.resumed_at else f"{done.tokens / max(done.seconds, 1e-9):,.0f} tokens/s"
    print(f"{where}: {counted(done.samples)}{details}, {done.seconds:.1f} s, {speed}")
    for remark in done.remarks:
        print(f"  note: {remark}")
    for problem in done.skipped[:SHOWN]:
        print(f"  skipped: {problem}")
    if len(done.skipped) > SHOWN:
        print(f"  … and {len(done.skipped) - SHOWN} more (--json lists all)")


def add_tokenizing(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--tokenize", metavar="FILE", help="write token ids in place of text: a tokenizer.json, or its folder"
    )
    parser.add_argument(
        "--field", metavar="A,B", help="the text to tokenize (default: `text`, or the only field of text)"
    )
    parser.add_argument(
        "--eos", metavar="TOKEN", help="put after each document unless it is there: an id, or a token's name"
    )
    parser.add_argument("--append-eos", action="store_true", help="the same with the tokenizer's own token")
    parser.add_argument("--bos", metavar="TOKEN", help="put before each document unless it is there")
    parser.add_argument("--max-length", type=int, metavar="N", help="cut documents off after N tokens")
    parser.add_argument(
        "--dtype",
        choices=("uint16", "int32", "uint32", "int64"),
        help="of the ids (default: int32; uint16 takes half of it, for vocabularies of up to 65,536)",
    )
    parser.add_argument(
        "--no-special-tokens", action="store_true", help="without those that the tokenizer itself adds"
    )


def tokenizing(args: argparse.Namespace) -> Any:
    """The argument ``tokenize`` of ``convert``."""
    if args.tokenize is None:
        flags = ("field", "eos", "append_eos", "bos", "max_length", "dtype", "no_special_tokens")
        for name in flags:
            if getattr(args, name):
                raise OptionError(f"--{name.replace('_', '-')} goes with --tokenize FILE")
        return None
    if args.eos is not None and args.append_eos:
        raise OptionError("--eos names a token, and --append-eos takes the tokenizer's own: give one of them")
    # Needed for nothing else.
    from ..codecs.tokens import Tokenizer

    tokenizer = Tokenizer(
        args.tokenize, max_length=args.max_length, add_special_tokens=not args.no_special_tokens,
        bos=_token(args.bos), eos=True if args.append_eos else _token(args.eos), dtype=args.dtype or "int32",
    )  # fmt: skip
    names = terminal.names_of(args.field or "")
    return dict.fromkeys(names, tokenizer) if names else tokenizer


def _token(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
