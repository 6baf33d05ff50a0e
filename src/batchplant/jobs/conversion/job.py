"""The description of a conversion: :class:`Job`, everything that a process needs to do a part of it.

It travels by its arguments; every process opens source and target by itself, once.
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
from ...errors import BatchplantError, OptionError, located, shown
from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...formats.registry import Prepared, by_scheme, get_format, prepare, target_format
from ...formats.registry import open as open_reader
from ...order import Order, random, sequential
from ...schema import Schema
from ...storage import is_remote, split_options
from ...storage.uploads import look
from ..convert_options import ConvertOptions
from .plan import Plan, mean_size, plan

__all__ = ["Job"]


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Arguments of ``convert`` that describe the result, and properties derived from them."""

    source: Any
    target: str
    fields: tuple[str, ...] | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shuffle: bool = False
    images: Images = dataclasses.field(default_factory=ImageOptions)
    # Tokenizers by the fields of text that are written as ids, or one for the only such field.
    tokenize: Any = None
    shard_size: int | None = None
    shard_samples: int | None = None
    overwrite: bool = False
    append: bool = False
    on_error: str = "raise"
    source_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: ConvertOptions = dataclasses.field(default_factory=ConvertOptions)
    # Many processes write one file or folder in parts that are joined at the end.
    parts: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached properties: another machine derives them itself.
        return Job, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def sharded(self) -> bool:
        return self.parts or self.shard_size is not None or self.shard_samples is not None

    @functools.cached_property
    def stored(self) -> Reader:
        """Reader of the source, before text is tokenized."""
        reader = self.source
        if not isinstance(reader, Reader):
            reader = open_reader(reader, **self.source_options)
        masks = self.options.masks
        return reader.with_masks(masks) if masks else reader

    @functools.cached_property
    def reader(self) -> Reader:
        """Reader of the samples to write: the source, with ids in the place of tokenized text."""
        if self.tokenize is None:
            return self.stored
        with located(path=self.stored.path):
            return Tokenized(self.stored, tokenizers_of(self.tokenize, self.stored.schema))

    @property
    def _ids(self) -> Mapping[str, str]:
        """Names of token fields by the names of their texts."""
        return self.reader.names if isinstance(self.reader, Tokenized) else {}

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """New names of fields. ``rename`` may call tokenized text by its name or by that of its ids."""
        return {self._ids.get(old, old): new for old, new in self.rename.items()}

    @functools.cached_property
    def chosen(self) -> Schema:
        """Schema of the fields that are converted."""
        schema = self.reader.schema
        if self.fields is not None:
            return schema.select([self._ids.get(name, name) for name in self.fields])
        accepted, excluded = self.writer_format.fields, self.writer_format.leaves
        if self._ids and accepted:
            # A format that holds tokens and little else.
            return schema.select([name for name in schema if self.names.get(name, name) in accepted])
        if excluded:
            return schema.select([name for name in schema if self.names.get(name, name) not in excluded])
        return schema

    @property
    def measured(self) -> tuple[Reader, tuple[str, ...]]:
        """Reader and fields whose sizes plan the files: those of text, so that planning tokenizes nothing."""
        texts = {ids: name for name, ids in self._ids.items()}
        return self.stored, tuple(texts.get(name, name) for name in self.chosen)

    @functools.cached_property
    def order(self) -> Order:
        """Samples by the position at which they are written."""
        limit = self.options.limit
        if limit is not None and limit < 0:
            raise OptionError(f"limit must not be negative, as {limit} is")
        count = len(self.reader)
        order = random(count, seed=self.options.seed, epoch=0) if self.shuffle else sequential(count)
        return order if limit is None or limit >= count else dataclasses.replace(order, length=limit)

    @functools.cached_property
    def plan(self) -> Plan:
        if self.parts:
            tuning = self.options.tuning
            samples = int(np.clip(len(self.order) // tuning.min_parts, 1, tuning.max_part_samples))
            unit = self.piece_samples or 1
            return Plan(len(self.order), max(1, samples // unit) * unit)
        return plan(
            *self.measured,
            self.order,
            size=self.shard_size,
            samples=self.shard_samples,
            shuffled=self.shuffle,
        )

    @functools.cached_property
    def piece_samples(self) -> int | None:
        """Samples that a part is a multiple of, where the writer takes parts as they are (as pieces)."""
        writer = self.writer_format.writer
        if not self.parts or self.append or writer is None:
            return None
        return writer.piece_samples(self.prepared.schema, len(self.order), self.prepared.options)

    @functools.cached_property
    def mean_size(self) -> int:
        return mean_size(*self.measured)

    @functools.cached_property
    def spills(self) -> bool:
        """True where a shuffle reads the source from end to end first, and spills it."""
        two_passes, tuning = self.options.two_passes, self.options.tuning
        if not self.shuffle or two_passes is not None:
            return self.shuffle and bool(two_passes)
        if self.mean_size * len(self.order) < tuning.min_spilled_bytes:
            return False
        reader, fields = self.measured
        cells = [name for name in fields if reader.schema[name].cell is None]
        return is_remote(reader.path) or any(reader.spans(name, [0]) is None for name in cells)

    @functools.cached_property
    def writer_format(self) -> Format:
        name = self.target_options.get("format")
        return get_format(name) if name is not None else target_format(os.fspath(self.target))

    @property
    def _writer_options(self) -> Collection[str]:
        """Names of the options of the target's format."""
        return own_options(self.writer_format.writer) if self.writer_format.writer else ()

    @functools.cached_property
    def prepared(self) -> Prepared:
        write = WriteOptions(
            overwrite=self.overwrite,
            length=len(self.order),
            on_error=self.on_error,
            images=self.images,
            checksums=self.options.checksums,
        )
        schema, target = self.chosen.rename(self.names), os.fspath(self.target)
        if self.parts:
            return self._prepare_parts(target, schema, write)
        # A target that samples are added to keeps its own metadata.
        extra = {"mode": "append"} if self.append else self._metadata()
        return prepare(target, schema, write, sharded=self.sharded, **{**extra, **self.target_options})

    def _prepare_parts(self, target: str, schema: Schema, write: WriteOptions) -> Prepared:
        """Prepare parts in the target's format, in the format of a table's files, or in one safe to read."""
        if by_scheme(target) is not None:
            raise OptionError(
                "tables of a catalog are written by one process: leave the engine out", path=target
            )
        name, options = self.writer_format.name, dict(self.target_options)
        is_table = "mode" in self._writer_options
        if is_table or "allow_pickle" in own_options(self.writer_format.reader):
            part = get_format("parquet" if is_table else "msgpack")
            name, target = part.name, f"{target.rstrip('/')}{part.suffixes[0]}"
            format_options = split_options(options)[1]
            options = {key: value for key, value in options.items() if key not in format_options}
        return prepare(target, schema, write, sharded=True, **{**options, "format": name})

    def replace(self, **changes: Any) -> Job:
        """A job with other arguments and the same source, which stays open."""
        job = dataclasses.replace(self, **changes)
        # Fills the cached properties.
        vars(job).update(reader=self.reader, stored=self.stored)
        return job

    def joining(self, paths: list[str]) -> Job:
        """The job that joins the parts; their cells pass as they are."""
        return Job(
            paths,
            self.target,
            overwrite=self.overwrite,
            append=self.append,
            source_options={"format": self.prepared.format.name},
            target_options={**({} if self.append else self._metadata()), **self.target_options},
            options=ConvertOptions(checksums=self.options.checksums, tuning=self.options.tuning),
        )

    def _metadata(self) -> dict[str, Any]:
        """Metadata and attributes of the source as options of the target's writer, where it has them."""
        options: dict[str, Any] = {}
        reader, names = self.reader, self.names
        if "metadata" in self._writer_options and reader.metadata:
            options["metadata"] = dict(reader.metadata)
        if "attributes" in self._writer_options and reader.attributes:
            options["attributes"] = {
                names.get(name, name): dict(values)
                for name, values in reader.attributes.items()
                if name == "" or name in self.chosen
            }
        return options

    def lost(self) -> list[str]:
        """Remarks on fields and attributes of the source that the target does not keep."""
        remarks, name = [], self.writer_format.name
        dropped = [] if self.fields is not None else [f for f in self.reader.schema if f not in self.chosen]
        if dropped and self._ids:
            remarks = [f"{name} holds tokens: not written: {', '.join(dropped)}"]
        elif dropped:
            remarks = [f"{name} has no place for {', '.join(dropped)}: not written"]
        keys = [
            f"{field}.{key}" if field else key
            for field, values in self.reader.attributes.items()
            for key, value in values.items()
            if "attributes" not in self._writer_options and not self._in_schema(field, key, value)
        ]
        if keys:
            remarks.append(
                f"the source's attributes are not kept: {', '.join(keys[:8])}{', …' * (len(keys) > 8)}"
            )
        return remarks

    def _in_schema(self, name: str, key: str, value: Any) -> bool:
        """True where an attribute holds only names and ids of classes, which the schema has too."""
        ids = getattr(self.chosen[name], "ids", None) if name in self.chosen else None
        if key != "categories" or not ids or not isinstance(value, list):
            return False
        plain = all(isinstance(entry, dict) and set(entry) <= {"id", "name"} for entry in value)
        # Detection formats without ids number the classes in order, and COCO does it from 1 on.
        return plain and (not self.writer_format.leaves or list(ids) == list(range(1, len(ids) + 1)))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Properties that must be the same for a process to resume the work of another, as JSON."""
        reader, options = self.reader, self.options
        path = shown(reader.path) if is_remote(reader.path) else os.path.abspath(reader.path)
        return {
            "source": path,
            "samples": len(reader),
            "fields": self.chosen.to_json(),
            "rename": dict(self.rename),
            "limit": options.limit,
            "shuffle": self.shuffle,
            "seed": options.seed,
            "images": _describe_images(self.images),
            "shard_size": self.shard_size,
            "shard_samples": self.shard_samples,
            "parts": self.parts,
            "checksums": options.checksums,
            "append": self.append,
            "stamp": _stamp(reader.path),
            "filter": reader.facts().get("filter"),
            "target_options": _digests(split_options(self.target_options)[1]),
            "tokenize": reader.identity if isinstance(reader, Tokenized) else None,
        }

    @functools.cached_property
    def digest(self) -> str:
        """Digest that tells the files of this job from those of another one with the same target."""
        text = json.dumps([self.identity, self.on_error, self.plan.digest], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def check_same(self, begun: Any) -> None:
        """Raise an OptionError where the conversion that was begun has another identity."""
        begun = begun if isinstance(begun, Mapping) else {}
        different = [name for name, value in self.identity.items() if begun.get(name) != value]
        if different:
            raise OptionError(
                f"what was begun here had other options ({', '.join(different)}); use the same, or do not "
                "resume",
                path=self.prepared.path,
            )


def _describe_images(images: Images) -> dict[str, Any]:
    if isinstance(images, ImageOptions):
        return dataclasses.asdict(images)
    return {name: dataclasses.asdict(options) for name, options in images.items()}


def _digests(options: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the options' values, which do not give away a password."""
    return {
        name: hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
        for name, value in options.items()
    }


def _stamp(path: str) -> list[Any] | None:
    """Size and date or tag of a source file, so that a resume notices another one under its name."""
    if is_remote(path):
        with contextlib.suppress(BatchplantError):
            entry = look(path)
            return None if entry is None else [entry.size, entry.tag]
        return None
    if not os.path.isfile(path):
        return None
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]
