"""Text to a condition. Nothing is ever run: there are fields, values and a few words."""

from __future__ import annotations

import decimal
import re
from typing import NamedTuple, NoReturn

from ...errors import OptionError
from .tree import (
    MAX_DEPTH,
    TURNED,
    And,
    Compare,
    CompareFields,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    number_of,
)

# Longer text was written by no one.
LONGEST = 1 << 20

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
# What other languages write, and what is written here.
_MEANT = {
    "=": "==", "<>": "!=", "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not", "~": "not",
}  # fmt: skip
_WORDS = {"true": True, "false": False}


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str) -> Condition:
    """The condition that a text means; an OptionError names the column that is wrong."""
    if len(text) > LONGEST:
        raise OptionError(f"a filter of {len(text):,} letters is too long")
    return _Parser(text).whole()


def fail(text: str, at: int, what: str) -> NoReturn:
    start = max(0, at - 40)
    near = ("…" if start else "") + text[start : at + 40] + ("…" if len(text) > at + 40 else "")
    raise OptionError(f"column {at + 1} of the filter {near!r}: {what}")


def _tokens(text: str) -> list[Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            _bad_letter(text, end - len(text[at:end].lstrip()))
        kind = str(match.lastgroup)
        token = Token(kind, match[kind], match.start(kind))
        if kind == "name" and token.text.lower() in ("and", "or", "not", "in", "is", "null", "none"):
            token = Token(
                "null" if token.text.lower() == "none" else token.text.lower(), token.text, token.at
            )
        found.append(token)
        at = match.end()
    return [*found, Token("end", "", end)]


def _bad_letter(text: str, at: int) -> NoReturn:
    if text[at] in "'\"`" or text[at : at + 2] in ("b'", 'b"'):
        fail(text, at, "this quote is never closed")
    for wrong, right in sorted(_MEANT.items(), key=lambda pair: -len(pair[0])):
        if text.startswith(wrong, at):
            fail(text, at, f"write {right} for {wrong}")
    if text[at].isdigit():
        fail(text, at, "this is no number; put text and dates in quotes: '2024-01-31'")
    fail(text, at, f"{text[at]!r} means nothing here; put a field's odd name in backticks: `a-b`")


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
        """The next token, where it is of these kinds."""
        token = self.token
        if token.kind in kinds or (token.kind == "mark" and token.text in kinds):
            self.next += 1
            return token
        return None

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        token = self.token
        got = "the filter ends" if token.kind == "end" else f"there is {token.text}"
        fail(self.text, token.at if at is None else at, what if at is not None else f"{what}, and {got}")

    def whole(self) -> Condition:
        if self.token.kind == "end":
            self.fail("the filter is empty", 0)
        found = self.any_of()
        if self.token.kind != "end":
            self.fail("and, or, or the end is needed" + self._backticks())
        return found

    def _backticks(self) -> str:
        """Return a hint where two words in a row may be one name of a field, which has a space in it."""
        before = self.tokens[self.next - 1] if self.next else None
        here = self.token
        if before is None or before.kind != "name" or here.kind not in ("name", "number", "mark"):
            return ""
        shown = self.text[before.at : here.at + len(here.text)]
        shown = f"`{shown}`" if here.kind != "mark" and len(shown) <= 80 else "`my field`"
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
            self.fail("it is nested too deep", self.token.at)
        if self.take("not"):
            found: Condition = Not(self.negated())
        elif self.take("("):
            found = self.any_of()
            if not self.take(")"):
                self.fail(") is needed" + self._backticks())
        else:
            found = self.comparison()
        self.depth -= 1
        return found

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
        return self.about(first)

    def about(self, one: Token) -> Condition:
        """What is said of a field without comparing it."""
        if self.take("is"):
            negated = self.take("not") is not None
            if not self.take("null"):
                self.fail("null is needed behind is")
            found: Condition = IsNull(self.field(one), one.at)
            return Not(found) if negated else found
        negated = self.take("not") is not None
        if self.take("in"):
            found = In(self.field(one), self.values(), one.at)
        elif self.word("between"):
            found = self.between(one)
        elif self.word("like"):
            found = Like(self.field(one), self.pattern(), one.at)
        elif negated:
            self.fail("in, like or between is needed behind not")
        else:
            return self.alone(one)
        return Not(found) if negated else found

    def word(self, text: str) -> bool:
        """Takes a word that is no keyword, for fields may be called so."""
        found = self.token.kind == "name" and self.token.text.lower() == text
        self.next += found
        return found

    def between(self, one: Token) -> Condition:
        low = self.operand()
        if not self.take("and"):
            self.fail("and is needed, as in x between 1 and 5")
        return And((self.pair(one, ">=", low), self.pair(one, "<=", self.operand())))

    def pattern(self) -> str:
        token = self.take("text")
        if token is None:
            self.fail("a pattern in quotes is needed behind like, as 'cat%'")
        return self.unquoted(token.text[1:-1], token.at)

    def alone(self, one: Token) -> Condition:
        if one.kind == "value":
            self.fail("a value alone is no condition; compare a field with it", one.at)
        return Compare(one.text, "==", True, one.at)

    def field(self, one: Token) -> str:
        if one.kind != "field":
            self.fail("the name of a field is needed here", one.at)
        return one.text

    def pair(self, left: Token, op: str, right: Token) -> Condition:
        if left.kind == right.kind == "field":
            return CompareFields(left.text, op, right.text, left.at)
        if left.kind == "field":
            return Compare(left.text, op, self.value(right), left.at)
        if right.kind == "field":
            return Compare(right.text, TURNED[op], self.value(left), right.at)
        self.fail("two values are compared; one side has to be a field", left.at)

    def values(self) -> tuple[Literal, ...]:
        opened = self.take("(", "[")
        if opened is None:
            self.fail("( is needed behind in, as in label in ('cat', 'dog')")
        closing, found = ")" if opened.text == "(" else "]", []
        while not self.take(closing):
            one = self.operand()
            if one.kind != "value":
                self.fail("values are needed here, not fields; put text in quotes", one.at)
            found.append(self.value(one))
            if not self.take(",") and not (self.token.kind == "mark" and self.token.text == closing):
                self.fail(f", or {closing} is needed")
        return tuple(found)

    def operand(self) -> Token:
        """A field or a value, as a token of that kind."""
        token = self.take("number", "text", "bytes", "quoted", "name")
        if token is None:
            if self.token.kind == "null":
                self.fail("nothing equals a missing cell; write `x is null`", self.token.at)
            self.fail("a field or a value is needed")
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
            if not name:
                self.fail("the name of the field is empty", token.at)
            return Token("field", name, token.at)
        if token.kind == "name" and token.text.lower() not in _WORDS:
            return Token("field", token.text, token.at)
        return Token("value", token.text, token.at)

    def value(self, one: Token) -> Literal:
        if one.text.lower() in _WORDS:
            return _WORDS[one.text.lower()]
        if one.text[0] in "'\"":
            return self.unquoted(one.text[1:-1], one.at)
        if one.text[0] == "b":
            try:
                return self.unquoted(one.text[2:-1], one.at).encode("latin-1")
            except UnicodeEncodeError:
                self.fail("bytes are written in ASCII, others as \\xff", one.at)
        plain = one.text.replace("_", "")
        try:
            # With all of its digits: a Decimal may have more than a float.
            return number_of(decimal.Decimal(plain)) if set(plain) & set(".eE") else int(plain)
        except (ValueError, decimal.InvalidOperation):
            self.fail("this number is too long", one.at)

    def unquoted(self, text: str, at: int) -> str:
        def letter(match: re.Match[str]) -> str:
            found = match[1]
            if found[0] in "xuU" and len(found) > 1:
                code = int(found[1:], 16)
                return chr(code) if code < 0x110000 else self.fail(f"\\{found} is no letter", at)
            return _LETTERS[found] if found in _LETTERS else self.fail(f"\\{found} means nothing", at)

        return _ESCAPE.sub(letter, text)


def _flat(kind: type[And | Or], parts: list[Condition]) -> list[Condition]:
    """Joined in one node what is joined alike, as & and | do."""
    return [one for part in parts for one in (part.parts if isinstance(part, kind) else (part,))]
