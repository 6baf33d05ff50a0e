"""What is converted into what: :class:`Job`, all that a process needs to do a part of it.

It travels by its arguments; each process opens source and target by itself, once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ...codecs.media.image_rules import ImageOptions, Images
from ...data.reader import Reader
from ...data.tokenized import Tokenized, tokenizers_of
from ...data.writer import WriteOptions
from ...errors import BatchplantError, OptionError, shown
from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...formats.registry import Prepared, by_scheme, get_format, prepare, target_format
from ...formats.registry import open as open_reader
from ...order import Order, random, sequential
from ...schema import Schema
from ...storage import is_remote, split_options
from ...storage.uploads import look
from .plan import Plan, mean_size, plan

__all__ = ["Job"]

# Parts of one file that many processes write, at least, and the most samples of one.
PARTS = 64
LARGEST_PART = 1 << 16
# What is smaller is read at random from memory: the system holds it.
SPILLED = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """The arguments of ``convert`` that say what is made; those that say how are not among them."""

    source: Any
    target: str
    format: str | None = None
    target_format: str | None = None
    fields: tuple[str, ...] | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    masks: tuple[str, ...] = ()
    images: Images = dataclasses.field(default_factory=ImageOptions)
    shard_size: int | None = None
    shard_samples: int | None = None
    overwrite: bool = False
    append: bool = False
    on_error: str = "raise"
    checksums: bool = False
    source_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # One file or folder, which many processes write in parts that are put together at the end.
    parts: bool = False
    # Whether what is shuffled is read from end to end first, and spilled; None: where that is quicker.
    two_passes: bool | None = None
    # Tokenizers by the fields of text that are written as ids, or one for the only such field.
    tokenize: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what was found out here: another machine finds it out by itself.
        return Job, tuple(getattr(self, one.name) for one in dataclasses.fields(self))

    @property
    def sharded(self) -> bool:
        return self.parts or self.shard_size is not None or self.shard_samples is not None

    @functools.cached_property
    def stored(self) -> Reader:
        """The source as it is."""
        if isinstance(self.source, Reader):
            found = self.source
        else:
            found = open_reader(self.source, format=self.format, **self.source_options)
        return found.with_masks(self.masks) if self.masks else found

    @functools.cached_property
    def reader(self) -> Reader:
        """What is written: the source, with ids in the place of text that is tokenized."""
        if self.tokenize is None:
            return self.stored
        try:
            return Tokenized(self.stored, tokenizers_of(self.tokenize, self.stored.schema))
        except OptionError as error:
            raise error.at(path=self.stored.path) from None

    @property
    def _ids(self) -> Mapping[str, str]:
        """From the names of texts to those of their ids."""
        return self.reader.names if isinstance(self.reader, Tokenized) else {}

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """New names of fields; text that is tokenized may be named by itself, or as its ids are."""
        return {self._ids.get(old, old): new for old, new in self.rename.items()}

    @functools.cached_property
    def chosen(self) -> Schema:
        """The fields that are converted."""
        if self.fields is not None:
            return self.reader.schema.select([self._ids.get(name, name) for name in self.fields])
        held = self.made_by.fields
        if self._ids and held:
            # Such as hold tokens and little else.
            return self.reader.schema.select(
                [name for name in self.reader.schema if self.names.get(name, name) in held]
            )
        if self.made_by.leaves:
            gone = self.made_by.leaves
            return self.reader.schema.select(
                [name for name in self.reader.schema if self.names.get(name, name) not in gone]
            )
        return self.reader.schema

    @property
    def measured(self) -> tuple[Reader, tuple[str, ...]]:
        """Whose sizes files are planned by: those of text, so that nothing is tokenized for it."""
        texts = {ids: name for name, ids in self._ids.items()}
        return self.stored, tuple(texts.get(name, name) for name in self.chosen)

    @functools.cached_property
    def order(self) -> Order:
        """Which sample is written at which position."""
        if self.limit is not None and self.limit < 0:
            raise OptionError(f"limit must not be negative, as {self.limit} is")
        count = len(self.reader)
        whole = random(count, seed=self.seed, epoch=0) if self.shuffle else sequential(count)
        if self.limit is None or self.limit >= count:
            return whole
        # The first of them.
        return dataclasses.replace(whole, length=self.limit)

    @functools.cached_property
    def plan(self) -> Plan:
        if self.parts:
            each, unit = int(np.clip(len(self.order) // PARTS, 1, LARGEST_PART)), self.piece_samples or 1
            return Plan(len(self.order), max(1, each // unit) * unit)
        return plan(
            *self.measured, self.order, size=self.shard_size, samples=self.shard_samples,
            shuffled=self.shuffle,
        )  # fmt: skip

    @functools.cached_property
    def piece_samples(self) -> int | None:
        """Where parts are pieces, which are taken as they are: they have a multiple of so many samples."""
        made = self.made_by.writer
        if not self.parts or self.append or made is None:
            return None
        return made.piece_samples(self.prepared.schema, len(self.order), self.prepared.options)

    @functools.cached_property
    def mean_size(self) -> int:
        return mean_size(*self.measured)

    @functools.cached_property
    def spills(self) -> bool:
        """Whether the source is read from end to end before it is written in another order."""
        if not self.shuffle or self.two_passes is not None:
            return self.shuffle and bool(self.two_passes)
        if self.mean_size * len(self.order) < SPILLED:
            return False
        reader, fields = self.measured
        cells = [name for name in fields if reader.schema[name].cell is None]
        return is_remote(reader.path) or any(reader.spans(name, [0]) is None for name in cells)

    @functools.cached_property
    def made_by(self) -> Format:
        named = self.target_format
        return get_format(named) if named is not None else target_format(os.fspath(self.target))

    @property
    def can(self) -> Collection[str]:
        """The options of the target's format."""
        return own_options(self.made_by.writer) if self.made_by.writer else ()

    @functools.cached_property
    def prepared(self) -> Prepared:
        write = WriteOptions(
            overwrite=self.overwrite, length=len(self.order), on_error=self.on_error, images=self.images,
            checksums=self.checksums,
        )  # fmt: skip
        schema, target = self.chosen.rename(self.names), os.fspath(self.target)
        if self.parts:
            return self._prepared_parts(target, schema, write)
        # What the target says about itself stays as it is.
        said = {"mode": "append"} if self.append else self._metadata()
        return prepare(
            target, schema, write, format=self.target_format, sharded=self.sharded,
            **{**said, **self.target_options},
        )  # fmt: skip

    def _prepared_parts(self, target: str, schema: Schema, write: WriteOptions) -> Prepared:
        """Parts are files of the same format, or what a table is made of, or such as are safe to read."""
        if by_scheme(target) is not None:
            raise OptionError(
                "tables of a catalog are written by one process: leave the engine out", path=target
            )
        table, unsafe = "mode" in self.can, "allow_pickle" in own_options(self.made_by.reader)
        if not table and not unsafe:
            options = self.target_options
            return prepare(target, schema, write, format=self.made_by.name, sharded=True, **options)
        part = get_format("parquet" if table else "msgpack")
        own = split_options(self.target_options)[1]
        options = {name: value for name, value in self.target_options.items() if name not in own}
        path = f"{target.rstrip('/')}{part.suffixes[0]}"
        return prepare(path, schema, write, format=part.name, sharded=True, **options)

    def replace(self, **changes: Any) -> Job:
        """The same source, which is open already, with other arguments for what is made of it."""
        found = dataclasses.replace(self, **changes)
        # Where a cached_property keeps what it found.
        vars(found).update(reader=self.reader, stored=self.stored)
        return found

    def joining(self, paths: list[str]) -> Job:
        """What puts the parts together: cells pass as they are."""
        return Job(
            paths, self.target, format=self.prepared.format.name, target_format=self.target_format,
            overwrite=self.overwrite, append=self.append, checksums=self.checksums,
            target_options={**({} if self.append else self._metadata()), **self.target_options},
        )  # fmt: skip

    def _metadata(self) -> dict[str, Any]:
        """What a model or a file says about itself and its fields, where the target can hold that too."""
        found: dict[str, Any] = {}
        reader, names = self.reader, self.names
        if "metadata" in self.can and reader.metadata:
            found["metadata"] = dict(reader.metadata)
        if "attributes" in self.can and reader.attributes:
            kept = {
                name: dict(one)
                for name, one in reader.attributes.items()
                if name == "" or name in self.chosen
            }
            found["attributes"] = {names.get(name, name): values for name, values in kept.items()}
        return found

    def lost(self) -> list[str]:
        """That the target has no place for what the source says about itself, or for some of its fields."""
        said = []
        if self._ids and self.fields is None and len(self.chosen) < len(self.reader.schema):
            gone = [name for name in self.reader.schema if name not in self.chosen]
            said = [f"{self.made_by.name} holds tokens: not written: {', '.join(gone)}"]
        elif self.fields is None and self.made_by.leaves:
            gone = [name for name in self.reader.schema if name not in self.chosen]
            said = [f"{self.made_by.name} has no place for {', '.join(gone)}: not written"] if gone else []
        found: Mapping[str, Mapping[str, Any]] = {} if "attributes" in self.can else self.reader.attributes
        if not found:
            return said
        some = [
            f"{name}.{key}" if name else key
            for name, values in found.items()
            for key, value in values.items()
            if not self._in_schema(name, key, value)
        ]
        if not some:
            return said
        return [
            *said,
            f"the source's attributes are not kept: {', '.join(some[:8])}{', …' * (len(some) > 8)}",
        ]

    def _in_schema(self, name: str, key: str, value: Any) -> bool:
        """Whether the names and ids of the classes are all that an attribute says."""
        ids = getattr(self.chosen[name], "ids", None) if name in self.chosen else None
        if key != "categories" or not ids or not isinstance(value, list):
            return False
        plain = all(isinstance(one, dict) and set(one) <= {"id", "name"} for one in value)
        # Detection formats without ids number the classes in order, and COCO does it from 1 on.
        return plain and (not self.made_by.leaves or list(ids) == list(range(1, len(ids) + 1)))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for one process to go on from what another has done, as JSON."""
        reader = self.reader
        return {
            "source": _place(reader.path), "samples": len(reader), "fields": self.chosen.to_json(),
            "rename": dict(self.rename), "limit": self.limit, "shuffle": self.shuffle, "seed": self.seed,
            "images": _described(self.images), "shard_size": self.shard_size,
            "shard_samples": self.shard_samples, "parts": self.parts, "checksums": self.checksums,
            "append": self.append, "stamp": _stamp(reader.path), "filter": reader.facts().get("filter"),
            "target_options": _digests(split_options(self.target_options)[1]),
            "tokenize": reader.identity if isinstance(reader, Tokenized) else None,
        }  # fmt: skip

    @functools.cached_property
    def digest(self) -> str:
        """What tells the files of this job from those of another one with the same target."""
        said = json.dumps([self.identity, self.on_error, self.plan.digest], sort_keys=True)
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def check_same(self, other: Any) -> None:
        """Raise an OptionError where the conversion that was begun has another identity."""
        other = other if isinstance(other, Mapping) else {}
        different = [name for name, value in self.identity.items() if other.get(name) != value]
        if different:
            raise OptionError(
                f"what was begun here had other options ({', '.join(different)}); use the same, or do not "
                "resume",
                path=self.prepared.path,
            )


def _described(images: Images) -> dict[str, Any]:
    """The options for images as JSON."""
    if isinstance(images, ImageOptions):
        return dataclasses.asdict(images)
    return {name: dataclasses.asdict(one) for name, one in images.items()}


def _digests(options: Mapping[str, Any]) -> dict[str, str]:
    """What tells options apart and does not give them away: one may hold a password."""
    return {
        name: hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
        for name, value in options.items()
    }


def _place(path: str) -> str:
    """The path, wherever it is looked at from."""
    return shown(path) if is_remote(path) else os.path.abspath(path)


def _stamp(path: str) -> list[Any] | None:
    """Size and date or tag of a source file, so that a resume notices another one under its name."""
    if is_remote(path):
        with contextlib.suppress(BatchplantError):
            there = look(path)
            return None if there is None else [there.size, there.tag]
        return None
    if not os.path.isfile(path):
        return None
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]
