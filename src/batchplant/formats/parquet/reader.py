"""Reading Parquet: a file, a URL, or a folder of files with partitions in the names of its folders."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import numpy as np

from ...codecs.arrow import KEY
from ...errors import BatchplantError, DamagedError, SchemaError
from ...schema import Bool, Duration, Field, Int, Schema, Text, Time
from ...schema.columns import I64
from ...storage import NOTE_ERRORS, is_remote, join, parse, tree
from ...storage.patterns import independent
from ..base.format import Probe
from ..base.records import GivenSchema, given_schema
from ..base.tables import ParquetFile, ParquetFilesReader, open_parts
from ..base.tables.footer import ENCRYPTED, MAGIC

# What Hive, and everybody after it, calls a folder of which the value is missing.
MISSING = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES = (".parquet", ".pq")
# Folders in which Parquet files are the parts of something else.
OTHER_TABLES = ("_delta_log/", "metadata/")


class ParquetReader(ParquetFilesReader):
    """Reads .parquet files and folders of them.

    ``fields``: only these. ``schema``: the kinds of some fields, in place of those that the types mean.
    ``cache``: bytes of decoded row groups to keep (default 256 MiB).
    """

    def __init__(
        self,
        path: str,
        *,
        fields: Iterable[str] | None = None,
        schema: GivenSchema | str | None = None,
        cache: int | None = None,
    ) -> None:
        self.path = path
        overrides = given_schema(schema) if schema is not None else None
        values_of_files = dict(_files(path)) if tree.is_folder(path) else {path: {}}
        if not values_of_files:
            raise DamagedError("there is no Parquet file in it", path=path)
        keys, partition_fields = _partitions(list(values_of_files.values()), path)
        parts = open_parts(
            list(values_of_files),
            lambda file: ParquetFile(file, _typed(values_of_files[file], partition_fields)),
        )
        try:
            self._set_parts(parts, schema=None, cache=cache)
            self.schema = self._with_partitions(keys, partition_fields, parts)
            if fields is not None:
                self.schema = self.schema.select(list(fields))
            locked = [name for name in self.schema if any(name in part.encrypted() for part in parts)]
            if locked:
                raise SchemaError(
                    f"encrypted columns are not read: {', '.join(locked)}; choose others with fields=[…]"
                )
            for name, field in (overrides or {}).items():
                self.schema.select([name])
                self.schema = Schema({**self.schema, name: field})
        except BatchplantError as error:
            for part in parts:
                part.close()
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            raise DamagedError(f"the schema is damaged: {error}", path=path) from None

    def boundaries(self) -> I64:
        """The first rows of files, of which none is the next shard of the one before."""
        firsts = self._starts[self._firsts[:-1]]
        starts = independent([part.path for part in self._parts], firsts)
        return np.unique(starts[(starts > 0) & (starts < self.length)])

    def _with_partitions(
        self, keys: list[str], partition_fields: dict[str, Field], parts: list[ParquetFile]
    ) -> Schema:
        """The fields, those of the folders' names among them; in our order and kinds where we wrote it."""
        if not keys:
            return self.schema
        all_fields: dict[str, Field] = {**self.schema, **partition_fields}
        try:
            noted = Schema.from_json(parse((parts[0].schema.metadata or {})[KEY]))
        except (*NOTE_ERRORS, SchemaError):
            return Schema(all_fields)
        if set(noted) != set(all_fields):
            return Schema(all_fields)
        fields = {name: noted[name] if name in partition_fields else all_fields[name] for name in noted}
        for part in parts:
            part.values = {name: _value(noted[name], part.values[name]) for name in part.values}
        return Schema(fields)


def _files(folder: str) -> list[tuple[str, dict[str, str | None]]]:
    """The Parquet files below a folder, in order, each with the values that its folders name."""
    files: list[tuple[list[Any], str, dict[str, str | None]]] = []
    for inside, _ in tree.walk(folder):
        *steps, name = inside.split("/")
        if name.lower().endswith(SUFFIXES) and not any(step[0] in "._" for step in (*steps, name)):
            # The files of a folder come before those of the folders in it.
            order = [*((1, _natural(step)) for step in steps), (0, _natural(name))]
            files.append((order, join(folder, inside), _values_of(steps)))
    # Programs call folders of files so, too; one without any stands in the place of a file that is missing.
    # Servers have no empty folders.
    for entry in () if is_remote(folder) else tree.entries(folder):
        named = entry.folder and entry.name.lower().endswith(SUFFIXES) and entry.name[0] not in "._"
        below = join(folder, entry.name, "")
        if named and not any(path.startswith(below) for _, path, _ in files):
            raise DamagedError("this is a folder without Parquet files; a file is needed here", path=below)
    return [(path, values) for _, path, values in sorted(files, key=lambda entry: entry[0])]


def _values_of(steps: list[str]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for step in steps:
        name, equals, value = step.partition("=")
        if equals and name:
            result[unquote(name)] = None if value == MISSING else unquote(value)
    return result


def _natural(name: str) -> list[Any]:
    """Sort key: part-2 before part-10."""
    return [(1, "", int(part)) if part.isdecimal() else (0, part, 0) for part in re.split(r"(\d+)", name)]


def _partitions(values: list[dict[str, str | None]], path: str) -> tuple[list[str], dict[str, Field]]:
    """The names of the partitions, and what kind of values they have."""
    keys = list(values[0])
    if any(list(value) != keys for value in values):
        raise SchemaError("its files lie in different partitions; open the folders one by one", path=path)
    return keys, {key: _kind([value[key] for value in values]) for key in keys}


def _kind(values: list[str | None]) -> Field:
    present = [value for value in values if value is not None]
    numbers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in present) and bool(present)
    field: Field = Int() if numbers else Text()
    return dataclasses.replace(field, optional=True) if len(present) < len(values) else field


def _typed(values: dict[str, str | None], fields: dict[str, Field]) -> dict[str, Any]:
    return {name: _value(fields[name], value) for name, value in values.items()}


def _value(field: Field, value: Any) -> Any:
    """Parse a folder's name as a value of its field."""
    if value is None:
        return None
    if isinstance(field, Bool):
        return str(value) == "true"
    if isinstance(field, Time | Duration):
        return field.parse(str(value))
    return int(value) if isinstance(field, Int) else str(value)


def sniff(probe: Probe) -> bool:
    """Files begin with PAR1. A folder holds such files, or folders called NAME=VALUE."""
    if not probe.folder:
        return probe.head.startswith((MAGIC, ENCRYPTED)) and probe.size >= 12
    if any(name in OTHER_TABLES for name in probe.names):
        return False
    if any(name.lower().endswith(SUFFIXES) for name in probe.names):
        return True
    if not any(re.fullmatch(r"[^=]+=[^/]*/", name) for name in probe.names):
        return False
    return any(name.lower().endswith(SUFFIXES) for name, _ in tree.walk(probe.path))
