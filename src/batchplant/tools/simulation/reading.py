"""Plans of simulations in files."""

from __future__ import annotations

import os

from ...data import config
from ...errors import BatchplantError
from .plan import Plan


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file, by its suffix: .yaml, .yml, .toml, .json."""
    found = config.read(path, "there is no such plan; `batchplant simulate --example` shows one")
    parts = {name: {} if part is None else part for name, part in found.value.items()}
    try:
        return Plan().but(**parts)
    except BatchplantError as error:
        error.path = error.path or found.path
        wrong = [name for name, part in parts.items() if not isinstance(part, dict)]
        if wrong:
            error.message = found.line_prefix(wrong[0]) + error.message
        raise
