"""Find the format of a path, open it, create it. Formats of other packages come by entry point.

A package adds a format with an entry point in the group ``batchplant.formats`` that names its FORMAT.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from . import formats, quarantine
from .codecs.media.image_rules import ImageOptions, Images
from .errors import NotFoundError, OptionError, UnknownFormatError, near, no_such
from .format import Format, Outline, Probe
from .formats._table import OUTLINES
from .options import accept, own_options
from .reader import Reader
from .schema import KINDS, Field, Schema
from .shards import Concat, ShardWriter
from .storage import absolute, beside, index, is_remote, join, like, reached, recover, split_options, tree
from .storage.index.progress import in_parallel
from .storage.patterns import braces, natural
from .writer import WriteOptions, Writer

ENTRY_POINTS = "batchplant.formats"
# Files that are opened side by side, unless there are more cores: local ones, and those on a server.
AT_ONCE = (4, 16)


@functools.cache
def _own(name: str) -> Format:
    """A format of ours, imported when it is needed: all of them take much longer than one."""
    found: Format = importlib.import_module(f"{formats.__name__}.{name}").FORMAT
    return found


def own_formats() -> dict[str, Format]:
    """Our own formats by name."""
    return {name: _own(name) for name in OUTLINES}


@functools.cache
def plug_ins() -> dict[str, Format]:
    """The formats of other packages by name; none replaces one of ours."""
    # Half of the time that opening a first file would take, and needed only here.
    import importlib.metadata

    found: dict[str, Format] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            one = entry.load()
            if not isinstance(one, Format):
                raise TypeError(f"{entry.value} is no Format")
        # A plug-in that cannot be imported must not take the other formats with it.
        except Exception as error:
            warnings.warn(f"the format plug-in {entry.name} does not load: {error}", stacklevel=2)
            continue
        if one.name not in OUTLINES:
            found.setdefault(one.name, one)
    return found


def all_formats() -> dict[str, Format]:
    """Every format by name: our own, then those of other packages."""
    return {**own_formats(), **plug_ins()}


def _outlines() -> dict[str, Outline]:
    """The outline of every format; only the modules of plug-ins are imported for it."""
    return {**OUTLINES, **{name: one.outline for name, one in plug_ins().items()}}


def get_format(name: str) -> Format:
    if name in OUTLINES:
        return _own(name)
    if name not in plug_ins():
        raise OptionError(no_such("format", name, sorted(_outlines())))
    return plug_ins()[name]


def _suffixed(path: str, known: Mapping[str, Outline]) -> str | None:
    """The name of the format whose suffix the path has; the longest suffix wins."""
    # Shards may carry their number behind the suffix: train.tfrecord-00000-of-00010.
    file = re.sub(r"-\d+-of-\d+$", "", os.path.basename(path.rstrip("/")).lower())
    matches = [
        (len(suffix), name) for name, one in known.items() for suffix in one.suffixes if file.endswith(suffix)
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def by_suffix(path: str) -> Format | None:
    """The format whose suffix the path has."""
    name = _suffixed(path, _outlines())
    return None if name is None else get_format(name)


def find_format(path: str | Probe) -> Format | None:
    """The format of what lies at a path: by content, then by suffix; None for a folder of shards."""
    probe = path if isinstance(path, Probe) else Probe(path)
    path = probe.path
    if not probe.folder and not is_remote(path) and not os.path.exists(path):
        raise NotFoundError("no such file or folder", path=path)
    # What the suffix promises, if the content keeps the promise, is the answer whoever else is asked.
    promised = _suffixed(path, OUTLINES)
    others = [name for name, one in OUTLINES.items() if one.folder in (None, probe.folder)]
    for name in others if promised is None else [promised, *others]:
        if _own(name).matches(probe):
            return _own(name)
    # Those of other packages are looked for only where ours do not know the content.
    promised = _suffixed(path, _outlines())
    theirs = {name: one for name, one in plug_ins().items() if one.matches(probe)}
    if theirs:
        return theirs.get(promised or "") or next(iter(theirs.values()))
    if probe.folder:
        return None
    if promised is not None and not _outlines()[promised].folder:
        return get_format(promised)
    if not probe.size:
        raise UnknownFormatError("the file is empty, and its name does not tell a format", path=path)
    raise UnknownFormatError(
        f"no format knows these bytes (they begin {probe.head[:8]!r}); name one with format (--format): "
        f"{', '.join(sorted(_outlines()))}",
        path=path,
    )


def expand(path: str) -> list[str]:
    """Braces (``{a,b}``, ``{000..123}``) and globs to paths; a path that exists is taken as it is."""
    if not is_remote(path):
        _recover(path)
        if os.path.exists(path):
            return [path]
    found: list[str] = []
    for one in (like(path, each) for each in braces(path)):
        if not tree.has_magic(one) or (not is_remote(one) and os.path.exists(one)):
            found.append(one)
            continue
        if not is_remote(one):
            for folder in {os.path.dirname(match) for match in tree.glob(one)}:
                _recover(folder)
        matches = sorted(tree.glob(one), key=natural)
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
    templates = {*Writer.all_side_cars(), *(one for each in _outlines().values() for one in each.side_cars)}
    tails = tuple(template.partition("}")[2] for template in templates)
    if not any(path.endswith(tails) for path in paths):
        return paths
    besides = {beside(path, template) for path in paths for template in templates}
    return [path for path in paths if path.rstrip("/") not in besides and os.path.basename(path) != index.SET]


def open(
    path: Any, *, format: str | None = None, skip: str | os.PathLike[str] | None = None, **options: Any
) -> Reader:
    """Open a dataset: a file, a folder, a URL, a list, a glob or braces of shards, or data in memory.

    The format is found by content, then by suffix, unless ``format`` names it. ``skip``: a list of samples to
    leave out, as ``verify`` writes it (``quarantine``). Further options are the format's own; `batchplant
    formats NAME` lists them. Of a URL, also those of its store, as in ``open("s3://bucket/train.tar",
    endpoint="https://minio.example", cache="/data/cache")``; see :class:`batchplant.storage.StorageOptions`.
    Data in memory are a dict of columns, a list of dicts, a data frame, an Arrow table, a TensorDataset.
    """
    if not isinstance(path, str | os.PathLike):
        # It brings all that tables need, and most datasets are files.
        from .memory import is_data

        # What gives its parts once is kept.
        path = path if is_data(path) else list(path)
        if is_data(path):
            return _open_data(path, format, options if skip is None else {**options, "skip": skip})
    given = list(map(os.fspath, [path] if isinstance(path, str | os.PathLike) else path))
    if not given:
        raise OptionError("there is no path to open")
    storage, options = split_options(options)
    with tree.keeping():
        found = files_of([reached(one, storage) for one in given], format)
        work = functools.partial(_open_one, options=options)
        readers = in_parallel(work, found, threads=AT_ONCE[is_remote(found[0].path)])
    opened = readers[0] if len(readers) == 1 else Concat(readers)
    return opened if skip is None else quarantine.without(opened, os.fspath(skip))


def _open_data(data: Any, format: str | None, options: dict[str, Any]) -> Reader:
    from .memory import memory_reader

    if format is not None:
        raise OptionError(f"data in memory have no format, and {format!r} was named")
    made = memory_reader(data)
    return made(data, **accept("memory", made, options))


@dataclasses.dataclass(frozen=True)
class Found:
    """A dataset to open, and its format where that is known already."""

    path: str
    known: Format | None = None

    def format(self) -> Format:
        found = self.known or find_format(self.path)
        # Only a folder of shards has no format, and files_of takes those apart.
        assert found is not None
        return found


def files_of(given: Iterable[str | os.PathLike[str]], format: str | None = None) -> list[Found]:
    """What there is to open, one by one, behind paths, globs, braces and folders of shards."""
    named = None if format is None else get_format(format)
    paths = [one for each in given for one in expand(os.fspath(each))]
    tree.look_around(paths)
    found: list[Found] = []
    for path, known in zip(paths, _labelled(paths), strict=True):
        known = named or known
        # What a folder's listing shows as a file is one.
        is_file = tree.known(path) is not None if is_remote(path) else not os.path.isdir(path)
        if known is not None or is_file:
            found.append(Found(path, known))
            continue
        probe = Probe(path)
        tree.check_settled([path])
        known = find_format(probe)
        if known is not None:
            found.append(Found(path, known))
        else:
            shards = _folder_shards(probe)
            found += map(Found, shards, _labelled(shards))
    tree.check_settled([one.path for one in found])
    return _without_parts(found)


def _labelled(paths: list[str]) -> list[Format | None]:
    """The formats of files on a server, as far as the index of their folder tells them."""
    labels = index.prepare(paths)
    known = {name: get_format(name) for name in set(labels.values()) & set(_outlines())} if labels else {}
    scanned = {name: one for name, one in known.items() if "index" in own_options(one.reader)}
    return [scanned.get(labels.get(path, "")) for path in paths]


def _without_parts(found: list[Found]) -> list[Found]:
    """These files without those that come through another one among them, such as an index of tensors."""
    if len(found) < 2:
        return found
    leading = {name: one for name, one in _outlines().items() if one.has_parts}
    parts: set[str] = set()
    for one in found:
        name = _suffixed(one.path, leading)
        lead = None if name is None else get_format(name).parts
        parts.update(map(absolute, () if lead is None else lead(one.path)))
    return [one for one in found if absolute(one.path) not in parts]


def _open_one(one: Found, options: dict[str, Any]) -> Reader:
    found = one.format()
    return found.reader(one.path, **accept(found.name, found.reader, options))


def _folder_shards(probe: Probe) -> list[str]:
    """The files of one format in a folder that is none itself."""
    known = _outlines()
    names = [name.rstrip("/") for name in sorted(probe.all_names, key=natural)]
    named = ((name, _suffixed(name, known)) for name in _without_side_cars(names))
    shards = {name: one for name, one in named if one is not None}
    data = {name: one for name, one in shards.items() if not known[one].describes}
    doubts = [get_format(name).doubt for name, one in known.items() if one.media is not None and not data]
    for reason in (doubt(probe) for doubt in doubts if doubt is not None):
        if reason is not None:
            raise UnknownFormatError(reason, path=probe.path)
    kinds = sorted(set((data or shards).values()))
    if len(kinds) != 1:
        several = f"files of several formats ({', '.join(kinds)}); name some"
        what = several if kinds else "nothing that batchplant reads"
        raise UnknownFormatError(f"the folder holds {what}", path=probe.path)
    return [join(probe.path, name) for name in data or shards]


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
    images: Images | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """Write a dataset: ``with create("a.beton", schema) as out: out.append({...})``.

    The format comes from the suffix unless named. ``images`` says how pictures are stored: an
    :class:`ImageOptions` for all fields, or a dict of them by field. The options from ``write_mode`` to
    ``orient`` are those of ImageOptions, for all fields that ``images`` does not name. See
    :class:`WriteOptions` for the rest; further options are the format's own, and those of storage (endpoint,
    region …) where the path is a URL. With ``shard_samples`` or ``shard_size`` (bytes) it writes files of
    limited size.
    """
    pictures = ImageOptions(
        write_mode=write_mode, max_resolution=max_resolution, jpeg_quality=jpeg_quality, to_rgb=to_rgb,
        smart_threshold=smart_threshold, compress_probability=compress_probability, reencode=reencode,
        seed=seed, image_format=image_format, quality=quality, lossless=lossless, orient=orient,
    )  # fmt: skip
    if isinstance(images, ImageOptions) and pictures != ImageOptions():
        raise OptionError("images says how pictures are stored; leave the other options for pictures out")
    write = WriteOptions(
        overwrite=overwrite, length=length, workers=workers, on_error=on_error, checksums=checksums,
        images=pictures if images is None else images, other_images=pictures,
    )  # fmt: skip
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
    storage, options = split_options(options)
    path = reached(path, storage)
    found = get_format(format) if format is not None else target_format(path, schema)
    if found.writer is None:
        raise OptionError(f"{found.name} is read only", path=path)
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    found.check(schema)
    write.check_images(schema)
    made = found.writer
    options = accept(found.name, made, options)
    schema = made.as_stored(schema, write)

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


def target_format(path: str, schema: Mapping[str, Field] | None = None) -> Format:
    """The format to write at a path: by suffix; a path without one is a folder of what the schema has."""
    known = _outlines()
    name = _suffixed(path, known)
    if name is not None:
        return get_format(name)
    suffix = os.path.splitext(path.rstrip("/"))[1].lower()
    if suffix:
        hint = near(suffix, [one for each in all_formats().values() if each.writer for one in each.suffixes])
        message = f"no format that we write has the suffix {suffix}{hint}; `batchplant formats` lists all"
        raise UnknownFormatError(message, path=path)
    folders = {one.media: name for name, one in known.items() if one.media is not None}
    # In the order of the kinds: pictures come before sounds and videos.
    media = [kind for kind in KINDS if kind in folders]
    held = [kind for kind in media if any(field.kind == kind for field in (schema or {}).values())]
    if schema and not held:
        raise UnknownFormatError(
            f"a name without a suffix is a folder of files ({', '.join(media)}), and no field holds such; "
            "give the name a suffix, such as .parquet, or name the format (--to)",
            path=path,
        )
    return get_format(folders[(held or media)[0]])
