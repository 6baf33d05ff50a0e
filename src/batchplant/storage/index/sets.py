"""One index for many files of a folder: ``_index.bpindex``, so that a thousand shards are opened by one GET.

It is a file as container.py says, of the kind ``set``. Its own arrays are ``names`` (of the files, with
slashes between them), ``entries`` and ``entry_offsets``: a JSON text for every file, which says what the
header of the file's own side-car would say, with its stamp. The arrays of all files lie one after another,
and each text says where. So a file that changed makes its own entry stale, and no other.

A text has three things besides: ``label``, what the one who made it calls the format of the file; ``head``,
the file's first bytes; and ``notes``, what stood in the small files beside it, each with its size and ETag.
With these a reader need not ask for them.

More arrays have a number for every file, so that a hundred thousand need not be looked at to be opened:
``sizes`` and ``mtimes`` (as in its stamp), ``samples``, and ``kinds``, which of the ``kinds`` among the facts
it is: a label and a schema. What is not known is -1. Who opens a file later compares; see registry/merged.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import BatchplantError
from ...schema import Schema
from ...schema.columns import I64, U8, as_bytes
from .. import NOTE_ERRORS, absolute, is_remote, join, like, parent, parse_object, tree
from ..remote import Got
from . import container, sidecar
from .container import Arrays, Content, Facts, Index, Parts
from .sidecar import Draft, SideCar

NAME = "_index.bpindex"
KIND, VERSION = "set", 1
HEAD = 64
# A larger file beside another is no note.
MOST_NOTE = 64 << 10
# Where files differ more than that, those that do are looked at when they are opened.
MOST_KINDS = 64
# What comes of whatever stands in such a file.
ERRORS = (OSError, BatchplantError, *NOTE_ERRORS)


@dataclasses.dataclass(frozen=True)
class Seen:
    """An index that was loaded, of which file, and the first bytes of that file.

    ``lasts``: the file did not change while it was scanned.
    """

    index: Index
    car: SideCar
    head: U8
    lasts: bool


class Member(NamedTuple):
    """A file of a set that is to be written: its index, and what its text says besides.

    ``samples`` and ``schema`` are those that it has when it is opened without options.
    """

    seen: Seen
    label: str
    notes: dict[str, bytes]
    samples: int = -1
    schema: Schema | None = None


class Kind(NamedTuple):
    """What files have in common: what the one who made the index calls their format, and their fields."""

    label: str
    schema: Schema


class Listed(NamedTuple):
    """What is known of files without a look at them: one number for each, -1 where it is not known."""

    sizes: I64
    mtimes: I64
    samples: I64
    kinds: I64
    known: list[Kind]


class IndexSet:
    """What stands in such a file."""

    def __init__(self, place: str, content: Content) -> None:
        header = content.header
        if (header["kind"], header["version"]) != (KIND, VERSION):
            raise ValueError("it is no index of a set")
        own = content.arrays(header["arrays"])
        self.place, self.content = place, content
        self._texts, self._offsets = own["entries"], own["entry_offsets"]
        names = own["names"].tobytes().decode("utf-8", "surrogateescape").split("/")
        self._numbers = {name: number for number, name in enumerate(names)}
        ends = self._offsets
        fits = ends.dtype == np.int64 and self._texts.dtype == np.uint8 and ends.shape == (len(names) + 1,)
        if not fits or ends[0] != 0 or ends[-1] != len(self._texts) or (np.diff(ends) < 0).any():
            raise ValueError("its parts do not fit together")
        self._own = own

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    @property
    def numbers(self) -> dict[str, int]:
        """By the name of a file, where it stands."""
        return self._numbers

    @functools.cached_property
    def listed(self) -> Listed | None:
        """What is known of all files; None where that is not written down, or makes no sense."""
        with contextlib.suppress(*ERRORS):
            known = [
                Kind(str(label), Schema.from_json(schema))
                for label, schema in self.content.header["facts"]["kinds"]
            ]
            own = self._own
            numbers = own["sizes"], own["mtimes"], own["samples"], own["kinds"]
            found, count = Listed(*numbers, known), (len(self._numbers),)
            fit = all(one.shape == count and one.dtype == np.int64 for one in numbers)
            if fit and min(found.samples.min(), found.kinds.min()) >= -1 and found.kinds.max() < len(known):
                return found
        return None

    def entry(self, name: str) -> Facts | None:
        """What it says of a file; None where it says nothing that could be read."""
        if name in self._numbers:
            with contextlib.suppress(*ERRORS):
                return parse_object(self._text(name).tobytes())
        return None

    def _text(self, name: str) -> U8:
        number = self._numbers[name]
        found: U8 = self._texts[int(self._offsets[number]) : int(self._offsets[number + 1])]
        return found

    def find(self, car: SideCar) -> Index | None:
        """The index of a file; None unless it is here, whole, of this kind, and fresh."""
        name = os.path.basename(car.source.path)
        with contextlib.suppress(*ERRORS):
            entry = self.entry(name)
            if entry is not None:
                found = car.accept(self.content, entry, self.place, len(self._text(name)))
                if found is not None:
                    found.stored += sum(array.nbytes for array in found.arrays.values())
                return found
        return None

    def stored(self, name: str) -> int:
        """The bytes that a file takes in it."""
        size = len(self._text(name))
        with contextlib.suppress(*ERRORS):
            size += sum(self.content.array(one).nbytes for one in (self.entry(name) or {})["arrays"].values())
        return size


def place_for(path: str) -> str:
    """Where the set lies that a file belongs to."""
    return join(parent(absolute(path)), NAME)


def of(path: str, *, ask: bool = False) -> IndexSet | None:
    """The set that a file belongs to; on a server where a listing shows it, or ``ask`` says to try."""
    place = place_for(path)
    if is_remote(path) and not ask and tree.known(place) is None:
        return None
    return tree.once(("set", str(place)), lambda: _read(place))


def _read(place: str) -> IndexSet | None:
    # Whatever the bytes are, they are no reason to fail.
    with contextlib.suppress(*ERRORS):
        if not is_remote(place):
            there = os.stat(place)
            return _read_local(place, there.st_ino, there.st_size, there.st_mtime_ns)
        listed = tree.listed(parent(place)) or {}
        data = sidecar.fetched(place, sum(one.size for one in listed.values()))
        return None if data is None else IndexSet(place, container.parse(data))
    return None


@functools.lru_cache(4)
def _read_local(place: str, *state: int) -> IndexSet:
    """The set at a local path in this state; files of one that are opened later need it again, each."""
    return IndexSet(place, container.read(Path(place)))


def prepare(paths: Iterable[str]) -> dict[str, str]:
    """Have known what sets tell about files on servers that are to be opened; gives their labels.

    Only of files that are as they were, going by the listing of their folder.
    """
    labels: dict[str, str] = {}
    for path in paths:
        known = tree.known(path) if is_remote(path) else None
        found = None if known is None or not known.tag else of(path)
        entry = None if found is None else found.entry(os.path.basename(path))
        if known is None or entry is None:
            continue
        with contextlib.suppress(*ERRORS):
            head = np.frombuffer(bytes.fromhex(entry["head"]), dtype=np.uint8)
            fresh = entry["stamp"] == {"size": known.size, "tag": known.tag, "sample": ""}
            if not fresh or len(head) != min(HEAD, known.size):
                continue
            for name, note in entry["notes"].items():
                beside = join(parent(path), name)
                there = tree.known(beside)
                if there is not None and [there.size, there.tag] == [note["size"], note["tag"]]:
                    tree.keep_content(beside, note["text"].encode())
            labels[path] = str(entry["label"])
            tree.keep_head(path, Got(head, known.size, known.tag))
    return labels


def write(place: str, members: Iterable[Member]) -> int:
    """Put files into a set, beside those that it has already and that are still the same; its size."""
    new = {os.path.basename(one.seen.car.source.path): one for one in members}
    if is_remote(place):
        return sidecar.put(place, _packed(place, new))
    with Draft(Path(place)) as draft:
        parts = _packed(place, new)
        draft.write(parts)
    return container.size_of(parts)


def drop(place: str, names: Iterable[str]) -> bool:
    """Take files out of a set, and remove it when it is empty; whether there was one of them."""
    old, gone = _read(place), set(names)
    if old is None or not gone & set(old):
        return False
    kept = _packed(place, {}, gone) if set(old) - gone else None
    if is_remote(place):
        _drop_remote(place, kept)
    elif kept is None:
        Path(place).unlink(missing_ok=True)
    else:
        with Draft(Path(place)) as draft:
            draft.write(kept)
    return True


def _drop_remote(place: str, kept: Parts | None) -> None:
    if kept is None:
        sidecar.delete(place)
    else:
        sidecar.put(place, kept)


def _packed(place: str, new: dict[str, Member], gone: Iterable[str] = ()) -> Parts:
    texts: dict[str, bytes] = {}
    told: dict[str, tuple[int, Kind | None]] = {}
    parts: Parts = []
    end = 0
    old = _read(place)
    for name in () if old is None else old:
        entry = old.entry(name) if old is not None else None
        if old is None or entry is None or name in new or name in gone:
            continue
        with contextlib.suppress(*ERRORS):
            if _is_same(like(place, join(parent(place), name)), entry["stamp"]):
                arrays: Arrays = old.content.arrays(entry["arrays"])
                entries, more, end = container.lay_out(arrays, end)
                parts += more
                texts[name] = json.dumps({**entry, "arrays": entries}).encode()
                told[name] = _told(old, name)
    for name, one in new.items():
        found = one.seen.index
        entries, more, end = container.lay_out(found.arrays, end)
        parts += more
        texts[name] = json.dumps({**one.seen.car.header(found, entries), **_besides(one)}).encode()
        told[name] = one.samples, None if one.schema is None else Kind(one.label, one.schema)
    names = sorted(texts)
    listed = _listed([told[name] for name in names], [json.loads(texts[name])["stamp"] for name in names])
    own: Arrays = {
        "names": as_bytes("/".join(names).encode("utf-8", "surrogateescape")),
        "entries": as_bytes(b"".join(texts[name] for name in names)),
        "entry_offsets": np.cumsum([0, *(len(texts[name]) for name in names)], dtype=np.int64),
        **dict(zip(Listed._fields[:-1], listed[:-1], strict=True)),
    }
    entries, more, _ = container.lay_out(own, end)
    header = {
        "kind": KIND,
        "version": VERSION,
        "stamp": None,
        "facts": {
            "files": len(names),
            "kinds": [[one.label, one.schema.to_json()] for one in listed.known],
        },
        "arrays": entries,
    }
    return container.packed(header, [*parts, *more])


def _told(old: IndexSet, name: str) -> tuple[int, Kind | None]:
    """What a set that is written anew has told of a file."""
    listed, number = old.listed, old.numbers[name]
    if listed is None or listed.kinds[number] < 0:
        return -1, None
    return int(listed.samples[number]), listed.known[int(listed.kinds[number])]


def _listed(told: list[tuple[int, Kind | None]], stamps: list[Facts]) -> Listed:
    known: dict[Kind, int] = {}
    kinds = []
    for _, kind in told:
        if kind is not None and len(known) < MOST_KINDS:
            known.setdefault(kind, len(known))
        kinds.append(-1 if kind is None else known.get(kind, -1))
    return Listed(
        np.array([one.get("size", -1) for one in stamps], dtype=np.int64),
        np.array([one.get("mtime", -1) for one in stamps], dtype=np.int64),
        np.array([samples for samples, _ in told], dtype=np.int64),
        np.array(kinds, dtype=np.int64),
        list(known),
    )


def _besides(one: Member) -> Facts:
    path_of = one.seen.car.source.path
    notes: dict[str, Any] = {}
    for path, data in one.notes.items():
        there = tree.known(path) if is_remote(path) else None
        near = parent(path) == parent(path_of)
        if there is not None and near and there.tag and there.size == len(data) <= MOST_NOTE:
            with contextlib.suppress(UnicodeDecodeError):
                text = data.decode()
                notes[os.path.basename(path)] = {"size": there.size, "tag": there.tag, "text": text}
    return {"label": one.label, "head": one.seen.head.tobytes().hex(), "notes": notes}


def _is_same(path: str, stamp: Facts) -> bool:
    """Whether a file that is not looked into is still the one that an index was made for."""
    if is_remote(path):
        there = tree.known(path)
        return there is not None and [there.size, there.tag] == [stamp["size"], stamp["tag"]]
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns] == [stamp["size"], stamp["mtime"]]
