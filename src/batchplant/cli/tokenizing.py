"""``convert --tokenize``: text written as token ids."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import OptionError


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
    """What ``convert`` takes as ``tokenize``."""
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
    names = [] if args.field is None else [name.strip() for name in args.field.split(",") if name.strip()]
    return dict.fromkeys(names, tokenizer) if names else tokenizer


def _token(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
