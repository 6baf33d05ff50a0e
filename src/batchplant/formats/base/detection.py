"""Base classes of detection formats: image files with annotations beside them.

A sample is an image with its objects. Fields that have a row for each object stand in one order:

- ``image``, ``file_name``: the image, and its path below the folder of images;
- ``boxes``, ``labels``: where the objects are, and their classes;
- ``polygons``, ``rle``, ``keypoints``: their outlines, masks in COCO's run-length text, keypoints;
- what else a format knows: ``area``, ``iscrowd``, ``difficult`` …
- ``image_extra``, ``object_extra``: what a file says of the image and of each object besides, as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_sample
from ...codecs.infer import infer_image, infer_mask
from ...codecs.media import image
from ...codecs.nested import json_text
from ...data.reader import Reader
from ...data.writer import WriteOptions, Writer
from ...errors import (
    BatchplantError,
    DamagedError,
    EncodeError,
    ExistsError,
    OptionError,
    Problem,
    SchemaError,
    shown,
)
from ...schema import Boxes, Field, Image, Int, Json, Keypoints, Labels, List, Polygons, Schema, Tensor, Text
from ...schema.columns import I64, AnyArray, Columns, Flags, Ragged, as_bytes, starts_of
from ...schema.kinds import BOX_FORMATS
from ...storage import NOTE_ERRORS, checksums, is_below, is_plain, is_remote, join, parse_object, read_beside
from .folders.files import Files, FilesReader, MediaColumn
from .folders.media import IMAGE_FILES

F64 = npt.NDArray[np.float64]
METADATA_NAME = ".batchplant.json"
# Every field that one of the formats has. Those of a row for each object begin with ``boxes``.
FIELDS: dict[str, Field] = {
    "image": Image(),
    "file_name": Text(),
    "image_id": Int(),
    "split": Int(),
    "sets": List(Text()),
    "boxes": Boxes(),
    "labels": Labels(),
    "area": Tensor("float32", (None,)),
    "iscrowd": Tensor("bool", (None,)),
    "ids": Tensor("int64", (None,)),
    "difficult": Tensor("bool", (None,)),
    "truncated": Tensor("bool", (None,)),
    "occluded": Tensor("bool", (None,)),
    "pose": List(Text()),
    "polygons": Polygons(),
    "rle": List(Text()),
    "keypoints": Keypoints(1),
    "captions": List(Text()),
    "image_extra": Json(),
    "object_extra": Json(),
    "mask": Image(mask=True),
    "panoptic": Image(mode=None, mask=True),
    "instances": Image(mask=True),
}
# What has a row for each box: where one is dropped, so is that.
_BESIDE_BOXES = (
    "labels", "area", "iscrowd", "ids", "difficult", "truncated", "occluded", "pose", "polygons", "rle",
    "keypoints", "object_extra",
)  # fmt: skip


def boxes_as(boxes: AnyArray, have: Boxes, want: Boxes, sizes: AnyArray) -> F64:
    """Boxes in another form. ``sizes``: width and height of the image of each, where one is normalized."""
    result = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if have.format != want.format:
        result = _of_corners(_corners(result, have.format), want.format)
    if have.normalized != want.normalized:
        scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = result / scale if want.normalized else result * scale
    return result


def narrowed(values: AnyArray) -> AnyArray:
    """Real numbers as float32 where its shortest digits are those of every value, else as they are.

    473.07 has no exact float32, and its nearest float32 is written as 473.07 again: nothing is lost. Of
    473.07000732421875, which has one, that would be another number.
    """
    with np.errstate(all="ignore"):
        small = values.astype(np.float32)
        fractional = np.unique(values[~_survives(values)])
        lost = any(float(str(np.float32(value))) != value for value in fractional.tolist())
    return values if lost else small


def _survives(values: F64) -> Flags:
    """Flag values with up to seven digits that no neighbour of as many digits shares as float32."""
    exponent = np.floor(np.log10(np.abs(values)))
    up, down = 10.0 ** np.maximum(6 - exponent, 0), 10.0 ** np.maximum(exponent - 6, 0)
    seven_digits = np.rint(values * up / down) / up * down == values
    apart = np.abs(np.spacing(values.astype(np.float32))) < down / up
    usual = (np.abs(values) > 1e-15) & (np.abs(values) < 1e15)
    return (seven_digits & apart & usual) | (values == 0) | np.isnan(values)


def outside(boxes: AnyArray, kind: Boxes, sizes: AnyArray, slack: float = 1.0) -> Any:
    """Flag invalid boxes: not finite, without size, or more than ``slack`` pixels outside of the image."""
    corners = _corners(np.asarray(boxes, dtype=np.float64).reshape(-1, 4), kind.format)
    sizes = np.asarray(sizes, dtype=np.float64).reshape(-1, 2)
    if kind.normalized:
        corners = corners * np.tile(sizes, 2)
    good = np.isfinite(corners).all(axis=1)
    with np.errstate(invalid="ignore"):
        good &= (corners[:, :2] >= -slack).all(axis=1) & (corners[:, 2:] <= sizes + slack).all(axis=1)
        good &= (corners[:, 2:] > corners[:, :2]).all(axis=1)
    return ~good


def _corners(boxes: F64, format: str) -> F64:
    first, second = boxes[:, :2], boxes[:, 2:]
    if format == "xyxy":
        return boxes
    start = first if format == "xywh" else first - second / 2
    return np.concatenate([start, start + second], axis=1)


def _of_corners(corners: F64, format: str) -> F64:
    start, end = corners[:, :2], corners[:, 2:]
    if format == "xyxy":
        return corners
    first = start if format == "xywh" else (start + end) / 2
    return np.concatenate([first, end - start], axis=1)


class DetectionMetadata(NamedTuple):
    """Names that our writer leaves in the folder; none where others made it."""

    # The fields, and those of them that are float64 (others are float32); the classes, in order.
    detection: Sequence[str] = ()
    classes: Sequence[str] = ()
    float64: Sequence[str] = ()

    def write(self, folder: Path) -> None:
        (folder / METADATA_NAME).write_text(json.dumps(self._asdict()))

    @classmethod
    def read(cls, folder: str) -> DetectionMetadata:
        try:
            document = parse_object(read_beside(join(folder, METADATA_NAME)) or b"{}")
        except (*NOTE_ERRORS, BatchplantError):
            return cls()
        detection, classes, float64 = (_names(document.get(key)) for key in cls._fields)
        return cls(detection if "image" in detection else (), classes, float64)


def _names(value: object) -> Sequence[str]:
    return value if isinstance(value, list) and all(isinstance(name, str) for name in value) else ()


def boxes_field(
    format: str, fields: Iterable[str], *, normalized: bool = False, dtype: str = "float32"
) -> Boxes:
    """Boxes, with those of these fields that have a row for each."""
    beside = tuple(name for name in _BESIDE_BOXES if name in set(fields))
    return Boxes(format, normalized=normalized, labels=beside, dtype=dtype)


def left_out(names: Iterable[str]) -> tuple[str, ...]:
    """The fields of other formats of detection that one with these has no place for."""
    supported = set(names)
    return tuple(name for name in FIELDS if name not in supported)


# Images looked at to tell what they are, and so much of each.
PROBED_SAMPLES, PROBED_REMOTE, HEAD = 48, 8, 1 << 16
# Headers that are looked at at once.
ROWS = 256
# Those that `verify` names of one sort.
MAX_PROBLEMS = 1000


def ragged(values: AnyArray, counts: I64) -> Ragged:
    """The cells of a field with a row for each object: ``counts`` rows for each sample."""
    width = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    return Ragged(as_bytes(values), starts_of(counts * width))


def spread(column: Any, dtype: str, shape: tuple[int | None, ...]) -> tuple[AnyArray, I64]:
    """The opposite: all rows, and how many of them each sample has."""
    inner = tuple(int(axis or 1) for axis in shape[1:])
    width = np.dtype(dtype).itemsize * int(np.prod(inner, dtype=np.int64))
    data = np.ascontiguousarray(column.data[column.offsets[0] : column.offsets[-1]])
    return data.view(dtype).reshape(-1, *inner), column.sizes // width


def with_boxes(fields: Mapping[str, Field]) -> Schema:
    """These fields; boxes name those of them that have a row for each."""
    boxes = fields.get("boxes")
    if isinstance(boxes, Boxes):
        field = boxes_field(boxes.format, fields, normalized=boxes.normalized, dtype=boxes.dtype)
        return Schema({**fields, "boxes": field})
    return Schema(fields)


class DetectionReader(FilesReader):
    """Samples whose images are files, and whose other fields are in memory.

    A format's reader fills ``_media`` and ``_columns``, and sets ``_sizes`` (width and height of every
    image, where something tells them) for the checks of ``verify``.
    """

    _sizes: AnyArray | None = None

    def _set_images(
        self, below: Files, names: Sequence[str], **more_images: tuple[Files, Sequence[str | None]]
    ) -> None:
        """The images of all samples, and those of other fields."""
        for sample, name in enumerate(names):
            if not is_below(name):
                raise DamagedError(
                    f"file_name is {name!r}, not a path below the folder of images",
                    path=self.path,
                    sample=sample,
                )
        below.named = len(names)
        self._media = {"image": MediaColumn(self.path, "image", below, names)}
        for field, (folder, files) in more_images.items():
            for sample, file in enumerate(files):
                if file is not None and not is_below(file):
                    raise DamagedError(
                        f"{file!r} is no path below its folder", path=self.path, sample=sample, field=field
                    )
            self._media[field] = MediaColumn(self.path, field, folder, files)
        self.length = len(names)
        self._columns["file_name"] = Ragged.from_cells([os.fsencode(name) for name in names])

    def _chosen(self, fields: Mapping[str, Field]) -> Schema:
        """Those of these fields that our writer was given, in that order, where it wrote the folder."""
        noted = self._noted.detection
        return with_boxes({name: fields[name] for name in noted if name in fields} if noted else fields)

    @functools.cached_property
    def _noted(self) -> DetectionMetadata:
        return DetectionMetadata.read(self.path)

    def with_schema(self, schema: Schema) -> Reader | None:
        """The same, with float64 in the place of float32; None where other fields are asked for."""
        if list(schema) != list(self.schema) or not self.widens_floats:
            return None
        wide = []
        for name, field in schema.items():
            have = self.schema[name]
            if isinstance(have, Boxes | Keypoints) or type(have) is Tensor:
                if getattr(field, "dtype", "") == "float64":
                    wide.append(name)
                have = dataclasses.replace(have, dtype=getattr(field, "dtype", have.dtype))
            if have != field and not (isinstance(have, Image) and isinstance(field, Image)):
                return None
        args, options = self._init_args
        return type(self)(*args, **{**options, "float64": tuple(wide)})

    def _look(self, field: str = "image", *, mask: bool = False) -> Image:
        """Infer the images of a field from some of them."""
        images = self._media[field]
        names = [name for name in images.names if name is not None]
        optional = len(names) < len(images.names)
        limit = PROBED_REMOTE if is_remote(images.below.root) else PROBED_SAMPLES
        heads = Ragged.from_cells([data[:HEAD] for data in images.below.some(names, limit)])
        image = (infer_image(heads) if len(heads) else None) or Image()
        return dataclasses.replace(infer_mask(image, heads) if mask else image, optional=optional)

    # -- reading ---------------------------------------------------------------------------------------

    def _paths(self, indices: I64) -> list[str]:
        names = self._column("file_name", indices)
        assert isinstance(names, Ragged)
        return [os.fsdecode(b"" if name is None else name.tobytes()) for name in names]

    # -- checks ----------------------------------------------------------------------------------------

    def _verify(self) -> Iterator[Problem]:
        """Boxes that are none, or lie outside of their image; classes that there are not; other sizes."""
        yield from self._bad_sizes()
        for name, field in self.schema.items():
            column = self._columns.get(name)
            if isinstance(field, Boxes) and isinstance(column, Ragged):
                yield from self._bad_boxes(name, field, column)
            if isinstance(field, Labels) and isinstance(column, Ragged) and field.names is not None:
                yield from self._bad_labels(name, field, column)

    def _bad_sizes(self) -> Iterator[Problem]:
        """Images of another size than the annotations say: boxes were drawn in another one."""
        images, stated_rows = self._media["image"], self._sizes
        for start in range(0, len(self) if stated_rows is not None else 0, ROWS):
            assert stated_rows is not None
            heads = images.below.heads([str(name) for name in images.names[start : start + ROWS]], HEAD)
            if heads is None:
                return
            sizes = image.probe(heads)[:, 1:3]
            stated = stated_rows[start : start + ROWS]
            for row in np.flatnonzero(((sizes > 0) & (stated > 0) & (sizes != stated)).any(axis=1)).tolist():
                have, expected = ("×".join(map(str, pair[row].tolist())) for pair in (sizes, stated))
                message = f"the image has {have} pixels, and its annotation says {expected}"
                yield Problem(message, self.where(start + row), start + row, "image")

    def _bad_labels(self, name: str, field: Labels, column: Ragged) -> Iterator[Problem]:
        labels, counts = spread(column, field.dtype, field.shape)
        bad = (labels < 0) | (labels >= len(field.names or ()))
        yield from self._problems(name, counts, bad, lambda row: self._no_class(row, int(labels[row])))

    def _no_class(self, row: int, label: int) -> str:
        """Describe the problem with the class of the object in this row."""
        return f"there is no class {label}"

    def _bad_boxes(self, name: str, field: Boxes, column: Ragged) -> Iterator[Problem]:
        boxes, counts = spread(column, field.dtype, field.shape)
        if field.normalized:
            # So much of an image as a pixel would be, whatever its size.
            sizes, slack = np.ones((len(boxes), 2)), 0.005
        elif self._sizes is not None:
            sizes, slack = np.repeat(self._sizes, counts, axis=0), 1.0
        else:
            return
        # An image whose size nobody told is not judged by it.
        sizes = np.where(sizes > 0, sizes, np.inf)

        def say(row: int) -> str:
            shown = ", ".join(f"{value:g}" for value in boxes[row].tolist())
            size = "" if field.normalized else f" of {sizes[row][0]:g}×{sizes[row][1]:g}"
            return f"box [{shown}] ({field.format}) does not lie in the image{size}"

        yield from self._problems(name, counts, outside(boxes, field, sizes, slack), say)

    def _problems(self, name: str, counts: I64, bad: Any, say: Any) -> Iterator[Problem]:
        """One for each bad row of a field with ``counts`` rows for each sample."""
        rows = np.flatnonzero(bad)
        ends = np.cumsum(counts)
        for row in rows[:MAX_PROBLEMS].tolist():
            sample = int(np.searchsorted(ends, row, side="right"))
            number = row - int(ends[sample] - counts[sample])
            yield Problem(f"object {number}: {say(row)}", self.where(sample), sample, name)
        if len(rows) > MAX_PROBLEMS:
            yield Problem(f"{len(rows) - MAX_PROBLEMS:,} more such objects", self.path, None, name)


class Entry(NamedTuple):
    """A sample as a format writes it: its file, the image's size, and the values of its other fields."""

    number: int
    file: str
    width: int
    height: int
    values: dict[str, Any]


class DetectionWriter(Writer):
    """Writes a folder of images, and beside it what lies in each. A subclass says how that is written."""

    # As which boxes are stored.
    boxes: ClassVar[Boxes]
    # The folder of the images.
    images: ClassVar[str] = "images"
    # Whether boxes that come as float64 are stored with all of their digits.
    keeps_float64: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, boxes: str | None = None) -> None:
        self._given = boxes
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._resumes = state is not None
        boxes = self.schema.get("boxes")
        # The convention of incoming boxes.
        self._incoming = None if boxes is None else self._boxes_of(boxes)
        for name, field in self.schema.items():
            self._check(name, field)
        labels = self.schema.get("labels")
        if ("boxes" in self.schema) > (labels is not None):
            raise SchemaError(f"{self.format} needs labels beside boxes: the class of each", field="boxes")
        self.classes: tuple[str, ...] | None = getattr(labels, "names", None)
        self._folder = self.partial.folder / "folder"
        (self._folder / self.images).mkdir(parents=True, exist_ok=True)

    def _check(self, name: str, field: Field) -> None:
        want = FIELDS[name]
        if isinstance(field, Tensor) and isinstance(want, Tensor) and type(field) is Tensor:
            fits = len(field.shape) == len(want.shape) and field.shape[0] is None
            if not fits or (name == "boxes" and field.shape != (None, 4)):
                raise SchemaError(
                    f"{name} has a row for each object, as {want}, and this is {field}", field=name
                )
        if field.optional and not isinstance(field, Image):
            raise SchemaError(f"{self.format} cannot leave {name} out of some samples", field=name)

    def _boxes_of(self, field: Field) -> Boxes:
        if isinstance(field, Boxes):
            return field
        format, _, unit = (self._given or "").partition(" ")
        if format not in BOX_FORMATS or unit not in ("", "normalized"):
            raise OptionError(
                f"'boxes' is {field}, which does not tell how four numbers are a box: say so with boxes, "
                f"{', '.join(BOX_FORMATS)} or any of them with ' normalized'; or give the field as Boxes(…)",
                path=self.path, field="boxes",
            )  # fmt: skip
        return Boxes(format, normalized=bool(unit))

    def _split_names(self) -> tuple[str, ...]:
        """The names of the splits, which are those of files; empty without such a field."""
        field = self.schema.get("split")
        names = tuple(field.names or ()) if isinstance(field, Int) else ()
        if field is not None and not names:
            message = "the split of a sample is an Int with names such as train and val"
            raise SchemaError(message, field="split")
        if not all(map(is_plain, names)):
            raise SchemaError("the name of a split is one of a file, such as train", field="split")
        return names

    def kept_schema(self) -> Schema | None:
        return None

    def _stored(self, field: Field, name: str) -> Field:
        """A field as it is stored."""
        if isinstance(field, Polygons | Keypoints):
            return dataclasses.replace(field, normalized=self.boxes.normalized)
        if name != "boxes":
            return field
        beside = field.labels if isinstance(field, Boxes) else self.boxes.labels
        wide = self.keeps_float64 and getattr(field, "dtype", "") == "float64"
        return dataclasses.replace(self.boxes, labels=beside, dtype="float64" if wide else self.boxes.dtype)

    def remarks(self) -> list[str]:
        have = self._incoming
        if have is None or (have.format, have.normalized) == (self.boxes.format, self.boxes.normalized):
            return []
        parts = ", in parts of the image's size" if self.boxes.normalized else ", in pixels"
        return [f"{self.format} has boxes as {self.boxes.format}{parts}: they are converted"]

    # -- in a worker -----------------------------------------------------------------------------------

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        cells = columns.ragged("image")
        for row, encoding in enumerate(IMAGE_FILES.encodings(cells)):
            if not encoding:
                problems[row] = EncodeError(
                    "these bytes are not an image that batchplant knows", field="image"
                )
        if "file_name" in columns:
            for row, name in enumerate(columns["file_name"]):
                text = bytes(name).decode("utf-8", "replace")
                if not is_below(text) or os.path.normpath(text) != text:
                    problems[row] = EncodeError(f"{text!r} is not a path below a folder", field="file_name")
        counts = dict(self._counts(columns))
        first, expected = next(iter(counts.items()), ("", None))
        for name, count in counts.items():
            for row in np.flatnonzero(count != expected).tolist():
                message = (
                    f"{count[row]} rows, and {first} has {counts[first][row]}: each object needs one in both"
                )
                problems.setdefault(row, EncodeError(message, field=name))
        for row, error in self._bad_extras(columns, expected):
            problems.setdefault(row, error)
        if "labels" in columns and self.classes is not None:
            field = self.schema["labels"]
            assert isinstance(field, Tensor)
            labels, rows_of_labels = spread(columns["labels"], field.dtype, field.shape)
            bad = np.repeat(np.arange(len(rows_of_labels)), rows_of_labels)[
                (labels < 0) | (labels >= len(self.classes))
            ]
            for row in np.unique(bad).tolist():
                problems.setdefault(row, EncodeError("a label is none of the classes", field="labels"))
        return problems

    @staticmethod
    def _bad_extras(columns: Columns, counts: Any) -> Iterator[tuple[int, EncodeError]]:
        """Samples whose image_extra is no JSON object, or whose object_extra has not one for each object."""
        for row, cell in enumerate(columns.get("image_extra", ())):
            value = json.loads(bytes(cell))
            if not isinstance(value, dict):
                message = f"image_extra is a JSON object, not {shown(str(value)[:60])}"
                yield row, EncodeError(message, field="image_extra")
        for row, cell in enumerate(columns.get("object_extra", ())):
            value = json.loads(bytes(cell))
            fits = isinstance(value, list) and all(isinstance(element, dict) for element in value)
            if not fits or (counts is not None and len(value) != counts[row]):
                message = f"object_extra is a list with a JSON object for each, not {shown(str(value)[:60])}"
                yield row, EncodeError(message, field="object_extra")

    def _counts(self, columns: Columns) -> Iterator[tuple[str, I64]]:
        """Fields that have a row for each object, and how many rows in each sample."""
        for name, field in self.schema.items():
            column = columns.get(name)
            if isinstance(field, Tensor) and isinstance(column, Ragged) and field.shape[:1] == (None,):
                yield name, spread(column, field.dtype, field.shape)[1]

    def _encode(self, first: int, columns: Columns, rows: Any = None) -> Any:
        encoded = super()._encode(first, columns, rows)
        if not encoded.columns.rows:
            return encoded
        encoded.columns = self._converted(encoded.columns)
        if encoded.sums is not None:
            stored = Schema({name: self._stored(field, name) for name, field in self.schema.items()})
            encoded.sums = checksums.of_columns(stored, encoded.columns)
        return encoded

    def _converted(self, columns: Columns) -> Columns:
        """Boxes as they are stored, and names that tell what the files are."""
        done, sizes = Columns(columns), self._sizes_of(columns)
        have = self._incoming
        if have is not None:
            field = self.schema["boxes"]
            assert isinstance(field, Tensor)
            values, counts = spread(columns["boxes"], field.dtype, field.shape)
            want = self._stored(field, "boxes")
            assert isinstance(want, Boxes)
            if (have.format, have.normalized) != (want.format, want.normalized) or field.dtype != want.dtype:
                values = boxes_as(values, have, want, np.repeat(sizes, counts, axis=0)).astype(want.dtype)
            done["boxes"] = ragged(values, counts)
        for name, field in self.schema.items():
            if isinstance(field, Keypoints) and field.normalized != self.boxes.normalized:
                points, counts = spread(columns[name], field.dtype, field.shape)
                scale = np.repeat(sizes, counts, axis=0)[:, None].astype(np.float64)
                moved = points.astype(np.float64)
                moved[..., :2] *= scale if field.normalized else 1 / scale
                done[name] = ragged(moved.astype(field.dtype), counts)
            if isinstance(field, Polygons) and field.normalized != self.boxes.normalized:
                done[name] = _scaled(columns[name], sizes, shrinks=self.boxes.normalized)
        if "file_name" in columns:
            cells = columns.ragged("image")
            names = []
            for name, encoding in zip(columns["file_name"], IMAGE_FILES.encodings(cells), strict=True):
                text = bytes(name).decode()
                stem, suffix = os.path.splitext(text)
                fits = IMAGE_FILES.suffixes.get(suffix.lower()) == encoding
                names.append((text if fits else stem + IMAGE_FILES.suffix(encoding)).encode())
            done["file_name"] = Ragged.from_cells(names)
        return done

    @staticmethod
    def _sizes_of(columns: Columns) -> npt.NDArray[np.int32]:
        cells = columns.ragged("image")
        return image.probe(cells)[:, 1:3]

    # -- writing ---------------------------------------------------------------------------------------

    def _write(self, columns: Columns) -> None:
        self._put(list(self._entries(columns)))

    def _put(self, entries: list[Entry]) -> None:
        """Write what lies in images that are written."""
        raise NotImplementedError

    def _place(self, values: Mapping[str, Any]) -> str:
        """The folder below that of the images that one goes to."""
        return ""

    def _entries(self, columns: Columns) -> Iterator[Entry]:
        stored = Schema(
            {
                name: self._stored(field, name)
                for name, field in self.schema.items()
                if not isinstance(field, Image)
            }
        )
        cells = columns.ragged("image")
        encodings, sizes = IMAGE_FILES.encodings(cells), self._sizes_of(columns).tolist()
        stored_columns = Columns((name, columns[name]) for name in stored)
        for row, (encoding, size) in enumerate(zip(encodings, sizes, strict=True)):
            values = decode_sample(stored, stored_columns, row)
            number = self.written + row
            file = values.get("file_name") or f"{number:08d}{IMAGE_FILES.suffix(encoding)}"
            file = os.path.join(self._place(values), file)
            self._save(os.path.join(self.images, file), cells[row], number)
            for name, field in self.schema.items():
                if isinstance(field, Image) and name != "image":
                    values[name] = self._save_other(name, file, columns[name], row, number)
            yield Entry(number, file, size[0], size[1], values)

    def _save_other(self, name: str, file: str, column: Any, row: int, number: int) -> str | None:
        """Write the image of another field; give its name."""
        raise NotImplementedError

    def _save(self, name: str, data: Any, number: int, *, replaces: bool = False) -> None:
        """Write a file; ``replaces``: two images may share it, as 1.jpg and 1.png share annotations."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A conversion that goes on writes some of them once more.
        replaces = replaces or self._resumes
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replaces else os.O_EXCL)
        try:
            fd = os.open(path, flags, 0o666)
        except FileExistsError:
            message = f"another sample has the file name {name}, too"
            raise ExistsError(message, path=self.path, sample=number, field="file_name") from None
        with open(fd, "wb", buffering=0) as file:
            # Linux writes no more than 2 GiB at once.
            while len(data):
                data = data[file.write(data) :]

    def _finish(self) -> str:
        stored = {name: self._stored(field, name) for name, field in self.schema.items()}
        wide = [name for name, field in stored.items() if getattr(field, "dtype", "") == "float64"]
        DetectionMetadata(list(self.schema), self._names_of_classes, wide).write(self._folder)
        return "folder"

    @property
    def _names_of_classes(self) -> list[str]:
        """Those of the labels; by their numbers, where the labels have no names."""
        labels = self.schema.get("labels")
        return list(labels.names or ()) if isinstance(labels, Labels) else []


def _scaled(column: Any, sizes: Any, *, shrinks: bool) -> Ragged:
    """Outlines in parts of the image's size, or in pixels."""
    cells = []
    for cell, (width, height) in zip(column, sizes.tolist(), strict=True):
        scale = np.array([1 / width, 1 / height] if shrinks else [width, height])
        objects = [
            [(np.array(ring, dtype=np.float64).reshape(-1, 2) * scale).reshape(-1).tolist() for ring in rings]
            for rings in json.loads(bytes(cell))
        ]
        cells.append(json_text(objects))
    return Ragged.from_cells(cells)
