"""Media that folders hold, and how they are recognised: by files, annotations beside images, or masks."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ....codecs.media import audio, image, video
from ....errors import AccessError, BatchplantError, DamagedError, NotFoundError, OptionError, SchemaError
from ....schema import Audio, Field, Image, Video
from ....schema.columns import U8, Ragged
from ....storage import join, open_source, parse_object, read_beside, tree
from ....storage.zips import ZipMembers
from ..format import Probe
from .files import FileNames

COCO, YOLO, VOC, PUBLISHED, KALDI, LHOTSE = "coco", "yolo", "voc", "published", "kaldi", "lhotse"
# Of Kaldi: the list of recordings.
RECORDINGS = "wav.scp"
# Of ILSVRC beside its validation images; of Common Voice, whose sounds are in a folder beside tables.
GROUND_TRUTH, CLIPS = "ILSVRC2012_validation_ground_truth.txt", "clips/"
_CUTS = re.compile(r"cuts(\.[\w-]+)?\.jsonl(\.gz|\.zst)?")
# Bytes of a file that tell what it is.
HEAD_BYTES = 1 << 16
# Files of annotations lie alone, or few beside each other; many are something else.
MAX_ANNOTATION_FILES = 8
# Archives of annotations as COCO publishes them, and the files in them.
_ZIP = re.compile(r"(image_info|stuff|panoptic)?_?annotations_\w+\.zip")
_MEMBER = re.compile(r"annotations/[^/]+\.json")
_LIST = re.compile(rb'"(images|annotations)"\s*:\s*\[')
_NAMES = re.compile(rb"^\s*names\s*:", re.M)
_PATHS = re.compile(rb"^\s*(train|val|test|nc)\s*:", re.M)
_OBJECT = re.compile(rb"\s*\d+(\s+[-+.\deE]+){4,}\s*")


def is_cuts(name: str) -> bool:
    """Return whether a file of this name has cuts of lhotse."""
    return _CUTS.fullmatch(name) is not None


def is_coco(head: bytes) -> bool:
    """True if a JSON file that begins so is one of COCO: lists of images and of what is on them."""
    if head.lstrip()[:1] != b"{" or _LIST.search(head) is None:
        return False
    images = b'"file_name"' in head and b'"id"' in head
    objects = any(key in head for key in (b'"category_id"', b'"caption"', b'"segments_info"', b'"bbox"'))
    return images or (b'"image_id"' in head and objects)


def annotated(probe: Probe) -> str | None:
    """Return the format whose annotations a folder has; ``probe.ask(annotated)`` looks once."""
    if not probe.folder:
        return None
    names = set(probe.names)
    if GROUND_TRUTH in names or (CLIPS in names and any(name.endswith(".tsv") for name in names)):
        return PUBLISHED
    if RECORDINGS in names:
        return KALDI
    if any(map(is_cuts, names)):
        return LHOTSE
    with contextlib.suppress(BatchplantError, OSError):
        if _is_voc(probe.path, names):
            return VOC
        if next(coco_files(probe.path, probe.names), None) is not None or zipped_coco(
            probe.path, probe.names
        ):
            return COCO
        if _is_yolo(probe.path, names):
            return YOLO
    return None


def coco_files(path: str, names: list[str]) -> Iterator[str]:
    """The files of a folder, by their paths below it, that hold annotations as COCO has them."""
    files = [name for name in names if name.endswith(".json")][:MAX_ANNOTATION_FILES]
    if "annotations/" in names:
        below = tree.some_names(join(path, "annotations"), 1000)
        files += [f"annotations/{name}" for name in sorted(below) if name.endswith(".json")]
    for name in files:
        if not os.path.basename(name).startswith(".") and is_coco(_head(join(path, name))):
            yield name


def zipped_coco(path: str, names: list[str]) -> dict[str, str]:
    """Return the files of annotations in the archives of a folder, each with the name of its archive."""
    members: dict[str, str] = {}
    for name in (name for name in names if _ZIP.fullmatch(name)):
        with contextlib.closing(open_source(join(path, name))) as source:
            members |= {member: name for member in ZipMembers(source) if _MEMBER.fullmatch(member)}
    return members


def _is_voc(path: str, names: set[str]) -> bool:
    if {"Annotations/", "JPEGImages/"} <= names:
        return True
    # What tools call the same.
    if not {"annotations/", "images/"} <= names:
        return False
    return any(name.endswith(".xml") for name in tree.some_names(join(path, "annotations"), PROBED_NAMES))


def _is_yolo(path: str, names: set[str]) -> bool:
    for name in names:
        if name.endswith((".yaml", ".yml")) and is_yaml(_head(join(path, name))):
            return True
    if not {"images/", "labels/"} <= names:
        return False
    for folder in (join(path, "labels"), *_folders(join(path, "labels"))):
        below = list(tree.some_names(folder, PROBED_NAMES))
        if any(os.path.splitext(name)[1].lower() in image.SUFFIXES for name in below):
            return False
        if any(name.endswith(".txt") and is_labels(_head(join(folder, name))) for name in below[:8]):
            return True
    return False


def is_yaml(head: bytes) -> bool:
    """True if YAML names classes and splits."""
    return _NAMES.search(head) is not None and _PATHS.search(head) is not None


def is_labels(text: bytes) -> bool:
    """True if lines are a class and its box, polygon or keypoints; no line is no object."""
    lines = [line for line in text.splitlines()[:8] if line.strip()]
    # The last one may be cut.
    complete = lines[:-1] if len(text) >= HEAD_BYTES else lines
    return all(_OBJECT.fullmatch(line) for line in complete)


def _folders(path: str) -> list[str]:
    folders = tree.some_names(path, PROBED_NAMES)
    return [join(path, name.rstrip("/")) for name in sorted(folders) if tree.is_folder(join(path, name))][:4]


def _head(path: str) -> bytes:
    with contextlib.suppress(BatchplantError, OSError), contextlib.closing(open_source(path)) as source:
        return source.view(0, min(HEAD_BYTES, source.size)).tobytes()
    return b""


# What folders are called in which images lie, and those in which the masks of these lie.
IMAGES = {"images", "image", "imgs", "img"}
MASKS = {
    "masks", "mask", "labels", "label", "annotations", "annotation", "segmentations", "segmentation",
    "segmentation_masks",
}  # fmt: skip

# What the names of masks may have behind those of their images: 001_mask.png of 001.jpg.
BEHIND = ("", "_mask", "-mask", "_masks", "_seg", "_segmentation", "_label", "_gt")

# None: found by the names; False: every folder is a class; else field → folder, or the folders.
Asked = bool | str | Sequence[str] | Mapping[str, str] | None


def pairs_of(
    files: FileNames, tops: Collection[str], requested: Asked, path: str
) -> dict[str, list[str]] | None:
    """Field → its files, sample by sample, the images first; None where folders (tops) are classes."""
    if requested is False:
        return None
    fields = _asked(requested, path) if requested is not None else None
    if fields is None:
        fields = _told(files, tops, path)
    if fields is None:
        return None
    for folder in fields.values():
        if folder not in tops:
            raise OptionError(f"there are no images in a folder {folder!r}", path=path)
    stems = {field: _stems(files, folder, path) for field, folder in fields.items()}
    first = next(iter(stems.values()))
    for field in list(stems)[1:]:
        stems[field] = _without_ends(stems[field], first)
    other_stems = list(stems.values())[1:]
    if (
        not any(first.keys() & stems_of_folder.keys() for stems_of_folder in other_stems)
        and first
        and all(other_stems)
    ):
        shown = " and ".join(next(iter(stem.values())) for stem in stems.values())
        raise SchemaError(
            f"{' and '.join(fields.values())} hold no files of one name ({shown}), so nobody can tell which "
            "belong together; pairs=False takes the folders for classes",
            path=path,
        )
    for field, pairs in stems.items():
        for stems_of_folder in stems.values():
            lost = next((stem for stem in pairs if stem not in stems_of_folder), None)
            if lost is not None:
                where = next(fields[name] for name, stem in stems.items() if stem is stems_of_folder)
                raise SchemaError(
                    f"{pairs[lost]} has no partner in {where}; pairs=False takes {fields[field]} and {where} "
                    "for classes",
                    path=path,
                )
    return {field: [pairs[stem] for stem in sorted(first)] for field, pairs in stems.items()}


def _told(files: FileNames, tops: Collection[str], path: str) -> dict[str, str] | None:
    """The folders of images and masks, by their names; None where folders are classes."""
    _check_below(files.folders, tops, path)
    images = [name for name in tops if name.lower() in IMAGES]
    masks = [name for name in tops if name.lower() in MASKS]
    if len(tops) == 1 and images:
        beside = [entry.name for entry in tree.entries(path) if entry.folder and entry.name.lower() in MASKS]
        if beside:
            raise SchemaError(
                f"{beside[0]} beside {images[0]} holds neither masks (images) nor labels of YOLO, COCO or "
                f"VOC; pairs=False opens the images of {images[0]} alone",
                path=path,
            )
    if not images or not masks or "" in files.folders:
        return None
    if len(tops) == 2:
        return {"image": images[0], "mask": masks[0]}
    folders = [name for name in sorted(tops) if name != images[0]]
    named = ", ".join(f"{name!r}: {name!r}" for name in folders if name not in masks[:1])
    raise SchemaError(
        f"{', '.join(folders)} lie beside {images[0]}: say what is what with "
        f"pairs={images[0]},{masks[0]} or pairs={{'image': {images[0]!r}, 'mask': {masks[0]!r}, {named}}}; "
        "pairs=False takes every folder for a class",
        path=path,
    )


def _check_below(folders: Sequence[str], tops: Collection[str], path: str) -> None:
    """Folders that each have images and masks are no classes, but splits."""
    inside: dict[str, set[str]] = {top: set() for top in tops}
    for folder in folders:
        if os.sep in folder:
            top, inner = folder.split(os.sep)[:2]
            inside[top].add(inner.lower())
    if inside and all(kinds & IMAGES and kinds & MASKS for kinds in inside.values()):
        example = min(inside)
        raise SchemaError(
            f"{' and '.join(sorted(inside))} each have images and masks: open one of them, as "
            f"{os.path.join(path, example)}; pairs=False takes them for classes",
            path=path,
        )


def _without_ends(stems: dict[str, str], first: dict[str, str]) -> dict[str, str]:
    """Names without what masks have behind those of their images, where all of them have it."""
    for end in BEHIND:
        if stems and all(stem.endswith(end) for stem in stems):
            short = {stem[: len(stem) - len(end)]: name for stem, name in stems.items()}
            if short.keys() & first.keys():
                return short
    return stems


def _asked(requested: bool | str | Sequence[str] | Mapping[str, str], path: str) -> dict[str, str] | None:
    if requested is True:
        return None
    if isinstance(requested, str):
        requested = [part.strip() for part in requested.split(",")]
    if isinstance(requested, Mapping):
        patterns = {str(field): str(folder) for field, folder in requested.items()}
    elif isinstance(requested, Sequence):
        names = ["image" if n == 0 else "mask" if n == 1 else str(key) for n, key in enumerate(requested)]
        patterns = dict(zip(names, map(str, requested), strict=True))
    else:
        patterns = {}
    if len(patterns) < 2:
        raise OptionError(
            f'pairs is {{"image": "images", "mask": "masks"}}, "images,masks", or False; not {requested!r}',
            path=path,
        )
    return patterns


def _stems(files: Sequence[str], folder: str, path: str) -> dict[str, str]:
    """Path below the folder, without the suffix → file."""
    stems: dict[str, str] = {}
    for name in files:
        if name.startswith(folder + os.sep):
            stem = os.path.splitext(name[len(folder) + 1 :])[0]
            if stem in stems:
                raise DamagedError(
                    f"{stems[stem]} and {name} have one name, and each needs a partner", path=path
                )
            stems[stem] = name
    return stems


METADATA_NAME = ".batchplant.json"
# Enough to tell which kinds of files lie in class folders: so many folders, so many names in each.
PROBED_FOLDERS, PROBED_NAMES = 8, 100
FILE_NAME = "file_name"
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
METADATA = ("metadata.jsonl", "metadata.csv")
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
            lines = file.read(HEAD_BYTES).decode("utf-8", "replace").splitlines()
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
