"""Find the format of a path, open it, create it. Formats of other packages come by entry point.

A package adds a format with an entry point in the group ``batchplant.formats`` that names its FORMAT.
"""

from __future__ import annotations

import functools
import glob
import importlib
import importlib.util
import os
import pkgutil
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from . import formats
from .codecs.media.image_rules import ImageOptions, stored_field
from .errors import NotFoundError, OptionError, UnknownFormatError, near, no_such
from .families.folders import MEDIA, media_in
from .families.tensors import without_indexed
from .format import Format, Probe
from .options import accept
from .reader import Reader
from .schema import Field, Image, Schema
from .shards import Concat, ShardWriter
from .storage import is_remote, recover, side_car
from .storage.index.progress import stopping
from .writer import WriteOptions, Writer

ENTRY_POINTS = "batchplant.formats"
NOTES = ("csv", "json")

T = TypeVar("T")


@functools.cache
def _modules() -> dict[str, str]:
    """The modules of our own formats, and their text; empty where that cannot be had."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(formats.__path__):
        spec = importlib.util.find_spec(f"{formats.__name__}.{module.name}")
        try:
            found[module.name] = Path(str(spec and spec.origin)).read_text("utf-8")
        except (OSError, ValueError):
            found[module.name] = ""
    return found


def _own(module: str) -> Format:
    found: Format = importlib.import_module(f"{formats.__name__}.{module}").FORMAT
    return found


@functools.cache
def own_formats() -> dict[str, Format]:
    """Our own formats by name."""
    return {one.name: one for one in map(_own, _modules())}


def _likely(path: str) -> dict[str, Format]:
    """Those of our own formats whose text has a suffix of the path in it: importing all takes much longer."""
    name = os.path.basename(path.rstrip("/")).lower()
    suffixes = [f'"{name[at:]}"' for at, letter in enumerate(name) if letter == "."]
    likely = [module for module, text in _modules().items() if any(one in text for one in suffixes)]
    return {one.name: one for one in map(_own, likely)}


@functools.cache
def all_formats() -> dict[str, Format]:
    """Every format by name: our own, then those of other packages."""
    # Half of the time that opening a first file would take, and needed only here.
    import importlib.metadata

    found = dict(own_formats())
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
    if name in _modules() and _own(name).name == name:
        return _own(name)
    known = all_formats()
    if name not in known:
        raise OptionError(no_such("format", name, sorted(known)))
    return known[name]


def by_suffix(path: str, known: Mapping[str, Format] | None = None) -> Format | None:
    """The format whose suffix the path has; the longest suffix wins."""
    # Shards may carry their number behind the suffix: train.tfrecord-00000-of-00010.
    name = re.sub(r"-\d+-of-\d+$", "", os.path.basename(path.rstrip("/")).lower())
    matches = [
        (len(suffix), one)
        for one in (all_formats() if known is None else known).values()
        for suffix in one.suffixes
        if name.endswith(suffix)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def find_format(path: str) -> Format | None:
    """The format of what lies at a path: by content, then by suffix; None for a folder of shards."""
    probe = Probe(path)
    if not probe.folder and not is_remote(path) and not os.path.exists(path):
        raise NotFoundError("no such file or folder", path=path)
    # What the suffix promises, if the content keeps the promise, is the answer whoever else is asked.
    promised = by_suffix(path, _likely(path))
    if promised is not None and promised.matches(probe):
        return promised
    # Those of other packages are looked for only where ours do not know the content.
    for known in (own_formats, all_formats):
        suffixed = by_suffix(path, known())
        matches = [one for one in known().values() if one.matches(probe)]
        if matches:
            return suffixed if suffixed in matches else matches[0]
    if probe.folder:
        return None
    if suffixed is not None and not suffixed.folder:
        return suffixed
    if not probe.size:
        raise UnknownFormatError("the file is empty, and its name does not tell a format", path=path)
    raise UnknownFormatError(
        f"no format knows these bytes (they begin {probe.head[:8]!r}); name one with format (--format): "
        f"{', '.join(sorted(all_formats()))}",
        path=path,
    )


def expand(path: str) -> list[str]:
    """Braces (``{a,b}``, ``{000..123}``) and globs to paths; a path that exists is taken as it is."""
    if is_remote(path):
        return list(_braces(path))
    _recover(path)
    if os.path.exists(path):
        return [path]
    found: list[str] = []
    for one in _braces(path):
        if os.path.exists(one) or not glob.has_magic(one):
            found.append(one)
            continue
        for folder in {os.path.dirname(match) for match in glob.glob(one)}:
            _recover(folder)
        matches = sorted(glob.glob(one), key=_natural)
        if not matches:
            raise NotFoundError("no file matches", path=one)
        found += _without_side_cars(matches)
    return found


def _recover(path: str) -> None:
    """Finish what a killed writer left undone around a path, and in it."""
    recover(os.path.dirname(path))
    recover(path)


def _without_side_cars(paths: list[str]) -> list[str]:
    """These files without those that only belong to others among them."""
    writers = [one.writer for one in own_formats().values() if one.writer is not None]
    templates = {template for one in writers for template in one.all_side_cars()}
    tails = tuple(template.partition("}")[2] for template in templates)
    if not any(path.endswith(tails) for path in paths):
        return paths
    beside = {str(side_car(path, template)) for path in paths for template in templates}
    return [path for path in paths if str(Path(path)) not in beside]


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


def open(path: Any, *, format: str | None = None, **options: Any) -> Reader:
    """Open a dataset: a file, a folder, a URL, a list, a glob or braces of shards, or data in memory.

    The format is found by content, then by suffix, unless ``format`` names it. Further options are the
    format's own; `batchplant formats NAME` lists them. Data in memory are a dict of columns (arrays, tensors,
    lists), a list of dicts, a data frame, an Arrow table, a TensorDataset; see :mod:`batchplant.memory`.
    """
    if not isinstance(path, str | os.PathLike):
        # It brings all that tables need, and most datasets are files.
        from .memory import is_data

        # What gives its parts once is kept.
        path = path if is_data(path) else list(path)
        if is_data(path):
            return _open_data(path, format, options)
    given = [path] if isinstance(path, str | os.PathLike) else path
    if not given:
        raise OptionError("there is no path to open")
    paths = files_of(given, format)
    readers = in_parallel(functools.partial(_open_one, format=format, options=options), paths)
    return readers[0] if len(readers) == 1 else Concat(readers)


def _open_data(data: Any, format: str | None, options: dict[str, Any]) -> Reader:
    from .memory import memory_reader

    if format is not None:
        raise OptionError(f"data in memory have no format, and {format!r} was named")
    made = memory_reader(data)
    return made(data, **accept("memory", made, options))


def files_of(given: Iterable[str | os.PathLike[str]], format: str | None = None) -> list[str]:
    """What there is to open, one by one, behind paths, globs, braces and folders of shards."""
    found: list[str] = []
    for path in (one for each in given for one in expand(os.fspath(each))):
        shards = format is None and os.path.isdir(path) and find_format(path) is None
        found += _folder_shards(path) if shards else [path]
    return without_indexed(found)


def in_parallel(function: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """What the function gives for every path, in order; run on threads, for scanning a file may take long.

    The error of the first path that has one is raised. It, and Ctrl-C, stop the others.
    """
    if len(paths) < 2:
        return [function(path) for path in paths]
    stop = threading.Event()

    def work(path: str) -> T:
        with stopping(stop):
            return function(path)

    pool = ThreadPoolExecutor(min(len(paths), max(4, os.cpu_count() or 1)), "batchplant-open")
    try:
        return list(pool.map(work, paths))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _open_one(path: str, format: str | None, options: dict[str, Any]) -> Reader:
    found = get_format(format) if format is not None else find_format(path)
    # Only a folder has no format, and files_of has opened those.
    assert found is not None
    return found.reader(path, **accept(found.name, found.reader, options))


def _folder_shards(path: str) -> list[str]:
    """The files of one format in a folder that is none itself."""
    names = [name for name in sorted(os.listdir(path), key=_natural) if not name.startswith(".")]
    shards = [name for name in _without_side_cars(names) if by_suffix(name) is not None]
    # Tables of text beside files of another format describe those.
    data = [name for name in shards if by_suffix(name) not in map(own_formats().get, NOTES)]
    shards = data or shards
    kinds = {by_suffix(name) for name in shards}
    media = [] if data else media_in(path, Probe(path).names)
    if len(media) > 1:
        raise UnknownFormatError(
            f"the folder holds {' and '.join(one.many for one in media)}; say which with format (--format): "
            f"{' or '.join(one.format for one in media)}; or name the files in a metadata.csv",
            path=path,
        )
    if len(kinds) != 1:
        known = ", ".join(sorted({one.name for one in kinds if one is not None}))
        what = f"files of several formats ({known}); name some" if known else "nothing that batchplant reads"
        raise UnknownFormatError(f"the folder holds {what}", path=path)
    return [os.path.join(path, name) for name in shards]


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
    image_format: str | None = None,
    quality: int | None = None,
    lossless: bool = False,
    orient: bool = False,
    images: Mapping[str, ImageOptions] | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """Write a dataset: ``with create("a.beton", schema) as out: out.append({...})``.

    The format comes from the suffix unless named. See :class:`ImageOptions` for what happens to pictures
    (``images`` gives some fields their own) and :class:`WriteOptions` for the rest; further options are
    the format's own. With ``shard_samples`` or ``shard_size`` (bytes) it writes files of limited size.
    """
    pictures = ImageOptions(
        write_mode, max_resolution, jpeg_quality, smart_threshold, compress_probability, reencode, to_rgb,
        seed, image_format, quality, lossless, orient,
    )  # fmt: skip
    write = WriteOptions(overwrite, length, workers, on_error, pictures, dict(images or {}), checksums)
    return create_with(os.fspath(path), Schema(schema), write, format=format, **options)


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
    found = get_format(format) if format is not None else target_format(path, schema)
    if found.writer is None:
        raise OptionError(f"{found.name} is read only", path=path)
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    found.check(schema)
    made = found.writer
    options = accept(found.name, made, options)
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
            fields[name] = stored_field(field, options, made.image_target(field))
    return Schema(fields)


def target_format(path: str, schema: Mapping[str, Field] | None = None) -> Format:
    """The format to write at a path: by suffix; a path without one is a folder of what the schema has."""
    found = by_suffix(path)
    suffix = os.path.splitext(path.rstrip("/"))[1].lower()
    if found is None and not suffix:
        fields = (schema or {}).values()
        media = [one for one in MEDIA if any(isinstance(field, one.kind) for field in fields)]
        if fields and not media:
            raise UnknownFormatError(
                "a name without a suffix is a folder of pictures, sounds or videos, and no field holds such; "
                "give the name a suffix, such as .parquet, or name the format (--to)",
                path=path,
            )
        return get_format((media or MEDIA)[0].format)
    if found is None:
        hint = near(suffix, [one for each in all_formats().values() if each.writer for one in each.suffixes])
        message = f"no format that we write has the suffix {suffix}{hint}; `batchplant formats` lists all"
        raise UnknownFormatError(message, path=path)
    return found
