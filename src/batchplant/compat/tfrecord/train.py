"""tf.train: Example, SequenceExample and the messages in them, with protobuf's methods and behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np

from ...codecs import protobuf
from ...codecs.protobuf import BYTES, FIXED32, VARINT, Part, block, signed, varint
from ...errors import DamagedError, DecodeError, SchemaError

M = TypeVar("M", bound="Message")
# A field's number in its message, its name and its content.
_Field: TypeAlias = "tuple[int, str, Values | Messages[Any] | MessageMap[Any] | Message]"


class Message:
    """Methods of all messages. The fields of a message are numbered from 1 in the order of ``_fields``.

    Values, Messages, MessageMap and Message are the contents of fields. Each can merge, clear, encode, read
    and show itself.
    """

    _fields: ClassVar[tuple[str, ...]]
    # A message inside another may be set and empty.
    _is_set = False

    def _contents(self) -> Iterator[_Field]:
        for number, name in enumerate(self._fields, 1):
            yield number, name, getattr(self, name)

    def _is_present(self) -> bool:
        return self._is_set or any(
            content._is_present() if isinstance(content, Message) else content
            for _, _, content in self._contents()
        )

    def SetInParent(self) -> None:  # noqa: N802
        self._is_set = True

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name not in self._fields:
            raise SchemaError(f"{type(self).__name__} has no field {name!r}")
        content = getattr(self, name)
        return content._is_present() if isinstance(content, Message) else bool(content)

    def SerializeToString(self, deterministic: bool | None = None) -> bytes:  # noqa: N802
        """Return the message's bytes, the same for the same content: names in order."""
        return b"".join(content._encode(number) for number, _, content in self._contents())

    SerializePartialToString = SerializeToString

    def MergeFromString(self, serialized: bytes) -> int:  # noqa: N802
        data = bytes(serialized)
        try:
            self._merge_bytes(memoryview(data), 0, len(data))
        except DamagedError as error:
            raise DecodeError(
                f"these bytes are not a message of this type: {error.message}", offset=error.offset
            ) from None
        return len(data)

    def ParseFromString(self, serialized: bytes) -> int:  # noqa: N802
        message = self.FromString(serialized)
        self.CopyFrom(message)
        return len(serialized)

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
        self.SetInParent()
        for _, name, content in _check_type(other, type(self))._contents():
            if not isinstance(content, Message) or content._is_present():
                getattr(self, name).MergeFrom(content)

    def Clear(self) -> None:  # noqa: N802
        for _, _, content in self._contents():
            content.clear()

    def ByteSize(self) -> int:  # noqa: N802
        return len(self.SerializeToString())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Message)
            and type(other) is type(self)
            and other.SerializeToString() == self.SerializeToString()
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Self], tuple[bytes]]:
        return type(self).FromString, (self.SerializeToString(),)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._text_lines())

    __repr__ = __str__

    def _text_lines(self) -> list[str]:
        return [line for _, name, content in self._contents() for line in content._show(name)]

    def _merge_bytes(self, data: memoryview, start: int, end: int) -> None:
        for part in protobuf.parts(data, start, end):
            # Fields that are not known are ignored, as protobuf does.
            if part.number <= len(self._fields):
                getattr(self, self._fields[part.number - 1])._read(data, part)

    # Content of a field in another message.

    def clear(self) -> None:
        self.Clear()
        self._is_set = False

    def _encode(self, number: int) -> bytes:
        return block(number, self.SerializeToString()) if self._is_present() else b""

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind == BYTES:
            self.SetInParent()
            self._merge_bytes(data, part.start, part.end)

    def _show(self, name: str) -> list[str]:
        return _indent(name, self._text_lines()) if self._is_present() else []


def _check_type(value: object, message_type: type[M]) -> M:
    if not isinstance(value, message_type):
        raise SchemaError(f"{message_type.__name__} is needed here, not {type(value).__name__}")
    return value


def _indent(name: str, lines: list[str]) -> list[str]:
    return [f"{name} {{", *(f"  {line}" for line in lines), "}"]


def _quote(data: bytes) -> str:
    """Return bytes as protobuf's text form shows them."""
    escapes = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    escaped = (escapes.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in data)
    return f'"{"".join(escaped)}"'


class _Repeated(list[Any]):
    """A repeated field: checks values that are put in, and notifies its owner of changes."""

    def __init__(self) -> None:
        super().__init__()
        self._notify: Callable[[], None] = lambda: None

    def _check(self, value: Any) -> Any:
        raise NotImplementedError

    def _check_all(self, values: Any) -> list[Any]:
        return [self._check(value) for value in values]

    def append(self, value: Any) -> None:
        super().append(self._check(value))
        self._notify()

    def extend(self, values: Iterable[Any]) -> None:
        super().extend(self._check_all(values if isinstance(values, np.ndarray) else list(values)))
        self._notify()

    MergeFrom = extend

    def insert(self, index: Any, value: Any) -> None:
        super().insert(index, self._check(value))
        self._notify()

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(
            index, self._check_all(list(value)) if isinstance(index, slice) else self._check(value)
        )
        self._notify()


class Values(_Repeated):
    """Values of one type."""

    def _encode(self, number: int) -> bytes:
        raise NotImplementedError

    def _read(self, data: memoryview, part: Part) -> None:
        raise NotImplementedError

    def _show(self, name: str) -> list[str]:
        return [f"{name}: {value}" for value in self]


class _Bytes(Values):
    def _check(self, value: object) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise SchemaError(f"BytesList holds bytes, not {type(value).__name__} (text: encode() it)")

    def _encode(self, number: int) -> bytes:
        return b"".join(block(number, value) for value in self)

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind == BYTES:
            list.append(self, bytes(data[part.start : part.end]))

    def _show(self, name: str) -> list[str]:
        return [f"{name}: {_quote(value)}" for value in self]


class _Floats(Values):
    def _check(self, value: object) -> float:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if not isinstance(value, int | float | np.number | np.bool_):
            raise SchemaError(f"FloatList holds numbers, not {type(value).__name__}")
        with np.errstate(over="ignore"):
            return float(np.float32(value))

    def _check_all(self, values: Any) -> list[float]:
        is_array = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiub"
        if not is_array and not all(type(value) is float for value in values):
            return super()._check_all(values)
        with np.errstate(over="ignore"):
            return list(np.asarray(values).astype(np.float32).tolist())

    def _encode(self, number: int) -> bytes:
        return block(number, np.array(self, dtype="<f4").tobytes()) if self else b""

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind in (BYTES, FIXED32):
            if (part.end - part.start) % 4:
                raise DamagedError("numbers of a wrong size", offset=part.start)
            list.extend(self, np.frombuffer(data[part.start : part.end], dtype="<f4").tolist())

    def _show(self, name: str) -> list[str]:
        return [f"{name}: {value:.9g}" for value in self]


class _Ints(Values):
    def _check(self, value: object) -> int:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if not isinstance(value, int | np.integer | np.bool_):
            raise SchemaError(f"Int64List holds integers, not {type(value).__name__}")
        number = int(value)
        if not -(2**63) <= number < 2**63:
            raise SchemaError(f"{number} does not fit 64 bits")
        return number

    def _check_all(self, values: Any) -> list[int]:
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "ib":
            return list(map(int, values.tolist()))
        return super()._check_all(values)

    def _encode(self, number: int) -> bytes:
        return block(number, b"".join(map(varint, self))) if self else b""

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind == VARINT:
            list.append(self, signed(part.value))
        elif part.kind == BYTES:
            packed = np.frombuffer(data[part.start : part.end], dtype=np.uint8)
            list.extend(self, protobuf.unpack(packed, part.start).tolist())


class Messages(_Repeated, Generic[M]):
    """A repeated field of messages."""

    def __init__(self, message_type: type[M]) -> None:
        super().__init__()
        self._message_type = message_type

    def _check(self, value: object) -> M:
        return _check_type(value, self._message_type)

    def add(self, **fields: Any) -> M:
        message = self._message_type(**fields)
        self.append(message)
        return message

    def MergeFrom(self, values: Iterable[M]) -> None:  # noqa: N802
        for message in values:
            self.add().CopyFrom(message)

    def _encode(self, number: int) -> bytes:
        return b"".join(block(number, message.SerializeToString()) for message in self)

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind == BYTES:
            self.add()._merge_bytes(data, part.start, part.end)

    def _show(self, name: str) -> list[str]:
        return [line for message in self for line in _indent(name, message._text_lines())]


class MessageMap(dict[str, M]):
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

    def _encode(self, number: int) -> bytes:
        entries = sorted((name.encode(), message.SerializeToString()) for name, message in self.items())
        return b"".join(block(number, block(1, name) + block(2, message)) for name, message in entries)

    def _read(self, data: memoryview, part: Part) -> None:
        if part.kind != BYTES:
            return
        name, message = "", self._message_type()
        for entry_part in protobuf.parts(data, part.start, part.end):
            if entry_part.number == 1 and entry_part.kind == BYTES:
                name = protobuf.name(data, entry_part)
            elif entry_part.number == 2:
                message._read(data, entry_part)
        dict.__setitem__(self, name, message)

    def _show(self, name: str) -> list[str]:
        lines = []
        for key in sorted(self):
            entry = [f"key: {_quote(key.encode())}", *_indent("value", self[key]._text_lines())]
            lines += _indent(name, entry)
        return lines


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise SchemaError(f"a feature's name is text, not {type(name).__name__}")
    return name


class _List(Message):
    """Values of one type."""

    _fields = ("value",)
    _values: ClassVar[type[Values]]

    def __init__(self, value: Iterable[Any] = ()) -> None:
        self.value = self._values()
        self.value.extend(value)

    def __setattr__(self, name: str, value: object) -> None:
        # `value += …` ends by assigning the list to itself.
        if name == "value" and self.__dict__.get("value", value) is not value:
            raise SchemaError("a repeated field cannot be assigned to; use value[:] = … or value.extend(…)")
        super().__setattr__(name, value)

    def SetInParent(self) -> None:  # noqa: N802
        super().SetInParent()
        self.value._notify()


class BytesList(_List):
    _values = _Bytes


class FloatList(_List):
    _values = _Floats


class Int64List(_List):
    _values = _Ints


_LIST_TYPES: dict[str, type[_List]] = {
    "bytes_list": BytesList,
    "float_list": FloatList,
    "int64_list": Int64List,
}


class Feature(Message):
    """One of a bytes_list, float_list or int64_list."""

    _fields = ("bytes_list", "float_list", "int64_list")
    # The name of the list that is set, and the list.
    _list: tuple[str, _List] | None = None

    def __init__(
        self,
        bytes_list: BytesList | None = None,
        float_list: FloatList | None = None,
        int64_list: Int64List | None = None,
    ) -> None:
        for name, values in zip(self._fields, (bytes_list, float_list, int64_list), strict=True):
            if values is not None:
                self._get_list(name).MergeFrom(values)

    def _get_list(self, name: str) -> _List:
        """Return the list of this name; adding a value makes it the feature's list."""
        if self._list is not None and self._list[0] == name:
            return self._list[1]
        values = _LIST_TYPES[name]()

        def set_list() -> None:
            values._is_set = True
            self._list = name, values

        values.value._notify = set_list
        return values

    bytes_list = property(lambda self: self._get_list("bytes_list"))
    float_list = property(lambda self: self._get_list("float_list"))
    int64_list = property(lambda self: self._get_list("int64_list"))

    def _contents(self) -> Iterator[_Field]:
        if self._list is not None:
            name, values = self._list
            yield self._fields.index(name) + 1, name, values

    def WhichOneof(self, name: str) -> str | None:  # noqa: N802
        if name != "kind":
            raise SchemaError(f"a Feature has no oneof {name!r}")
        return None if self._list is None else self._list[0]

    def ClearField(self, name: str) -> None:  # noqa: N802
        if self.HasField(name):
            self.Clear()

    def Clear(self) -> None:  # noqa: N802
        self._list = None


class Features(Message):
    """Features by name."""

    _fields = ("feature",)

    def __init__(self, feature: Mapping[Any, Feature] | None = None) -> None:
        self.feature = MessageMap(Feature, feature)


class FeatureList(Message):
    """A sequence: one feature per step."""

    _fields = ("feature",)

    def __init__(self, feature: Iterable[Feature] = ()) -> None:
        self.feature = Messages(Feature)
        self.feature.extend(feature)


class FeatureLists(Message):
    """Sequences by name."""

    _fields = ("feature_list",)

    def __init__(self, feature_list: Mapping[Any, FeatureList] | None = None) -> None:
        self.feature_list = MessageMap(FeatureList, feature_list)


class Example(Message):
    """One sample: ``example.features.feature["name"].int64_list.value``."""

    _fields = ("features",)

    def __init__(self, features: Features | None = None) -> None:
        self.features = Features()
        if features is not None:
            self.features.MergeFrom(features)


class SequenceExample(Message):
    """A context, which has features like an Example, and sequences."""

    _fields = ("context", "feature_lists")

    def __init__(self, context: Features | None = None, feature_lists: FeatureLists | None = None) -> None:
        self.context, self.feature_lists = Features(), FeatureLists()
        if context is not None:
            self.context.MergeFrom(context)
        if feature_lists is not None:
            self.feature_lists.MergeFrom(feature_lists)
