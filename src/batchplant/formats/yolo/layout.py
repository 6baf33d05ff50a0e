"""Images of a YOLO folder, the paths of their labels, and its YAML file."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any, NamedTuple

from ...data.config import parse_yaml
from ...errors import DamagedError, MissingLibraryError, NotFoundError
from ...storage import is_below, join, open_source, read_text, tree
from ..base.folders import IMAGE_FILES
from ..base.folders.files import Files

SPLITS = ("train", "val", "valid", "test")
# A longer file of YAML is none of YOLO's.
MOST = 1 << 20


class Layout(NamedTuple):
    """``splits``: images of each, by their paths below the root; ``folders``: the one that they lie in."""

    splits: dict[str, list[str]]
    folders: dict[str, str]
    labels: set[str]


def yaml_of(path: str) -> str | None:
    """The YAML file of a folder: data.yaml, or the only one."""
    found = [name for name in tree.names(path) if name.endswith((".yaml", ".yml")) and name[0] != "."]
    best = [name for name in ("data.yaml", "dataset.yaml", "data.yml") if name in found]
    if best or len(found) == 1:
        return [*best, *found][0]
    return _with_names(path, found)


def _with_names(path: str, found: list[str]) -> str | None:
    fitting = [name for name in found if "names" in read_yaml(join(path, name))]
    if len(fitting) > 1:
        raise DamagedError(f"there are several files of YAML: open one of {', '.join(fitting)}", path=path)
    return fitting[0] if fitting else None


def read_yaml(path: str) -> dict[str, Any]:
    """Parse a YAML file that describes a dataset."""
    source = open_source(path)
    try:
        text = source.view(0, min(source.size, MOST)).tobytes().decode("utf-8-sig")
        return parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it cannot be read: {error}", path=path) from None
    except MissingLibraryError as error:
        raise error.at(path=path) from None
    finally:
        source.close()


def find(root: str, below: Files, told: dict[str, Any]) -> Layout:
    """The images and the labels."""
    every = list(below.walk(lambda name: IMAGE_FILES.has(name) or name.endswith(".txt"), ".batchplant.json"))
    images = sorted(name for name in every if IMAGE_FILES.has(name))
    labels = {name for name in every if name.endswith(".txt")}
    splits: dict[str, list[str]] = {}
    folders: dict[str, str] = {}
    for split in (one for one in SPLITS if told.get(one)):
        places = told[split] if isinstance(told[split], list) else [told[split]]
        found = [_resolved(root, str(told.get("path") or ""), str(one)) for one in places]
        splits[split], folders[split] = [], found[0]
        for place in found:
            if place.endswith(".txt"):
                splits[split] += _listed(join(root, place), place)
                folders[split] = _above(splits[split], split)
            else:
                prefix = f"{place}/" if place else ""
                splits[split] += [name for name in images if name.startswith(prefix)]
    if splits:
        return Layout(splits, folders, labels)
    inside = [name for name in images if name.startswith("images/")]
    tops = {name.split("/")[1] if name.count("/") > 1 else "" for name in inside}
    if tops and tops <= set(SPLITS):
        names = [one for one in SPLITS if one in tops]
        return Layout(
            {one: [name for name in inside if name.startswith(f"images/{one}/")] for one in names},
            {name: f"images/{name}" for name in names},
            labels,
        )
    return Layout({"": inside}, {"": "images"}, labels)


def _above(names: list[str], split: str) -> str:
    """The folder that listed images lie in."""
    tried = (f"images/{split}", "images")
    return next((one for one in tried if names and all(name.startswith(one + "/") for name in names)), "")


def _resolved(root: str, base: str, name: str) -> str:
    """Resolve a path of the YAML file below the root."""
    plain = name.replace("\\", "/").rstrip("/")
    # Some write ../train/images for what lies beside the YAML.
    tried = [posixpath.join(base, plain), plain, re.sub(r"^(\.\./)+", "", plain)]
    for one in dict.fromkeys(map(posixpath.normpath, tried)):
        if one == "." or (is_below(one) and tree.exists(join(root, one))):
            return "" if one == "." else one
    raise NotFoundError(f"the YAML names {name!r}, and there is no such folder below it", path=root)


def _listed(path: str, name: str) -> list[str]:
    """The images that a list names, below the root."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        one = posixpath.normpath(line.strip().replace("\\", "/"))
        if not is_below(one):
            raise DamagedError(f"line {number}: {line.strip()!r} is no path below the folder", path=path)
        folder = posixpath.dirname(name)
        found.append(posixpath.join(folder, one) if line.strip().startswith("./") and folder else one)
    return found


def label_of(image: str) -> str:
    """Return the path of an image's labels: in labels/ if it lies in images/, else beside it."""
    parts = image.split("/")
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            break
    return os.path.splitext("/".join(parts))[0] + ".txt"


def class_names(told: dict[str, Any], path: str) -> tuple[str, ...] | None:
    """The names of the classes, by number."""
    names, count = told.get("names"), told.get("nc")
    if isinstance(names, dict):
        try:
            numbers = {int(number): str(name) for number, name in names.items()}
        except ValueError:
            raise DamagedError("names has a class without a number", path=path) from None
        if numbers and (min(numbers) < 0 or max(numbers) > 1 << 20):
            raise DamagedError("names has a class out of range", path=path)
        return tuple(numbers.get(one, str(one)) for one in range(max(numbers, default=-1) + 1))
    if isinstance(names, list):
        return tuple(str(name) for name in names)
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 1 << 20:
        return tuple(map(str, range(count)))
    return None
