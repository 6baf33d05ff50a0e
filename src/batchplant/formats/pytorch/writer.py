"""Writes a state dict as torch.save does; torch.load reads it with ``weights_only=True``."""

from __future__ import annotations

import math
import struct
from typing import Any

from ...schema.columns import U8
from ...storage.zips import ZipSpool
from ..base.tensors import TensorWriter
from .objects import DTYPES, STORAGES

ROOT = "archive/"
# Storages begin where PyTorch lets them begin.
ALIGN = 64
# Dtypes that have a storage of their own; the tensors of all others say their dtype.
TYPED = {dtype: name for name, dtype in STORAGES.items()}
UNTYPED = ("uint16", "uint32", "uint64", *(name for name in sorted(DTYPES) if name.startswith("float8")))


class PytorchWriter(TensorWriter):
    """Writes one state dict: an OrderedDict from names to tensors on the CPU. PyTorch is not needed."""

    dtypes = (*TYPED, *UNTYPED)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        self._zip = ZipSpool(self._data, self.partial.spool("directory"))

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        return self._zip.add(f"{ROOT}data/{len(self.entries)}", data.data, align=ALIGN)

    def _finish(self) -> str:
        parts = [b"\x80\x02", _global("collections", "OrderedDict"), b")R("]
        for number, entry in enumerate(self.entries):
            parts.append(_text(entry.name) + _tensor(number, entry.dtype, entry.shape, entry.size))
        parts.append(b"u.")
        self._zip.add(f"{ROOT}data.pkl", b"".join(parts), align=ALIGN)
        self._zip.add(f"{ROOT}byteorder", b"little", align=ALIGN)
        self._zip.add(f"{ROOT}version", b"3\n", align=ALIGN)
        self._zip.finish()
        return "data"


def _tensor(number: int, dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    """The call that rebuilds one tensor."""
    typed = dtype in TYPED
    kind = _global("torch", TYPED[dtype]) if typed else _global("torch.storage", "UntypedStorage")
    count = math.prod(shape) if typed else size
    storage = b"(" + _text("storage") + kind + _text(str(number)) + _text("cpu") + _int(count) + b"tQ"
    steps = [math.prod(max(1, axis) for axis in shape[offset + 1 :]) for offset in range(len(shape))]
    return (
        _global("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
        + b"("
        + storage
        + _int(0)
        + _ints(shape)
        + _ints(steps)
        + b"\x89"
        + _global("collections", "OrderedDict")
        + b")R"
        + (b"" if typed else _global("torch", dtype))
        + b"tR"
    )


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _int(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def _ints(numbers: Any) -> bytes:
    return b"(" + b"".join(map(_int, numbers)) + b"t"
