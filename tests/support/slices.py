"""Slices of DICOM, made byte by byte, so that the library is not needed to make them."""

import struct

import numpy as np


def _element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
    value += b"\0" * (len(value) % 2)
    size = struct.pack("<2xI" if kind == b"OW" else "<H", len(value))
    return struct.pack("<2H", group, number) + kind + size + value


def slice_of(values: np.ndarray, uid: str = "1.2", position: str = "1\\2\\3") -> bytes:
    """A file of one slice: unsigned numbers of 16 bits (rows, columns), of a series."""
    meta = _element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1")
    body = _element(0x20, 0xE, b"UI", uid.encode()) + _element(0x20, 0x32, b"DS", position.encode())
    body += _element(0x28, 2, b"US", b"\1\0") + _element(0x28, 4, b"CS", b"MONOCHROME2")
    rows, columns = values.shape
    numbers = {0x10: rows, 0x11: columns, 0x100: 16, 0x101: 16, 0x102: 15, 0x103: 0}
    body += b"".join(
        _element(0x28, number, b"US", struct.pack("<H", value)) for number, value in numbers.items()
    )
    body += _element(0x28, 0x1052, b"DS", b"0") + _element(0x28, 0x1053, b"DS", b"1")
    body += _element(0x7FE0, 0x10, b"OW", values.astype("<u2").tobytes())
    return bytes(128) + b"DICM" + _element(2, 0, b"UL", struct.pack("<I", len(meta))) + meta + body
