"""Reaching into data: filters, patches of arrays, samples that are kept decoded. Each beside its peers.

A part is a module _access_NAME.py beside this one with run(folder, rounds, quick=False), which says in its
docstring what it measures. All sides of a part run in turn, several rounds; best and median count.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from _common import HERE, others, part_arguments, save, workplace

PREFIX = "_access_"
PARTS = sorted(path.stem.removeprefix(PREFIX) for path in HERE.glob(f"{PREFIX}*.py"))


def measured(part: str, folder: Path, rounds: int, quick: bool) -> dict[str, Any]:
    done: dict[str, Any] = importlib.import_module(PREFIX + part).run(folder, rounds, quick=quick)
    return done


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: dict[str, Any] = {"rounds": args.rounds}
    with workplace() as folder, others(results):
        for part in args.parts:
            inside = folder / part
            inside.mkdir()
            results[part] = measured(part, inside, args.rounds, args.quick)
    save(args.out, "access", results)


if __name__ == "__main__":
    sys.exit(main())
