"""Images and their masks in folders beside each other: ``images/001.jpg`` and ``masks/001.png``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ....errors import DamagedError, OptionError, SchemaError
from ....storage import tree
from .files import FileNames

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
