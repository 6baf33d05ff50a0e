"""LitData's description of samples: a tree of containers with an encoding for each leaf.

``data_spec`` is JSON in a string: ``[1, node]``. A node has ``type``, ``context``, ``children_spec``; those
of a leaf are empty. The context of a dict is again JSON in a string, the list of its keys. The leaf of
``sample["box"]["x"]`` is called ``box.x`` here, that of ``sample[0]`` is called ``0``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import SchemaError
from ...storage import parse

# What a sample is called that is no container.
ONLY = "data"
DICTS = ("builtins.dict", "collections.OrderedDict")
ROWS = ("builtins.list", "builtins.tuple", "collections.namedtuple", "collections.deque")

_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def names_of(said: str) -> list[str]:
    """The names of the leaves, in order; any of NOTE_ERRORS where it is no such tree."""
    version, root = parse(said)
    if version != 1:
        raise SchemaError(f"its data_spec is of version {str(version)[:20]!r}, and only 1 is known")
    names = [".".join(path) or ONLY for path in _leaves(root, ())]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise SchemaError("two of its values would have this name", field=twice)
    return names


def _leaves(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    kind, context, inside = node["type"], node["context"], node["children_spec"]
    if kind is None:
        if inside:
            raise ValueError("a leaf has parts")
        yield path
        return
    if kind in DICTS:
        keys = parse(context)
    elif kind == "collections.defaultdict":
        keys = context["dict_context"]
    elif kind in ROWS:
        keys = range(len(inside))
    else:
        raise SchemaError(f"its samples hold a {str(kind)[:80]}, which is not known here")
    for key, part in zip(keys, inside, strict=True):
        yield from _leaves(part, (*path, str(key)))


def dict_of(names: Sequence[str]) -> str:
    """The tree of samples that are dicts with these keys."""
    node = {
        "type": "builtins.dict",
        "context": json.dumps(list(names)),
        "children_spec": [_LEAF for _ in names],
    }
    return json.dumps([1, node])


def single() -> str:
    """The tree of samples that are one value."""
    return json.dumps([1, _LEAF])
