"""Names, kinds and the note: what a member's name says, and what ours say besides.

A name is a key, a dot and an extension. What comes after the last dot of the extension tells the kind::

    jpg jpeg png webp gif bmp tif tiff ppm pgm pbm pnm   Image        json jsn                  Json
    cls cls2 index inx id                                Int          npy                       Tensor
    txt text transcript                                  Text         any other                 Bytes
    flac wav ogg opus mp3 m4a                            Audio        mp4 mkv webm avi mov      Video

A field of that kind whose name is such an extension (``jpg``, ``seg.png``) is written under it. Beside
images, sound or video, the only field of its kind has the bare extension, so that WebDataset's
``to_tuple("jpg", "cls")`` finds it: the image that is no mask, the label, the text, the JSON. Every other
field ``label`` is written as ``label.cls``, and so on. What the names do not tell stands in the note, the
comment of a PAX header at the start of the archive, which other programs pass over: the schema, which
extensions a field has, and how many samples and bytes were written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ... import _native
from ...codecs.media import image
from ...errors import DamagedError, SchemaError, exceptions_as
from ...schema import Audio, Bytes, Field, Image, Int, Json, Schema, Tensor, Text, Video
from ...storage import NOTE_ERRORS, parse_object

KEY = "__key__"
# The extension of the member that stands for a sample with no cell at all.
NOTHING = "none"
BLOCK = 512

IMAGES = {suffix[1:]: encoding for suffix, encoding in image.SUFFIXES.items()}
IMAGES |= dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "")
INTS = ("cls", "cls2", "index", "inx", "id")
TEXTS = ("txt", "text", "transcript")
AUDIO = ("flac", "wav", "ogg", "opus", "mp3", "m4a")
VIDEO = ("mp4", "mkv", "webm", "avi", "mov")
# The extension that an image gets by its encoding, in the order of image.ENCODINGS; the first is for bytes
# that are no image we know.
IMAGE_SUFFIXES = ("img", "jpg", "png", "webp", "gif", "bmp", "tiff")

# What the field of classes is called, where others hold whole numbers too.
LABELS = ("label", "labels", "class", "cls", "target", "y")

_MARK = '{"batchplant":'
# Digits of the two numbers in the note that are known only at the end.
_ROOM = 40


def kind_of(extension: str) -> type[Field]:
    """The kind that an extension stands for."""
    last = extension.rpartition(".")[2]
    for kind, endings in (
        (Image, IMAGES), (Int, INTS), (Text, TEXTS), (Json, ("json", "jsn")), (Tensor, ("npy",)),
        (Audio, AUDIO), (Video, VIDEO),
    ):  # fmt: skip
        if last in endings:
            return kind
    return Bytes


def extensions_of(schema: Mapping[str, Field]) -> dict[str, list[str]]:
    """Field name → the extensions that its members may have; an image's depends on its bytes."""
    extensions: dict[str, list[str]] = {}
    used = {NOTHING}
    bare = _bare(schema)
    for name, field in schema.items():
        stem = _plain(name)
        endings = bare.get(name) or _endings(stem, field)
        candidate, number = endings, 1
        # Names that differ only in case, or in what no extension can hold.
        while used & set(candidate):
            number += 1
            candidate = [f"{stem}-{number}{ending[len(stem) :]}" for ending in endings]
        used |= set(candidate)
        extensions[name] = candidate
    return extensions


def _bare(schema: Mapping[str, Field]) -> dict[str, list[str]]:
    """The fields that have an extension to themselves, where there are images, sound or video."""
    images = [name for name, field in schema.items() if isinstance(field, Image) and not field.mask]
    by_kind = {
        kind: [name for name, field in schema.items() if type(field) is kind]
        for kind in (Audio, Video, Int, Text, Json)
    }
    if not (images or by_kind[Audio] or by_kind[Video]):
        return {}
    classes = [
        name for name in by_kind[Int] if getattr(schema[name], "names", None) or name.lower() in LABELS
    ]
    by_kind[Int] = classes or by_kind[Int]
    usual = {name: _endings(_plain(name), field) for name, field in schema.items()}
    by_ending: dict[str, list[str]] = {}
    for names in (images, *by_kind.values()):
        name = names[0] if len(names) == 1 else None
        # One whose name is an extension stays under it.
        if name is None or usual[name] == [_plain(name)]:
            continue
        endings = [ending.rpartition(".")[2] for ending in usual[name]]
        elsewhere = {
            ending
            for other_name, other_endings in usual.items()
            if other_name != name
            for ending in other_endings
        }
        if kind_of(endings[-1]) is not Bytes and not elsewhere & set(endings):
            by_ending[name] = endings
    return by_ending


def _plain(name: str) -> str:
    """A field's name as others read it: WebDataset makes small letters of it."""
    with exceptions_as(SchemaError, "its name cannot be written", UnicodeEncodeError, field=name):
        name.encode()
    return name.lower().replace("/", "_")


def _endings(stem: str, field: Field) -> list[str]:
    if isinstance(field, (Bytes, kind_of(stem))):
        return [stem]
    if isinstance(field, Image):
        return [f"{stem}.{suffix}" for suffix in IMAGE_SUFFIXES]
    if isinstance(field, Audio | Video):
        suffixes = AUDIO if isinstance(field, Audio) else VIDEO
        return [f"{stem}.{field.encoding if field.encoding in suffixes else field.kind}"]
    return [f"{stem}.{ {'int': 'cls', 'text': 'txt', 'json': 'json'}.get(field.kind, 'npy') }"]


@dataclasses.dataclass(frozen=True)
class Note:
    """Metadata of our own archives. ``key``: the field that the members' keys are, if any."""

    schema: Schema
    extensions: dict[str, list[str]]
    key: str | None = None
    samples: int = 0
    size: int = 0

    def to_bytes(self) -> bytes:
        """The header; as long for every number of samples and bytes."""
        numbers = {"samples": self.samples, "size": self.size}
        document = {
            "batchplant": 1,
            "schema": self.schema.to_json(),
            "extensions": self.extensions,
            "key": self.key,
            **numbers,
        }
        room = _ROOM - sum(len(str(number)) for number in numbers.values())
        return _native.tar_comment(json.dumps(document).encode() + b" " * room)

    @classmethod
    def from_comment(cls, comment: bytes) -> Note | None:
        """The note in an archive's comment; None if another writer made it."""
        if not comment.startswith(_MARK.encode()):
            return None
        with exceptions_as(DamagedError, "its note is damaged", *NOTE_ERRORS, SchemaError, offset=0):
            document = parse_object(comment)
            schema, extensions, key = (
                Schema.from_json(document["schema"]),
                document["extensions"],
                document["key"],
            )
            lists = isinstance(extensions, dict) and all(
                isinstance(extension, list) and all(isinstance(ending, str) for ending in extension)
                for extension in extensions.values()
            )
            if not lists or set(extensions) != set(schema) - {key} or (key is not None and key not in schema):
                raise ValueError("it does not say where every field is")
            return cls(schema, extensions, key, int(document["samples"]), int(document["size"]))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(), "extensions": self.extensions, "key": self.key,
            "samples": self.samples, "size": self.size,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Note:
        return cls(**{**document, "schema": Schema.from_json(document["schema"])})
