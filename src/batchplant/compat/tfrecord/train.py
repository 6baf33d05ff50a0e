"""tf.train: Example, SequenceExample and the messages in them, read by the native parser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ... import _native
from ...codecs.protobuf import block, varint
from ...errors import DecodeError, SchemaError
from ...schema.columns import I64
from .messages import (
    Message,
    MessageMap,
    Messages,
    Values,
    check_bytes,
    check_float,
    check_floats,
    check_int,
    check_ints,
    indent,
    quote,
)


class _List(Message):
    """Values of one type."""

    # The check of one value, and that of many at once.
    _checks: ClassVar[tuple[Callable[[Any], Any], Callable[[Any], list[Any] | None] | None]]

    def __init__(self, value: Iterable[Any] = ()) -> None:
        self._notify: Callable[[], None] = lambda: None
        check, check_all = self._checks
        self.value: Values[Any] = Values(check, lambda: self._notify(), check_all)
        self.value.extend(value)

    def __setattr__(self, name: str, value: object) -> None:
        # `value += …` ends by assigning the list to itself.
        if name == "value" and self.__dict__.get("value", value) is not value:
            raise SchemaError("a repeated field cannot be assigned to; use value[:] = … or value.extend(…)")
        super().__setattr__(name, value)

    def _merge(self, other: _List) -> None:
        self.value.extend(other.value)

    def _reset(self) -> None:
        self.value.clear()

    def _read(self, data: bytes) -> None:
        feature = Feature.FromString(block(_FIELDS[type(self)], data))
        self._merge(getattr(feature, feature.WhichOneof("kind") or "bytes_list"))

    def _text_lines(self) -> list[str]:
        return [f"value: {_format(value)}" for value in self.value]


def _format(value: bytes | float) -> str:
    if isinstance(value, bytes):
        return f'"{quote(value)}"'
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class BytesList(_List):
    _checks = (check_bytes, None)

    def _encode(self) -> bytes:
        return b"".join(block(1, value) for value in self.value)


class FloatList(_List):
    _checks = (check_float, check_floats)

    def _encode(self) -> bytes:
        return block(1, np.array(self.value, dtype="<f4").tobytes()) if self.value else b""


class Int64List(_List):
    _checks = (check_int, check_ints)

    def _encode(self) -> bytes:
        return block(1, b"".join(map(varint, self.value))) if self.value else b""


_LIST_TYPES: dict[str, type[_List]] = {
    "bytes_list": BytesList,
    "float_list": FloatList,
    "int64_list": Int64List,
}
# Field numbers in Feature; the native parser numbers the types of values in the same way.
_FIELDS: dict[type[_List], int] = {BytesList: 1, FloatList: 2, Int64List: 3}
_LIST_NAMES = ["", *_LIST_TYPES]


class Feature(Message):
    """One of a bytes_list, float_list or int64_list."""

    def __init__(
        self,
        bytes_list: BytesList | None = None,
        float_list: FloatList | None = None,
        int64_list: Int64List | None = None,
    ) -> None:
        self._kind: str | None = None
        self._list: _List | None = None
        lists = {"bytes_list": bytes_list, "float_list": float_list, "int64_list": int64_list}
        for name, values in lists.items():
            if values is not None:
                copy = self._get_list(name)
                copy.MergeFrom(values)
                # Set an empty list too.
                self._set_list(name, copy)

    def _get_list(self, name: str) -> _List:
        """Return the list of this name; adding a value makes it the feature's list."""
        if self._kind == name and self._list is not None:
            return self._list
        values = _LIST_TYPES[name]()
        values._notify = lambda: self._set_list(name, values)
        return values

    def _set_list(self, name: str, values: _List) -> None:
        self._kind, self._list = name, values

    @property
    def bytes_list(self) -> _List:
        return self._get_list("bytes_list")

    @property
    def float_list(self) -> _List:
        return self._get_list("float_list")

    @property
    def int64_list(self) -> _List:
        return self._get_list("int64_list")

    def WhichOneof(self, name: str) -> str | None:  # noqa: N802
        if name != "kind":
            raise SchemaError(f"a Feature has no oneof {name!r}")
        return self._kind

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name not in _LIST_TYPES:
            raise SchemaError(f"a Feature has no field {name!r}")
        return self._kind == name

    def ClearField(self, name: str) -> None:  # noqa: N802
        if self.HasField(name):
            self._reset()

    def _merge(self, other: Feature) -> None:
        if other._kind is not None and other._list is not None:
            values = self._get_list(other._kind)
            values.MergeFrom(other._list)
            self._set_list(other._kind, values)

    def _reset(self) -> None:
        self._kind = self._list = None

    def _encode(self) -> bytes:
        return b"" if self._list is None else block(_FIELDS[type(self._list)], self._list._encode())

    def _read(self, data: bytes) -> None:
        # The native parser reads maps of features: give this one an empty name.
        features = Features()
        features._read(block(1, block(1, b"") + block(2, data)))
        self._merge(features.feature[""])

    def _text_lines(self) -> list[str]:
        return [] if self._list is None else indent(str(self._kind), self._list._text_lines())


class Features(Message):
    """Features by name."""

    def __init__(self, feature: Mapping[Any, Feature] | None = None) -> None:
        self.feature = MessageMap(Feature, feature)

    def _merge(self, other: Features) -> None:
        self.feature.MergeFrom(other.feature)

    def _reset(self) -> None:
        self.feature.clear()

    def _encode(self) -> bytes:
        return _encode_map(self.feature)

    def _read(self, data: bytes) -> None:
        _fill(block(1, data), self, None)

    def _text_lines(self) -> list[str]:
        return _map_lines("feature", self.feature)


class FeatureList(Message):
    """A sequence: one feature per step."""

    def __init__(self, feature: Iterable[Feature] = ()) -> None:
        self.feature = Messages(Feature)
        self.feature.extend(feature)

    def _merge(self, other: FeatureList) -> None:
        for feature in other.feature:
            self.feature.add().CopyFrom(feature)

    def _reset(self) -> None:
        self.feature.clear()

    def _encode(self) -> bytes:
        return b"".join(block(1, feature._encode()) for feature in self.feature)

    def _read(self, data: bytes) -> None:
        lists = FeatureLists()
        lists._read(block(1, block(1, b"") + block(2, data)))
        self._merge(lists.feature_list[""])

    def _text_lines(self) -> list[str]:
        return [line for feature in self.feature for line in indent("feature", feature._text_lines())]


class FeatureLists(Message):
    """Sequences by name."""

    def __init__(self, feature_list: Mapping[Any, FeatureList] | None = None) -> None:
        self.feature_list = MessageMap(FeatureList, feature_list)

    def _merge(self, other: FeatureLists) -> None:
        self.feature_list.MergeFrom(other.feature_list)

    def _reset(self) -> None:
        self.feature_list.clear()

    def _encode(self) -> bytes:
        return _encode_map(self.feature_list)

    def _read(self, data: bytes) -> None:
        _fill(block(2, data), Features(), self)

    def _text_lines(self) -> list[str]:
        return _map_lines("feature_list", self.feature_list)


class Example(Message):
    """One sample: ``example.features.feature["name"].int64_list.value``."""

    def __init__(self, features: Features | None = None) -> None:
        self.features = Features()
        if features is not None:
            self.features.MergeFrom(features)
        self._has = features is not None

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name != "features":
            raise SchemaError(f"an Example has no field {name!r}")
        return self._has or bool(self.features.feature)

    def _merge(self, other: Example) -> None:
        self._has |= other.HasField("features")
        self.features.MergeFrom(other.features)

    def _reset(self) -> None:
        self.features.Clear()
        self._has = False

    def _encode(self) -> bytes:
        return block(1, self.features._encode()) if self.HasField("features") else b""

    def _read(self, data: bytes) -> None:
        self._has |= bool(data)
        _fill(data, self.features, None)

    def _text_lines(self) -> list[str]:
        return indent("features", self.features._text_lines()) if self.HasField("features") else []


class SequenceExample(Message):
    """A context, which has features like an Example, and sequences."""

    def __init__(self, context: Features | None = None, feature_lists: FeatureLists | None = None) -> None:
        self.context, self.feature_lists = Features(), FeatureLists()
        if context is not None:
            self.context.MergeFrom(context)
        if feature_lists is not None:
            self.feature_lists.MergeFrom(feature_lists)
        self._has = {"context": context is not None, "feature_lists": feature_lists is not None}

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name not in self._has:
            raise SchemaError(f"a SequenceExample has no field {name!r}")
        messages = self.context.feature if name == "context" else self.feature_lists.feature_list
        return self._has[name] or bool(messages)

    def _merge(self, other: SequenceExample) -> None:
        for name in self._has:
            self._has[name] |= other.HasField(name)
        self.context.MergeFrom(other.context)
        self.feature_lists.MergeFrom(other.feature_lists)

    def _reset(self) -> None:
        self.context.Clear()
        self.feature_lists.Clear()
        self._has = dict.fromkeys(self._has, False)

    def _encode(self) -> bytes:
        fields: list[tuple[int, str, Message]] = [
            (1, "context", self.context),
            (2, "feature_lists", self.feature_lists),
        ]
        return b"".join(
            block(number, field._encode()) for number, name, field in fields if self.HasField(name)
        )

    def _read(self, data: bytes) -> None:
        _fill(data, self.context, self.feature_lists)

    def _text_lines(self) -> list[str]:
        context = indent("context", self.context._text_lines()) if self.HasField("context") else []
        lists = self.feature_lists._text_lines()
        return context + (indent("feature_lists", lists) if self.HasField("feature_lists") else [])


def _encode_map(messages: MessageMap[Any]) -> bytes:
    entries = sorted((name.encode(), message._encode()) for name, message in messages.items())
    return b"".join(block(1, block(1, name) + block(2, data)) for name, data in entries)


def _map_lines(title: str, messages: MessageMap[Any]) -> list[str]:
    lines = []
    for name in sorted(messages):
        entry = [f'key: "{quote(name.encode())}"', *indent("value", messages[name]._text_lines())]
        lines += indent(title, entry)
    return lines


def _fill(data: bytes, features: Features, lists: FeatureLists | None) -> None:
    """Put the content of a serialized message into features and sequences."""
    view = np.frombuffer(data, dtype=np.uint8)
    span = np.zeros(1, dtype=np.int64), np.array([len(data)], dtype=np.int64)
    survey = _native.ExampleSurvey()
    if survey.add(view, *span) >= 0:
        raise DecodeError("these bytes are not a message of this type")
    requests = [
        (name, is_list, 0) for name, is_list, *_ in survey.features() if lists is not None or not is_list
    ]
    columns, bad_row, offset = _native.example_read(view, *span, requests)
    if bad_row >= 0:
        raise DecodeError("these bytes are not a message of this type", offset=int(offset))
    for (key, is_list, _), column in zip(requests, columns, strict=True):
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise DecodeError("a feature's name is not UTF-8 text") from None
        kind = int(column[0][0])
        if is_list and lists is not None:
            if kind > 3:
                raise DecodeError("steps of more than one kind", field=name)
            lists.feature_list[name].CopyFrom(_make_steps(kind, _values(data, kind, column), column[2]))
        else:
            if kind > 3:
                raise DecodeError("values of more than one kind", field=name)
            features.feature[name].CopyFrom(_make_feature(kind, _values(data, kind, column)))


def _values(data: bytes, kind: int, column: Any) -> list[Any]:
    _, _, _, spans, floats, ints = column
    if kind == 1:
        return [data[start : start + size] for start, size in spans.reshape(-1, 2).tolist()]
    return list((floats if kind == 2 else ints).tolist())


def _make_feature(kind: int, values: list[Any]) -> Feature:
    feature = Feature()
    if kind:
        target = feature._get_list(_LIST_NAMES[kind])
        # The parser's values need no check.
        list.extend(target.value, values)
        feature._set_list(_LIST_NAMES[kind], target)
    return feature


def _make_steps(kind: int, values: list[Any], counts: I64) -> FeatureList:
    steps, start = FeatureList(), 0
    for count in counts.tolist():
        steps.feature.append(_make_feature(kind, values[start : start + count]))
        start += count
    return steps
