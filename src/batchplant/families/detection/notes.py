"""What our writers leave beside the pictures: which fields they were given. Files do not always tell."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import BatchplantError
from ...storage import NOTE_ERRORS, join, parse_object, read_beside

NAME = ".batchplant.json"
FIELDS = "detection"


def write_note(folder: Path, fields: list[str]) -> None:
    (folder / NAME).write_text(json.dumps({FIELDS: fields}))


def read_note(folder: str) -> list[str] | None:
    """The names of the fields; None where others made the folder, or the note says nothing."""
    try:
        found = parse_object(read_beside(join(folder, NAME)) or b"{}").get(FIELDS)
    except (*NOTE_ERRORS, BatchplantError):
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return None
    return found if "image" in found else None
