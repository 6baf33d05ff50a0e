"""HTML made in Python. Strings are escaped unless they are Markup: no string of a dataset becomes a tag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# As html.escape does, whose module takes long to import.
ESCAPES = {ord(letter): f"&#{ord(letter)};" for letter in "&<>\"'"}
# Control characters and direction marks, as page/dom.js has them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
# Elements without content.
VOID_ELEMENTS = ("img", "meta", "rect", "line")


class Markup(str):
    """Text that is HTML: only :func:`tag` makes it."""

    __slots__ = ()


def tag(name: str, attributes: dict[str, Any] | None = None, *children: Any) -> Markup:
    """Return an element. Attributes that are None are left out; children may be lists."""
    text = "".join(
        f' {key}="{_text(value)}"' for key, value in (attributes or {}).items() if value is not None
    )
    if name in VOID_ELEMENTS:
        return Markup(f"<{name}{text}>" if name in ("img", "meta") else f"<{name}{text}/>")
    return Markup(f"<{name}{text}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Return children one after the other; strings are escaped, None is left out."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(join(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else _text(child))
    return Markup("".join(parts))


def style(text: str) -> Markup:
    """Return a style sheet."""
    return Markup(f"<style>{text}</style>")


def _text(value: Any) -> str:
    """Escape markup, surrogates, and characters that are invisible or change the direction of text."""
    text = str(value).encode("utf-8", "replace").decode()
    return HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text).translate(ESCAPES)
