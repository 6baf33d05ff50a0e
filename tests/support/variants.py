"""Parameters of tests: those that only ``make test-all`` tries, and many small ones in one test."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Suffixes that are other names for another one of their format.
_ALIASES = "feather ipc hdf5 he5 nc nc4 mat ndjson mpk pq pickle pth ckpt tfrecords tfrec tgz tab arrayrecord"
# Other names for those whose compressed files are tried.
_ALIASES_COMPRESSED = ("tsv", "json")


def is_alias(suffix: str) -> bool:
    """Return whether ``make test`` can do without a suffix: another has the same format and compression."""
    first, *compression = suffix.split(".")[1:] or [""]
    return first in _ALIASES.split() or (first in _ALIASES_COMPRESSED and bool(compression))


def exhaustive(*values: Any) -> list[Any]:
    """Mark parameters, or tuples of them, as those that ``make test`` leaves out."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive)
        for value in values
    ]


def first(number: int, values: Any) -> list[Any]:
    """Leave only the first parameters to ``make test``."""
    values = list(values)
    return [*values[:number], *exhaustive(*values[number:])]


def in_one_test(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Any], Any]:
    """Like ``pytest.mark.parametrize``, but as one test, for an item of pytest costs more than a small case.

    Each case has a folder of its own below tmp_path, and what fails names its case.
    """
    keys = [names] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, [value] if len(keys) == 1 else value, strict=True)) for value in values]

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            with tempfile.TemporaryDirectory(dir=fixtures.get("tmp_path")) as parent:
                for number, case in enumerate(cases):
                    if "tmp_path" in fixtures:
                        fixtures["tmp_path"] = Path(parent, str(number))
                        fixtures["tmp_path"].mkdir()
                    try:
                        test(**fixtures, **case)
                    except Exception as error:
                        error.add_note(f"in the case {case!s:.300}")
                        raise

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
