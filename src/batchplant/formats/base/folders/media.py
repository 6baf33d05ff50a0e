"""Media that folders hold, and their detection."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ....codecs.media import audio, image, video
from ....errors import AccessError, BatchplantError, DamagedError, NotFoundError
from ....schema import Audio, Field, Image, Video
from ....schema.columns import U8, Ragged
from ....storage import join, open_source, parse_object, read_beside, tree
from ..format import Probe
from .annotated import annotated
from .pairs import IMAGES

METADATA_NAME = ".batchplant.json"
# Enough to tell which kinds of files lie in class folders: so many folders, so many names in each.
PROBED_FOLDERS, PROBED_NAMES = 8, 100
FILE_NAME = "file_name"
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
METADATA = ("metadata.jsonl", "metadata.csv")
# What is read to tell which files a metadata file speaks of.
METADATA_HEAD_BYTES = 1 << 16
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,99})", re.ASCII)
_REAL = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|-?inf|nan", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Media:
    """Description of a medium. ``encodings``: returns the encoding of each cell, "" if unknown."""

    kind: type[Field]
    singular: str
    plural: str
    suffixes: Mapping[str, str]
    encodings: Callable[[Ragged], list[str]]

    @property
    def name(self) -> str:
        """Name of the field, and of its metadata key."""
        return self.kind.kind

    @property
    def format(self) -> str:
        return f"{self.name}folder"

    def has(self, file: str) -> bool:
        # As os.path.splitext finds it, in a quarter of the time: there may be millions.
        dot = file.rfind(".")
        suffix = os.path.splitext(file)[1] if file[dot - 1 : dot] in ("", ".", os.sep) else file[dot:]
        return suffix.lower() in self.suffixes

    def suffix(self, encoding: str) -> str:
        """Return the file suffix of an encoding."""
        usual = {"jpeg": ".jpg"}.get(encoding, f".{encoding}")
        suffixes = [suffix for suffix, known_encoding in self.suffixes.items() if known_encoding == encoding]
        return suffixes[0] if suffixes and usual not in suffixes else usual


def _each(encoding_of: Callable[[U8], str | None]) -> Callable[[Ragged], list[str]]:
    return lambda cells: ["" if data is None else encoding_of(data) or "" for data in cells]


IMAGE_FILES = Media(
    Image,
    "image",
    "images",
    image.SUFFIXES,
    lambda cells: [image.ENCODINGS[code] for code in image.probe(cells)[:, 0].tolist()],
)
SOUNDS = Media(Audio, "sound", "sounds", audio.SUFFIXES, _each(audio.encoding_of))
VIDEOS = Media(Video, "video", "videos", video.SUFFIXES, _each(video.encoding_of))
MEDIA = (IMAGE_FILES, SOUNDS, VIDEOS)


def media_in(probe: Probe) -> list[Media]:
    """The media that a folder seems to hold; ``probe.ask(media_in)`` looks once for all that ask.

    Our own note decides, then the files that a metadata file names, then what lies at the top, then what
    lies in the first folders.
    """
    if probe.ask(annotated) is not None:
        return []
    path, names = probe.path, probe.names
    metadata = metadata_of(path)
    media = _media_in_metadata(path)
    if not media and metadata is not None:
        media = _media_of(first_names(join(path, metadata)))
    media = media or _media_of(names)
    folders = [name for name in names if name.endswith("/")]
    if not media and len(folders) >= len(names) / 2:
        media = _media_of(_names_below(path, folders[:PROBED_FOLDERS]))
    for images in (name for name in folders if name.rstrip("/").lower() in IMAGES and not media):
        # Beside masks or labels they may lie in folders of splits.
        with contextlib.suppress(NotFoundError, AccessError):
            inner = [join(images, name) for name in tree.some_names(join(path, images), PROBED_FOLDERS)]
            media = _media_of(_names_below(path, inner))
    for split in splits_in(names) if not media else ():
        with contextlib.suppress(NotFoundError, AccessError):
            inner = tree.some_names(join(path, split), PROBED_FOLDERS)
            # Images and masks are a dataset in each split.
            if not any(name.rstrip("/").lower() in IMAGES for name in inner):
                media = _media_of(_names_below(join(path, split), inner))
    # Whoever opens it is described what is wrong with it.
    described = metadata is not None or tree.exists(join(path, METADATA_NAME))
    return media or ([IMAGE_FILES] if described else [])


def splits_in(names: Iterable[str]) -> list[str]:
    """Return the folders of splits, such as train and val, where there are no other folders."""
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    return folders if all(folder.lower() in SPLITS for folder in folders) else []


def mixed(probe: Probe) -> str | None:
    """Why a folder is not taken for one of media: it holds several kinds of them."""
    media = probe.ask(media_in)
    if not media:
        folders = [name for name in probe.names if name.endswith("/") and _has_images(join(probe.path, name))]
        if not folders:
            return None
        parts = " and ".join(name.rstrip("/") for name in folders[:4]) + ", …" * (len(folders) > 4)
        return (
            f"{parts} look like datasets of their own: open {join(probe.path, folders[0]).rstrip('/')}, say"
        )
    if len(media) < 2:
        return None
    return (
        f"the folder holds {' and '.join(medium.plural for medium in media)}; say which with "
        f"format (--format): {' or '.join(medium.format for medium in media)}; or name the files in a "
        "metadata.csv"
    )


def _has_images(path: str) -> bool:
    with contextlib.suppress(NotFoundError, AccessError):
        return any(name.lower() in IMAGES for name in tree.some_names(path, PROBED_NAMES))
    return False


def _media_in_metadata(path: str) -> list[Media]:
    try:
        keys = parse_object(read_beside(join(path, METADATA_NAME)) or b"{}")
    # Whoever opens it is described.
    except (ValueError, BatchplantError):
        return []
    return [medium for medium in MEDIA if medium.name in keys]


def _media_of(names: Iterable[str]) -> list[Media]:
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    return [medium for medium in MEDIA if not suffixes.isdisjoint(medium.suffixes)]


def _names_below(path: str, folders: Iterable[str]) -> Iterator[str]:
    tree.foresee(path)
    for folder in folders:
        with contextlib.suppress(NotFoundError, AccessError):
            yield from tree.some_names(join(path, folder), PROBED_NAMES)


def metadata_of(path: str) -> str | None:
    """The name of the metadata file that a folder has."""
    return next((name for name in METADATA if tree.exists(join(path, name))), None)


def first_names(path: str) -> list[str]:
    """The first files that a metadata file names; fewer, or none, where it is damaged."""
    names: list[str] = []
    try:
        with open_source(path).file() as file:
            # The last line may be cut, and the rest of it is not needed.
            lines = file.read(METADATA_HEAD_BYTES).decode("utf-8", "replace").splitlines()
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
