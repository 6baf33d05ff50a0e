"""Where the cells of a reader come from, so that what was found out about them can be remembered."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..errors import BatchplantError
from ..storage import Source, index, is_remote, open_source, tag_of, tree

if TYPE_CHECKING:
    from .reader import Reader

# Samples whose places tell in which files the cells lie.
ROWS = 1 << 14

Make = Callable[["Reader"], tuple[index.Arrays, index.Facts]]


class Made:
    """The part of :class:`~batchplant.data.reader.Reader` that knows what it was made with."""

    # Kept here, so that no format has to write its own pickling.
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    # Of the local file at the path, just before it was opened; empty where there is none.
    _tag: str

    def __new__(cls, *args: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        self._made_with = (args, options)
        self._tag = _tag_at(args)
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _remake, (type(self), *self._made_with)

    # Opens the same once more; set by whoever found the files, for there may be others by now.
    _again: Callable[[], Reader] | None = None

    def refresh(self) -> Reader:
        """The dataset as it is now, with what was appended since: a new reader. This one stays as it was.

        Of a part (fields, samples) it is the same part. Samples keep their numbers when others are appended.
        """
        if self._again is not None:
            return self._again()
        args, options = self._made_with
        options = {name: _refreshed(value) for name, value in options.items()}
        return type(self)(*map(_refreshed, args), **options)  # type: ignore[return-value]

    def _comes_from(self: Reader, fields: Sequence[str]) -> Source | None:  # type: ignore[misc]
        """What tells whether these cells have changed: their one file, or all as a ``storage.index.Whole``.

        None where nothing does; then nothing is remembered about them.
        """
        args = self._made_with[0]
        # A reader of another one has its path too, but the file does not tell which samples it has.
        opened = len(args) == 1 and isinstance(args[0], str)
        if opened and self.path and (is_remote(self.path) or tree.is_file(self.path)):
            # Another may have taken its place: what is remembered about that is not about these cells.
            if not is_remote(self.path) and _tag_at((self.path,)) != self._tag:
                return None
            ranges = self._ranges(fields, np.arange(min(len(self), ROWS)))
            if ranges is None or set(ranges.files) <= {self.path}:
                return open_source(self.path)
        return None


def _refreshed(value: Any) -> Any:
    """What a reader was made with: other readers as they are now."""
    if isinstance(value, list | tuple) and any(isinstance(one, Made) for one in value):
        return [_refreshed(one) for one in value]
    return value.refresh() if isinstance(value, Made) else value


def _remake(kind: type[Reader], args: tuple[Any, ...], options: dict[str, Any]) -> Reader:
    return kind(*args, **options)


def _tag_at(args: tuple[Any, ...]) -> str:
    if len(args) != 1 or not isinstance(args[0], str) or is_remote(args[0]):
        return ""
    try:
        return tag_of(os.stat(args[0]))
    except (OSError, ValueError):
        return ""


def remembered(
    reader: Reader,
    fields: Sequence[str],
    kind: str,
    about: str,
    make: Make,
    *,
    version: int,
    check: Callable[[index.Index], bool],
) -> index.Index | None:
    """What ``make`` finds out about these cells, or found out the last time; None: nothing is remembered.

    ``make`` gets the reader whose cells it looks at. The rest is as with ``storage.index.remember``.
    """
    source = None
    if reader._made_with[1].get("index") != "memory":
        with contextlib.suppress(BatchplantError, OSError):
            source = reader._comes_from(fields)
    if source is None:
        return None

    def build(_: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        looks = source.fresh() if isinstance(source, index.Whole) and source.fresh else reader
        try:
            found = make(looks)
        finally:
            if looks is not reader:
                looks.close()
        report(source.size)
        return found

    with contextlib.closing(source):
        how = f"{about}\0{_made_how(reader, source, fields)}"
        return index.remember(source, kind, how, build, version=version, check=check)


def _made_how(reader: Reader, source: Source, fields: Sequence[str]) -> str:
    """What tells apart the ways in which one dataset can be opened, as far as these fields go."""
    given = source.options if isinstance(source, index.Whole) else reader._made_with[1]
    options = {name: value for name, value in given.items() if name != "index"}
    kinds = [(name, str(reader.schema[name])) for name in fields]
    return f"{reader.format}\0{kinds}\0{sorted(options.items(), key=str)}"
