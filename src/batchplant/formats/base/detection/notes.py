"""Metadata file of our writers: the fields of the dataset, which annotations do not always tell."""

from __future__ import annotations

import json
from pathlib import Path

from ....errors import BatchplantError
from ....storage import NOTE_ERRORS, join, parse_object, read_beside

NAME = ".batchplant.json"
FIELDS, CLASSES, FLOAT64 = "detection", "classes", "float64"


def write_note(folder: Path, fields: list[str], classes: list[str], float64: list[str]) -> None:
    (folder / NAME).write_text(json.dumps({FIELDS: fields, CLASSES: classes, FLOAT64: float64}))


def read_note(folder: str) -> list[str] | None:
    """The names of the fields; None where others made the folder, or the note says nothing."""
    content = _names(folder, FIELDS)
    return content if content and "image" in content else None


def read_float64(folder: str) -> list[str]:
    """The fields that are float64 where the note tells the fields; others are float32."""
    return _names(folder, FLOAT64) or []


def read_classes(folder: str) -> list[str] | None:
    """The names of the classes, in order, where the note tells them."""
    return _names(folder, CLASSES) or None


def _names(folder: str, key: str) -> list[str] | None:
    try:
        names = parse_object(read_beside(join(folder, NAME)) or b"{}").get(key)
    except (*NOTE_ERRORS, BatchplantError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
