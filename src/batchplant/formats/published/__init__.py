"""Datasets as they are published: MNIST, CIFAR, ILSVRC 2012, Common Voice, shards that a wids index lists.

A folder holds the files under the names that they were published with; nothing is unpacked or renamed.

- MNIST and its kin, EMNIST: IDX files, also behind gzip; ``image`` and ``label``.
- CIFAR-10 and CIFAR-100: the Python version, whose pickles are read without running anything, and the binary
  one; ``image``, ``label``, and ``coarse_label`` of CIFAR-100.
- ``ILSVRC2012_img_train.tar``, an archive of an archive for each class; ``ILSVRC2012_img_val.tar`` or its
  images beside ``ILSVRC2012_validation_ground_truth.txt``. The development kit beside them, packed or not,
  tells which classes the numbers of the ground truth are.
- Common Voice: the sounds in ``clips`` that a table names, as ``audio``, and its other columns.
- A JSON file of wids: the shards that it lists, one after another.

The layouts are a table (``layouts.py``): patterns of names, places of labels, files with names of classes.
"""

from __future__ import annotations

import os

from ...data.reader import Reader, ReaderWrapper, open_reader
from ...errors import DamagedError, NotFoundError, OptionError, exceptions_as, located
from ...schema import Audio, Image, Int, Text
from ...storage import NOTE_ERRORS, absolute, is_below, join, parent, parse_object, read_whole
from ..base.format import Capabilities, Format, Probe, archives_within
from . import parsers
from .layouts import LAYOUTS, find


class PublishedReader(ReaderWrapper):
    """Reads a dataset in the files that it was published in.

    ``split``: which one, where there are several, such as ``train`` or ``test``. ``layout``: its name, where
    the names of files do not tell it. ``index``: of archives; see the guide on index files.
    """

    def __init__(
        self, path: str, *, split: str | None = None, layout: str | None = None, index: str = "auto"
    ) -> None:
        self.layout = "wids"
        with located(path=path):
            base = self._opened(path, split, layout, index)
        super().__init__(base)
        self.path, self.format = path, "published"

    def _opened(self, path: str, split: str | None, layout: str | None, index: str) -> Reader:
        if layout not in (None, *LAYOUTS):
            raise OptionError(f"layout is one of {', '.join(LAYOUTS)}, not {layout!r}")
        probe = Probe(path)
        if _is_list(probe):
            return _shards(probe, index)
        folder = path if probe.folder else parent(absolute(path))
        names = probe.all_names if probe.folder else [os.path.basename(path)]
        splits = find(names) if layout is None else (layout, LAYOUTS[layout].match(names))
        if splits is None or not splits[1]:
            raise NotFoundError("no files of a layout that batchplant knows are here")
        self.layout, files = splits
        if split is None and len(files) > 1:
            raise OptionError(
                f"there are several splits: say which with split= (--option split=…): {', '.join(files)}"
            )
        split = next(iter(files)) if split is None else split
        if split not in files:
            raise OptionError(f"there is no split {split!r}; there are {', '.join(files)}")
        row = LAYOUTS[self.layout]
        request = parsers.Request(folder, row, split, files[split], index)
        return parsers.PARSERS[row.parser](request)

    def facts(self) -> dict[str, object]:
        layout = LAYOUTS.get(self.layout)
        return {**self.base.facts(), "layout": self.layout if layout is None else layout.title}


def _is_list(probe: Probe) -> bool:
    """True if it is a list of shards, as wids has it."""
    return b'"shardlist"' in probe.head and b'"wids_version"' in probe.head


def _shards(probe: Probe, index: str) -> Reader:
    """Return the samples of the shards that a list names, which lie below its folder."""
    with exceptions_as(DamagedError, "the list of shards is damaged", *NOTE_ERRORS):
        names = [shard["url"] for shard in parse_object(read_whole(probe.path))["shardlist"]]
    outside = next((name for name in names if not is_below(name)), None)
    if outside is not None:
        raise DamagedError(
            f"{str(outside)[:200]!r} is no path below the folder of the list; open the shards themselves"
        )
    if not names:
        raise DamagedError("the list of shards is empty")
    folder = parent(absolute(probe.path))
    return open_reader([join(folder, name) for name in names], format="webdataset", index=index)


def sniff(probe: Probe) -> bool:
    if not probe.folder:
        return _is_list(probe) or probe.ask(archives_within)
    return find(probe.names) is not None


FORMAT = Format(
    name="published",
    title="Datasets as published",
    suffixes=(),
    spec="https://docs.pytorch.org/vision/stable/datasets.html",
    reader=PublishedReader,
    sniff=sniff,
    kinds=(Image, Audio, Int, Text),
    folder=None,
    notes="MNIST, CIFAR, ILSVRC 2012, Common Voice, wids; read only, in place, nothing is unpacked",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        ecosystem=("torchvision", "WebDataset"),
    ),
)
