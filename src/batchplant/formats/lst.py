"""LST, the lists of pictures from which MXNet's im2rec makes a .rec file.

A line for each picture: ``index TAB label [TAB label …] TAB path``. Paths are relative to ``root``, which is
the folder of the list unless told otherwise. To convert ``train.lst`` to ``train.rec`` is what im2rec does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..codecs.infer import infer_image
from ..columns import I64, Column, Columns, Ragged, Spans
from ..errors import DamagedError
from ..format import Format
from ..reader import Reader
from ..schema import Field, Float, Image, Int, Schema, Tensor
from ..storage import is_below, open_local, open_source

# As many pictures are looked at to tell what they are.
PROBED_SAMPLES = 48
HEAD = 65536


class LstReader(Reader):
    """Reads .lst files. ``root``: the folder that paths are relative to (default: that of the list)."""

    def __init__(self, path: str, *, root: str | None = None) -> None:
        self.path = path
        self._root = os.path.dirname(os.path.abspath(path)) if root is None else root
        source = open_source(path)
        try:
            text = source.view(0, source.size).tobytes().decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"not text: {error}", path=path) from None
        finally:
            source.close()
        self._files: list[str] = []
        numbers: list[int] = []
        labels: list[list[float]] = []
        for line, row in enumerate(text.split("\n"), 1):
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
        self.length = len(self._files)
        counts = {len(one) for one in labels}
        with np.errstate(over="ignore"):
            label, self._labels = _label_column(labels, counts)
        self._numbers = np.array(numbers, dtype=np.uint64)
        self.schema = Schema({"image": self._infer_image(), "label": label, "id": Int("uint64")})

    def _infer_image(self) -> Image:
        heads = []
        for name in self._files[:: max(1, self.length // PROBED_SAMPLES)][:PROBED_SAMPLES]:
            try:
                with open_local(os.path.join(self._root, name)) as file:
                    heads.append(file.read(HEAD))
            # Whoever reads the sample is told.
            except OSError:
                continue
        return infer_image(Ragged.from_cells(heads)) or Image()

    def where(self, sample: int) -> str:
        return os.path.join(self._root, self._files[sample])

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = Columns()
        for name in fields:
            if name == "image":
                found[name] = Ragged.from_cells([self._file(index) for index in indices.tolist()])
            else:
                column = self._labels if name == "label" else self._numbers
                found[name] = Columns({name: column}).take(indices)[name]
        return found

    def _file(self, index: int) -> bytes:
        try:
            with open_local(self.where(index), buffering=0) as file:
                return file.read()
        except OSError as error:
            raise self._missing(index, error) from None

    def _missing(self, index: int, error: OSError) -> DamagedError:
        message = f"{self._files[index]}: {error.strerror}"
        return DamagedError(message, path=self.path, sample=index, field="image")

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != "image":
            return None
        sizes = np.zeros(len(indices), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            try:
                sizes[row] = os.path.getsize(self.where(index))
            except OSError as error:
                raise self._missing(index, error) from None
        paths = [self.where(index) for index in indices.tolist()]
        each = np.arange(len(paths), dtype=np.int32)
        return Spans(paths, np.zeros(len(paths), dtype=np.int64), sizes, each)


def _number(text: str) -> int:
    # Some lists were written by programs that know only real numbers.
    number = int(text) if "." not in text else int(float(text))
    if not 0 <= number < 2**64:
        raise ValueError(f"{number} is no index")
    return number


def _label_column(labels: list[list[float]], counts: set[int]) -> tuple[Field, Column]:
    if counts <= {1}:
        return Float("float32"), np.array([one[0] for one in labels], dtype=np.float32)
    if len(counts) == 1:
        return Tensor("float32", (counts.pop(),)), np.array(labels, dtype=np.float32)
    cells = [np.array(one, dtype="<f4").tobytes() for one in labels]
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
)
