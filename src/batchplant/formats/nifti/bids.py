"""BIDS: the images of a root as a table, with entities of their names, participants and side-cars.

``sub-01/ses-2/anat/sub-01_ses-2_T1w.nii.gz``: ``sub`` and ``ses`` are entities, ``anat`` is the datatype,
``T1w`` the suffix. A side-car of JSON holds for all files of its folder and below that have its suffix and
its entities; of several the one nearest to the file decides.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import DamagedError, NotFoundError, OptionError, exceptions_as
from ...schema import Field, Float, Int, Json, Text
from ...storage import NOTE_ERRORS, join, parse_object, tree
from ...storage.opening import read_text

DESCRIPTION, PARTICIPANTS = "dataset_description.json", "participants.tsv"
MISSING = "n/a"
SUFFIX, DATATYPE, SIDECAR = "suffix", "datatype", "sidecar"


class Name(NamedTuple):
    """Entities and suffix of a file name."""

    entities: dict[str, str]
    suffix: str


def parse_name(stem: str) -> Name:
    """Return the parts of a file name without its extension."""
    *pairs, suffix = stem.split("_")
    parts = (pair.partition("-") for pair in pairs)
    return Name({key: value for key, dash, value in parts if dash}, suffix)


Columns = dict[str, tuple[Field, list[Any]]]


def images_of(root: str, suffix: str | None, stem_of: Callable[[str], str]) -> tuple[dict[str, str], Columns]:
    """Return the files of a root by name, and columns about them."""
    files: dict[str, tuple[str, Name, str]] = {}
    sidecars: list[tuple[str, str, Name]] = []
    for path, _ in tree.walk(root):
        folder, base = os.path.split(path)
        if base.endswith(".json"):
            sidecars.append((folder, path, parse_name(base.removesuffix(".json"))))
        elif path.startswith("sub-") and base.lower().endswith((".nii", ".nii.gz")):
            files[stem_of(base)] = path, parse_name(stem_of(base)), os.path.basename(folder)
    suffixes = sorted({name.suffix for _, name, _ in files.values()})
    if not files:
        raise NotFoundError("there are no images of subjects in the BIDS root")
    if (suffix is None and len(suffixes) > 1) or suffix not in (None, *suffixes):
        raise OptionError(f"suffix is one of {', '.join(suffixes)}, not {suffix!r}")
    files = {stem: files[stem] for stem in sorted(files) if suffix in (None, files[stem][1].suffix)}
    keys = dict.fromkeys(key for _, name, _ in files.values() for key in name.entities)
    columns: Columns = {key: _texts(name.entities.get(key) for _, name, _ in files.values()) for key in keys}
    columns[DATATYPE] = _texts(datatype for _, _, datatype in files.values())
    columns[SUFFIX] = _texts(name.suffix for _, name, _ in files.values())
    cache: dict[str, Mapping[str, Any]] = {}
    columns[SIDECAR] = (
        Json(),
        [_sidecar(root, path, name, sidecars, cache) for path, name, _ in files.values()],
    )
    subjects = [f"sub-{name.entities.get('sub')}" for _, name, _ in files.values()]
    for key, column in _participants(join(root, PARTICIPANTS), subjects).items():
        columns.setdefault(key, column)
    return {stem: join(root, path) for stem, (path, _, _) in files.items()}, columns


def _sidecar(
    root: str, path: str, name: Name, sidecars: Sequence[tuple[str, str, Name]],
    cache: dict[str, Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the side-cars of a file, merged."""
    above = [
        (folder.count("/") if folder else -1, len(about.entities), place)
        for folder, place, about in sidecars
        if (not folder or path.startswith(f"{folder}/"))
        and about.suffix == name.suffix
        and about.entities.items() <= name.entities.items()
    ]
    merged: dict[str, Any] = {}
    for _, _, place in sorted(above):
        if place not in cache:
            where = join(root, place)
            with exceptions_as(DamagedError, "not an object of JSON", *NOTE_ERRORS, path=where):
                cache[place] = parse_object(read_text(where))
        merged |= cache[place]
    return merged


def _participants(path: str, subjects: Sequence[str]) -> Columns:
    """Return the columns of participants for each of these subjects."""
    if not tree.is_file(path):
        return {}
    with exceptions_as(DamagedError, "not a table", csv.Error, path=path):
        rows = list(csv.DictReader(io.StringIO(read_text(path)), delimiter="\t", strict=True))
    by_subject = {row.get("participant_id"): row for row in rows}
    names = [name for name in (rows[0] if rows else ()) if name and name != "participant_id"]
    return {name: _typed([by_subject.get(subject, {}).get(name) for subject in subjects]) for name in names}


def _typed(values: Sequence[str | None]) -> tuple[Field, list[Any]]:
    """Return numbers where all values are numbers as they would be written, else texts."""
    cells = [None if value in (None, "", MISSING) else value for value in values]
    present = [value for value in cells if value is not None]
    whole = r"-?(0|[1-9]\d{0,17})"
    kinds = ((Int, int, whole), (Float, float, rf"{whole}(\.\d*)?([eE][+-]?\d{{1,2}})?"))
    for kind, convert, pattern in kinds:
        if present and all(re.fullmatch(pattern, value, re.ASCII) for value in present):
            numbers = [None if value is None else convert(value) for value in cells]
            return kind(optional=None in cells), numbers
    return _texts(cells)


def _texts(values: Iterable[str | None]) -> tuple[Field, list[Any]]:
    cells = list(values)
    return Text(optional=None in cells), cells


def is_root(names: Iterable[str]) -> bool:
    """Return whether a folder with these names is a root of BIDS."""
    present = list(names)
    return DESCRIPTION in present and any(name.startswith("sub-") for name in present)


def description_of(root: str) -> dict[str, str]:
    """Return what the description of a root says."""
    path = join(root, DESCRIPTION)
    with exceptions_as(DamagedError, "not an object of JSON", *NOTE_ERRORS, path=path):
        content = parse_object(read_text(path))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items()}
