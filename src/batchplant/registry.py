"""Find the format of a path, open it, create it. Formats of other packages come by entry point.

A package adds a format with an entry point in the group ``batchplant.formats`` that names its FORMAT.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import inspect
import os
import pkgutil
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import formats
from .codecs.image_rules import ImageOptions, stored_encoding
from .errors import NotFoundError, OptionError, UnknownFormatError
from .format import Format, Probe
from .reader import Reader
from .schema import Field, Image, Schema
from .shards import Concat, ShardWriter
from .storage import is_remote
from .writer import WriteOptions, Writer

ENTRY_POINTS = "batchplant.formats"


@functools.cache
def all_formats() -> dict[str, Format]:
    """Every format by name: our own, then those of other packages."""
    # A tenth of the time that importing batchplant takes, and needed only here.
    import importlib.metadata

    found: dict[str, Format] = {}
    for module in pkgutil.iter_modules(formats.__path__):
        one = importlib.import_module(f"{formats.__name__}.{module.name}").FORMAT
        found[one.name] = one
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            one = entry.load()
            if not isinstance(one, Format):
                raise TypeError(f"{entry.value} is no Format")
        # A plug-in that cannot be imported must not take the other formats with it.
        except Exception as error:
            warnings.warn(f"the format plug-in {entry.name} does not load: {error}", stacklevel=2)
            continue
        found.setdefault(one.name, one)
    return found


def get_format(name: str) -> Format:
    known = all_formats()
    if name not in known:
        raise OptionError(f"there is no format {name!r}; there are: {', '.join(sorted(known))}")
    return known[name]


def by_suffix(path: str) -> Format | None:
    """The format whose suffix the path has; the longest suffix wins."""
    name = os.path.basename(path.rstrip("/")).lower()
    matches = [
        (len(suffix), one)
        for one in all_formats().values()
        for suffix in one.suffixes
        if name.endswith(suffix)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def find_format(path: str) -> Format | None:
    """The format of what lies at a path: by content, then by suffix; None for a folder of shards."""
    probe = Probe(path)
    if not probe.folder and not is_remote(path) and not os.path.exists(path):
        raise NotFoundError("no such file or folder", path=path)
    suffixed = by_suffix(path)
    matches = [one for one in all_formats().values() if one.matches(probe)]
    if matches:
        return suffixed if suffixed in matches else matches[0]
    if probe.folder:
        return None
    if suffixed is not None and not suffixed.folder:
        return suffixed
    raise UnknownFormatError(
        f"no format knows these bytes (they begin {probe.head[:8]!r}); name one with format (--format): "
        f"{', '.join(sorted(all_formats()))}",
        path=path,
    )


def expand(path: str) -> list[str]:
    """Braces (``{a,b}``, ``{000..123}``) and globs to paths; a path that exists is taken as it is."""
    if is_remote(path) or os.path.exists(path):
        return list(_braces(path)) if is_remote(path) else [path]
    found: list[str] = []
    for one in _braces(path):
        if os.path.exists(one) or not glob.has_magic(one):
            found.append(one)
            continue
        matches = sorted(glob.glob(one), key=_natural)
        if not matches:
            raise NotFoundError("no file matches", path=one)
        found += matches
    return found


def _braces(path: str) -> Iterator[str]:
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        yield path
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last, width = int(numbers[1]), int(numbers[2]), len(numbers[1])
        if not 0 <= last - first < 1_000_000:
            raise OptionError(f"{{{match[1]}}} is no range of shards", path=path)
        parts: Iterable[str] = (f"{number:0{width}d}" for number in range(first, last + 1))
    elif "," in match[1]:
        parts = match[1].split(",")
    else:
        yield path
        return
    for part in parts:
        yield from _braces(path[: match.start()] + part + path[match.end() :])


def _natural(name: str) -> list[Any]:
    """Sort key: part-2 before part-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def open(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    **options: Any,
) -> Reader:
    """Open a dataset: a file, a folder, a URL, a list, a glob or braces of shards.

    The format is found by content, then by suffix, unless ``format`` names it. Further options are the
    format's own; `batchplant formats NAME` lists them.
    """
    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not given:
        raise OptionError("there is no path to open")
    paths = [one for each in given for one in expand(os.fspath(each))]
    readers = [_open_one(one, format, options) for one in paths]
    return readers[0] if len(readers) == 1 else Concat(readers)


def _open_one(path: str, format: str | None, options: dict[str, Any]) -> Reader:
    found = get_format(format) if format is not None else find_format(path)
    if found is None:
        return Concat([_open_one(shard, None, options) for shard in _folder_shards(path)])
    check_options(found, found.reader, options)
    return found.reader(path, **options)


def _folder_shards(path: str) -> list[str]:
    """The files of one format in a folder that is none itself."""
    names = [name for name in sorted(os.listdir(path), key=_natural) if not name.startswith(".")]
    shards = [name for name in names if by_suffix(name) is not None]
    kinds = {by_suffix(name) for name in shards}
    if len(kinds) != 1:
        what = "files of several formats" if shards else "nothing that batchplant reads"
        raise UnknownFormatError(f"the folder holds {what}", path=path)
    return [os.path.join(path, name) for name in shards]


def own_options(made: type[Reader] | type[Writer]) -> dict[str, inspect.Parameter]:
    """The named options of a format's reader or writer."""
    parameters = inspect.signature(made.__init__).parameters
    return {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def check_options(found: Format, made: type[Reader] | type[Writer], options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in own_options(made):
            known = ", ".join(own_options(made)) or "none"
            raise OptionError(f"{found.name} has no option {name!r}; its options are: {known}")


def create(
    path: str | os.PathLike[str],
    schema: Schema | Mapping[str, Field],
    *,
    format: str | None = None,
    overwrite: bool = False,
    length: int | None = None,
    workers: int | None = None,
    on_error: str = "raise",
    checksums: bool = False,
    write_mode: str | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int = 90,
    smart_threshold: int = 256 * 256 * 3,
    compress_probability: float = 0.5,
    reencode: bool = False,
    to_rgb: bool = False,
    seed: int = 0,
    images: Mapping[str, ImageOptions] | None = None,
    **options: Any,
) -> Writer:
    """Write a dataset: ``with create("a.beton", schema) as out: out.append({...})``.

    The format comes from the suffix unless named. See :class:`ImageOptions` for what happens to pictures
    (``images`` gives some fields their own) and :class:`WriteOptions` for the rest; further options are
    the format's own.
    """
    pictures = ImageOptions(
        write_mode,
        max_resolution,
        jpeg_quality,
        smart_threshold,
        compress_probability,
        reencode,
        to_rgb,
        seed,
    )
    write = WriteOptions(overwrite, length, workers, on_error, pictures, dict(images or {}), checksums)
    writer = create_with(os.fspath(path), Schema(schema), write, format=format, **options)
    assert isinstance(writer, Writer)
    return writer


def create_with(
    path: str,
    schema: Schema,
    write: WriteOptions,
    *,
    format: str | None = None,
    shard_size: int | None = None,
    shard_samples: int | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """:func:`create` with its options gathered, and shards where a size or a count is given."""
    found = get_format(format) if format is not None else target_format(path)
    if found.writer is None:
        raise OptionError(f"{found.name} is read only", path=path)
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    found.check(schema)
    check_options(found, found.writer, options)
    made = found.writer
    schema = _as_stored(schema, made, write)

    def make(shard: str, how: WriteOptions) -> Writer:
        return made(shard, schema, how, **options)

    if shard_size is None and shard_samples is None:
        return make(path, write)
    name = os.path.basename(path.rstrip("/")).lower()
    suffix = max((one for one in found.suffixes if name.endswith(one)), key=len, default=None)
    return ShardWriter(
        path, schema, write, make, size=shard_size, samples=shard_samples, suffix=suffix,
        side_cars=made.all_side_cars(),
    )  # fmt: skip


def _as_stored(schema: Schema, made: type[Writer], write: WriteOptions) -> Schema:
    """The schema with the encodings and modes that pictures will have."""
    fields = dict(schema)
    for name, field in schema.items():
        if isinstance(field, Image):
            options = write.images_by_field.get(name, write.images)
            encoding = stored_encoding(field.encoding, options, made.image_target(field))
            mode = "RGB" if options.to_rgb else field.mode
            fields[name] = dataclasses.replace(field, encoding=encoding, mode=mode)
    return Schema(fields)


def target_format(path: str) -> Format:
    """The format to write at a path: by suffix; a path without one is a folder of pictures."""
    found = by_suffix(path)
    if found is None and not os.path.splitext(path.rstrip("/"))[1]:
        found = all_formats().get("imagefolder")
    if found is None:
        known = sorted(suffix for one in all_formats().values() for suffix in one.suffixes if one.writer)
        raise UnknownFormatError(f"no format has this suffix; there are: {', '.join(known)}", path=path)
    return found
