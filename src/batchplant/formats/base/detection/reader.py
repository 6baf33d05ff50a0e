"""Reading images and what lies in them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....codecs.infer import infer_image, infer_mask
from ....codecs.media import image
from ....data.reader import Reader
from ....errors import DamagedError, Problem
from ....schema import Boxes, Field, Image, Keypoints, Labels, Schema, Tensor
from ....schema.columns import I64, AnyArray, Ragged, as_bytes, starts_of
from ....storage import is_below, is_remote
from ..folders.files import Files, FilesReader, MediaColumn
from .boxes import DetectionMetadata, boxes_field, outside

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
        self._media = {"image": MediaColumn(below, names)}
        for field, (folder, files) in more_images.items():
            for sample, file in enumerate(files):
                if file is not None and not is_below(file):
                    raise DamagedError(
                        f"{file!r} is no path below its folder", path=self.path, sample=sample, field=field
                    )
            self._media[field] = MediaColumn(folder, files)
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

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

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
