"""Named tensors as an ONNX model that has initialisers, which are its outputs, and no operators."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from ..._version import __version__
from ...codecs.protobuf import block, head, number, varint
from ...data.writer import WriteOptions
from ...errors import OptionError, SchemaError
from ...schema import Schema
from ...schema.columns import U8
from ..base.tensors import TensorWriter
from .model import DTYPES

CODES = {name: code for code, name in DTYPES.items()}
# Protobuf ends at 2 GiB, and the rest of the model needs room too.
INLINE_MOST = 2_000_000_000
DATA = "{name}.data"
# So that external data can be mapped; small tensors are not worth the gap.
PAGE = 4096
# IR version and opset: the first that have the dtype. Others are in all of them.
SINCE = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), (9, 19)),
    **dict.fromkeys(("int4", "uint4"), (10, 21)),
    "float4_e2m1fn": (11, 23),
    "float8_e8m0fnu": (12, 24),
    **dict.fromkeys(("int2", "uint2"), (13, 25)),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), (14, 28)),
}
OLDEST = (8, 17)


class OnnxWriter(TensorWriter):
    """Writes a model without operators whose outputs are the tensors, which ONNX Runtime loads and gives.

    ``metadata``: text by name, for its metadata_props.
    ``external``: keep the values in NAME.onnx.data beside the model. What does not fit into the 2 GB that a
    model may have goes there in any case.
    """

    side_cars = (DATA,)
    dtypes = tuple(CODES)
    elsewhere: ClassVar[str] = "write safetensors or npz"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        external: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._external = external
        self._metadata = dict(metadata or {})
        if not all(isinstance(one, str) for pair in self._metadata.items() for one in pair):
            raise OptionError("metadata is text by name", path=path)
        super().__init__(path, schema, options)

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if not name:
            raise SchemaError("an initialiser needs a name")

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        self._model = self.partial.spool("model")
        if not self._model.size:
            self._model.write(self._head() + block(2, b"tensors"))

    def _head(self, size: int = 0) -> bytes:
        """All before the graph; as long for every size of the graph."""
        ir, opset = max((SINCE.get(entry.dtype, OLDEST) for entry in self.entries), default=OLDEST)
        texts = [block(2, b"batchplant"), block(3, __version__.encode()), block(8, number(2, opset))]
        for key, value in self._metadata.items():
            texts.append(block(14, block(1, key.encode()) + block(2, value.encode())))
        # A varint may have leading zeros.
        groups = [size >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)]
        return number(1, ir) + b"".join(texts) + varint(7 << 3 | 2) + bytes([*groups, size >> 28])

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        made = b"".join(number(1, size) for size in shape) + number(2, CODES[dtype]) + block(8, name.encode())
        inside = not self._external and self._model.size + len(made) + len(data) < INLINE_MOST
        if inside or not len(data):
            made += head(9, len(data))
            self._model.write(head(5, len(made) + len(data)) + made)
            start = self._model.size
            self._model.write(data)
            return start
        start = self._data.size + (-self._data.size % (PAGE if len(data) >= PAGE else 64))
        self._data.write_at(data, start)
        location = os.path.basename(DATA.format(name=self.path))
        for key, value in (("location", location), ("offset", str(start)), ("length", str(len(data)))):
            made += block(13, block(1, key.encode()) + block(2, value.encode()))
        made += number(14, 1)
        self._model.write(head(5, len(made)) + made)
        return start

    def _finish(self) -> str:
        # Runtimes refuse a graph without outputs. An initialiser may be one as it is.
        for entry in self.entries:
            sizes = b"".join(block(1, number(1, size)) for size in entry.shape)
            tensor = number(1, CODES[entry.dtype]) + block(2, sizes)
            self._model.write(block(12, block(1, entry.name.encode()) + block(2, block(1, tensor))))
        size = self._model.size - len(self._head())
        if size >= 1 << 31:
            raise SchemaError("the names and shapes alone are more than the 2 GB of a model", path=self.path)
        self._model.write_at(self._head(size), 0)
        return "model"

    def _beside(self) -> list[tuple[str, str]]:
        return [("data", DATA)] if self._data.size else []

    def remarks(self) -> list[str]:
        return ["the model has initialisers, which are its outputs, and no operators"]
