"""Datasets in files, for save, load, snapshot and cache: a folder in TensorFlow's layout.

``dataset_spec.pb`` says what the elements look like, ``snapshot.metadata`` which run of which length counts;
``RUN/NNNNNNNN.shard/NNNNNNNN.snapshot`` are TFRecord files of TensorProtos, one for each tensor of each
element. The folder appears under its name when all of it is written. Nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ....errors import BatchplantError, BusyError, DamagedError, ExistsError, NotFoundError, OptionError
from ....storage import Partial, is_remote
from .. import nest, wire
from ..records import Frames, TFRecordOptions, compression_of, read_records
from ..tensor_proto import CODES, parse_tensor, serialize_tensor
from ..values import as_text
from . import spec

METADATA, SPEC = "snapshot.metadata", "dataset_spec.pb"
VERSION = 2
# Larger ones are none of ours, and none of TensorFlow's.
MOST_METADATA = 16 << 20

Make = Callable[[], Iterator[Any]]


def place_of(path: Any) -> str:
    """The folder that a user means."""
    name = as_text(path)
    if not name or is_remote(name):
        raise OptionError("datasets are stored in local folders", path=name)
    return str(Path(name))


def packing_of(compression: Any) -> str:
    """How files are packed; AUTO leaves it to us."""
    said = "" if compression is None else as_text(compression).upper()
    return compression_of("" if said in ("AUTO", "NONE") else said)


class Saver:
    """Writes elements into a folder, which appears under its name when all of them are there."""

    def __init__(self, path: str, compression: str) -> None:
        if (
            os.path.lexists(path)
            and not is_stored(path)
            and not (os.path.isdir(path) and not os.listdir(path))
        ):
            raise ExistsError("the path exists and is not a saved dataset; remove it first", path=path)
        self._partial = Partial(path, overwrite=True)
        self._root = self._partial.folder / "saved"
        self._run = str(secrets.randbelow(1 << 63))
        self._options = TFRecordOptions(compression)
        self._shards: dict[int, Frames] = {}
        self._spec: Any = None
        self._count = 0
        self._shard(0)

    def _shard(self, number: int) -> Frames:
        if number not in self._shards:
            folder = self._root / self._run / f"{number:08d}.shard"
            folder.mkdir(parents=True)
            file = folder / "00000000.snapshot"

            def write(data: Any) -> None:
                # Opened for each piece: there may be more shards than files that a process may have open.
                with open(file, "ab") as out:
                    out.write(data)

            write(b"")
            self._shards[number] = Frames(write, self._options)
        return self._shards[number]

    def add(self, element: Any, shard: int = 0) -> None:
        if shard < 0:
            raise OptionError(f"shard_func gives a number from 0 on, not {shard}")
        found = nest.map_structure(spec.leaf_of, element)
        self._spec = found if self._spec is None else nest.map_structure(spec.merge, self._spec, found)
        frames = self._shard(shard)
        for leaf in nest.flatten(element):
            for tensor in spec.tensors_of(leaf):
                frames.add(serialize_tensor(tensor))
        self._count += 1

    def finish(self) -> None:
        for frames in self._shards.values():
            frames.end()
        described = () if self._spec is None else self._spec
        types = [CODES[kind] for leaf in nest.flatten(described) for kind in leaf.parts]
        (self._root / SPEC).write_bytes(spec.encode(described))
        (self._root / METADATA).write_bytes(
            wire.block(2, self._run.encode())
            + b"\x18" + wire.varint(int(time.time() * 1e6))
            + b"\x20" + wire.varint(VERSION)
            + wire.block(5, wire.varints(types))
            + b"\x30" + wire.varint(self._count)
            + wire.varint(1000 << 3) + b"\x01"
        )  # fmt: skip
        self._partial.commit("saved")

    def discard(self) -> None:
        self._partial.discard()


def is_stored(path: str) -> bool:
    return os.path.isfile(os.path.join(path, METADATA))


@dataclasses.dataclass
class Stored:
    """A saved dataset: the folders of its shards, the number of elements (-1: not known), and their kind."""

    path: str
    shards: list[str]
    count: int
    spec: Any
    compression: str

    def read(self, shard: str) -> Iterator[Any]:
        """The elements of one shard."""
        leaves = list(nest.flatten(self.spec))
        types = [kind for leaf in leaves for kind in leaf.parts]
        for name in sorted(os.listdir(shard)):
            file = os.path.join(shard, name)
            records = read_records(file, self.compression)
            for number, first in enumerate(records):
                tensors: list[Any] = []
                try:
                    for kind in types:
                        record = first if not tensors else next(records, None)
                        if record is None:
                            raise DamagedError("the file ends inside of an element")
                        tensors.append(parse_tensor(record, kind))
                    parts = iter(tensors)
                    values = (spec.value_of(leaf, [next(parts) for _ in leaf.parts]) for leaf in leaves)
                    element = nest.map_structure(lambda leaf, values=values: next(values), self.spec)
                except BatchplantError as error:
                    raise error.at(path=file, sample=number) from None
                yield element

    def check(self, found: int) -> None:
        """DamagedError where a whole pass gave another number of elements than were written."""
        if self.count >= 0 and found != self.count:
            raise DamagedError(f"there are {found} elements, and {self.count} were saved", path=self.path)


def open_stored(path: str, compression: str) -> Stored:
    """The saved dataset in a folder."""
    data = _small(os.path.join(path, METADATA))
    run, count, version, finished = "", -1, 0, False
    try:
        for number, kind, value, inner in wire.fields(memoryview(data)):
            if (number, kind) == (2, wire.BYTES):
                run = bytes(inner).decode()
            elif kind == wire.VARINT:
                version = value if number == 4 else version
                count = wire.signed(value) if number == 6 else count
                finished = bool(value) if number == 1000 else finished
    except (BatchplantError, UnicodeDecodeError) as error:
        raise DamagedError(f"not the metadata of a saved dataset: {error}", path=path) from None
    if version != VERSION:
        raise OptionError(f"it was saved in version {version}; only version {VERSION} can be read", path=path)
    if not finished:
        raise DamagedError("the dataset was not saved to the end", path=path)
    # It comes out of a file, and must not lead out of the folder.
    if not run or run != os.path.basename(run) or run in (".", ".."):
        raise DamagedError(f"{run!r} is no name of a run", path=path)
    folder = os.path.join(path, run)
    described = spec.decode(_small(os.path.join(path, SPEC)), path)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".shard"))
    except OSError as error:
        raise DamagedError(f"the run {run} cannot be listed: {error.strerror}", path=path) from None
    return Stored(path, [os.path.join(folder, name) for name in names], count, described, compression)


def _small(path: str) -> bytes:
    try:
        if os.path.getsize(path) > MOST_METADATA:
            raise DamagedError("the file is larger than such a file can be", path=path)
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise NotFoundError("there is no saved dataset here", path=path) from None
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror}", path=path) from None


def save(make: Make, path: str, compression: str, shard: Callable[[Any], int] | None) -> None:
    """Write all elements."""
    for _ in _storing(make, Saver(path, compression), shard):
        pass


def _storing(make: Make, saver: Saver, shard: Callable[[Any], int] | None) -> Iterator[Any]:
    """All elements, which are written on the way; the folder appears behind the last."""
    try:
        for element in make():
            saver.add(element, 0 if shard is None else shard(element))
            yield element
        saver.finish()
    # Whoever stops before the end leaves nothing behind.
    except BaseException:
        saver.discard()
        raise


def through(
    make: Make,
    path: str,
    compression: str,
    shard: Callable[[Any], int] | None,
    read: Callable[[Stored], Iterator[Any]],
) -> Iterator[Any]:
    """The elements that are stored there; where none are, those of ``make``, which are stored on the way."""
    if is_stored(path):
        yield from read(open_stored(path, compression))
        return
    try:
        saver = Saver(path, compression)
    except BusyError:
        # Somebody else is at it; two of them would store the same.
        yield from make()
        return
    yield from _storing(make, saver, shard)
