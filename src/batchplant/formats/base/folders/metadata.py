"""The metadata file of a folder: which files there are, and what else is known of each."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from ....errors import DamagedError
from ....storage import join, open_source, tree

FILE_NAME = "file_name"
METADATA = ("metadata.jsonl", "metadata.csv")
# What is read to tell which files a metadata file speaks of.
HEAD = 1 << 16
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,99})", re.ASCII)
_REAL = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|-?inf|nan", re.ASCII)


def metadata_of(path: str) -> str | None:
    """The name of the metadata file that a folder has."""
    return next((name for name in METADATA if tree.exists(join(path, name))), None)


def first_names(path: str) -> list[str]:
    """The first files that a metadata file names; fewer, or none, where it is damaged."""
    names: list[str] = []
    try:
        with open_source(path).file() as file:
            # The last line may be cut, and the rest of it is not needed.
            lines = file.read(HEAD).decode("utf-8", "replace").splitlines()
        if path.endswith(".jsonl"):
            names += (str(json.loads(line).get(FILE_NAME)) for line in lines if line.strip())
        else:
            names += (str(row.get(FILE_NAME)) for row in csv.DictReader(lines))
    except (OSError, ValueError, AttributeError, csv.Error, RecursionError):
        pass
    return names


def rows_of(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of a metadata file; values of a CSV are numbers where the whole column is."""
    try:
        with io.TextIOWrapper(open_source(path).file(), "utf-8", newline="") as file:
            if path.endswith(".jsonl"):
                for line, text in enumerate(file, 1):
                    if text.strip():
                        row = json.loads(text)
                        if not isinstance(row, dict):
                            raise ValueError(f"line {line} is no JSON object")
                        yield line, row
                return
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
            for name in reader.fieldnames or ():
                column = [row[name] for row in rows]
                if name != FILE_NAME:
                    for row, value in zip(rows, _typed(column), strict=True):
                        row[name] = value
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("a row has more or fewer columns than the header")
            yield from enumerate(rows, 2)
    except (OSError, ValueError, KeyError, csv.Error, RecursionError) as error:
        raise DamagedError(str(error), path=path) from None


def _typed(column: list[Any]) -> list[Any]:
    """As numbers where all of them are written as such: 007 and 1_000 are names."""
    for kind, written in ((int, _WHOLE), (float, _REAL)):
        if column and all(isinstance(value, str) and written.fullmatch(value) for value in column):
            return [kind(value) for value in column]
    return column
