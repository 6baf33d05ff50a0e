"""The formats, our own and those of other packages; datasets behind paths and globs, and their formats.

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

from ... import formats
from ...data.writer import Writer
from ...errors import DamagedError, NotFoundError, OptionError, UnknownFormatError, no_such
from ...storage import Source, absolute, beside, index, is_remote, join, like, recover, tree
from ...storage.patterns import braces, naturally
from .._table import OUTLINES
from ..base.format import Format, Outline, Probe
from ..base.options import own_options

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
    table = OWN_SUFFIXES if candidates is OUTLINES else _by_suffix_of(candidates)
    dot = file.find(".")
    while dot >= 0:
        if (name := table.get(file[dot:])) is not None:
            return name
        dot = file.find(".", dot + 1)
    return None


def _by_suffix_of(candidates: Mapping[str, Outline]) -> dict[str, str]:
    """Formats by suffix; of two with the same, the first."""
    names: dict[str, str] = {}
    for name, outline in candidates.items():
        for suffix in outline.suffixes:
            names.setdefault(suffix, name)
    return names


OWN_SUFFIXES = _by_suffix_of(OUTLINES)


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
    names = (name for name, outline in outlines().items() if outline.scheme == scheme.lower())
    name = next(names, None) if separator else None
    return None if name is None else get_format(name)


# Behind the name of a pair of files: its index.
PAIRED = ".idx"


def find_format(path: str | Probe) -> Format | None:
    """Return the format of a dataset: by content, then by suffix; None for a folder of shards."""
    probe = path if isinstance(path, Probe) else Probe(path)
    path = probe.path
    # If the content matches the format of the suffix, no other format is asked.
    promised = suffixed(path, OUTLINES)
    if promised is not None and own_format(promised).matches(probe):
        return own_format(promised)
    for name, outline in OUTLINES.items():
        if outline.folder in (None, probe.folder) and own_format(name).matches(probe):
            return own_format(name)
    # Plug-ins are asked only if no format of ours knows the content.
    promised = suffixed(path, outlines())
    theirs = {name: plug_in for name, plug_in in plug_ins().items() if plug_in.matches(probe)}
    if theirs:
        return theirs.get(promised or "") or next(iter(theirs.values()))
    if probe.folder:
        return None
    if promised is not None and not outlines()[promised].folder:
        return get_format(promised)
    if not probe.size:
        raise UnknownFormatError("the file is empty, and its name does not tell a format", path=path)
    raise UnknownFormatError(
        f"no format knows these bytes (they begin {probe.head[:8]!r}); name one with format (--format): "
        f"{', '.join(sorted(outlines()))}",
        path=path,
    )


def expand(path: str) -> list[str]:
    """Expand braces (``{a,b}``, ``{000..123}``) and globs; a path that exists is taken literally."""
    if not is_remote(path):
        recover(os.path.dirname(path))
        if os.path.isfile(path):
            return [path]
        if os.path.exists(path):
            recover(path)
            return [path]
        # The name that two files share, as Megatron's --data-path has it.
        if os.path.isfile(path + PAIRED) and not path.endswith("/"):
            return [path + PAIRED]
    paths: list[str] = []
    for pattern in (like(path, text) for text in braces(path)):
        if not tree.has_magic(pattern) or (not is_remote(pattern) and os.path.exists(pattern)):
            paths.append(pattern)
            continue
        if not is_remote(pattern):
            for folder in {os.path.dirname(match) for match in tree.glob(pattern)}:
                recover(os.path.dirname(folder))
                recover(folder)
        matches = naturally(tree.glob(pattern))
        if not matches:
            raise NotFoundError("no file matches", path=pattern)
        paths += _without_side_cars(matches)
    return paths


def _without_side_cars(paths: list[str]) -> list[str]:
    """Drop files that are only side-cars of others among these."""
    side_cars = [
        (outline.suffixes, side_car) for outline in outlines().values() for side_car in outline.side_cars
    ]
    # A side-car by stem belongs to files of its format only: a.idx to a.rec, but a.bin to a.idx.
    templates = {
        *Writer.all_side_cars(),
        *(side_car for _, side_car in side_cars if side_car.startswith("{name}")),
    }
    by_stem = {(suffixes, side_car) for suffixes, side_car in side_cars if side_car not in templates}
    tails = tuple(
        template.partition("}")[2] for template in (*templates, *(side_car for _, side_car in by_stem))
    )
    if not any(path.endswith(tails) for path in paths):
        return paths
    besides = {beside(path, template) for path in paths for template in templates}
    for suffixes, template in by_stem:
        besides.update(beside(path, template) for path in paths if path.lower().endswith(suffixes))
    return [path for path in paths if path.rstrip("/") not in besides and os.path.basename(path) != index.SET]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A dataset to open, and its format if that is known already."""

    path: str
    known_format: Format | None = None

    def format(self) -> Format:
        return self.probed()[0]

    def probed(self) -> tuple[Format, Source | None]:
        """Return its format, and its source if detection opened it."""
        if self.known_format is not None:
            return self.known_format, None
        probe = Probe(self.path)
        detected = find_format(probe)
        if detected is None:
            # Folders of shards were expanded already: this folder stands for a shard.
            raise DamagedError("this is a folder, and no dataset; a shard is needed here", path=self.path)
        return detected, probe.opened


def files_of(
    paths_or_patterns: Iterable[str | os.PathLike[str]], format: str | None = None
) -> list[Candidate]:
    """Return the datasets behind paths, globs, braces and folders of shards."""
    texts = [os.fspath(path) for path in paths_or_patterns]
    tables = {path: table for path in texts if (table := by_scheme(path)) is not None}
    if tables:
        nested = (
            [Candidate(path, tables[path])] if path in tables else files_of([path], format) for path in texts
        )
        return [candidate for candidates in nested for candidate in candidates]
    named = None if format is None else get_format(format)
    paths = [path for text in texts for path in expand(text)]
    tree.look_around(paths)
    results: list[Candidate] = []
    for path, detected in zip(paths, _labelled(paths), strict=True):
        detected = named or detected
        # The listing of a remote folder tells files from folders.
        is_file = tree.known_entry(path) is not None if is_remote(path) else not os.path.isdir(path)
        if detected is not None or is_file:
            results.append(Candidate(path, detected))
            continue
        probe = Probe(path)
        tree.check_settled([path])
        detected = find_format(probe)
        if detected is not None:
            results.append(Candidate(path, detected))
        else:
            shards = _folder_shards(probe)
            results += map(Candidate, shards, _labelled(shards))
    tree.check_settled([candidate.path for candidate in results])
    return _without_parts(results)


def _labelled(paths: list[str]) -> list[Format | None]:
    """Return the formats of remote files, as far as the index of their folder knows them."""
    labels = index.prepare(paths)
    formats = {name: get_format(name) for name in set(labels.values()) & set(outlines())} if labels else {}
    scanned = {
        name: candidate for name, candidate in formats.items() if "index" in own_options(candidate.reader)
    }
    return [scanned.get(labels.get(path, "")) for path in paths]


def _without_parts(candidates: list[Candidate]) -> list[Candidate]:
    """Drop files that are read through another one among them, such as an index of tensors."""
    if len(candidates) < 2:
        return candidates
    leading = {name: outline for name, outline in outlines().items() if outline.has_parts}
    parts: set[str] = set()
    for candidate in candidates:
        name = suffixed(candidate.path, leading)
        lead = None if name is None else get_format(name).parts
        parts.update(map(absolute, () if lead is None else lead(candidate.path)))
    return [candidate for candidate in candidates if absolute(candidate.path) not in parts]


def _folder_shards(probe: Probe) -> list[str]:
    """Return the files of the only format in a folder that is no dataset itself."""
    all_outlines = outlines()
    names = [name.rstrip("/") for name in naturally(probe.all_names)]
    named = ((name, suffixed(name, all_outlines)) for name in _without_side_cars(names))
    shards = {name: format_name for name, format_name in named if format_name is not None}
    data = {
        name: format_name for name, format_name in shards.items() if not all_outlines[format_name].describes
    }
    # A file of a medium, such as a video, is a dataset by itself, but not a shard beside other media.
    media = {name: outline.media for name, outline in all_outlines.items() if outline.media is not None}
    has_shards = not set(media.values()).issuperset(data.values())
    doubts = [] if has_shards else [get_format(name).doubt for name in media]
    for reason in (doubt(probe) for doubt in doubts if doubt is not None):
        if reason is not None:
            raise UnknownFormatError(reason, path=probe.path)
    kinds = sorted(set((data or shards).values()))
    if len(kinds) != 1:
        several = f"files of several formats ({', '.join(kinds)}); name some"
        contents = several if kinds else "nothing that batchplant reads"
        raise UnknownFormatError(f"the folder holds {contents}", path=probe.path)
    return [join(probe.path, name) for name in data or shards]
