"""Which formats were not tried, by the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import SchemaError
from ..format import Format
from ..measure.choice import missing
from ..registry import all_formats
from ..schema import Schema
from .tries import OVER, Tried


def untried(schema: Schema, tried: Iterable[Tried], named: Sequence[str] = ()) -> dict[str, list[str]]:
    """The formats that can be written and were not tried; of those that are ``named``, where some are."""
    errors = {one.way.format: one.trial.error for one in tried if not one.way.stays and not one.aside}
    found: dict[str, list[str]] = {}
    for name, one in sorted(all_formats().items()):
        considered = name in named if named else one.writer is not None
        if considered and (name not in errors or errors[name] is not None):
            found.setdefault(_why(one, schema, errors.get(name)), []).append(name)
    return found


def _why(one: Format, schema: Schema, error: str | None) -> str:
    if error is not None:
        return "no time left" if error == OVER else "failed"
    try:
        one.check(schema)
    except SchemaError:
        return "cannot hold these fields"
    return "not installed" if missing(one) else "not made for what is asked"
