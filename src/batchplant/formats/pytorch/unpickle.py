"""Pickles of PyTorch, read without Python's own unpickler and without running anything.

Only the instructions that tensors and containers need are known, and only the names that ``objects.find``
knows. Nothing is ever imported or called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ...errors import DamagedError, UnsafeError
from .objects import Class, Maker, Record, Storage, StorageType, find, set_key


class Unpickler:
    """One pickle after another, from ``at`` on; ``at`` is behind the last one that was loaded."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self._data, self.at = data, at
        self.storages: dict[str, Storage] = {}

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
        found = bytearray()
        while (byte := self._take(1)) != b"\n":
            found += byte
            if len(found) > 1000:
                raise DamagedError("a name without an end")
        return found.decode()

    def _load(self) -> Any:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
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

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        result = self._stack[mark:]
        del self._stack[mark:]
        return result

    def _tuple(self, size: int) -> None:
        if len(self._stack) < size:
            raise DamagedError("a tuple of nothing")
        self._stack[-size:] = [tuple(self._stack[-size:])]

    def _append(self, values: list[Any]) -> None:
        into = self._stack[-1]
        if type(into) is not list:
            raise DamagedError("something is appended to what is no list")
        into.extend(values)

    def _set_items(self, pairs: list[Any]) -> None:
        into = self._stack[-1]
        if type(into) is not dict or len(pairs) % 2:
            raise DamagedError("keys are set in what is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            set_key(into, key, value)

    def _global(self) -> None:
        module = self._line()
        self._push(find(module, self._line()))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedError("a name that is no text")
        self._push(find(module, name))

    def _reduce(self) -> None:
        arguments, made = self._stack.pop(), self._stack.pop()
        if isinstance(made, Class):
            self._push(Record(made.name, arguments or None))
        elif isinstance(made, Maker) and isinstance(arguments, tuple):
            self._push(made.make(*arguments))
        else:
            raise DamagedError("the pickle calls what cannot be called")

    def _build(self) -> None:
        state = self._stack.pop()
        made = self._stack[-1]
        # Of other objects, attributes beside their content are of no use here.
        if isinstance(made, Record):
            made.state = state

    def _persistent(self) -> None:
        said = self._stack.pop()
        if not isinstance(said, tuple) or len(said) < 5 or said[0] != "storage":
            raise UnsafeError(f"its pickle refers to a {str(said[:1])[:40]} outside of itself")
        _, kind, key, _, count, *rest = said
        if not isinstance(kind, StorageType) or not isinstance(key, str | int) or type(count) is not int:
            raise DamagedError("a storage is not described as one")
        storage = Storage(str(key), kind.dtype, count)
        root = self.storages.setdefault(storage.key, storage)
        if root.dtype != storage.dtype or root.count != storage.count:
            # A storage of bytes may be seen as several dtypes; each tensor says its own.
            self.storages[storage.key] = root if root.count >= storage.count else storage
        if rest and isinstance(rest[0], tuple):
            _, offset, size = rest[0]
            if type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
                raise DamagedError("a part of a storage is not described as one")
            if offset + size > count:
                raise DamagedError("a part of a storage lies outside of it")
            storage = Storage(str(key), kind.dtype, size, offset)
        self._push(storage)


def _text(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)))


def _long(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(int.from_bytes(self._take(self._number(size)), "little", signed=True))


def _constant(value: Any) -> Callable[[Unpickler], None]:
    return lambda self: self._push(value)


_STEPS: dict[int, Callable[[Unpickler], Any]] = {
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
        "\x8c": _text(1), "X": _text(4), "\x8d": _text(8), "U": _text(1), "T": _text(4),
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
        "R": Unpickler._reduce, "\x81": Unpickler._reduce, "b": Unpickler._build, "Q": Unpickler._persistent,
    }.items()
}  # fmt: skip
