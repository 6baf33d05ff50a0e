"""What is open: its fields, its size, what is known of it without looking far."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ...._version import __version__
from ....data.tensors import is_tensors
from ....errors import BatchplantError, shortened, shown
from ....schema.kinds import Field
from ..cells.array import is_map
from ..session import Session, Side

# Class names that the page gets; more are shown sample by sample.
MOST_NAMES = 2000
# Characters of each.
NAME_CHARACTERS = 200
# Fields whose cells fill a card of a grid; what has none of them is a table.
SEEN = ("image", "mask", "video", "sound")
LABELS = ("label", "labels", "class", "target", "category", "caption", "text", "y", "cls", "fine_label")


def dataset(session: Session, request: Request) -> dict[str, Any]:
    side = session.side(request.query_params)
    reader = side.reader
    return {
        "title": _title(side.title),
        "path": shown(str(reader.path)),
        "format": reader.format,
        "samples": len(reader),
        "facts": _facts(side),
        "fields": [_field(name, kind, side.shows[name]) for name, kind in reader.schema.items()],
        "layout": _layout(side),
        "image": side.image,
        "label": _label(side),
        "sides": list(session.sides),
        "pipeline": session.pipeline is not None,
        "live": session.live is not None,
        "keys": reader._key_kind() is not None,
        "version": __version__,
    }


def _title(name: str) -> str:
    """The last part of a path, without what signs a URL."""
    whole = shown(name)
    return whole.rstrip("/").rpartition("/")[2] or whole


def _facts(side: Side) -> dict[str, Any]:
    try:
        return side.reader.facts()
    except (BatchplantError, OSError) as error:
        return {"error": str(error)}


def _field(name: str, kind: Field, how: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name, "kind": str(kind), "shows": how, "optional": kind.optional
    }  # fmt: skip
    for part in ("dtype", "shape", "encoding", "mode", "mask"):
        value = getattr(kind, part, None)
        if value is not None:
            found[part] = value
    names = getattr(kind, "names", None)
    if names:
        found |= {
            "names": [shortened(one, NAME_CHARACTERS) for one in names[:MOST_NAMES]],
            "classes": len(names),
        }
    return found


def _layout(side: Side) -> str:
    if is_tensors(side.reader.schema):
        return "model"
    seen = any(how in SEEN for how in side.shows.values()) or any(map(is_map, side.reader.schema.values()))
    return "grid" if seen else "table"


def _label(side: Side) -> str | None:
    """What stands below an image: its class, or a field that is called like one."""
    named = [name for name in side.shows if name.lower() in LABELS]
    likely = [name for name in named if side.shows[name] in ("number", "text", "bool")]
    return side.first("class") or next(iter(likely), None)


ROUTES = {"dataset": dataset}
