"""One index for many files of a folder: ``_index.bpindex``, so that a thousand shards are opened by one GET.

It has the layout of sidecar.py, with the kind ``set``. Its own arrays are ``names`` (of the files,
separated by slashes), ``entries`` and ``entry_offsets``: a JSON text for every file, with the content of the
header of the file's own side-car, including its stamp. The arrays of all files follow one another, and each
text has their offsets. So a file that changed makes its own entry stale, and no other.

A text has three things besides: ``label``, the writer's name of the file's format; ``head``, the file's first
bytes; and ``notes``, the contents of the small files beside it, each with its size and ETag. With these a
reader need not request them.

More arrays have a number for every file, so that a hundred thousand files can be opened without looking at
each: ``sizes`` and ``mtimes`` (as in its stamp), ``samples``, and ``kinds``, its number among the ``kinds``
of the facts: a label and a schema. Unknown numbers are -1. A reader compares when it opens a file later; see
registry/merged.py.
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
from . import sidecar
from .sidecar import Arrays, Content, Draft, Facts, Index, Parts, SideCar

NAME = "_index.bpindex"
KIND, VERSION = "set", 1
HEAD_BYTES = 64
# A larger file beside another is not stored.
MAX_NOTE_BYTES = 64 << 10
# If files have more kinds, the others are looked at when they are opened.
MAX_KINDS = 64
# Seconds to wait for another process that writes the same set.
WAIT_SECONDS = 120.0
# Exceptions that reading such a file may raise, whatever its content.
ERRORS = (OSError, BatchplantError, *NOTE_ERRORS)


@dataclasses.dataclass(frozen=True)
class Seen:
    """An index that was loaded, its file, and the first bytes of that file.

    ``lasts``: the file did not change while it was scanned.
    """

    index: Index
    car: SideCar
    head: U8
    lasts: bool


class Member(NamedTuple):
    """A file of a set that is to be written: its index, and the rest of its text.

    ``samples`` and ``schema`` are those that it has when it is opened without options.
    """

    seen: Seen
    label: str
    notes: dict[str, bytes]
    samples: int = -1
    schema: Schema | None = None


class Kind(NamedTuple):
    """Facts that files have in common: the writer's name of their format, and their fields."""

    label: str
    schema: Schema


class Listed(NamedTuple):
    """Facts of files that need no opening: one number for each, -1 if it is not known."""

    sizes: I64
    mtimes: I64
    samples: I64
    kinds: I64
    known: list[Kind]


class IndexSet:
    """The content of a set's index file."""

    def __init__(self, place: str, content: Content) -> None:
        header = content.header
        if (header["kind"], header["version"]) != (KIND, VERSION):
            raise ValueError("it is no index of a set")
        arrays = content.arrays(header["arrays"])
        self.place, self.content = place, content
        self._texts, self._offsets = arrays["entries"], arrays["entry_offsets"]
        names = arrays["names"].tobytes().decode("utf-8", "surrogateescape").split("/")
        self._numbers = {name: number for number, name in enumerate(names)}
        ends = self._offsets
        fits = ends.dtype == np.int64 and self._texts.dtype == np.uint8 and ends.shape == (len(names) + 1,)
        if not fits or ends[0] != 0 or ends[-1] != len(self._texts) or (np.diff(ends) < 0).any():
            raise ValueError("its parts do not fit together")
        self._arrays = arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    @property
    def numbers(self) -> dict[str, int]:
        """Number of a file by its name."""
        return self._numbers

    @functools.cached_property
    def listed(self) -> Listed | None:
        """Return the facts of all files; None if that is missing, or inconsistent."""
        with contextlib.suppress(*ERRORS):
            kinds = [
                Kind(str(label), Schema.from_json(schema))
                for label, schema in self.content.header["facts"]["kinds"]
            ]
            arrays = self._arrays
            numbers = arrays["sizes"], arrays["mtimes"], arrays["samples"], arrays["kinds"]
            listing, count = Listed(*numbers, kinds), (len(self._numbers),)
            fit = all(array.shape == count and array.dtype == np.int64 for array in numbers)
            if (
                fit
                and min(listing.samples.min(), listing.kinds.min()) >= -1
                and listing.kinds.max() < len(kinds)
            ):
                return listing
        return None

    def entry(self, name: str) -> Facts | None:
        """Return the entry of a file; None if there is none that can be read."""
        if name in self._numbers:
            with contextlib.suppress(*ERRORS):
                return parse_object(self._text(name).tobytes())
        return None

    def _text(self, name: str) -> U8:
        number = self._numbers[name]
        return self._texts[int(self._offsets[number]) : int(self._offsets[number + 1])]

    def find(self, car: SideCar) -> Index | None:
        """Return the index of a file; None unless it is here, intact, of this kind, and fresh."""
        name = os.path.basename(car.source.path)
        with contextlib.suppress(*ERRORS):
            entry = self.entry(name)
            if entry is not None:
                index = car.accept(self.content, entry, self.place, len(self._text(name)))
                if index is not None:
                    index.stored += sum(array.nbytes for array in index.arrays.values())
                return index
        return None

    def stored(self, name: str) -> int:
        """Return the bytes that a file takes in it."""
        size = len(self._text(name))
        with contextlib.suppress(*ERRORS):
            size += sum(
                self.content.array(array_entry).nbytes
                for array_entry in (self.entry(name) or {})["arrays"].values()
            )
        return size


def place_for(path: str) -> str:
    """Return the path of the set that a file belongs to."""
    return join(parent(absolute(path)), NAME)


def of(path: str, *, ask: bool = False) -> IndexSet | None:
    """Return the set of a file; on a server only if a listing shows it, or ``ask`` says to request it."""
    place = place_for(path)
    if is_remote(path) and not ask and tree.known_entry(place) is None:
        return None
    return tree.once(("set", str(place)), lambda: _read(place))


def _read(place: str) -> IndexSet | None:
    # Damaged content is no reason to fail.
    with contextlib.suppress(*ERRORS):
        if not is_remote(place):
            status = os.stat(place)
            return _read_local(place, status.st_ino, status.st_size, status.st_mtime_ns)
        listed = tree.listed(parent(place)) or {}
        data = sidecar.fetched(place, sum(entry.size for entry in listed.values()))
        return None if data is None else IndexSet(place, sidecar.parse(data))
    return None


@functools.lru_cache(4)
def _read_local(place: str, *state: int) -> IndexSet:
    """Return the set at a local path in this state; cached, because every file of it needs it."""
    return IndexSet(place, sidecar.read(Path(place)))


def prepare(paths: Iterable[str]) -> dict[str, str]:
    """Store what sets say about files on servers that are to be opened; return their labels.

    Only for files that have not changed according to the listing of their folder.
    """
    labels: dict[str, str] = {}
    for path in paths:
        file_entry = tree.known_entry(path) if is_remote(path) else None
        index_set = None if file_entry is None or not file_entry.tag else of(path)
        entry = None if index_set is None else index_set.entry(os.path.basename(path))
        if file_entry is None or entry is None:
            continue
        with contextlib.suppress(*ERRORS):
            head = np.frombuffer(bytes.fromhex(entry["head"]), dtype=np.uint8)
            fresh = entry["stamp"] == {"size": file_entry.size, "tag": file_entry.tag, "sample": ""}
            if not fresh or len(head) != min(HEAD_BYTES, file_entry.size):
                continue
            for name, note in entry["notes"].items():
                beside = join(parent(path), name)
                note_entry = tree.known_entry(beside)
                if note_entry is not None and [note_entry.size, note_entry.tag] == [
                    note["size"],
                    note["tag"],
                ]:
                    tree.keep_content(beside, note["text"].encode())
            labels[path] = str(entry["label"])
            tree.keep_head(path, Got(head, file_entry.size, file_entry.tag))
    return labels


def write(place: str, members: Iterable[Member]) -> int:
    """Put files into a set, beside the files that it has already and that are unchanged; return its size."""
    new = {os.path.basename(member.seen.car.source.path): member for member in members}
    if is_remote(place):
        return sidecar.put(place, _packed(place, new))
    with Draft(Path(place), WAIT_SECONDS) as draft:
        parts = _packed(place, new)
        draft.write(parts)
    return sidecar.size_of(parts)


def drop(place: str, names: Iterable[str]) -> bool:
    """Remove files from a set, and the set when it is empty; return whether it had one of them."""
    old, removed = _read(place), set(names)
    if old is None or not removed & set(old):
        return False
    parts = _packed(place, {}, removed) if set(old) - removed else None
    if parts is None:
        sidecar.delete(place) if is_remote(place) else Path(place).unlink(missing_ok=True)
    elif is_remote(place):
        sidecar.put(place, parts)
    else:
        with Draft(Path(place), WAIT_SECONDS) as draft:
            draft.write(parts)
    return True


def _packed(place: str, new: dict[str, Member], removed: Iterable[str] = ()) -> Parts:
    texts: dict[str, bytes] = {}
    summaries: dict[str, tuple[int, Kind | None]] = {}
    parts: Parts = []
    end = 0
    old = _read(place)
    for name in () if old is None else old:
        entry = old.entry(name) if old is not None else None
        if old is None or entry is None or name in new or name in removed:
            continue
        with contextlib.suppress(*ERRORS):
            if _is_same(like(place, join(parent(place), name)), entry["stamp"]):
                arrays: Arrays = old.content.arrays(entry["arrays"])
                entries, new_parts, end = sidecar.lay_out(arrays, end)
                parts += new_parts
                texts[name] = json.dumps({**entry, "arrays": entries}).encode()
                summaries[name] = _summary(old, name)
    for name, member in new.items():
        index = member.seen.index
        entries, new_parts, end = sidecar.lay_out(index.arrays, end)
        parts += new_parts
        texts[name] = json.dumps({**member.seen.car.header(index, entries), **_besides(member)}).encode()
        summaries[name] = member.samples, None if member.schema is None else Kind(member.label, member.schema)
    names = sorted(texts)
    listed = _listed(
        [summaries[name] for name in names], [json.loads(texts[name])["stamp"] for name in names]
    )
    arrays_of_set: Arrays = {
        "names": as_bytes("/".join(names).encode("utf-8", "surrogateescape")),
        "entries": as_bytes(b"".join(texts[name] for name in names)),
        "entry_offsets": np.cumsum([0, *(len(texts[name]) for name in names)], dtype=np.int64),
        **dict(zip(Listed._fields[:-1], listed[:-1], strict=True)),
    }
    entries, new_parts, _ = sidecar.lay_out(arrays_of_set, end)
    header = {
        "kind": KIND,
        "version": VERSION,
        "stamp": None,
        "facts": {
            "files": len(names),
            "kinds": [[kind.label, kind.schema.to_json()] for kind in listed.known],
        },
        "arrays": entries,
    }
    return sidecar.packed(header, [*parts, *new_parts])


def _summary(old: IndexSet, name: str) -> tuple[int, Kind | None]:
    """Return the number of samples and the kind of a file, from a set that is rewritten."""
    listed, number = old.listed, old.numbers[name]
    if listed is None or listed.kinds[number] < 0:
        return -1, None
    return int(listed.samples[number]), listed.known[int(listed.kinds[number])]


def _listed(summaries: list[tuple[int, Kind | None]], stamps: list[Facts]) -> Listed:
    numbers: dict[Kind, int] = {}
    kinds = []
    for _, kind in summaries:
        if kind is not None and len(numbers) < MAX_KINDS:
            numbers.setdefault(kind, len(numbers))
        kinds.append(-1 if kind is None else numbers.get(kind, -1))
    return Listed(
        np.array([stamp.get("size", -1) for stamp in stamps], dtype=np.int64),
        np.array([stamp.get("mtime", -1) for stamp in stamps], dtype=np.int64),
        np.array([samples for samples, _ in summaries], dtype=np.int64),
        np.array(kinds, dtype=np.int64),
        list(numbers),
    )


def _besides(member: Member) -> Facts:
    path_of = member.seen.car.source.path
    notes: dict[str, Any] = {}
    for path, data in member.notes.items():
        entry = tree.known_entry(path) if is_remote(path) else None
        near = parent(path) == parent(path_of)
        if entry is not None and near and entry.tag and entry.size == len(data) <= MAX_NOTE_BYTES:
            with contextlib.suppress(UnicodeDecodeError):
                text = data.decode()
                notes[os.path.basename(path)] = {"size": entry.size, "tag": entry.tag, "text": text}
    return {"label": member.label, "head": member.seen.head.tobytes().hex(), "notes": notes}


def _is_same(path: str, stamp: Facts) -> bool:
    """Return whether a file, without opening it, is still the one that an index was made for."""
    if is_remote(path):
        entry = tree.known_entry(path)
        return entry is not None and [entry.size, entry.tag] == [stamp["size"], stamp["tag"]]
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns] == [stamp["size"], stamp["mtime"]]
