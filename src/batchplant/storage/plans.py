"""What has to happen to objects, in which order, until what was staged is in place; see targets.py."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .commit import NAME
from .files import is_below

# In folders of these names, tables keep what says which of their files count.
DESCRIBING = ("_delta_log/", "metadata/")

# (mark, copy or remove, names beside the target)
Steps = Sequence[tuple[str, list[str]]]


def steps(new: set[str], names: set[str], side_cars: Collection[str], old: set[str]) -> Steps:
    """How new files, which are staged, become the files and folders ``names``, in place of the old."""
    folders = names - new
    describing = {key for key in new | old if key in side_cars or _describes(key, folders)}
    data, notes = sorted(new - describing), sorted(new & describing)
    if not old and not folders:
        # Where nothing is to be replaced, what lies beside a file comes before it.
        data, notes = notes, data
    # For readers, who list the folder itself; those of shards see the staging.
    marks = [f"{name}/{NAME}" for name in folders] if len(names) == 1 else []
    return [
        ("mark", marks),
        ("remove", sorted(describing & old)),
        ("copy", data),
        ("copy", notes),
        ("remove", [*sorted(old - new), *marks]),
    ]


def copied(plan: Steps) -> set[str]:
    """What is copied out of the staging."""
    return {key for what, keys in plan if what == "copy" for key in keys}


def files_of(made: Path, name: str) -> Iterator[tuple[str, Path]]:
    """The file, or all files below a folder, by what they are to be called."""
    if not made.is_dir():
        yield name, made
        return
    for top, _, files in os.walk(made):
        for file in files:
            path = Path(top, file)
            yield f"{name}/{path.relative_to(made).as_posix()}", path


def top(key: str) -> str:
    """The file or folder that something is, or lies in."""
    return key.partition("/")[0]


def _describes(key: str, folders: Collection[str]) -> bool:
    """Whether a file of a folder says what the others are."""
    name, _, inside = key.partition("/")
    return name in folders and ("/" not in inside or inside.startswith(DESCRIBING))


def parse(data: bytes | None) -> Any:
    """A plan of ours; None where there is none, or it was not complete."""
    try:
        plan = json.loads(data or b"")
        keys = [key for _, keys in plan.get("steps", ()) for key in keys]
        keys += [one for pair in plan.get("moves", ()) for one in pair]
        keys += [*plan.get("removes", ()), *plan.get("side_cars", ())]
        return plan if all(isinstance(key, str) and is_below(key) for key in keys) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
