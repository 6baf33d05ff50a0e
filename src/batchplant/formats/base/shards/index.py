"""The index of a folder of shards: what it is recognised by, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ....errors import BatchplantError, DamagedError, NotFoundError, exceptions_as
from ....schema import Field, Schema
from ....storage import NOTE_ERRORS, is_remote, join, open_source, parse_object, read_beside
from ....storage.notes import without_gc
from ..format import Probe

INDEX = "index.json"
# Offsets are 32 bits.
MAX_SHARD_BYTES = (1 << 32) - 1
# So much of it tells what it is of.
INDEX_HEAD_BYTES = 64 << 10

T = TypeVar("T")
# An encoding of a format.
E = TypeVar("E")
METADATA_KEY = "batchplant"
# A sample's flags of the optional fields, one byte each: 1 where it is missing.
MISSING = "__missing__"


def index_head(probe: Probe) -> bytes:
    """Return the first bytes of a folder's index; empty if there is none."""
    # Behind a URL, a listing tells what a request would.
    if not probe.folder or (is_remote(probe.path) and INDEX not in probe.names):
        return b""
    try:
        source = open_source(join(probe.path, INDEX))
        return source.view(0, min(source.size, INDEX_HEAD_BYTES)).tobytes()
    except BatchplantError:
        return b""


def read_index(folder: str, title: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Parse the index of a folder; ``title``: name of the format in messages."""
    path = join(folder, INDEX)
    data = read_beside(path)
    if data is None:
        raise NotFoundError(f"no such file; a folder of {title} has one", path=path)
    with exceptions_as(DamagedError, f"not an index of {title}", *NOTE_ERRORS, path=path), without_gc():
        return parse(parse_object(data))


class ShardMetadata(NamedTuple):
    """Our metadata in an index. ``missing``: the column that flags missing cells; ``document``: as JSON."""

    schema: Schema
    missing: str | None
    document: Any

    @classmethod
    def of(cls, schema: Schema) -> ShardMetadata:
        """The one of a dataset of our own."""
        missing = missing_name(schema)
        return cls(schema, missing, {"schema": schema.to_json(), "missing": missing})

    @classmethod
    def parse(
        cls, document: Any, columns: Mapping[str, E], holds: Callable[[E, Field], bool], flags: E | None
    ) -> ShardMetadata:
        """DamagedError unless its fields are the columns; any error where it is no metadata.

        ``holds``: whether a column can have the cells of a field. ``flags``: the encoding of the flags.
        """
        content = cls(Schema.from_json(document["schema"]), document["missing"], document)
        encodings = dict(columns)
        stored_flags = None if content.missing is None else encodings.pop(content.missing, None)
        if (
            stored_flags != flags
            or encodings.keys() != set(content.schema)
            or not all(holds(encodings[name], field) for name, field in content.schema.items())
        ):
            raise DamagedError("its note names other fields than its columns are")
        return content


def optional_fields(schema: Schema) -> list[str]:
    return [name for name, field in schema.items() if field.optional]


def missing_name(schema: Schema) -> str | None:
    """Name of the column of flags; None if no cell can be missing."""
    if not optional_fields(schema):
        return None
    name = MISSING
    while name in schema:
        name += "_"
    return name


def count(value: object) -> int:
    """A number of samples or bytes in an index; ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= MAX_SHARD_BYTES:
        raise ValueError(f"{str(value)[:40]} is no number of samples or bytes")
    return value
