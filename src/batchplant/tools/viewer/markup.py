"""HTML made in Python: whatever is not markup already is text, so no string of a dataset becomes a tag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# What would be markup. (html.escape does the same; its module takes long to import.)
ESCAPES = {ord(one): f"&#{ord(one)};" for one in "&<>\"'"}
# Controls and marks of direction, as page/dom.js has them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
# Elements that hold nothing.
EMPTY = ("img", "meta", "rect", "line")


class Markup(str):
    """Text that is HTML: only :func:`tag` makes it."""

    __slots__ = ()


def tag(name: str, attributes: dict[str, Any] | None = None, *children: Any) -> Markup:
    """An element. Attributes that are None are left out; children may be lists."""
    said = "".join(
        f' {key}="{_text(value)}"' for key, value in (attributes or {}).items() if value is not None
    )
    if name in EMPTY:
        return Markup(f"<{name}{said}>" if name in ("img", "meta") else f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(children)}</{name}>")


def joined(children: Iterable[Any]) -> Markup:
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(joined(child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else _text(child))
    return Markup("".join(parts))


def style(text: str) -> Markup:
    """A style sheet of ours."""
    return Markup(f"<style>{text}</style>")


def _text(value: Any) -> str:
    """Without what no file of UTF-8 may hold, what turns other text around or is not seen, and markup."""
    text = str(value).encode("utf-8", "replace").decode()
    return HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text).translate(ESCAPES)
