"""Annotation files beside images, by which detection formats are recognised."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from ....codecs.media import image
from ....errors import BatchplantError
from ....storage import join, open_source, tree
from ....storage.zips import ZipMembers
from ..format import Probe

COCO, YOLO, VOC, PUBLISHED, KALDI, LHOTSE = "coco", "yolo", "voc", "published", "kaldi", "lhotse"
# Of Kaldi: the list of recordings.
RECORDINGS = "wav.scp"
# Of ILSVRC beside its validation images; of Common Voice, whose sounds are in a folder beside tables.
GROUND_TRUTH, CLIPS = "ILSVRC2012_validation_ground_truth.txt", "clips/"
_CUTS = re.compile(r"cuts(\.[\w-]+)?\.jsonl(\.gz|\.zst)?")
# Names looked at in a folder, and bytes of a file.
PROBED_NAMES, HEAD_BYTES = 64, 1 << 16
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
