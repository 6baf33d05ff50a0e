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

The layouts are a table: patterns of names, places of labels, files with names of classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..codecs.infer import infer_image
from ..codecs.text import Texts
from ..codecs.text import column as text_column
from ..data.keys import FormatKeys
from ..data.reader import Reader, ReaderWrapper, open_reader
from ..errors import DamagedError, NotFoundError, OptionError, UnsafeError, exceptions_as, located
from ..schema import Audio, Field, Image, Int, Schema, Text, field_from_json
from ..schema.columns import I32, I64, AnyArray, Columns, Ragged, starts_of
from ..storage import (
    NOTE_ERRORS,
    Source,
    absolute,
    index,
    is_below,
    join,
    limits,
    open_source,
    parent,
    parse_object,
    read_beside,
    read_whole,
    tree,
)
from ..storage.compressed import UnpackedSource, collect, inflate, unpack
from ..storage.spans import Spans
from .base.folders.media import CLIPS, GROUND_TRUTH
from .base.format import Capabilities, Format, Probe, archives_within
from .base.manifest import MediaReader, tar_members
from .base.memory import MemoryReader
from .base.texttable import TextTable, split_cells
from .base.unpickle import CONTAINERS, Maker, Record, Unpickler

# -- layouts ------------------------------------------------------------------------------------------
# The layouts that datasets are published in, as data: their files, splits, labels and names of classes.
#
# A pattern names the files that hold the samples, by their names in the folder. Its group ``split`` is the
# split, and ``variant`` one of several datasets that share a folder.

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


# -- parsers ------------------------------------------------------------------------------------------
# Parsers of the files that datasets are published in: arrays of pixels, archives of archives, tables.

IMAGE = "image"
DEVKIT = "ILSVRC2012_devkit_t12"
# Classes of the challenge; synsets above them have larger numbers.
ILSVRC_CLASSES = 1000
# Arrays of an index.
NUMBERS = ("starts", "sizes", "labels")
PROBED_IMAGES, HEAD_BYTES = 48, 1 << 16


@dataclasses.dataclass(frozen=True)
class Request:
    """Files of one split in a folder, to open."""

    folder: str
    layout: Layout
    split: str
    files: list[str]
    index: str

    def path(self, name: str) -> str:
        return join(self.folder, name)

    def names_of(self, field: str) -> tuple[str, ...] | None:
        """Return the names of classes, if the file with them is there."""
        if field not in self.layout.classes:
            return None
        name, key = self.layout.classes[field]
        path = self.path(name.format(variant=self.split.rpartition("-")[0]))
        data = read_beside(path)
        if data is None:
            return None
        with located(path=path):
            if key:
                names = _unpickled(data).get(key)
            elif "{" in name:
                names = _mapped(data)
            else:
                names = data.decode("utf-8", "replace").split()
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DamagedError(f"there are no names of classes in it ({key})")
            return tuple(names)


class Part(NamedTuple):
    """Runs of bytes of a source that are images, and their labels."""

    source: Source
    starts: I64
    sizes: I64
    labels: Mapping[str, AnyArray] = {}


class RunsReader(Reader):
    """Images that are runs of bytes, labels in memory. ``pixels``: (channels, height, width) of raw images,
    channel after channel. ``keys``: of the samples."""

    def __init__(
        self,
        path: str,
        parts: Sequence[Part],
        image: Image,
        fields: Mapping[str, Field],
        *,
        pixels: tuple[int, int, int] | None = None,
        keys: Ragged | None = None,
    ) -> None:
        self.path, self._pixels, self._key_cells = path, pixels, keys
        self._sources = [part.source for part in parts]
        counts = [len(part.starts) for part in parts]
        self.length = sum(counts)
        self._unpacked = any(isinstance(source, UnpackedSource) for source in self._sources)
        self._in_place = not self._unpacked and (pixels is None or pixels[0] == 1)
        self._file: I32 = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        self._starts: I64 = np.concatenate([part.starts for part in parts])
        self._sizes: I64 = np.concatenate([part.sizes for part in parts])
        for part in parts:
            bad = part.source.outside(part.starts, part.sizes)
            if bad is not None:
                raise DamagedError("an image ends outside of the file", path=part.source.path, sample=bad)
        self._labels = {name: np.concatenate([part.labels[name] for part in parts]) for name in fields}
        for name, field in fields.items():
            assert isinstance(field, Int)
            wrong = self._labels[name] >= len(field.names or ())
            if field.names and wrong.any():
                row = int(np.argmax(wrong))
                label = int(self._labels[name][row])
                raise DamagedError(f"there is no class {label}", path=path, sample=row, field=name)
        self.schema = Schema({IMAGE: image, **fields})

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns(
            (name, self._images(indices) if name == IMAGE else self._labels[name][indices]) for name in fields
        )

    def _images(self, indices: I64) -> Ragged:
        cells = self._runs(indices).gather()
        if self._pixels is None:
            return cells
        rows = cells.data.reshape(len(indices), *self._pixels).transpose(0, 2, 3, 1)
        return Ragged(np.ascontiguousarray(rows).reshape(-1), cells.offsets, self._shapes(len(indices)))

    def _runs(self, indices: I64, shapes: I32 | None = None) -> Spans:
        return Spans(self._sources, self._starts[indices], self._sizes[indices], self._file[indices], shapes)

    def _shapes(self, count: int) -> I32:
        assert self._pixels is not None
        channels, height, width = self._pixels
        return np.full((count, 3), (height, width, channels), dtype=np.int32)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != IMAGE or not self._in_place:
            return None
        return self._runs(indices, None if self._pixels is None else self._shapes(len(indices)))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self._runs(indices if IMAGE in fields and not self._unpacked else indices[:0])

    def _keys(self) -> FormatKeys | None:
        return None if self._key_cells is None else FormatKeys(Text(), self._key_cells.take)

    def close(self) -> None:
        for source in self._sources:
            source.close()


# -- arrays of pixels ---------------------------------------------------------------------------------


def idx(request: Request) -> Reader:
    """Images and labels in two IDX files."""
    parts, shape = [], None
    for name in request.files:
        with located(path=request.path(name)):
            images, shape, start = _idx(request.path(name), 3)
        labels_name = name.replace("images", "labels").replace("idx3", "idx1")
        with located(path=request.path(labels_name)):
            labels, (count,), first = _idx(request.path(labels_name), 1)
            if count != shape[0]:
                raise DamagedError(f"it has {count} labels of {shape[0]} images", offset=4)
            values = labels.view(first, count).copy()
            labels.close()
        parts.append(_rows(images, start, shape[0], shape[1] * shape[2], {"label": values}))
    assert shape is not None
    fields = {"label": Int("uint8", names=request.names_of("label"))}
    return RunsReader(request.folder, parts, Image("raw", "L"), fields, pixels=(1, shape[1], shape[2]))


def _idx(path: str, axes: int) -> tuple[Source, list[int], int]:
    """Return the source of an IDX file of bytes, its shape, and where its values begin."""
    source = open_source(path)
    if source.view(0, min(2, source.size)).tobytes() == b"\x1f\x8b":
        packed, source = source, unpack(source, "gzip")
        packed.close()
    if source.view(0, 4).tobytes() != bytes([0, 0, 8, axes]):
        raise DamagedError(f"it is no IDX file of bytes with {axes} axes", offset=0)
    shape = source.array(">u4", 4, axes).tolist()
    start = 4 + 4 * axes
    if start + int(np.prod(shape, dtype=object)) != source.size or (axes > 1 and 0 in shape[1:]):
        raise DamagedError(f"values of shape {shape} do not take {source.size - start} bytes", offset=4)
    return source, shape, start


def _rows(
    source: Source, start: int, count: int, stride: int, labels: Mapping[str, AnyArray], head: int = 0
) -> Part:
    """Return images of one size that lie at a stride, behind ``head`` bytes each."""
    starts = start + head + stride * np.arange(count, dtype=np.int64)
    return Part(source, starts, np.full(count, stride - head, dtype=np.int64), labels)


def records(request: Request) -> Reader:
    """Records of labels, a byte each, and pixels."""
    layout, parts = request.layout, []
    assert layout.pixels is not None
    head, width = len(layout.labels), int(np.prod(layout.pixels))
    for name in request.files:
        source = open_source(request.path(name))
        count, remainder = divmod(source.size, head + width)
        if remainder:
            raise DamagedError(
                f"{source.size} bytes are no whole records of {head + width}", path=source.path
            )
        column = source.gather_rows(0, head + width, head, np.arange(count))
        labels = {
            field: column[:, byte].copy() for field, byte in layout.labels.items() if isinstance(byte, int)
        }
        parts.append(_rows(source, 0, count, head + width, labels, head))
    return RunsReader(request.folder, parts, Image("raw"), _fields(request), pixels=layout.pixels)


def pickles(request: Request) -> Reader:
    """Pickled dicts of an array of pixels and lists of labels."""
    layout, parts = request.layout, []
    assert layout.pixels is not None
    width = int(np.prod(layout.pixels))
    for name in request.files:
        path = request.path(name)
        source = open_source(path)
        with located(path=path):
            batch = _unpickled(source.view(0, source.size))
            pixels = _array(batch.get("data"), width)
            labels = {field: _labels(batch.get(key), len(pixels)) for field, key in layout.labels.items()}
        source.close()
        unpacked = UnpackedSource(path, pixels.reshape(-1))
        parts.append(_rows(unpacked, 0, len(pixels), width, labels))
    return RunsReader(request.folder, parts, Image("raw"), _fields(request), pixels=layout.pixels)


def _fields(request: Request) -> dict[str, Field]:
    return {name: Int("uint8", names=request.names_of(name)) for name in request.layout.labels}


def _labels(values: object, count: int) -> AnyArray:
    if not isinstance(values, list) or len(values) != count or not all(type(v) is int for v in values):
        raise DamagedError(f"there are no {count} labels in it")
    if values and not 0 <= min(values) <= max(values) <= 255:
        raise DamagedError("a label is no byte")
    return np.array(values, dtype=np.uint8)


def _array(record: object, width: int) -> AnyArray:
    """Return the rows of an array of bytes: its state is (version, shape, dtype, Fortran order, bytes)."""
    match record:
        case Record(
            "ndarray", (_, (int(rows), int(columns)), "u1" | "uint8", False, str() | bytes() as data)
        ):
            content = data.encode("latin1") if isinstance(data, str) else data
            if columns == width and rows >= 0 and rows * columns == len(content):
                return np.frombuffer(content, dtype=np.uint8).reshape(rows, columns)
    raise DamagedError(f"there are no pixels in it, {width} bytes for each image")


class _ArrayUnpickler(Unpickler):
    """Unpickles arrays of NumPy as their states."""

    encoding = "latin1"

    @staticmethod
    def find(module: str, name: str) -> object:
        if (module, name) in CONTAINERS:
            return CONTAINERS[module, name]
        if module.startswith("numpy"):
            if name == "_reconstruct":
                return Maker(lambda *_: Record("ndarray"))
            if name == "_frombuffer":
                # What protocol 5 has as a buffer.
                return Maker(
                    lambda data, dtype, shape, order: Record("ndarray", (1, shape, dtype, order != "C", data))
                )
            if name in ("ndarray", "dtype"):
                return Maker(lambda code="", *_: code)
        raise UnsafeError(
            f"its pickle asks for {module[:80]}.{name[:80]}, which no array needs; it is not loaded"
        )


def _unpickled(data: Any) -> dict[Any, Any]:
    batch = _ArrayUnpickler(memoryview(data)).load()
    if not isinstance(batch, dict):
        raise DamagedError("its pickle is no dict")
    return {
        name.decode("latin1") if isinstance(name, bytes) else name: value for name, value in batch.items()
    }


def _mapped(data: bytes) -> list[str]:
    """Return the characters that EMNIST's labels stand for: lines of a label and codes of characters."""
    try:
        lines = [list(map(int, line.split())) for line in data.decode().splitlines() if line.strip()]
        if [line[0] for line in lines] != list(range(len(lines))):
            raise ValueError("labels are not in order")
        return ["".join(map(chr, line[1:])) for line in lines]
    except (ValueError, IndexError, OverflowError) as error:
        raise DamagedError(f"it is no mapping of labels: {error}") from None


# -- ILSVRC -------------------------------------------------------------------------------------------


def archives(request: Request) -> Reader:
    """An archive of an archive for each class, or of all images."""
    [name] = request.files
    path = request.path(name)
    source = open_source(path)
    with located(path=path):
        scan = functools.partial(_scan_images, nested=request.split == "train")
        loaded = index.load(source, "published", scan, mode=request.index, check=_is_scan)
    arrays = loaded.arrays
    keys = Ragged(arrays["keys"], arrays["key_offsets"])
    if request.split == "train":
        names = arrays["classes"].tobytes().decode("utf-8", "replace").split("\n")
        labels = {"label": arrays["labels"]}
        fields: dict[str, Field] = {"label": Int(names=tuple(names))}
    else:
        fields, labels = _truth(
            request, [key.tobytes().decode("utf-8", "replace") for key in keys if key is not None]
        )
    part = Part(source, arrays["starts"], arrays["sizes"], labels)
    return RunsReader(request.folder, [part], _image_of(loaded), fields, keys=keys)


def _is_scan(loaded: index.Index) -> bool:
    count = len(loaded.arrays["starts"])
    return (
        loaded.has(starts="i8", sizes="i8", labels="i8", key_offsets="i8", keys="u1", classes="u1")
        and all(len(loaded.arrays[name]) == count for name in ("sizes", "labels"))
        and len(loaded.arrays["key_offsets"]) == count + 1
        and int(loaded.arrays["key_offsets"][-1]) == len(loaded.arrays["keys"])
        and bool((np.diff(loaded.arrays["key_offsets"]) >= 0).all())
        and bool((loaded.arrays["labels"] >= 0).all())
        and _image_of(loaded) is not None
    )


def _image_of(loaded: index.Index) -> Image:
    image = field_from_json(loaded.facts["image"])
    if not isinstance(image, Image):
        raise DamagedError("the index is of no images")
    return image


def _scan_images(source: Source, report: index.Report, *, nested: bool) -> tuple[index.Arrays, index.Facts]:
    """Locate the images of an archive, or of the archives in it, whose names are then the classes."""
    members = _images(source, 0, source.size)
    rows = [(*image, 0) for image in members]
    classes = [key for key, _, _ in members] if nested else []
    if nested:
        rows = []
        for label, (_, start, size) in enumerate(members):
            rows += [(*image, label) for image in _images(source, start, size)]
            report(start + size)
    keys, *numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    chosen = rows[:: max(1, len(rows) // PROBED_IMAGES)]
    heads = [source.view(start, min(size, HEAD_BYTES)) for _, start, size, _ in chosen]
    image = infer_image(Ragged.from_cells(heads)) if heads else None
    arrays = {name: np.array(values, dtype=np.int64) for name, values in zip(NUMBERS, numbers, strict=True)}
    arrays["keys"] = np.frombuffer(b"".join(keys), dtype=np.uint8)
    arrays["key_offsets"] = starts_of(np.array([len(key) for key in keys], dtype=np.int64))
    arrays["classes"] = np.frombuffer(b"\n".join(classes), dtype=np.uint8)
    return arrays, {"image": (image or Image()).to_json()}


def _images(source: Source, start: int, size: int) -> list[tuple[bytes, int, int]]:
    return sorted((key, first, length) for key, _, first, length in tar_members(source, start, size))


def flat(request: Request) -> Reader:
    """A folder of images whose labels are the lines of a file."""
    names = sorted(name for name in tree.names(request.folder) if re.fullmatch(request.layout.files, name))
    fields, labels = _truth(request, [name.removesuffix(".JPEG") for name in names])
    table = MemoryReader({IMAGE: names, **labels}, schema={IMAGE: Text(), **fields})
    return MediaReader(table, media={IMAGE: Image()}, folder=request.folder)


def _truth(request: Request, keys: list[str]) -> tuple[dict[str, Field], dict[str, AnyArray]]:
    """Return the labels of validation images, whose names end with the number of their line.

    ``label`` is the class as in the training set, in order of the synsets' names, where the development kit
    says which synset a number stands for; else ``ilsvrc_id`` is that number.
    """
    truth = _devkit(request, GROUND_TRUTH)
    if truth is None:
        raise NotFoundError(
            f"the labels are in {GROUND_TRUTH} of {DEVKIT}.tar.gz; put it beside the images",
            path=request.folder,
        )
    with exceptions_as(DamagedError, "the ground truth is no numbers", ValueError, OverflowError, IndexError):
        numbers = np.array(truth.decode().split(), dtype=np.int64)
        rows = np.array([int(key.rpartition("_")[2]) - 1 for key in keys], dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(numbers):
            raise ValueError(f"{len(numbers)} lines are fewer than images")
        ids = numbers[rows]
    meta = _devkit(request, "meta.mat")
    if meta is None:
        return {"ilsvrc_id": Int()}, {"ilsvrc_id": ids}
    synsets = {
        synset["ILSVRC2012_ID"]: synset["WNID"]
        for synset in _structures(meta, "synsets", "ILSVRC2012_ID", "WNID")
    }
    classes = {number: str(name) for number, name in synsets.items() if number <= ILSVRC_CLASSES}
    names = tuple(sorted(classes.values()))
    places = {number: names.index(name) for number, name in classes.items()}
    with exceptions_as(DamagedError, "the ground truth has an unknown class", KeyError, path=request.folder):
        labels = np.array([places[number] for number in ids.tolist()], dtype=np.int64)
    return {"label": Int(names=names)}, {"label": labels}


def _devkit(request: Request, name: str) -> bytes | None:
    """Return a file of the development kit: beside the images, in its folder, or in its archive."""
    for below in (name, f"{DEVKIT}/data/{name}"):
        data = read_beside(request.path(below))
        if data is not None:
            return data
    packed = request.path(f"{DEVKIT}.tar.gz")
    if not tree.is_file(packed):
        return None
    with contextlib.closing(open_source(packed)) as source:
        unpacked = collect(packed, inflate(source), source.size)
    with (
        exceptions_as(
            DamagedError, "no archive", tarfile.TarError, OSError, ValueError, EOFError, path=packed
        ),
        tarfile.open(fileobj=unpacked.file(), mode="r:") as archive,
    ):
        for member in archive:
            if member.isfile() and member.name.endswith(f"/data/{name}"):
                limits.check(member.name, member.size)
                file = archive.extractfile(member)
                return None if file is None else file.read()
    return None


# -- MATLAB -------------------------------------------------------------------------------------------
# Arrays of structures in files of version 5: enough to read ``meta.mat`` of ILSVRC.
#
# Elements: u32 type, u32 bytes, data padded to 8; up to 4 bytes of data may stand in the tag itself. A matrix
# holds flags, dimensions, a name, then its content: for structures the names of fields and a matrix for each
# field of each structure.

MATRIX, COMPRESSED = 14, 15
STRUCT, CHAR = 2, 4
MAT_NUMBERS = {
    1: "<i1",
    2: "<u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}
TEXTS = {16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
HEADER_BYTES = 128


def _structures(data: bytes, name: str, *fields: str) -> list[dict[str, Any]]:
    """Return the structures of an array, each with these fields that are numbers or texts."""
    errors = (ValueError, KeyError, IndexError, StopIteration, OverflowError, zlib.error, LookupError)
    with exceptions_as(DamagedError, "no MATLAB file of version 5", *errors):
        if data[124:128] != b"\x00\x01IM":
            raise ValueError("its header is another")
        for kind, content in _elements(data[HEADER_BYTES:]):
            if kind == COMPRESSED:
                limit = limits.allowed(len(content))
                [(kind, content)] = _elements(zlib.decompressobj().decompress(content, limit))
            if kind == MATRIX and (records := _structs(content, name, fields)) is not None:
                return records
        raise KeyError(name)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 8 <= len(data):
        kind, size = np.frombuffer(data, "<u4", 2, offset).tolist()
        start = offset + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, offset + 4
        if start + size > len(data):
            raise ValueError("an element ends outside of the file")
        yield kind, data[start : start + size]
        offset = (
            offset + 8 if start == offset + 4 else start + size + (-size % 8 if kind != COMPRESSED else 0)
        )


def _structs(content: bytes, name: str, fields: tuple[str, ...]) -> list[dict[str, Any]] | None:
    elements = _elements(content)
    flags, _, label = (next(elements)[1] for _ in range(3))
    if flags[0] != STRUCT or label.decode() != name:
        return None
    width = int.from_bytes(next(elements)[1], "little")
    names = next(elements)[1]
    columns = [
        names[first : first + width].rstrip(b"\0").decode() for first in range(0, len(names), max(width, 1))
    ]
    values = [value for _, value in elements]
    return [
        {field: _value(values[first + columns.index(field)]) for field in fields}
        for first in range(0, len(values), len(columns))
    ]


def _value(content: bytes) -> Any:
    elements = list(_elements(content))
    kind, data = elements[3]
    if kind in TEXTS or elements[0][1][0] == CHAR:
        return data.decode(TEXTS.get(kind, "utf-16-le" if kind == 4 else "latin1"))
    [value] = np.frombuffer(data, MAT_NUMBERS[kind]).tolist()
    return int(value)


# -- tables -------------------------------------------------------------------------------------------


def clips(request: Request) -> Reader:
    """A table of sentences and of names of sounds; quotes in it are no quotes."""
    [name] = request.files
    path = request.path(name)
    names, columns = split_cells(path)
    if "path" not in names or len(set(names)) < len(names):
        raise DamagedError("its header is not one of Common Voice", path=path, offset=0)
    fields = {
        name: Text() if not _are_votes(name, cells) else Int()
        for name, cells in zip(names, columns, strict=True)
    }
    table = TextTable(path, {name: (fields[name], cells) for name, cells in zip(names, columns, strict=True)})
    media = MediaReader(table, media={"path": Audio()}, folder=join(request.folder, CLIPS))
    return media.rename({"path": "audio"})


def _are_votes(name: str, cells: Texts) -> bool:
    """Return whether a column has numbers of votes."""
    if not name.endswith("_votes") or not len(cells.sizes):
        return False
    column = text_column(Text(), cells)
    assert isinstance(column, Ragged)
    # Longer ones are no votes, and could be too large for an integer.
    fits = bool((cells.sizes > 0).all() and (cells.sizes < 19).all())
    return fits and bool(((column.data >= ord("0")) & (column.data <= ord("9"))).all())


PARSERS: dict[str, Callable[[Request], Reader]] = {
    parser.__name__: parser for parser in (idx, records, pickles, archives, flat, clips)
}


# -- reader -------------------------------------------------------------------------------------------


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
        request = Request(folder, row, split, files[split], index)
        return PARSERS[row.parser](request)

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
