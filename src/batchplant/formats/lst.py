"""LST, the lists of images from which MXNet's im2rec makes a .rec file.

A line for each image: ``index TAB label [TAB label …] TAB path``. Paths are relative to ``root``, which is
the folder of the list unless told otherwise. To convert ``train.lst`` to ``train.rec`` is what im2rec does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..codecs.infer import infer_image
from ..data.reader import Reader
from ..errors import DamagedError
from ..schema import Field, Float, Image, Int, Schema, Tensor
from ..schema.columns import I64, Column, Columns, Ragged
from ..storage import absolute, is_below, like, parent, read_text
from ..storage.spans import Spans
from .base.capabilities import Capabilities
from .base.folders.files import open_files, placed
from .base.format import Format

# As many images are looked at to tell what they are.
PROBED_SAMPLES = 48
HEAD_BYTES = 65536


class LstReader(Reader):
    """Reads .lst files. ``root``: the folder that paths are relative to (default: that of the list)."""

    def __init__(self, path: str, *, root: str | None = None) -> None:
        self.path = path
        self._below = open_files(parent(absolute(path)) if root is None else like(path, root))
        self._files: list[str] = []
        numbers: list[int] = []
        labels: list[list[float]] = []
        for line, row in enumerate(read_text(path).split("\n"), 1):
            if not row.strip():
                continue
            first, *middle = row.rstrip("\r").split("\t")
            name = middle.pop() if middle else ""
            try:
                numbers.append(_number(first))
                labels.append([float(label) for label in middle])
            except (ValueError, OverflowError) as error:
                raise DamagedError(f"line {line}: {error}", path=path) from None
            if not middle or not is_below(name):
                reason = "a label is missing" if not middle else f"{name!r} is no path below the root"
                raise DamagedError(f"line {line}: {reason}", path=path)
            self._files.append(name)
        self.length = self._below.named = len(self._files)
        counts = {len(label) for label in labels}
        with np.errstate(over="ignore"):
            label, self._labels = _label_column(labels, counts)
        self._numbers = np.array(numbers, dtype=np.uint64)
        self.schema = Schema({"image": self._infer_image(), "label": label, "id": Int("uint64")})

    def _infer_image(self) -> Image:
        heads = [file[:HEAD_BYTES] for file in self._below.some(self._files, PROBED_SAMPLES)]
        return infer_image(Ragged.from_cells(heads)) or Image()

    def where(self, sample: int) -> str:
        return self._below.path(self._files[sample])

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            if name == "image":
                columns[name] = self._images(indices)
            else:
                column = self._labels if name == "label" else self._numbers
                columns[name] = Columns({name: column}).take(indices)[name]
        return columns

    def _images(self, indices: I64) -> Ragged:
        with placed(self.path, "image", indices.tolist()):
            return self._below.read(self._named(indices))

    def _named(self, indices: I64) -> list[str]:
        return [self._files[index] for index in indices.tolist()]

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != "image":
            return None
        with placed(self.path, "image", indices.tolist()):
            return self._below.spans(self._named(indices))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Whole files; all other fields are in memory."""
        with placed(self.path, "image", indices.tolist()):
            return self._below.ahead(self._named(indices) if "image" in fields else [])

    def close(self) -> None:
        self._below.close()


def _number(text: str) -> int:
    # Some lists were written by programs that know only real numbers.
    number = int(text) if "." not in text else int(float(text))
    if not 0 <= number < 2**64:
        raise ValueError(f"{number} is no index")
    return number


def _label_column(labels: list[list[float]], counts: set[int]) -> tuple[Field, Column]:
    if counts <= {1}:
        return Float("float32"), np.array([label[0] for label in labels], dtype=np.float32)
    if len(counts) == 1:
        return Tensor("float32", (counts.pop(),)), np.array(labels, dtype=np.float32)
    cells = [np.array(label, dtype="<f4").tobytes() for label in labels]
    return Tensor("float32", (None,)), Ragged.from_cells(cells)


FORMAT = Format(
    name="lst",
    title="Image list (MXNet)",
    suffixes=(".lst",),
    spec="https://mxnet.apache.org/versions/1.9.1/api/faq/recordio.html",
    reader=LstReader,
    writer=None,
    kinds=(Image, Float, Tensor, Int),
    notes="read only; convert it to .rec, as im2rec does",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        human_readable=True,
        ecosystem=("MXNet",),
    ),
)
