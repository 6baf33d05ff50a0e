"""Pickles of arrays and tensors, read without Python's own unpickler and without running anything.

Only the instructions that arrays and containers need are known, and only the names that ``Unpickler.find``
knows. Nothing is ever imported or called.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ...errors import DamagedError, UnsafeError

# -- objects ------------------------------------------------------------------------------------------
# Stand-ins for Python names in pickles: objects that record their arguments.


@dataclasses.dataclass(frozen=True)
class Class:
    """A class that is only a name to us."""

    name: str


@dataclasses.dataclass(frozen=True)
class Maker:
    """Function of ours that REDUCE may call."""

    make: Callable[..., object]


@dataclasses.dataclass
class Record:
    """An object of a class: its attributes."""

    name: str
    state: object = None


def plain(*arguments: object) -> object:
    """Values without meaning here: the first argument, or all of them."""
    return arguments[0] if len(arguments) == 1 else arguments


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Decode bytes as protocol 2 writes them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise DamagedError("bytes that are no text")
    return text.encode(encoding)


def _dict(pairs: Iterable[tuple[object, object]] = (), *_: object) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, value in pairs:
        set_key(result, key, value)
    return result


def _counter(counts: object = None) -> dict[Any, Any]:
    """Counter of keys: milestones of a learning rate schedule are stored so."""
    if counts is not None and type(counts) is not dict:
        raise DamagedError("a Counter of what is no dict")
    return dict(counts or {})


def set_key(into: dict[Any, Any], key: object, value: object) -> None:
    into[_key(key)] = value


def _key(key: object) -> object:
    # Python's hash of a tuple goes as deep as the tuple, without a limit.
    flat = key if type(key) is tuple else (key,)
    if not all(type(element) in (str, int, float, bool, bytes, type(None)) for element in flat):
        raise DamagedError(f"a {type(key).__name__} as the key of a dict")
    return key


CONTAINERS: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): Maker(_dict),
    ("collections", "Counter"): Maker(_counter),
    ("_codecs", "encode"): Maker(_encode),
}
for _module in ("builtins", "__builtin__"):
    CONTAINERS[_module, "set"] = Maker(plain)
    CONTAINERS[_module, "frozenset"] = Maker(plain)
    CONTAINERS[_module, "bytearray"] = Maker(plain)
    # Protocol 2 has no other word for bytes of no length.
    CONTAINERS[_module, "bytes"] = Maker(lambda *parts: parts[0] if parts else b"")
    CONTAINERS[_module, "complex"] = Maker(plain)


# -- unpickle -----------------------------------------------------------------------------------------


class Unpickler:
    """One pickle after another, from ``at`` on; ``at`` is behind the last one that was loaded."""

    # Of the strings of Python 2, which are text or bytes.
    encoding: ClassVar[str] = "utf-8"

    def __init__(self, data: memoryview, offset: int = 0) -> None:
        self._data, self.at = data, offset

    @staticmethod
    def find(module: str, name: str) -> object:
        """Return the stand-in for a Python name; UnsafeError for every other name."""
        raise NotImplementedError

    def load(self) -> Any:
        start = self.at
        try:
            return self._load()
        except (
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            AttributeError,
            struct.error,
        ) as error:
            raise DamagedError(
                f"the pickle is damaged: {type(error).__name__}: {error}", offset=self.at
            ) from None
        except (DamagedError, RecursionError) as error:
            if isinstance(error, DamagedError):
                raise error.at(offset=self.at) from None
            raise DamagedError("the pickle is nested too deep", offset=start) from None

    def _take(self, size: int) -> bytes:
        offset = self.at
        if offset + size > len(self._data):
            raise DamagedError("the pickle is cut short")
        self.at = offset + size
        return bytes(self._data[offset : offset + size])

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> str:
        line = bytearray()
        while (byte := self._take(1)) != b"\n":
            line += byte
            if len(line) > 1000:
                raise DamagedError("a name without an end")
        return line.decode()

    def _load(self) -> object:
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        while True:
            code = self._take(1)[0]
            if code == 0x2E:
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DamagedError(f"the pickle has an instruction {code:#x}, which no tensor needs")
            step(self)

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[object]:
        mark = self._marks.pop()
        result = self._stack[mark:]
        del self._stack[mark:]
        return result

    def _tuple(self, size: int) -> None:
        if len(self._stack) < size:
            raise DamagedError("a tuple of nothing")
        self._stack[-size:] = [tuple(self._stack[-size:])]

    def _append(self, values: list[object]) -> None:
        into = self._stack[-1]
        if type(into) is not list:
            raise DamagedError("something is appended to what is no list")
        into.extend(values)

    def _set_items(self, pairs: list[object]) -> None:
        into = self._stack[-1]
        if type(into) is not dict or len(pairs) % 2:
            raise DamagedError("keys are set in what is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            set_key(into, key, value)

    def _global(self) -> None:
        module = self._line()
        self._push(self.find(module, self._line()))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedError("a name that is no text")
        self._push(self.find(module, name))

    def _reduce(self) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        if isinstance(maker, Class):
            self._push(Record(maker.name, arguments or None))
        elif isinstance(maker, Maker) and isinstance(arguments, tuple):
            self._push(maker.make(*arguments))
        else:
            raise DamagedError("the pickle calls what cannot be called")

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        # Of other objects, attributes beside their content are of no use here.
        if isinstance(target, Record):
            target.state = state

    def _persistent(self) -> None:
        raise UnsafeError("its pickle refers to what lies outside of itself")


def _string(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)).decode(self.encoding, "surrogatepass"))


def _text(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)))


def _long(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(int.from_bytes(self._take(self._number(size)), "little", signed=True))


def _constant(value: object) -> Callable[[Unpickler], None]:
    return lambda self: self._push(value)


_STEPS: dict[int, Callable[[Unpickler], object]] = {
    ord(code): step
    for code, step in {
        "\x80": lambda self: self._take(1),
        "\x95": lambda self: self._take(8),
        "(": lambda self: self._marks.append(len(self._stack)),
        "0": lambda self: self._stack.pop(),
        "N": _constant(None), "\x88": _constant(True), "\x89": _constant(False), ")": _constant(()),
        "]": lambda self: self._push([]), "}": lambda self: self._push({}),
        "\x8f": lambda self: self._push([]),
        "K": lambda self: self._push(self._number(1)), "M": lambda self: self._push(self._number(2)),
        "J": lambda self: self._push(struct.unpack("<i", self._take(4))[0]),
        "G": lambda self: self._push(struct.unpack(">d", self._take(8))[0]),
        "\x8a": _long(1), "\x8b": _long(4),
        "\x8c": _text(1), "X": _text(4), "\x8d": _text(8), "U": _string(1), "T": _string(4),
        "C": _bytes(1), "B": _bytes(4), "\x8e": _bytes(8), "\x96": _bytes(8),
        "q": lambda self: self._put(self._number(1)), "r": lambda self: self._put(self._number(4)),
        "\x94": lambda self: self._put(len(self._memo)),
        "h": lambda self: self._push(self._memo[self._number(1)]),
        "j": lambda self: self._push(self._memo[self._number(4)]),
        "t": lambda self: self._push(tuple(self._to_mark())),
        "\x85": lambda self: self._tuple(1), "\x86": lambda self: self._tuple(2),
        "\x87": lambda self: self._tuple(3),
        "l": lambda self: self._push(self._to_mark()),
        "a": lambda self: self._append([self._stack.pop()]), "e": lambda self: self._append(self._to_mark()),
        "\x90": lambda self: self._append(self._to_mark()),
        "s": lambda self: self._set_items([self._stack.pop(-2), self._stack.pop()]),
        "u": lambda self: self._set_items(self._to_mark()),
        "c": Unpickler._global, "\x93": Unpickler._stack_global,
        "R": Unpickler._reduce, "\x81": Unpickler._reduce, "b": Unpickler._build,
        "Q": lambda self: self._persistent(),
    }.items()
}  # fmt: skip
