"""Writing images and what lies in them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ....codecs.cells import decode_sample
from ....codecs.media import image
from ....codecs.nested import json_text
from ....data.writer import WriteOptions, Writer
from ....errors import BatchplantError, EncodeError, ExistsError, OptionError, SchemaError, shown
from ....schema import Boxes, Field, Image, Int, Keypoints, Labels, Polygons, Schema, Tensor
from ....schema.columns import I64, Columns, Ragged
from ....schema.kinds import BOX_FORMATS
from ....storage import checksums, is_below, is_plain
from ..folders.media import IMAGE_FILES
from .boxes import FIELDS, DetectionMetadata, boxes_as
from .reader import ragged, spread


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
        for name in ("image_extra", "object_extra"):
            for row, cell in enumerate(columns.get(name, ())):
                value = json.loads(bytes(cell))
                if name == "image_extra":
                    fits = isinstance(value, dict)
                else:
                    fits = isinstance(value, list) and all(isinstance(element, dict) for element in value)
                    fits = fits and (counts is None or len(value) == counts[row])
                if not fits:
                    expected = (
                        "a JSON object" if name == "image_extra" else "a list with a JSON object for each"
                    )
                    yield row, EncodeError(f"{name} is {expected}, not {shown(str(value)[:60])}", field=name)

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
        objects = [[_moved(ring, scale) for ring in rings] for rings in json.loads(bytes(cell))]
        cells.append(json_text(objects))
    return Ragged.from_cells(cells)


def _moved(ring: list[float], scale: Any) -> list[float]:
    return (np.array(ring, dtype=np.float64).reshape(-1, 2) * scale).reshape(-1).tolist()
