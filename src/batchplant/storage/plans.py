"""The steps by which staged objects replace others, in a safe order; see targets.py."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .commit import NOTE_NAME
from .files import is_below

# Folders in which tables keep the metadata that says which of their files count.
METADATA_FOLDERS = ("_delta_log/", "metadata/")

# (mark, copy or remove, names beside the target)
Steps = Sequence[tuple[str, list[str]]]


def steps(new: set[str], names: set[str], side_cars: Collection[str], old: set[str]) -> Steps:
    """Return the steps that make new, staged files the files and folders ``names``, in place of the old."""
    folders = names - new
    describing = {key for key in new | old if key in side_cars or _describes(key, folders)}
    data, notes = sorted(new - describing), sorted(new & describing)
    if not old and not folders:
        # If nothing is replaced, side-cars come before their file.
        data, notes = notes, data
    # For readers that list the folder itself; readers of shards see the staging folder.
    marks = [f"{name}/{NOTE_NAME}" for name in folders] if len(names) == 1 else []
    return [
        ("mark", marks),
        ("remove", sorted(describing & old)),
        ("copy", data),
        ("copy", notes),
        ("remove", [*sorted(old - new), *marks]),
    ]


def copied(plan: Steps) -> set[str]:
    """Return the names that are copied out of the staging folder."""
    return {key for operation, keys in plan if operation == "copy" for key in keys}


def files_of(staged: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file, or all files below a folder, by their future names."""
    if not staged.is_dir():
        yield name, staged
        return
    for top, _, files in os.walk(staged):
        for file in files:
            path = Path(top, file)
            yield f"{name}/{path.relative_to(staged).as_posix()}", path


def top(key: str) -> str:
    """Return the file or folder at the top of a key."""
    return key.partition("/")[0]


def _describes(key: str, folders: Collection[str]) -> bool:
    """Return whether a file of a folder is metadata of the others."""
    name, _, inside = key.partition("/")
    return name in folders and ("/" not in inside or inside.startswith(METADATA_FOLDERS))


def stem_of(target: str) -> str:
    """Return the common prefix of the names of a target, of its shards (``NAME.shards``) and side-cars."""
    # A suffix may have several dots, and a hidden name begins with one.
    return target[:1] + target[1:].partition(".")[0].partition("%")[0] if target[:1] != "%" else ""


def parse(data: bytes | None, target: str) -> Any:
    """Parse a plan of ours; None if there is none, or it is incomplete.

    It may only have names that begin like those of the target, so that an uploader who can put a plan into
    the staging folder reaches nothing but files of this target.
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
