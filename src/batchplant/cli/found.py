"""Output of a command's result: a figure on request, and JSON or text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..tools.measure import figures
from .terminal import print_json


def show(
    args: argparse.Namespace, result: Mapping[str, Any], say: Callable[[], None], draw: Callable[[], Any]
) -> None:
    """``say`` prints it in words, ``draw`` makes the figure."""
    if args.figure:
        figures.save(draw(), args.figure)
    if args.json:
        print_json(result)
        return
    say()
    if args.figure:
        print(f"\nwrote {args.figure}")
