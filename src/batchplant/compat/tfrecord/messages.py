"""The repeated fields, maps and merging of messages, with protobuf's behaviour."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ...errors import SchemaError

T = TypeVar("T")
M = TypeVar("M", bound="Message")


class Values(list[T]):
    """A repeated field: checks values that are put in, and notifies its owner of changes."""

    def __init__(
        self,
        check: Callable[[Any], T],
        notify: Callable[[], None],
        check_all: Callable[[Any], list[T] | None] | None = None,
    ) -> None:
        """``check_all`` checks all values at once, and returns None where it cannot."""
        super().__init__()
        self._check, self._notify, self._check_all = check, notify, check_all

    def append(self, value: Any) -> None:
        super().append(self._check(value))
        self._notify()

    def extend(self, values: Iterable[Any]) -> None:
        values = values if isinstance(values, np.ndarray) else list(values)
        checked = self._check_all(values) if self._check_all is not None and len(values) > 1 else None
        super().extend([self._check(value) for value in values] if checked is None else checked)
        self._notify()

    def insert(self, index: Any, value: Any) -> None:
        super().insert(index, self._check(value))
        self._notify()

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc, override]
        self.extend(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        is_slice = isinstance(index, slice)
        super().__setitem__(index, [self._check(v) for v in value] if is_slice else self._check(value))
        self._notify()

    def MergeFrom(self, values: Iterable[Any]) -> None:  # noqa: N802
        self.extend(values)


class Messages(Values[M]):
    """A repeated field of messages."""

    def __init__(self, message_type: type[M]) -> None:
        super().__init__(lambda value: _check_type(value, message_type), lambda: None)
        self._message_type = message_type

    def add(self, **fields: Any) -> M:
        message = self._message_type(**fields)
        self.append(message)
        return message


def _check_type(value: object, message_type: type[M]) -> M:
    if not isinstance(value, message_type):
        raise SchemaError(f"{message_type.__name__} is needed here, not {type(value).__name__}")
    return value


class MessageMap(dict[str, M], Generic[M]):
    """A map from names to messages; looking up a missing name creates an empty message."""

    def __init__(self, message_type: type[M], messages: Mapping[Any, object] | None = None) -> None:
        super().__init__()
        self._message_type = message_type
        for name, message in dict(messages or {}).items():
            key = name.decode() if isinstance(name, bytes) else name
            dict.__setitem__(self, _check_name(key), _check_type(message, message_type))

    def __missing__(self, name: str) -> M:
        message = self._message_type()
        dict.__setitem__(self, _check_name(name), message)
        return message

    def __setitem__(self, name: str, value: object) -> None:
        raise SchemaError(f"a map of messages cannot be assigned to; use [{name!r}].CopyFrom(…)")

    def get_or_create(self, name: str) -> M:
        return self[name]

    def MergeFrom(self, other: MessageMap[M]) -> None:  # noqa: N802
        for name, message in other.items():
            self[name].CopyFrom(message)


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise SchemaError(f"a feature's name is text, not {type(name).__name__}")
    return name


class Message(ABC):
    """Methods of all messages. A subclass defines how it is written, read, merged and shown."""

    @abstractmethod
    def _encode(self) -> bytes:
        """Return the message as protobuf; maps in the order of their keys."""

    @abstractmethod
    def _merge(self, other: Any) -> None: ...

    @abstractmethod
    def _reset(self) -> None: ...

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Merge serialized bytes in."""

    @abstractmethod
    def _text_lines(self) -> list[str]:
        """Return the lines of the text form."""

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        """Return the message's bytes, the same for the same content: names in order."""
        return self._encode()

    SerializePartialToString = SerializeToString

    def MergeFromString(self, serialized: bytes) -> int:  # noqa: N802
        data = bytes(serialized)
        self._read(data)
        return len(data)

    def ParseFromString(self, serialized: bytes) -> int:  # noqa: N802
        message = type(self)()
        size = message.MergeFromString(serialized)
        self.CopyFrom(message)
        return size

    @classmethod
    def FromString(cls, serialized: bytes) -> Self:  # noqa: N802
        message = cls()
        message.MergeFromString(serialized)
        return message

    def CopyFrom(self, other: object) -> None:  # noqa: N802
        if other is not self:
            self.Clear()
            self.MergeFrom(other)

    def MergeFrom(self, other: object) -> None:  # noqa: N802
        self._merge(_check_type(other, type(self)))

    def Clear(self) -> None:  # noqa: N802
        self._reset()

    def ByteSize(self) -> int:  # noqa: N802
        return len(self._encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and type(other) is type(self) and other._encode() == self._encode()

    def __reduce__(self) -> tuple[Callable[[bytes], Self], tuple[bytes]]:
        return type(self).FromString, (self._encode(),)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._text_lines())

    __repr__ = __str__


def indent(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {{", *(f"  {line}" for line in lines), "}"]


def quote(data: bytes) -> str:
    """Return bytes as protobuf's text form shows them."""
    escapes = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(escapes.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)


def check_bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SchemaError(f"BytesList holds bytes, not {type(value).__name__} (text: encode() it)")


def check_int(value: object) -> int:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int | np.integer | np.bool_):
        raise SchemaError(f"Int64List holds integers, not {type(value).__name__}")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise SchemaError(f"{number} does not fit 64 bits")
    return number


def check_ints(values: object) -> list[int] | None:
    """Return an array of integers as a list; None for any other, to be checked one by one."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "ib":
        return list(map(int, values.tolist()))
    return None


def check_float(value: object) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int | float | np.number | np.bool_):
        raise SchemaError(f"FloatList holds numbers, not {type(value).__name__}")
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def check_floats(values: Any) -> list[float] | None:
    """Return an array or list of floats in single precision; None for any other, to be checked one by one."""
    is_array = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub"
    if not is_array and not all(type(value) is float for value in values):
        return None
    with np.errstate(over="ignore"):
        return list(np.asarray(values).astype(np.float32).tolist())
