"""Conditions as trees, and the parser that makes them of text.

Every node is frozen, and ``str`` of it is text that parses to the same tree.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

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


MAX_LETTERS = 1 << 20

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[-+]?(?:(?:\d[\d_]*)?\.\d[\d_]*|\d[\d_]*\.?)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<bytes>b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<name>[^\W\d]\w*(?:\.\w+)*)
    | (?P<op>==|!=|<=|>=|<(?!>)|>)
    | (?P<mark>[(),\[\]])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "'": "'", '"': '"'}
# Operators of other languages → those of a filter.
_MEANT = {"=": "==", "<>": "!=", "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not", "~": "not"}
_WORDS = {"true": True, "false": False}


class Token(NamedTuple):
    kind: str
    text: str
    offset: int


def parse(text: str) -> Condition:
    """Parse a condition; an OptionError names the wrong column."""
    if len(text) > MAX_LETTERS:
        raise OptionError(f"a filter of {len(text):,} letters is too long")
    return _Parser(text).parse()


def fail(text: str, offset: int, message: str) -> NoReturn:
    start = max(0, offset - 40)
    near = ("…" if start else "") + text[start : offset + 40] + ("…" if len(text) > offset + 40 else "")
    raise OptionError(f"column {offset + 1} of the filter {near!r}: {message}")


def _tokens(text: str) -> list[Token]:
    tokens, offset, end = [], 0, len(text.rstrip())
    while offset < end:
        match = _TOKEN.match(text, offset)
        if match is None:
            _bad_letter(text, end - len(text[offset:end].lstrip()))
        kind = str(match.lastgroup)
        token = Token(kind, match[kind], match.start(kind))
        if kind == "name" and token.text.lower() in ("and", "or", "not", "in", "is", "null", "none"):
            token = Token(
                "null" if token.text.lower() == "none" else token.text.lower(), token.text, token.offset
            )
        tokens.append(token)
        offset = match.end()
    return [*tokens, Token("end", "", end)]


def _bad_letter(text: str, offset: int) -> NoReturn:
    if text[offset] in "'\"`" or text[offset : offset + 2] in ("b'", 'b"'):
        fail(text, offset, "this quote is never closed")
    for wrong, right in sorted(_MEANT.items(), key=lambda pair: -len(pair[0])):
        if text.startswith(wrong, offset):
            fail(text, offset, f"write {right} for {wrong}")
    if text[offset].isdigit():
        fail(text, offset, "this is no number; put text and dates in quotes: '2024-01-31'")
    fail(text, offset, f"{text[offset]!r} means nothing here; put a field's odd name in backticks: `a-b`")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def take(self, *kinds: str) -> Token | None:
        """Take the next token if it is of these kinds."""
        token = self.token
        if token.kind in kinds or (token.kind == "mark" and token.text in kinds):
            self.next += 1
            return token
        return None

    def fail(self, message: str, offset: int | None = None) -> NoReturn:
        token = self.token
        actual = "the filter ends" if token.kind == "end" else f"there is {token.text}"
        fail(
            self.text,
            token.offset if offset is None else offset,
            message if offset is not None else f"{message}, and {actual}",
        )

    def parse(self) -> Condition:
        if self.token.kind == "end":
            self.fail("the filter is empty", 0)
        condition = self.any_of()
        if self.token.kind != "end":
            self.fail("and, or, or the end is needed" + self._backticks())
        return condition

    def _backticks(self) -> str:
        """Return a hint if two words in a row may be one field's name with a space."""
        before = self.tokens[self.next - 1] if self.next else None
        token = self.token
        if before is None or before.kind != "name" or token.kind not in ("name", "number", "mark"):
            return ""
        shown = self.text[before.offset : token.offset + len(token.text)]
        shown = f"`{shown}`" if token.kind != "mark" and len(shown) <= 80 else "`my field`"
        return f" (a field's name with a space or another odd letter stands in backticks: {shown})"

    def any_of(self) -> Condition:
        parts = [self.all_of()]
        while self.take("or"):
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else Or(tuple(_flat(Or, parts)))

    def all_of(self) -> Condition:
        parts = [self.negated()]
        while self.take("and"):
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else And(tuple(_flat(And, parts)))

    def negated(self) -> Condition:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("it is nested too deep", self.token.offset)
        if self.take("not"):
            condition: Condition = Not(self.negated())
        elif self.take("("):
            condition = self.any_of()
            if not self.take(")"):
                self.fail(") is needed" + self._backticks())
        else:
            condition = self.comparison()
        self.depth -= 1
        return condition

    def comparison(self) -> Condition:
        first = self.operand()
        parts: list[Condition] = []
        left = first
        while (op := self.take("op")) is not None:
            right = self.operand()
            parts.append(self.pair(left, op.text, right))
            left = right
        if parts:
            return parts[0] if len(parts) == 1 else And(tuple(parts))
        return self.predicate(first)

    def predicate(self, token: Token) -> Condition:
        """Parse `is null`, `in`, `between`, `like`, or a field alone."""
        if self.take("is"):
            negated = self.take("not") is not None
            if not self.take("null"):
                self.fail("null is needed behind is")
            condition: Condition = IsNull(self.field(token), token.offset)
            return Not(condition) if negated else condition
        negated = self.take("not") is not None
        if self.take("in"):
            condition = In(self.field(token), self.values(), token.offset)
        elif self.word("between"):
            condition = self.between(token)
        elif self.word("like"):
            condition = Like(self.field(token), self.pattern(), token.offset)
        elif negated:
            self.fail("in, like or between is needed behind not")
        else:
            return self.alone(token)
        return Not(condition) if negated else condition

    def word(self, text: str) -> bool:
        """Take a word that is no keyword: fields may have that name."""
        matches = self.token.kind == "name" and self.token.text.lower() == text
        self.next += matches
        return matches

    def between(self, token: Token) -> Condition:
        low = self.operand()
        if not self.take("and"):
            self.fail("and is needed, as in x between 1 and 5")
        return And((self.pair(token, ">=", low), self.pair(token, "<=", self.operand())))

    def pattern(self) -> str:
        token = self.take("text")
        if token is None:
            self.fail("a pattern in quotes is needed behind like, as 'cat%'")
        return self.unquoted(token.text[1:-1], token.offset)

    def alone(self, token: Token) -> Condition:
        if token.kind == "value":
            self.fail("a value alone is no condition; compare a field with it", token.offset)
        return Compare(token.text, "==", True, token.offset)

    def field(self, token: Token) -> str:
        if token.kind != "field":
            self.fail("the name of a field is needed here", token.offset)
        return token.text

    def pair(self, left: Token, op: str, right: Token) -> Condition:
        if left.kind == right.kind == "field":
            return CompareFields(left.text, op, right.text, left.offset)
        if left.kind == "field":
            return Compare(left.text, op, self.value(right), left.offset)
        if right.kind == "field":
            return Compare(right.text, SWAPPED[op], self.value(left), right.offset)
        self.fail("two values are compared; one side has to be a field", left.offset)

    def values(self) -> tuple[Literal, ...]:
        opened = self.take("(", "[")
        if opened is None:
            self.fail("( is needed behind in, as in label in ('cat', 'dog')")
        closing, values = ")" if opened.text == "(" else "]", []
        while not self.take(closing):
            token = self.operand()
            if token.kind != "value":
                self.fail("values are needed here, not fields; put text in quotes", token.offset)
            values.append(self.value(token))
            if not self.take(",") and not (self.token.kind == "mark" and self.token.text == closing):
                self.fail(f", or {closing} is needed")
        return tuple(values)

    def operand(self) -> Token:
        """Take a field or a value, as a token of that kind."""
        token = self.take("number", "text", "bytes", "quoted", "name")
        if token is None:
            if self.token.kind == "null":
                self.fail("nothing equals a missing cell; write `x is null`", self.token.offset)
            self.fail("a field or a value is needed")
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
            if not name:
                self.fail("the name of the field is empty", token.offset)
            return Token("field", name, token.offset)
        if token.kind == "name" and token.text.lower() not in _WORDS:
            return Token("field", token.text, token.offset)
        return Token("value", token.text, token.offset)

    def value(self, token: Token) -> Literal:
        if token.text.lower() in _WORDS:
            return _WORDS[token.text.lower()]
        if token.text[0] in "'\"":
            return self.unquoted(token.text[1:-1], token.offset)
        if token.text[0] == "b":
            try:
                return self.unquoted(token.text[2:-1], token.offset).encode("latin-1")
            except UnicodeEncodeError:
                self.fail("bytes are written in ASCII, others as \\xff", token.offset)
        plain = token.text.replace("_", "")
        try:
            # With all of its digits: a Decimal may have more than a float.
            return number_of(decimal.Decimal(plain)) if set(plain) & set(".eE") else int(plain)
        except (ValueError, decimal.InvalidOperation):
            self.fail("this number is too long", token.offset)

    def unquoted(self, text: str, offset: int) -> str:
        def letter(match: re.Match[str]) -> str:
            escape = match[1]
            if escape[0] in "xuU" and len(escape) > 1:
                code = int(escape[1:], 16)
                return chr(code) if code < 0x110000 else self.fail(f"\\{escape} is no letter", offset)
            return _LETTERS[escape] if escape in _LETTERS else self.fail(f"\\{escape} means nothing", offset)

        return _ESCAPE.sub(letter, text)


def _flat(kind: type[And | Or], parts: list[Condition]) -> list[Condition]:
    """Merge nested nodes of one kind, as & and | do."""
    return [condition for part in parts for condition in (part.parts if isinstance(part, kind) else (part,))]
