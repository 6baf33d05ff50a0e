"""The initialisers of an ONNX model as named tensors."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from ...errors import BatchplantError, DamagedError, MissingLibraryError, Problem, SchemaError, UnsafeError
from ...schema.columns import U8
from ...storage import is_remote, join, open_source, parent
from ..base.tensors import Entry, TensorReader, size_of
from .model import DTYPES, STRING, Model, Tensor, values_of

STEP = 16 << 20
LONGEST_REASON = 400


class OnnxReader(TensorReader):
    """Reads the initialisers of ONNX models.

    ``constants``: the values of Constant nodes too, under the name of their output. ``links``: external data
    may be a link that leads out of the model's folder. ``checker``: `verify` runs ONNX's own checker.
    ``full_check``: it also infers all types and shapes, strictly.
    """

    def __init__(
        self,
        path: str,
        *,
        constants: bool = False,
        links: bool = False,
        checker: bool = True,
        full_check: bool = False,
    ) -> None:
        self.path = path
        self._links = links
        self._checker = checker
        self._full_check = full_check
        source = open_source(path)
        self._all = source.view(0, source.size)
        self._outside: dict[str, str] = {}
        try:
            self._model = Model(self._all.data, constants=constants)
            self.metadata = self._model.metadata
            numbers = [tensor for tensor in self._model.tensors if tensor.code != STRING]
            self._accept(path, [self._entry(tensor) for tensor in numbers], [source])
        except BatchplantError as error:
            raise error.at(path=path) from None

    def _entry(self, tensor: Tensor) -> Entry:
        if tensor.code not in DTYPES:
            raise SchemaError(f"tensor {tensor.name!r} has the {tensor.dtype}, which is not known here")
        dtype, shape, place = tensor.dtype, tensor.shape, tensor.place
        try:
            size = size_of(dtype, shape)
            if tensor.external is not None:
                return Entry(tensor.name, dtype, shape, self._external(tensor.external, size))
            if place is not None:
                return Entry(tensor.name, dtype, shape, (self.path, place[0], place[1] - place[0]))
            # A value has at least a byte, or two of them have one.
            held = sum(max(1, part.end - part.start) for part in tensor.values)
            if held < min(size, math.prod(shape)):
                raise DamagedError(f"{held} bytes are not {dtype} {list(shape)}")
        except BatchplantError as error:
            error.message = f"tensor {tensor.name!r}: {error.message}"
            raise error.at(offset=tensor.offset) from None
        return Entry(tensor.name, dtype, shape, functools.partial(self._values, tensor))

    def _values(self, tensor: Tensor) -> U8:
        # An error where the reader was closed.
        self._file(self.path).view(tensor.offset, 0)
        return values_of(self._all, tensor)

    def _external(self, message: dict[str, str], size: int) -> tuple[str, int, int]:
        """Locate values outside of the model file."""
        file = self._beside(message.get("location", ""))
        numbers = []
        for key, default in (("offset", 0), ("length", size)):
            text = message.get(key, str(default))
            if not re.fullmatch("[0-9]{1,18}", text):
                raise DamagedError(f"the {key} of its external data is {text[:40]!r}")
            numbers.append(int(text))
        self._outside.setdefault(file, message.get("checksum", ""))
        return file, numbers[0], numbers[1]

    def _beside(self, location: str) -> str:
        """The path of external data, which must lie in the folder of the model or below."""
        steps = location.split("/")
        if not location or location[0] == "/" or ".." in steps or re.search(r"[\\:\0]", location):
            raise UnsafeError(f"its external data {location[:200]!r} is no file in the folder of the model")
        file = join(parent(self.path), posixpath.normpath(location))
        # A server has no links.
        if is_remote(file):
            return file
        home, real = os.path.realpath(parent(self.path) or "."), os.path.realpath(file)
        if not self._links and os.path.commonpath([home, real]) != home:
            raise UnsafeError(
                f"its external data {location[:200]!r} is a link that leads out of the folder of the model; "
                "open it with links=True (--option links=true) only if you trust its source"
            )
        # Opening a pipe would wait for somebody to write into it.
        if not os.path.isfile(real):
            raise DamagedError(f"its external data {location[:200]!r} is missing")
        return file

    def facts(self) -> dict[str, Any]:
        facts = super().facts() | self._model.describe()
        if self._outside:
            facts["external data"] = [os.path.basename(file) for file in self._outside]
        return facts

    def own_checks(self) -> tuple[str, ...]:
        return ("SHA-1 of external data",) if any(self._outside.values()) else ()

    def _verify(self) -> Iterator[Problem]:
        """The checksums of external data, and what ONNX's own checker says."""
        for file, wanted in self._outside.items():
            if wanted:
                source, found = self._file(file), hashlib.sha1(usedforsecurity=False)
                for start in range(0, source.size, STEP):
                    found.update(source.view(start, min(STEP, source.size - start)).data)
                if found.hexdigest() != wanted.lower():
                    yield Problem("the checksum of the external data is wrong", file)
        if self._checker and not (is_remote(self.path) and self._outside):
            yield from self._check_model()

    def _check_model(self) -> Iterator[Problem]:
        try:
            import onnx.checker
        except ImportError:
            raise MissingLibraryError(
                'the checker of ONNX models needs onnx: pip install "batchplant[onnx]"; '
                "checker=False (--option checker=false) leaves it out"
            ) from None
        given = self._all.tobytes() if is_remote(self.path) else os.path.abspath(self.path)
        try:
            onnx.checker.check_model(given, full_check=self._full_check)
        # It raises its own error, protobuf's, and whatever its C++ throws.
        except Exception as error:
            reason = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
            yield Problem(f"the ONNX checker: {reason}", self.path)
