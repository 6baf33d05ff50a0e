"""The tree of a condition. Every node is frozen, and ``str`` of it is text that parses to the same tree."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re
import uuid
from collections.abc import Iterable

import numpy as np

from ...errors import OptionError

Literal = bool | int | float | decimal.Decimal | str | bytes

# Precedence of nodes, for text without needless parentheses.
OR, AND, NOT, LEAF = range(4)
PLAIN_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")
KEYWORDS = ("and", "or", "not", "in", "is", "null", "none", "true", "false")
# Levels of conditions within conditions.
MAX_DEPTH = 100
# Digits of a decimal number without a fraction that becomes an int.
MAX_WHOLE_DIGITS = 100
SWAPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Condition:
    """A condition on a sample: true, false, or (if a cell is missing) neither.

    ``&``, ``|`` and ``~`` join conditions; put each in parentheses: ``(col("x") > 3) & ~col("bad")``.
    """

    binds = LEAF

    def __and__(self, other: object) -> Condition:
        return And((*_parts(And, as_condition(self)), *_parts(And, as_condition(other))))

    def __rand__(self, other: object) -> Condition:
        return as_condition(other) & self

    def __or__(self, other: object) -> Condition:
        return Or((*_parts(Or, as_condition(self)), *_parts(Or, as_condition(other))))

    def __ror__(self, other: object) -> Condition:
        return as_condition(other) | self

    def __invert__(self) -> Condition:
        return Not(as_condition(self))

    def __bool__(self) -> bool:
        raise OptionError(
            "a condition has no truth of its own: join conditions with & | ~, each in parentheses, "
            "and write (col('x') > 3) & (col('x') < 5) for 3 < x < 5"
        )


def _parts(kind: type[And | Or], condition: Condition) -> tuple[Condition, ...]:
    return condition.parts if isinstance(condition, kind) else (condition,)


@dataclasses.dataclass(frozen=True)
class Compare(Condition):
    """A field against a value. ``offset``: its position in the text, None if there is none."""

    field: str
    op: str
    value: Literal
    offset: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.op == "==" and self.value is True:
            return name_text(self.field)
        return f"{name_text(self.field)} {self.op} {literal_text(self.value)}"


@dataclasses.dataclass(frozen=True)
class CompareFields(Condition):
    """Two fields of one sample against each other."""

    left: str
    op: str
    right: str
    offset: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{name_text(self.left)} {self.op} {name_text(self.right)}"


@dataclasses.dataclass(frozen=True)
class In(Condition):
    """A field among values."""

    field: str
    values: tuple[Literal, ...]
    offset: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{name_text(self.field)} in ({', '.join(map(literal_text, self.values))})"


@dataclasses.dataclass(frozen=True)
class Like(Condition):
    """A field whose text is like a pattern: ``%`` any letters, ``_`` one."""

    field: str
    pattern: str
    offset: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{name_text(self.field)} like {literal_text(self.pattern)}"


@dataclasses.dataclass(frozen=True)
class IsNull(Condition):
    """A field whose cell is missing."""

    field: str
    offset: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{name_text(self.field)} is null"


Leaf = Compare | CompareFields | In | Like | IsNull


@dataclasses.dataclass(frozen=True)
class _Joined(Condition):
    parts: tuple[Condition, ...]

    word = ""

    def __str__(self) -> str:
        return f" {self.word} ".join(_inside(part, self.binds + 1) for part in self.parts)


@dataclasses.dataclass(frozen=True)
class And(_Joined):
    """All of them."""

    binds, word = AND, "and"
    __str__ = _Joined.__str__


@dataclasses.dataclass(frozen=True)
class Or(_Joined):
    """At least one of them."""

    binds, word = OR, "or"
    __str__ = _Joined.__str__


@dataclasses.dataclass(frozen=True)
class Not(Condition):
    """Negation; neither true nor false stays so."""

    part: Condition

    binds = NOT

    def __str__(self) -> str:
        return f"not {_inside(self.part, NOT)}"


def _inside(part: Condition, min_binding: int) -> str:
    return f"({part})" if part.binds < min_binding else str(part)


class FieldRef(Condition):
    """A field to compare: ``col("label") == "cat"``. By itself, the condition that it is true."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise OptionError(f"col needs the name of a field, not {name!r}")
        self.name = name

    def _against(self, op: str, other: object) -> Condition:
        if isinstance(other, FieldRef):
            return CompareFields(self.name, op, other.name)
        return Compare(self.name, op, literal(other))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._against("==", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._against("!=", other)

    def __lt__(self, other: object) -> Condition:
        return self._against("<", other)

    def __le__(self, other: object) -> Condition:
        return self._against("<=", other)

    def __gt__(self, other: object) -> Condition:
        return self._against(">", other)

    def __ge__(self, other: object) -> Condition:
        return self._against(">=", other)

    def is_in(self, values: Iterable[object]) -> Condition:
        """The cell is one of these."""
        if isinstance(values, str | bytes):
            raise OptionError(f"is_in needs a list of values, not {values!r}")
        return In(self.name, tuple(map(literal, values)))

    def between(self, low: object, high: object) -> Condition:
        """The cell is neither less than the one nor greater than the other."""
        return self._against(">=", low) & self._against("<=", high)

    def like(self, pattern: str) -> Condition:
        """The text is like a pattern: ``%`` stands for any letters, ``_`` for one."""
        if not isinstance(pattern, str):
            raise OptionError(f"like needs a pattern as 'cat%', not {_short(pattern)}")
        return Like(self.name, pattern)

    def is_null(self) -> Condition:
        """The cell is missing."""
        return IsNull(self.name)

    def __str__(self) -> str:
        return name_text(self.name)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> FieldRef:
    """The field ``name`` in a condition: ``data.filter((col("width") > 224) & (col("label") == "cat"))``."""
    return FieldRef(name)


def as_condition(condition: object) -> Condition:
    """Return a condition; a field by itself is the condition that it is true."""
    if isinstance(condition, FieldRef):
        return Compare(condition.name, "==", True)
    if isinstance(condition, Condition):
        return condition
    raise OptionError(
        f"a condition is needed, as \"label == 'cat'\" or col('x') > 3, not {_short(condition)}; "
        "behind & and | put it in parentheses"
    )


def literal(value: object) -> Literal:
    """Return a value as a literal of a condition: times and UUIDs as their text."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    # As text: Python's times have no nanoseconds.
    if isinstance(value, np.datetime64):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise OptionError(f"a field is compared with finite numbers, not {value}")
        is_whole = value == value.to_integral_value() and value.copy_abs() < 10**MAX_WHOLE_DIGITS
        return int(value) if is_whole else number_of(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if value is None:
        raise OptionError("nothing equals a missing cell: write `x is null`, or col('x').is_null()")
    raise OptionError(f"a field is compared with a number, a text, bytes or a time, not {_short(value)}")


def number_of(number: decimal.Decimal) -> float | decimal.Decimal:
    """Return the float that is written with the same digits, else the decimal number itself."""
    near = float(number)
    return near if decimal.Decimal(repr(near)) == number else number


def check_depth(condition: Condition) -> Condition:
    """Return the condition; raise OptionError if it is nested too deep for recursion."""
    waiting: list[tuple[Condition, int]] = [(condition, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise OptionError(f"the filter is nested deeper than {MAX_DEPTH} conditions")
        if isinstance(node, Not):
            waiting.append((node.part, depth + 1))
        elif isinstance(node, And | Or):
            waiting.extend((part, depth + 1) for part in node.parts)
    return condition


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + " …"


def name_text(name: str) -> str:
    plain = PLAIN_NAME.fullmatch(name) and name.lower() not in KEYWORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def literal_text(value: Literal) -> str:
    """Return a value as it is written in a filter."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return "b'" + "".join(_escaped(byte) for byte in value) + "'"
    if isinstance(value, str):
        return (
            "'"
            + "".join(
                _escaped(ord(letter)) if letter < " " or letter in "'\\\x7f" else letter for letter in value
            )
            + "'"
        )
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)


def _escaped(code: int) -> str:
    return chr(code) if 32 <= code < 127 and code not in b"'\\" else f"\\x{code:02x}"
