"""The layouts that datasets are published in, as data: their files, splits, labels and names of classes.

A pattern names the files that hold the samples, by their names in the folder. Its group ``split`` is the
split, and ``variant`` one of several datasets that share a folder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from ..base.folders.media import CLIPS, GROUND_TRUTH

# Words for a split that files use.
SPLITS = {"data": "train", "t10k": "test"}
CIFAR_PIXELS = (3, 32, 32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout. ``parser``: the function of ``parsers`` that reads it. ``labels``: where the label of each
    field is: a key of a pickle, or a byte of a record. ``classes``: the file that names the classes of a
    field, and a key in it. ``beside``: names that the folder has, too. ``media``: a column of paths."""

    title: str
    files: str
    parser: str
    labels: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    beside: tuple[str, ...] = ()
    pixels: tuple[int, int, int] | None = None

    def match(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the files of each split among these names; empty where they are not of this layout."""
        names = set(names)
        splits: dict[str, list[str]] = {}
        for name in sorted(names if names.issuperset(self.beside) else ()):
            if matched := re.fullmatch(self.files, name):
                groups = matched.groupdict()
                split = SPLITS.get(groups["split"], groups["split"])
                variant = groups.get("variant")
                splits.setdefault(f"{variant}-{split}" if variant else split, []).append(name)
        return splits


LAYOUTS: dict[str, Layout] = {
    "mnist": Layout(
        "MNIST, Fashion-MNIST, KMNIST, EMNIST (IDX)",
        r"(?:emnist-(?P<variant>[a-z]+)-)?(?P<split>train|test|t10k)-images[-.]idx3-ubyte(?:\.gz)?",
        "idx",
        labels={"label": "labels"},
        classes={"label": ("emnist-{variant}-mapping.txt", "")},
    ),
    "cifar10": Layout(
        "CIFAR-10, Python version",
        r"(?P<split>data|test)_batch(?:_\d+)?",
        "pickles",
        labels={"label": "labels"},
        classes={"label": ("batches.meta", "label_names")},
        pixels=CIFAR_PIXELS,
    ),
    "cifar100": Layout(
        "CIFAR-100, Python version",
        r"(?P<split>train|test)",
        "pickles",
        labels={"label": "fine_labels", "coarse_label": "coarse_labels"},
        classes={"label": ("meta", "fine_label_names"), "coarse_label": ("meta", "coarse_label_names")},
        beside=("meta",),
        pixels=CIFAR_PIXELS,
    ),
    "cifar10-binary": Layout(
        "CIFAR-10, binary version",
        r"(?P<split>data|test)_batch(?:_\d+)?\.bin",
        "records",
        labels={"label": 0},
        classes={"label": ("batches.meta.txt", "")},
        pixels=CIFAR_PIXELS,
    ),
    "cifar100-binary": Layout(
        "CIFAR-100, binary version",
        r"(?P<split>train|test)\.bin",
        "records",
        labels={"coarse_label": 0, "label": 1},
        classes={"label": ("fine_label_names.txt", ""), "coarse_label": ("coarse_label_names.txt", "")},
        beside=("fine_label_names.txt",),
        pixels=CIFAR_PIXELS,
    ),
    "ilsvrc2012": Layout("ILSVRC 2012, archives", r"ILSVRC2012_img_(?P<split>train|val)\.tar", "archives"),
    "ilsvrc2012-val": Layout(
        "ILSVRC 2012, flat validation set",
        r"ILSVRC2012_(?P<split>val)_\d{8}\.JPEG",
        "flat",
        beside=(GROUND_TRUTH,),
    ),
    "commonvoice": Layout(
        "Common Voice",
        r"(?P<split>train|dev|test|validated|invalidated|other)\.tsv",
        "clips",
        beside=(CLIPS,),
    ),
}


def find(names: Iterable[str]) -> tuple[str, dict[str, list[str]]] | None:
    """Return the layout that a folder of these names has, and its splits."""
    names = list(names)
    return next(((name, splits) for name, layout in LAYOUTS.items() if (splits := layout.match(names))), None)
