"""tf.train: Example, SequenceExample and what they are made of, read by the native parser."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _native
from ...errors import DecodeError, SchemaError
from . import wire
from .messages import (
    Message,
    MessageMap,
    Messages,
    Values,
    a_bytes,
    a_float,
    an_int,
    indented,
    many_floats,
    many_ints,
    quoted,
)


class _List(Message):
    """Values of one type."""

    def __init__(self, value: Any = ()) -> None:
        self._changed: Any = lambda: None
        self.value = Values(type(self)._check, lambda: self._changed(), type(self)._many)
        self.value.extend(value)

    @staticmethod
    def _check(value: Any) -> Any:
        raise NotImplementedError

    _many: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        # `value += …` ends by assigning the list to itself.
        if name == "value" and self.__dict__.get("value", value) is not value:
            raise SchemaError("a repeated field cannot be assigned to; use value[:] = … or value.extend(…)")
        super().__setattr__(name, value)

    def _merge(self, other: _List) -> None:
        self.value.extend(other.value)

    def _reset(self) -> None:
        self.value.clear()

    def _read(self, data: bytes) -> None:
        feature = Feature.FromString(wire.block(_NUMBERS[type(self)], data))
        self._merge(getattr(feature, feature.WhichOneof("kind") or "bytes_list"))

    def _text(self) -> list[str]:
        return [f"value: {_shown(one)}" for one in self.value]


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f'"{quoted(value)}"'
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class BytesList(_List):
    _check = staticmethod(a_bytes)

    def _wire(self) -> bytes:
        return b"".join(wire.block(1, one) for one in self.value)


class FloatList(_List):
    _check = staticmethod(a_float)
    _many = staticmethod(many_floats)

    def _wire(self) -> bytes:
        return wire.block(1, np.array(self.value, dtype="<f4").tobytes()) if self.value else b""


class Int64List(_List):
    _check = staticmethod(an_int)
    _many = staticmethod(many_ints)

    def _wire(self) -> bytes:
        return wire.block(1, wire.varints(self.value)) if self.value else b""


_KINDS: dict[str, type[_List]] = {"bytes_list": BytesList, "float_list": FloatList, "int64_list": Int64List}
# Field numbers in Feature, and the native parser's numbers of kinds.
_NUMBERS: dict[type[_List], int] = {BytesList: 1, FloatList: 2, Int64List: 3}
_NAMES = ["", *_KINDS]


class Feature(Message):
    """One of a bytes_list, float_list or int64_list."""

    def __init__(self, bytes_list: Any = None, float_list: Any = None, int64_list: Any = None) -> None:
        self._kind: str | None = None
        self._list: _List | None = None
        given = {"bytes_list": bytes_list, "float_list": float_list, "int64_list": int64_list}
        for name, part in given.items():
            if part is not None:
                own = self._part(name)
                own.MergeFrom(part)
                # An empty list counts too.
                self._hold(name, own)

    def _part(self, name: str) -> _List:
        """The list of this name; it becomes this feature's own when something is put into it."""
        if self._kind == name and self._list is not None:
            return self._list
        made = _KINDS[name]()
        made._changed = lambda: self._hold(name, made)
        return made

    def _hold(self, name: str, part: _List) -> None:
        self._kind, self._list = name, part

    @property
    def bytes_list(self) -> Any:
        return self._part("bytes_list")

    @property
    def float_list(self) -> Any:
        return self._part("float_list")

    @property
    def int64_list(self) -> Any:
        return self._part("int64_list")

    def WhichOneof(self, name: str) -> str | None:  # noqa: N802
        if name != "kind":
            raise SchemaError(f"a Feature has no oneof {name!r}")
        return self._kind

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name not in _KINDS:
            raise SchemaError(f"a Feature has no field {name!r}")
        return self._kind == name

    def ClearField(self, name: str) -> None:  # noqa: N802
        if self.HasField(name):
            self._reset()

    def _merge(self, other: Feature) -> None:
        if other._kind is not None and other._list is not None:
            part = self._part(other._kind)
            part.MergeFrom(other._list)
            self._hold(other._kind, part)

    def _reset(self) -> None:
        self._kind = self._list = None

    def _wire(self) -> bytes:
        return b"" if self._list is None else wire.block(_NUMBERS[type(self._list)], self._list._wire())

    def _read(self, data: bytes) -> None:
        found = Features()
        found._read(wire.block(1, wire.block(1, b"") + wire.block(2, data)))
        self._merge(found.feature[""])

    def _text(self) -> list[str]:
        return [] if self._list is None else indented(str(self._kind), self._list._text())


class Features(Message):
    """Features by name."""

    def __init__(self, feature: Any = None) -> None:
        self.feature = MessageMap(Feature, feature)

    def _merge(self, other: Features) -> None:
        self.feature.MergeFrom(other.feature)

    def _reset(self) -> None:
        self.feature.clear()

    def _wire(self) -> bytes:
        return _map(self.feature)

    def _read(self, data: bytes) -> None:
        _fill(wire.block(1, data), self, None)

    def _text(self) -> list[str]:
        return _map_text("feature", self.feature)


class FeatureList(Message):
    """Features one after the other, the steps of a sequence."""

    def __init__(self, feature: Any = ()) -> None:
        self.feature = Messages(Feature)
        self.feature.extend(feature)

    def _merge(self, other: FeatureList) -> None:
        for one in other.feature:
            self.feature.add().CopyFrom(one)

    def _reset(self) -> None:
        self.feature.clear()

    def _wire(self) -> bytes:
        return b"".join(wire.block(1, one._wire()) for one in self.feature)

    def _read(self, data: bytes) -> None:
        found = FeatureLists()
        found._read(wire.block(1, wire.block(1, b"") + wire.block(2, data)))
        self._merge(found.feature_list[""])

    def _text(self) -> list[str]:
        return [line for one in self.feature for line in indented("feature", one._text())]


class FeatureLists(Message):
    """Sequences by name."""

    def __init__(self, feature_list: Any = None) -> None:
        self.feature_list = MessageMap(FeatureList, feature_list)

    def _merge(self, other: FeatureLists) -> None:
        self.feature_list.MergeFrom(other.feature_list)

    def _reset(self) -> None:
        self.feature_list.clear()

    def _wire(self) -> bytes:
        return _map(self.feature_list)

    def _read(self, data: bytes) -> None:
        _fill(wire.block(2, data), Features(), self)

    def _text(self) -> list[str]:
        return _map_text("feature_list", self.feature_list)


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

    def _wire(self) -> bytes:
        return wire.block(1, self.features._wire()) if self.HasField("features") else b""

    def _read(self, data: bytes) -> None:
        self._has |= bool(data)
        _fill(data, self.features, None)

    def _text(self) -> list[str]:
        return indented("features", self.features._text()) if self.HasField("features") else []


class SequenceExample(Message):
    """A context, which is like an Example's features, and sequences."""

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
        full = self.context.feature if name == "context" else self.feature_lists.feature_list
        return self._has[name] or bool(full)

    def _merge(self, other: SequenceExample) -> None:
        for name in self._has:
            self._has[name] |= other.HasField(name)
        self.context.MergeFrom(other.context)
        self.feature_lists.MergeFrom(other.feature_lists)

    def _reset(self) -> None:
        self.context.Clear()
        self.feature_lists.Clear()
        self._has = dict.fromkeys(self._has, False)

    def _wire(self) -> bytes:
        parts = [(1, "context", self.context), (2, "feature_lists", self.feature_lists)]
        return b"".join(
            wire.block(number, part._wire()) for number, name, part in parts if self.HasField(name)
        )

    def _read(self, data: bytes) -> None:
        _fill(data, self.context, self.feature_lists)

    def _text(self) -> list[str]:
        context = indented("context", self.context._text()) if self.HasField("context") else []
        lists = self.feature_lists._text()
        return context + (indented("feature_lists", lists) if self.HasField("feature_lists") else [])


def _map(messages: MessageMap) -> bytes:
    entries = sorted((name.encode(), value._wire()) for name, value in messages.items())
    return b"".join(wire.block(1, wire.block(1, name) + wire.block(2, value)) for name, value in entries)


def _map_text(title: str, messages: MessageMap) -> list[str]:
    lines = []
    for name in sorted(messages):
        entry = [f'key: "{quoted(name.encode())}"', *indented("value", messages[name]._text())]
        lines += indented(title, entry)
    return lines


def _fill(data: bytes, features: Features, lists: FeatureLists | None) -> None:
    """Put what serialized bytes hold into features and sequences."""
    view = np.frombuffer(data, dtype=np.uint8)
    run = np.zeros(1, dtype=np.int64), np.array([len(data)], dtype=np.int64)
    survey = _native.ExampleSurvey()
    if survey.add(view, *run) >= 0:
        raise DecodeError("these bytes are not a message of this type")
    requests = [(found[0], found[1], 0) for found in survey.features() if lists is not None or not found[1]]
    columns, bad, at = _native.example_read(view, *run, requests)
    if bad >= 0:
        raise DecodeError("these bytes are not a message of this type", offset=int(at))
    for (key, is_list, _), column in zip(requests, columns, strict=True):
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise DecodeError("a feature's name is not UTF-8 text") from None
        if is_list and lists is not None:
            made: Any = _steps(data, name, column)
            lists.feature_list[name].CopyFrom(made)
        else:
            features.feature[name].CopyFrom(_feature(data, name, int(column[0][0]), column))


def _values(data: bytes, kind: int, column: Any) -> list[Any]:
    _, _, _, runs, floats, ints = column
    if kind == 1:
        return [data[start : start + size] for start, size in runs.reshape(-1, 2).tolist()]
    return list((floats if kind == 2 else ints).tolist())


def _of(kind: int, values: list[Any]) -> Feature:
    made = Feature()
    if kind:
        part = made._part(_NAMES[kind])
        # What the parser gives needs no check.
        list.extend(part.value, values)
        made._hold(_NAMES[kind], part)
    return made


def _feature(data: bytes, name: str, kind: int, column: Any) -> Feature:
    if kind > 3:
        raise DecodeError("values of more than one kind", field=name)
    return _of(kind, _values(data, kind, column))


def _steps(data: bytes, name: str, column: Any) -> FeatureList:
    kind = int(column[0][0])
    if kind > 3:
        raise DecodeError("steps of more than one kind", field=name)
    made, values, at = FeatureList(), _values(data, kind, column), 0
    for count in column[2].tolist():
        made.feature.append(_of(kind, values[at : at + count]))
        at += count
    return made
