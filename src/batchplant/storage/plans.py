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


def stem_of(target: str) -> str:
    """How the names of a target, of its shards (``NAME.shards``) and of its side-cars begin."""
    # A suffix may have several dots, and a hidden name begins with one.
    return target[:1] + target[1:].partition(".")[0].partition("%")[0] if target[:1] != "%" else ""


def parse(data: bytes | None, target: str) -> Any:
    """A plan of ours; None where there is none, or it was not complete.

    It is about names that begin as those of the target do, so that whoever can put a plan into the staging
    reaches nothing but what belongs to this target.
    """
    stem = stem_of(target)
    try:
        plan = json.loads(data or b"")
        names = [key for _, keys in plan.get("steps", ()) for key in keys]
        names += [name for _, name in plan.get("moves", ())]
        names += [*plan.get("removes", ()), *plan.get("side_cars", ())]
        keys = [*names, *(inside for inside, _ in plan.get("moves", ()))]
        if not all(isinstance(name, str) and name.startswith(stem) for name in names):
            return None
        return plan if all(is_below(key, is_listed=True) for key in keys) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
