"""Media that folders hold, and their detection."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from ....codecs.media import audio, image, video
from ....errors import AccessError, BatchplantError, NotFoundError
from ....schema import Audio, Field, Image, Video
from ....schema.columns import U8, Ragged
from ....storage import join, parse_object, read_beside, tree
from ..format import Probe
from .annotated import annotated
from .metadata import first_names, metadata_of
from .pairs import IMAGES

NOTE = ".batchplant.json"
# Enough to tell which kinds of files lie in class folders: so many folders, so many names in each.
FOLDERS, NAMES = 8, 100


@dataclasses.dataclass(frozen=True)
class Media:
    """Description of a medium. ``encodings``: returns the encoding of each cell, "" if unknown."""

    kind: type[Field]
    one: str
    many: str
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
        # As os.path.splitext finds it, in half the time: there may be millions.
        stem, _, suffix = file.rpartition(".")
        if stem[-1:] in ("", ".", os.sep):
            suffix = os.path.splitext(file)[1][1:]
        return f".{suffix.lower()}" in self.suffixes

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
    media = _noted(path)
    if not media and metadata is not None:
        media = _media_of(first_names(join(path, metadata)))
    media = media or _media_of(names)
    folders = [name for name in names if name.endswith("/")]
    if not media and len(folders) >= len(names) / 2:
        media = _media_of(_names_below(path, folders[:FOLDERS]))
    for images in (name for name in folders if name.rstrip("/").lower() in IMAGES and not media):
        # Beside masks or labels they may lie in folders of splits.
        with contextlib.suppress(NotFoundError, AccessError):
            inner = [join(images, name) for name in tree.some_names(join(path, images), FOLDERS)]
            media = _media_of(_names_below(path, inner))
    # Whoever opens it is told what is wrong with it.
    told = metadata is not None or tree.exists(join(path, NOTE))
    return media or ([IMAGE_FILES] if told else [])


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
        f"the folder holds {' and '.join(medium.many for medium in media)}; say which with "
        f"format (--format): {' or '.join(medium.format for medium in media)}; or name the files in a "
        "metadata.csv"
    )


def _has_images(path: str) -> bool:
    with contextlib.suppress(NotFoundError, AccessError):
        return any(name.lower() in IMAGES for name in tree.some_names(path, NAMES))
    return False


def _noted(path: str) -> list[Media]:
    try:
        noted = parse_object(read_beside(join(path, NOTE)) or b"{}")
    # Whoever opens it is told.
    except (ValueError, BatchplantError):
        return []
    return [medium for medium in MEDIA if medium.name in noted]


def _media_of(names: Iterable[str]) -> list[Media]:
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    return [medium for medium in MEDIA if not suffixes.isdisjoint(medium.suffixes)]


def _names_below(path: str, folders: Iterable[str]) -> Iterator[str]:
    tree.foresee(path)
    for folder in folders:
        with contextlib.suppress(NotFoundError, AccessError):
            yield from tree.some_names(join(path, folder), NAMES)
