"""YOLO: a text file of labels for each image.

``images/train/001.jpg`` and ``labels/train/001.txt``, a line for each object, its numbers in parts of the
image's width and height:

- detection: ``class cx cy w h``;
- segmentation: ``class x1 y1 x2 y2 x3 y3 …``;
- pose: ``class cx cy w h x1 y1 [visible] …``, with ``kpt_shape`` in the YAML.

``data.yaml`` names the classes (``names``) and the folders, or lists, of the splits (``train``, ``val``,
``test``). Without one, ``images/`` beside ``labels/`` is enough. An image without labels has no objects.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs.nested import json_text
from ..data.config import parse_yaml
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    MissingLibraryError,
    NotFoundError,
    OptionError,
    Problem,
    SchemaError,
)
from ..schema import Boxes, Field, Image, Int, Keypoints, Labels, Polygons, Schema, Tensor, Text
from ..schema.columns import I64, Columns, Ragged, as_bytes, starts_of
from ..storage import absolute, is_below, is_plain, join, open_source, parent, read_text, tree
from .base.detection import (
    FIELDS,
    DetectionReader,
    DetectionWriter,
    Entry,
    boxes_field,
    left_out,
    ragged,
    spread,
)
from .base.folders import IMAGE_FILES
from .base.folders.files import Files, open_files
from .base.folders.media import YOLO, annotated, is_yaml
from .base.format import Capabilities, Format, Probe

# -- labels -------------------------------------------------------------------------------------------
# Lines of labels: a class, then a box, an outline, or a box and keypoints.

F64 = npt.NDArray[np.float64]
# A class and a box.
BOX = 5


class Lines(NamedTuple):
    """The objects of all files: how many each file has, and the numbers of each line."""

    counts: I64
    values: F64
    ends: I64

    @property
    def sizes(self) -> I64:
        return np.diff(self.ends)


def parse(cells: Ragged) -> Lines:
    """The numbers of lines; what is none is a DamagedError with the file's row for sample."""
    data = cells.data[cells.offsets[0] : cells.offsets[-1]]
    edges = cells.offsets - cells.offsets[0]
    blank = (data == 32) | ((data >= 9) & (data <= 13))
    begins = ~blank
    begins[1:] &= blank[:-1]
    # A file may end without a new line.
    inside = edges[:-1][edges[:-1] < len(data)]
    begins[inside] = ~blank[inside]
    starts = np.flatnonzero(begins)
    stops = np.append(np.flatnonzero(blank), len(data))
    ends = np.minimum(stops[np.searchsorted(stops, starts)], edges[np.searchsorted(edges, starts, "right")])
    values = np.empty(len(starts), dtype=np.float64)
    file = np.searchsorted(edges, starts, side="right") - 1
    failure = _native.text_numbers(
        np.ascontiguousarray(data), starts, ends - starts, "f", 8, as_bytes(values)
    )
    if failure is not None:
        word = data[starts[failure[0]] : ends[failure[0]]][:40].tobytes().decode(errors="replace")
        raise DamagedError(f"{word!r} is no number", sample=int(file[failure[0]]))
    # Lines of one file differ in how many ends of lines are before them, and those of two in the file.
    line = np.searchsorted(np.flatnonzero((data == 10) | (data == 13)), starts) + file
    firsts = np.flatnonzero(np.append(True, line[1:] != line[:-1])) if len(line) else np.empty(0, np.int64)
    counts = np.bincount(file[firsts], minlength=len(cells)).astype(np.int64)
    return Lines(counts, values, np.append(firsts, len(values)).astype(np.int64))


class Objects(NamedTuple):
    """Parsed lines. ``rings``: start and end of each outline among ``values``."""

    labels: I64
    boxes: npt.NDArray[np.float32]
    rings: tuple[F64, I64, I64] | None
    keypoints: npt.NDArray[np.float32] | None


def objects_of(lines: Lines, points: tuple[int, int] | None) -> Objects:
    """``points``: how many keypoints an object has, and how many numbers each."""
    sizes, firsts, values = lines.sizes, lines.ends[:-1], lines.values
    owner = np.repeat(np.arange(len(lines.counts)), lines.counts)
    pose = BOX + points[0] * points[1] if points else -1
    outline = np.zeros(len(sizes), np.bool_) if points else (sizes >= 7) & (sizes % 2 == 1)
    wrong = np.flatnonzero((sizes != BOX) & (sizes != pose) & ~outline)
    if len(wrong):
        row = int(wrong[0])
        number = row - int(np.searchsorted(owner, owner[row]))
        expected = f"{BOX} or {pose}" if points else f"{BOX}, or 7 and more (a class and an outline)"
        raise DamagedError(
            f"object {number} has {sizes[row]} numbers, not {expected}", sample=int(owner[row])
        )
    classes = values[firsts] if len(firsts) else np.empty(0)
    odd = np.flatnonzero((classes != np.floor(classes)) | (classes < 0) | (classes > 2**31))
    if len(odd):
        raise DamagedError(f"{classes[odd[0]]:g} is no class", sample=int(owner[odd[0]]))
    boxes = np.zeros((len(sizes), 4), dtype=np.float64)
    plain = np.flatnonzero(~outline)
    boxes[plain] = values[firsts[plain][:, None] + np.arange(1, BOX)]
    for row in np.flatnonzero(outline).tolist():
        boxes[row] = bounds(values[firsts[row] + 1 : firsts[row] + sizes[row]])
    rings = (values, firsts + 1, firsts + np.where(outline, sizes, 1)) if outline.any() else None
    keypoints = None
    if points:
        keypoints = np.zeros((len(sizes), *points), dtype=np.float32)
        poses = np.flatnonzero(sizes == pose)
        pose_values = values[firsts[poses][:, None] + np.arange(BOX, pose)]
        keypoints[poses] = pose_values.reshape(-1, *points).astype(np.float32)
    return Objects(classes.astype(np.int64), boxes.astype(np.float32), rings, keypoints)


def bounds(ring: Any) -> F64:
    """The box around a ring x, y, x, y, … as middle and size."""
    corners = np.asarray(ring, dtype=np.float64).reshape(-1, 2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    return np.concatenate([(low + high) / 2, high - low])


def joined(rings: list[list[float]]) -> list[float]:
    """Rings as one, each hung onto those before it by a line there and back where both are nearest."""
    outline = np.asarray(rings[0], dtype=np.float64).reshape(-1, 2)
    for ring in rings[1:]:
        ring_points = np.asarray(ring, dtype=np.float64).reshape(-1, 2)
        apart = np.square(outline[:, None] - ring_points[None]).sum(axis=2)
        offset, to = (int(index) for index in np.unravel_index(int(np.argmin(apart)), apart.shape))
        turned = np.roll(ring_points, -to, axis=0)
        outline = np.concatenate([outline[: offset + 1], turned, turned[:1], outline[offset:]])
    return outline.reshape(-1).tolist()


# -- layout -------------------------------------------------------------------------------------------
# Images of a YOLO folder, the paths of their labels, and its YAML file.

SPLITS = ("train", "val", "valid", "test")
# A longer file of YAML is none of YOLO's.
MAX_YAML_BYTES = 1 << 20


class Layout(NamedTuple):
    """``splits``: images of each, by their paths below the root; ``folders``: the one that they lie in."""

    splits: dict[str, list[str]]
    folders: dict[str, str]
    labels: set[str]


def yaml_of(path: str) -> str | None:
    """The YAML file of a folder: data.yaml, or the only one."""
    candidates = [name for name in tree.names(path) if name.endswith((".yaml", ".yml")) and name[0] != "."]
    best = [name for name in ("data.yaml", "dataset.yaml", "data.yml") if name in candidates]
    if best or len(candidates) == 1:
        return [*best, *candidates][0]
    fitting = [name for name in candidates if "names" in read_yaml(join(path, name))]
    if len(fitting) > 1:
        raise DamagedError(f"there are several files of YAML: open one of {', '.join(fitting)}", path=path)
    return fitting[0] if fitting else None


def read_yaml(path: str) -> dict[str, Any]:
    """Parse a YAML file that describes a dataset."""
    source = open_source(path)
    try:
        text = source.view(0, min(source.size, MAX_YAML_BYTES)).tobytes().decode("utf-8-sig")
        return parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it cannot be read: {error}", path=path) from None
    except MissingLibraryError as error:
        raise error.at(path=path) from None
    finally:
        source.close()


def find_layout(root: str, below: Files, config: dict[str, Any]) -> Layout:
    """The images and the labels."""
    every = list(below.walk(lambda name: IMAGE_FILES.has(name) or name.endswith(".txt"), ".batchplant.json"))
    images = sorted(name for name in every if IMAGE_FILES.has(name))
    labels = {name for name in every if name.endswith(".txt")}
    splits: dict[str, list[str]] = {}
    folders: dict[str, str] = {}
    for split in (name for name in SPLITS if config.get(name)):
        places = config[split] if isinstance(config[split], list) else [config[split]]
        sources = [_resolved(root, str(config.get("path") or ""), str(folder)) for folder in places]
        splits[split], folders[split] = [], sources[0]
        for source in sources:
            if source.endswith(".txt"):
                splits[split] += _listed(join(root, source), source)
                usual = (f"images/{split}/", "images/")
                common = [top for top in usual if all(name.startswith(top) for name in splits[split])]
                folders[split] = common[0].rstrip("/") if common and splits[split] else ""
            else:
                prefix = f"{source}/" if source else ""
                splits[split] += [name for name in images if name.startswith(prefix)]
    if splits:
        return Layout(splits, folders, labels)
    inside = [name for name in images if name.startswith("images/")]
    tops = {name.split("/")[1] if name.count("/") > 1 else "" for name in inside}
    names = [split for split in SPLITS if split in tops] if tops <= set(SPLITS) else []
    folders = {split: f"images/{split}" for split in names} or {"": "images"}
    for split, folder in folders.items():
        splits[split] = [name for name in inside if name.startswith(f"{folder}/")]
    return Layout(splits, folders, labels)


def _resolved(root: str, base: str, name: str) -> str:
    plain = name.replace("\\", "/").rstrip("/")
    # Some write ../train/images for what lies beside the YAML.
    tried = [posixpath.join(base, plain), plain, re.sub(r"^(\.\./)+", "", plain)]
    for path in dict.fromkeys(map(posixpath.normpath, tried)):
        if path == "." or (is_below(path) and tree.exists(join(root, path))):
            return "" if path == "." else path
    raise NotFoundError(f"the YAML names {name!r}, and there is no such folder below it", path=root)


def _listed(path: str, name: str) -> list[str]:
    images = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        image = posixpath.normpath(line.strip().replace("\\", "/"))
        if not is_below(image):
            raise DamagedError(f"line {number}: {line.strip()!r} is no path below the folder", path=path)
        folder = posixpath.dirname(name)
        images.append(posixpath.join(folder, image) if line.strip().startswith("./") and folder else image)
    return images


def label_of(image: str) -> str:
    """Return the path of an image's labels: in labels/ if it lies in images/, else beside it."""
    parts = image.split("/")
    for depth in range(len(parts) - 2, -1, -1):
        if parts[depth] == "images":
            parts[depth] = "labels"
            break
    return os.path.splitext("/".join(parts))[0] + ".txt"


def class_names(config: dict[str, Any], path: str) -> tuple[str, ...] | None:
    """The names of the classes, by number."""
    names, count = config.get("names"), config.get("nc")
    if isinstance(names, dict):
        try:
            numbers = {int(number): str(name) for number, name in names.items()}
        except ValueError:
            raise DamagedError("names has a class without a number", path=path) from None
        if numbers and (min(numbers) < 0 or max(numbers) > 1 << 20):
            raise DamagedError("names has a class out of range", path=path)
        return tuple(numbers.get(index, str(index)) for index in range(max(numbers, default=-1) + 1))
    if isinstance(names, list):
        return tuple(str(name) for name in names)
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 1 << 20:
        return tuple(map(str, range(count)))
    return None


# -- reader -------------------------------------------------------------------------------------------
# Reading YOLO folders.

ALL = "all"
MAX_PROBLEMS = 100


class YoloReader(DetectionReader):
    """Reads a folder with data.yaml, or with ``images/`` and ``labels/``; or such a YAML file.

    ``split``: train, val or test, where there are several; all: every one, with the field ``split``.
    """

    def __init__(self, path: str, *, split: str | None = None) -> None:
        self.path = path
        self._media, self._columns = {}, Columns()
        folder = tree.is_folder(path)
        root = path if folder else parent(absolute(path))
        below = open_files(root)
        try:
            yaml = yaml_of(path) if folder else os.path.basename(path)
            config = {} if yaml is None else read_yaml(join(root, yaml))
            layout = find_layout(root, below, config)
            chosen = self._split(split, layout.splits)
            folders = [(name, layout.folders[part]) for part in chosen for name in layout.splits[part]]
            names = [name for name, _ in folders]
            self._set_images(below, names)
            self._labels = [label_of(name) for name in names]
            used = {label_of(name) for part in layout.splits.values() for name in part}
            labels = (name for name in layout.labels if "labels" in name.split("/")[:-1])
            self._orphans = sorted(name for name in labels if name not in used)
            self._set_objects(layout.labels, config)
            shown = [os.fsencode(name.removeprefix(f"{folder}/")) for name, folder in folders]
            self._columns["file_name"] = Ragged.from_cells(shown)
            splits = {part: len(layout.splits[part]) for part in chosen} if split == ALL else {}
            self._set_fields(config, splits)
        except BatchplantError as error:
            below.close()
            raise error.at(path=path) from None
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None

    def _split(self, option: str | None, splits: dict[str, Any]) -> list[str]:
        result = list(splits)
        if option is None:
            if len(result) > 1:
                counts = [(name, len(splits[name])) for name in result]
                shown = ", ".join(f"{name} ({many:,} image{'s' * (many != 1)})" for name, many in counts)
                raise OptionError(
                    f"it has {shown}: choose with split={result[0]!r} (--option split={result[0]}); "
                    f"split={ALL!r} takes all, and adds the field split"
                )
            return result
        if option == ALL:
            return result
        same = {"valid": "val", "val": "valid"}.get(option)
        for name in (option, same):
            if name in result:
                return [str(name)]
        raise OptionError(f"there is no split {option!r}; it has {', '.join(filter(None, result)) or 'none'}")

    def _set_objects(self, label_files: set[str], config: dict[str, Any]) -> None:
        """Labels of all images; one without a file of them has no objects."""
        below = self._media["image"].below
        rows = [row for row, name in enumerate(self._labels) if name in label_files]
        try:
            lines = parse(below.read([self._labels[row] for row in rows]))
            self._points = _points_of(config)
            self._objects = objects_of(lines, self._points)
        except BatchplantError as error:
            if error.sample is not None:
                row = rows[error.sample]
                raise DamagedError(f"{self._labels[row]}: {error.message}", sample=row) from None
            raise
        self._counts = np.zeros(self.length, dtype=np.int64)
        self._counts[rows] = lines.counts
        self._firsts = starts_of(self._counts)

    def _set_fields(self, config: dict[str, Any], splits: dict[str, int]) -> None:
        objects, counts = self._objects, self._counts
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text()}
        if splits:
            fields["split"] = Int(names=tuple(splits))
            self._columns["split"] = np.repeat(np.arange(len(splits)), list(splits.values()))
        fields["boxes"] = boxes_field("cxcywh", ["labels"], normalized=True)
        fields["labels"] = Labels(class_names(config, self.path))
        self._columns["boxes"] = ragged(objects.boxes, counts)
        self._columns["labels"] = ragged(objects.labels, counts)
        if objects.rings is not None or (self._points is None and "polygons" in self._noted.detection):
            fields["polygons"] = Polygons(normalized=True)
        if objects.keypoints is not None and self._points is not None:
            points, values_per_point = self._points
            names = config.get("kpt_names")
            names = names if isinstance(names, list) and len(names) == points else ()
            swap = _swap(config.get("flip_idx"), points)
            fields["keypoints"] = Keypoints(
                points, tuple(map(str, names)), swap=swap, visibility=values_per_point == 3, normalized=True
            )
            self._columns["keypoints"] = ragged(objects.keypoints, counts)
        self.schema = self._chosen(fields)

    # -- reading ---------------------------------------------------------------------------------------

    def _column(self, name: str, indices: I64) -> Any:
        if name != "polygons":
            return super()._column(name, indices)
        cells = []
        for index in indices.tolist():
            rows = range(int(self._firsts[index]), int(self._firsts[index + 1]))
            cells.append(json_text([self._rings(row) for row in rows]))
        return Ragged.from_cells(cells)

    def _rings(self, row: int) -> list[list[float]]:
        if self._objects.rings is None:
            return []
        values, starts, ends = self._objects.rings
        ring = values[starts[row] : ends[row]].tolist()
        return [ring] if ring else []

    def facts(self) -> dict[str, object]:
        lost = self.length - sum(map(bool, self._counts.tolist()))
        return {"objects": int(self._counts.sum()), "images without objects": lost}

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        for name in self._orphans[:MAX_PROBLEMS]:
            yield Problem(f"{name} has no image", self.path)
        if len(self._orphans) > MAX_PROBLEMS:
            yield Problem(f"{len(self._orphans) - MAX_PROBLEMS:,} more labels without an image", self.path)


def _points_of(config: dict[str, Any]) -> tuple[int, int] | None:
    shape = config.get("kpt_shape")
    if shape is None:
        return None
    if (
        not isinstance(shape, list) or len(shape) != 2 or not all(type(size) is int for size in shape)
        or not 0 < shape[0] < 10_000 or shape[1] not in (2, 3)
    ):  # fmt: skip
        raise DamagedError(f"kpt_shape is [points, 2 or 3], not {shape!r}")
    return shape[0], shape[1]


def _swap(flips: Any, points: int) -> tuple[tuple[int, int], ...] | None:
    """The pairs that a mirror exchanges, out of the number that each point gets."""
    if not isinstance(flips, list) or sorted(map(str, flips)) != sorted(map(str, range(points))):
        return None
    return tuple(
        (point, mirrored)
        for point, mirrored in enumerate(flips)
        if point < mirrored and flips[mirrored] == point
    )


# -- writer -------------------------------------------------------------------------------------------
# Writing YOLO folders: ``images/train/``, ``labels/train/`` and data.yaml.


class YoloWriter(DetectionWriter):
    """Writes a folder with data.yaml, ``images/SPLIT/`` and ``labels/SPLIT/``.

    ``split``: what the split is called (default: train), where there is no field ``split``. ``boxes``: how
    boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor.
    """

    boxes = Boxes("cxcywh", normalized=True)
    keeps_float64 = False

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        split: str = "train",
        boxes: str | None = None,
    ) -> None:
        if not is_plain(split):
            raise OptionError(f"a split is train, val or test, not {split!r}", path=path)
        self._split = split
        super().__init__(path, schema, options, boxes=boxes)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        if {"polygons", "keypoints"} <= set(self.schema):
            raise SchemaError("a line of YOLO has an outline or keypoints; leave one out", field="polygons")
        self._splits = self._split_names() or (self._split,)
        if any("\n" in name or '"' in name for name in self._names_of_classes):
            raise SchemaError('the name of a class has no line breaks and no "', field="labels")
        # Names of their own do not tell in which order the images came: lists do.
        self._list = self.partial.spool("list") if "file_name" in self.schema else None
        self._max_label = int(state["most"]) if state else -1
        self._joined = bool(state["joined"]) if state else False

    def _state(self) -> dict[str, Any]:
        return {"most": self._max_label, "joined": self._joined}

    def remarks(self) -> list[str]:
        joined = ["outlines of several rings are joined to one, as YOLO has them"] * self._joined
        return [*super().remarks(), *joined]

    def _converted(self, columns: Columns) -> Columns:
        done = super()._converted(columns)
        if "polygons" in done:
            outlines = [self._joined_rings(cell) for cell in done["polygons"]]
            done["polygons"] = Ragged.from_cells([json_text(outline) for outline in outlines])
            if "boxes" in done:
                done["boxes"] = _around(done["boxes"], outlines)
        return done

    def _joined_rings(self, cell: Any) -> list[list[list[float]]]:
        objects = json.loads(bytes(cell))
        self._joined |= any(len(rings) > 1 for rings in objects)
        return [[joined(rings)] if rings else [] for rings in objects]

    def _place(self, values: Mapping[str, Any]) -> str:
        return self._splits[values["split"]] if "split" in values else self._split

    def _put(self, entries: list[Entry]) -> None:
        for entry in entries:
            lines = [self._line(entry.values, row) for row in range(len(entry.values.get("labels", ())))]
            name = os.path.join("labels", os.path.splitext(entry.file)[0] + ".txt")
            labels = "".join(f"{line}\n" for line in lines).encode()
            self._save(name, labels, entry.number, replaces=True)
            if self._list is not None:
                self._list.write(f"./images/{entry.file}\n".encode())

    def _line(self, values: Mapping[str, Any], row: int) -> str:
        label = int(values["labels"][row])
        self._max_label = max(self._max_label, label)
        rings = values["polygons"][row] if "polygons" in values else []
        if rings:
            numbers = [repr(value) for value in rings[0]]
        else:
            numbers = [str(value) for value in values["boxes"][row]] if "boxes" in values else ["0"] * 4
        if "keypoints" in values:
            numbers += [str(value) for value in values["keypoints"][row].reshape(-1)]
        return " ".join([str(label), *numbers])

    def _finish(self) -> str:
        names = self._names_of_classes or [str(number) for number in range(self._max_label + 1)]
        lists = self._lists()
        lines = [
            "path: .",
            *(f"{split}: {f'{split}.txt' if lists else f'images/{split}'}" for split in self._splits),
        ]
        for split in self._splits:
            for top in ("images", "labels"):
                (self._folder / top / split).mkdir(parents=True, exist_ok=True)
        points = self.schema.get("keypoints")
        if isinstance(points, Keypoints):
            lines.append(f"kpt_shape: [{points.shape[1]}, {points.shape[2]}]")
            if points.swap:
                flips = list(range(int(points.points or 0)))
                for a, b in points.swap:
                    flips[a], flips[b] = b, a
                lines.append(f"flip_idx: {flips}")
            if points.names:
                lines.append(
                    f"kpt_names: [{', '.join(json.dumps(name, ensure_ascii=False) for name in points.names)}]"
                )
        if names:
            lines += ["names:", *(f'  {number}: "{name}"' for number, name in enumerate(names))]
        (self._folder / "data.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return super()._finish()

    def _lists(self) -> bool:
        if self._list is None:
            return False
        every = self._list.read_at(self._list.size, 0).decode().splitlines(keepends=True)
        for split in self._splits:
            mine = [line for line in every if line.startswith(f"./images/{split}/")]
            (self._folder / f"{split}.txt").write_text("".join(mine), encoding="utf-8")
        return True


def _around(boxes: Any, outlined: list[list[Any]]) -> Ragged:
    """Boxes, those of objects with an outline being what lies around it: YOLO has no others."""
    values, counts = spread(boxes, "float32", (None, 4))
    values = values.copy()
    for row, rings in enumerate(rings for objects in outlined for rings in objects):
        if rings:
            values[row] = bounds(rings[0]).astype(np.float32)
    return ragged(values, counts)


# -- format -------------------------------------------------------------------------------------------

HELD = ("image", "file_name", "split", "boxes", "labels", "polygons", "keypoints")


def sniff(probe: Probe) -> bool:
    """A YAML file of classes and splits, or labels beside images."""
    if probe.folder:
        return probe.ask(annotated) == YOLO
    return probe.path.endswith((".yaml", ".yml")) and is_yaml(probe.head)


FORMAT = Format(
    name="yolo",
    title="YOLO",
    suffixes=(".yolo",),
    spec="https://docs.ultralytics.com/datasets/detect/",
    reader=YoloReader,
    writer=YoloWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Polygons, Keypoints, Tensor, Int, Text),
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=None,
    extra="yaml",
    notes="detection, segmentation, pose; data.yaml, or images/ beside labels/",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("Ultralytics", "FiftyOne", "Roboflow"),
    ),
)
