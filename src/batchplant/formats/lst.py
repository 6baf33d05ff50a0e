"""LST, the lists of images from which MXNet's im2rec makes a .rec file.

A line for each image: ``index TAB label [TAB label …] TAB path``. Paths are relative to ``root``, which is
the folder of the list unless told otherwise. To convert ``train.lst`` to ``train.rec`` is what im2rec does.
"""

from __future__ import annotations

import numpy as np

from ..codecs.infer import infer_image
from ..errors import DamagedError
from ..schema import Field, Float, Image, Int, Schema, Tensor
from ..schema.columns import Column, Columns, Ragged
from ..storage import absolute, is_below, like, parent, read_text
from .base.folders.files import FilesReader, MediaColumn, open_files
from .base.format import Capabilities, Format

# As many images are looked at to tell what they are.
PROBED_SAMPLES = 48
HEAD_BYTES = 65536


class LstReader(FilesReader):
    """Reads .lst files. ``root``: the folder that paths are relative to (default: that of the list)."""

    def __init__(self, path: str, *, root: str | None = None) -> None:
        self.path = path
        files: list[str] = []
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
            files.append(name)
        below = open_files(parent(absolute(path)) if root is None else like(path, root))
        self.length = below.named = len(files)
        self._media = {"image": MediaColumn(self.path, "image", below, files)}
        counts = {len(label) for label in labels}
        with np.errstate(over="ignore"):
            label, column = _label_column(labels, counts)
        self._columns = Columns({"label": column, "id": np.array(numbers, dtype=np.uint64)})
        heads = [file[:HEAD_BYTES] for file in below.some(files, PROBED_SAMPLES)]
        image = infer_image(Ragged.from_cells(heads)) or Image()
        self.schema = Schema({"image": image, "label": label, "id": Int("uint64")})

    def _keys(self) -> None:
        """A list may name a file several times."""


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
