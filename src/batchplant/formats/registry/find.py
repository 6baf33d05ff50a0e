"""What lies behind paths, globs, braces and folders of shards, and which format it has."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

from ...data.writer import Writer
from ...errors import DamagedError, NotFoundError, UnknownFormatError
from ...storage import Source, absolute, beside, index, is_remote, join, like, recover, tree
from ...storage.patterns import braces, naturally
from .._table import OUTLINES
from ..base.format import Format, Probe
from ..base.options import own_options
from . import known as all_known
from .known import by_scheme, get_format, outlines, own_format, suffixed

# Behind the name of a pair of files: its index.
PAIRED = ".idx"


def find_format(path: str | Probe) -> Format | None:
    """The format of what lies at a path: by content, then by suffix; None for a folder of shards."""
    probe = path if isinstance(path, Probe) else Probe(path)
    path = probe.path
    # What the suffix promises, if the content keeps the promise, is the answer whoever else is asked.
    promised = suffixed(path, OUTLINES)
    if promised is not None and own_format(promised).matches(probe):
        return own_format(promised)
    for name, one in OUTLINES.items():
        if one.folder in (None, probe.folder) and own_format(name).matches(probe):
            return own_format(name)
    # Those of other packages are looked for only where ours do not know the content.
    promised = suffixed(path, outlines())
    theirs = {name: one for name, one in all_known.plug_ins().items() if one.matches(probe)}
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
    """Braces (``{a,b}``, ``{000..123}``) and globs to paths; a path that exists is taken as it is."""
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
    found: list[str] = []
    for one in (like(path, each) for each in braces(path)):
        if not tree.has_magic(one) or (not is_remote(one) and os.path.exists(one)):
            found.append(one)
            continue
        if not is_remote(one):
            for folder in {os.path.dirname(match) for match in tree.glob(one)}:
                recover(os.path.dirname(folder))
                recover(folder)
        matches = naturally(tree.glob(one))
        if not matches:
            raise NotFoundError("no file matches", path=one)
        found += _without_side_cars(matches)
    return found


def _without_side_cars(paths: list[str]) -> list[str]:
    """These files without those that only belong to others among them."""
    known = [(each.suffixes, one) for each in outlines().values() for one in each.side_cars]
    # What goes by the stem alone belongs to files of that format: a.idx to a.rec, but a.bin to a.idx.
    templates = {*Writer.all_side_cars(), *(one for _, one in known if one.startswith("{name}"))}
    by_stem = {(suffixes, one) for suffixes, one in known if one not in templates}
    tails = tuple(template.partition("}")[2] for template in (*templates, *(one for _, one in by_stem)))
    if not any(path.endswith(tails) for path in paths):
        return paths
    besides = {beside(path, template) for path in paths for template in templates}
    for suffixes, template in by_stem:
        besides.update(beside(path, template) for path in paths if path.lower().endswith(suffixes))
    return [path for path in paths if path.rstrip("/") not in besides and os.path.basename(path) != index.SET]


@dataclasses.dataclass(frozen=True)
class Found:
    """A dataset to open, and its format where that is known already."""

    path: str
    known: Format | None = None

    def format(self) -> Format:
        return self.probed()[0]

    def probed(self) -> tuple[Format, Source | None]:
        """Its format, and the file where it was opened for that."""
        if self.known is not None:
            return self.known, None
        probe = Probe(self.path)
        found = find_format(probe)
        if found is None:
            # Folders of shards were taken apart: this one stands in the place of a shard.
            raise DamagedError("this is a folder, and no dataset; a shard is needed here", path=self.path)
        return found, probe.opened


def files_of(given: Iterable[str | os.PathLike[str]], format: str | None = None) -> list[Found]:
    """What there is to open, one by one, behind paths, globs, braces and folders of shards."""
    texts = [os.fspath(one) for one in given]
    tables = {one: known for one in texts if (known := by_scheme(one)) is not None}
    if tables:
        each = ([Found(one, tables[one])] if one in tables else files_of([one], format) for one in texts)
        return [one for some in each for one in some]
    named = None if format is None else get_format(format)
    paths = [one for each in texts for one in expand(each)]
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
    known = {name: get_format(name) for name in set(labels.values()) & set(outlines())} if labels else {}
    scanned = {name: one for name, one in known.items() if "index" in own_options(one.reader)}
    return [scanned.get(labels.get(path, "")) for path in paths]


def _without_parts(found: list[Found]) -> list[Found]:
    """These files without those that come through another one among them, such as an index of tensors."""
    if len(found) < 2:
        return found
    leading = {name: one for name, one in outlines().items() if one.has_parts}
    parts: set[str] = set()
    for one in found:
        name = suffixed(one.path, leading)
        lead = None if name is None else get_format(name).parts
        parts.update(map(absolute, () if lead is None else lead(one.path)))
    return [one for one in found if absolute(one.path) not in parts]


def _folder_shards(probe: Probe) -> list[str]:
    """The files of one format in a folder that is none itself."""
    known = outlines()
    names = [name.rstrip("/") for name in naturally(probe.all_names)]
    named = ((name, suffixed(name, known)) for name in _without_side_cars(names))
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
