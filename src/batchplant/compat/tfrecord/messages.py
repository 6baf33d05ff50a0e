"""The lists, maps and merging that messages need, with protobuf's behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np

from ...errors import SchemaError


class Values(list[Any]):
    """A repeated field: checks what goes in, and tells its owner that something did."""

    def __init__(
        self,
        check: Callable[[Any], Any],
        changed: Callable[[], None],
        many: Callable[[Any], Any] | None = None,
    ) -> None:
        """``many``: checks a whole list at once, and gives None where it cannot."""
        super().__init__()
        self._check, self._changed, self._many = check, changed, many

    def append(self, value: Any) -> None:
        super().append(self._check(value))
        self._changed()

    def extend(self, values: Iterable[Any]) -> None:
        values = values if isinstance(values, np.ndarray) else list(values)
        checked = self._many(values) if self._many is not None and len(values) > 1 else None
        super().extend([self._check(value) for value in values] if checked is None else checked)
        self._changed()

    def insert(self, index: Any, value: Any) -> None:
        super().insert(index, self._check(value))
        self._changed()

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        many = isinstance(index, slice)
        super().__setitem__(index, [self._check(one) for one in value] if many else self._check(value))
        self._changed()

    def MergeFrom(self, values: Iterable[Any]) -> None:  # noqa: N802
        self.extend(values)


class Messages(Values):
    """A repeated field of messages."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(lambda value: _same(value, kind), lambda: None)
        self._kind = kind

    def add(self, **parts: Any) -> Any:
        made = self._kind(**parts)
        self.append(made)
        return made


def _same(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise SchemaError(f"{kind.__name__} is needed here, not {type(value).__name__}")
    return value


class MessageMap(dict[str, Any]):
    """A map from names to messages; a name that is not there yet gets an empty one."""

    def __init__(self, kind: type[Any], given: Any = None) -> None:
        super().__init__()
        self._kind = kind
        for name, value in dict(given or {}).items():
            key = name.decode() if isinstance(name, bytes) else name
            if not isinstance(key, str):
                raise SchemaError(f"a feature's name is text, not {type(name).__name__}")
            dict.__setitem__(self, key, _same(value, kind))

    def __missing__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise SchemaError(f"a feature's name is text, not {type(name).__name__}")
        made = self._kind()
        dict.__setitem__(self, name, made)
        return made

    def __setitem__(self, name: str, value: Any) -> None:
        raise SchemaError(f"a map of messages cannot be assigned to; use [{name!r}].CopyFrom(…)")

    def get_or_create(self, name: str) -> Any:
        return self[name]

    def MergeFrom(self, other: MessageMap) -> None:  # noqa: N802
        for name, value in other.items():
            self[name].CopyFrom(value)


class Message:
    """What all messages can do. A subclass says how it is written, read, merged and shown."""

    def _wire(self) -> bytes:
        """The message as protobuf; maps in the order of their keys."""
        raise NotImplementedError

    def _merge(self, other: Any) -> None:
        raise NotImplementedError

    def _reset(self) -> None:
        raise NotImplementedError

    def _read(self, data: bytes) -> None:
        """Merge serialized bytes in."""
        raise NotImplementedError

    def _text(self) -> list[str]:
        """The lines of the text form."""
        raise NotImplementedError

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        """The message's bytes, the same for the same content: names in order."""
        return self._wire()

    SerializePartialToString = SerializeToString

    def MergeFromString(self, serialized: Any) -> int:  # noqa: N802
        data = bytes(serialized)
        self._read(data)
        return len(data)

    def ParseFromString(self, serialized: Any) -> int:  # noqa: N802
        made = type(self)()
        size = made.MergeFromString(serialized)
        self.CopyFrom(made)
        return size

    @classmethod
    def FromString(cls, serialized: Any) -> Self:  # noqa: N802
        made = cls()
        made.MergeFromString(serialized)
        return made

    def CopyFrom(self, other: Any) -> None:  # noqa: N802
        if other is not self:
            self.Clear()
            self.MergeFrom(other)

    def MergeFrom(self, other: Any) -> None:  # noqa: N802
        self._merge(_same(other, type(self)))

    def Clear(self) -> None:  # noqa: N802
        self._reset()

    def ByteSize(self) -> int:  # noqa: N802
        return len(self._wire())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._wire() == self._wire()

    def __reduce__(self) -> Any:
        return type(self).FromString, (self._wire(),)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._text())

    __repr__ = __str__


def indented(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {{", *(f"  {line}" for line in lines), "}"]


def quoted(data: bytes) -> str:
    """Bytes as protobuf's text form shows them."""
    known = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(known.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)


def a_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SchemaError(f"BytesList holds bytes, not {type(value).__name__} (text: encode() it)")


def an_int(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int | np.integer | np.bool_):
        raise SchemaError(f"Int64List holds integers, not {type(value).__name__}")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise SchemaError(f"{number} does not fit 64 bits")
    return number


def many_ints(values: Any) -> list[int] | None:
    signed = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "ib"
    return list(map(int, values.tolist())) if signed else None


def many_floats(values: Any) -> list[float] | None:
    plain = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub"
    if not plain and not all(type(value) is float for value in values):
        return None
    with np.errstate(over="ignore"):
        return list(np.asarray(values).astype(np.float32).tolist())


def a_float(value: Any) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int | float | np.number | np.bool_):
        raise SchemaError(f"FloatList holds numbers, not {type(value).__name__}")
    with np.errstate(over="ignore"):
        return float(np.float32(value))
