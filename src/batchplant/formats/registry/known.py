"""The formats: our own, imported when one is needed, and those of other packages, by entry point.

A package adds a format with an entry point in the group ``batchplant.formats`` that names its FORMAT.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import warnings
from collections.abc import Mapping

from ... import formats
from ...errors import OptionError, no_such
from ...storage import beside, tree
from .._table import OUTLINES
from ..base.format import Format, Outline

ENTRY_POINTS = "batchplant.formats"


@functools.cache
def own_format(name: str) -> Format:
    """A format of ours, imported when it is needed: all of them take much longer than one."""
    return importlib.import_module(f"{formats.__name__}.{name}").FORMAT


def own_formats() -> dict[str, Format]:
    """Our own formats by name."""
    return {name: own_format(name) for name in OUTLINES}


@functools.cache
def plug_ins() -> dict[str, Format]:
    """The formats of other packages by name; none replaces one of ours."""
    # Half of the time that opening a first file would take, and needed only here.
    import importlib.metadata

    formats_by_name: dict[str, Format] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            plug_in = entry.load()
            if not isinstance(plug_in, Format):
                raise TypeError(f"{entry.value} is no Format")
        # A plug-in that cannot be imported must not take the other formats with it.
        except Exception as error:
            warnings.warn(f"the format plug-in {entry.name} does not load: {error}", stacklevel=2)
            continue
        if plug_in.name not in OUTLINES:
            formats_by_name.setdefault(plug_in.name, plug_in)
    return formats_by_name


def all_formats() -> dict[str, Format]:
    """Every format by name: our own, then those of other packages."""
    return {**own_formats(), **plug_ins()}


def outlines() -> dict[str, Outline]:
    """The outline of every format; only the modules of plug-ins are imported for it."""
    return {**OUTLINES, **{name: plug_in.outline for name, plug_in in plug_ins().items()}}


def get_format(name: str) -> Format:
    if name in OUTLINES:
        return own_format(name)
    if name not in plug_ins():
        raise OptionError(no_such("format", name, sorted(outlines())))
    return plug_ins()[name]


def suffixed(path: str, candidates: Mapping[str, Outline]) -> str | None:
    """The name of the format whose suffix the path has; the longest suffix wins."""
    # Shards may carry their number behind the suffix: train.tfrecord-00000-of-00010.
    file = re.sub(r"-\d+-of-\d+$", "", os.path.basename(path.rstrip("/")).lower())
    table = _own_suffixes() if candidates is OUTLINES else _by_suffix_of(candidates)
    dot = file.find(".")
    while dot >= 0:
        if (name := table.get(file[dot:])) is not None:
            return name
        dot = file.find(".", dot + 1)
    return None


@functools.cache
def _own_suffixes() -> dict[str, str]:
    return _by_suffix_of(OUTLINES)


def _by_suffix_of(candidates: Mapping[str, Outline]) -> dict[str, str]:
    """Formats by suffix; of two with the same, the first."""
    names: dict[str, str] = {}
    for name, outline in candidates.items():
        for suffix in outline.suffixes:
            names.setdefault(suffix, name)
    return names


def size_of(path: str) -> int:
    """The bytes of a file, or of all files below a folder, with what lies beside it and holds its cells."""
    name = suffixed(path, outlines())
    templates = () if name is None else outlines()[name].side_cars
    # The others only say something about it.
    side_cars = [beside(path, template) for template in templates if not template.endswith((".json", ".idx"))]
    return tree.size_below(path) + sum(
        tree.size_below(side_car) for side_car in side_cars if tree.is_file(side_car)
    )


def by_suffix(path: str) -> Format | None:
    """The format whose suffix the path has."""
    name = suffixed(path, outlines())
    return None if name is None else get_format(name)


def by_scheme(path: str) -> Format | None:
    """The format whose names begin as this one; None for paths and URLs of files."""
    scheme, separator, _ = path.partition("://")
    names = (
        [name for name, outline in outlines().items() if outline.scheme == scheme.lower()]
        if separator
        else []
    )
    return get_format(names[0]) if names else None
