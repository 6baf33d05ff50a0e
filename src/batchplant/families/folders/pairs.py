"""Pictures and their masks in folders beside each other: ``images/001.jpg`` and ``masks/001.png``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ...errors import DamagedError, OptionError, SchemaError

# What folders are called in which pictures lie, and those in which the masks of these lie.
IMAGES = {"images", "image", "imgs", "img"}
MASKS = {
    "masks", "mask", "labels", "label", "annotations", "annotation", "segmentations", "segmentation",
    "segmentation_masks",
}  # fmt: skip

# None: found by the names; False: every folder is a class; else field → folder, or the folders.
Asked = bool | str | Sequence[str] | Mapping[str, str] | None


def tops_of(files: Sequence[str]) -> set[str]:
    """The folders at the top that files lie in."""
    return {name.partition(os.sep)[0] for name in files if os.sep in name}


def pairs_of(
    files: Sequence[str], tops: Collection[str], asked: Asked, path: str
) -> dict[str, list[str]] | None:
    """Field → its files, sample by sample, the pictures first; None where folders (tops) are classes."""
    if asked is False:
        return None
    fields = _asked(asked, path) if asked is not None else None
    if fields is None:
        if len(tops) != 2 or any(os.sep not in name for name in files):
            return None
        images = [name for name in tops if name.lower() in IMAGES]
        masks = [name for name in tops if name.lower() in MASKS]
        if len(images) != 1 or len(masks) != 1:
            return None
        fields = {"image": images[0], "mask": masks[0]}
    for folder in fields.values():
        if folder not in tops:
            raise OptionError(f"there are no pictures in a folder {folder!r}", path=path)
    stems = {field: _stems(files, folder, path) for field, folder in fields.items()}
    first, *others = stems.values()
    if asked is None and not any(first.keys() & other.keys() for other in others):
        return None
    for field, found in stems.items():
        for other in stems.values():
            lost = next((stem for stem in found if stem not in other), None)
            if lost is not None:
                where = next(fields[name] for name, one in stems.items() if one is other)
                raise SchemaError(
                    f"{found[lost]} has no partner in {where}; pairs=False takes {fields[field]} and {where} "
                    "for classes",
                    path=path,
                )
    return {field: [found[stem] for stem in sorted(first)] for field, found in stems.items()}


def _asked(asked: bool | str | Sequence[str] | Mapping[str, str], path: str) -> dict[str, str] | None:
    if asked is True:
        return None
    if isinstance(asked, str):
        asked = [part.strip() for part in asked.split(",")]
    if isinstance(asked, Mapping):
        found = {str(field): str(folder) for field, folder in asked.items()}
    elif isinstance(asked, Sequence):
        names = ["image" if n == 0 else "mask" if n == 1 else str(one) for n, one in enumerate(asked)]
        found = dict(zip(names, map(str, asked), strict=True))
    else:
        found = {}
    if len(found) < 2:
        raise OptionError(
            f'pairs is {{"image": "images", "mask": "masks"}}, "images,masks", or False; not {asked!r}',
            path=path,
        )
    return found


def _stems(files: Sequence[str], folder: str, path: str) -> dict[str, str]:
    """Path below the folder, without the suffix → file."""
    found: dict[str, str] = {}
    for name in files:
        if name.startswith(folder + os.sep):
            stem = os.path.splitext(name[len(folder) + 1 :])[0]
            if stem in found:
                raise DamagedError(
                    f"{found[stem]} and {name} have one name, and each needs a partner", path=path
                )
            found[stem] = name
    return found
