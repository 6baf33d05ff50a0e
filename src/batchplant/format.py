"""What a format is: one :class:`Format` at the end of its file, and how a file is recognised."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from .errors import SchemaError
from .families.tensors import check_schema
from .reader import Reader
from .schema import KINDS, Field, Schema
from .storage import Source, is_remote, open_source
from .writer import Writer

HEAD_SIZE = 16384
FOLDER_ENTRIES = 2000


class Probe:
    """What a format may look at to say "this is mine": the first bytes, or the first names of a folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = not is_remote(path) and os.path.isdir(path)

    @functools.cached_property
    def source(self) -> Source:
        return open_source(self.path)

    @functools.cached_property
    def head(self) -> bytes:
        """The first bytes of a file; empty for a folder."""
        return b"" if self.folder else self.source.view(0, min(HEAD_SIZE, self.size)).tobytes()

    @property
    def size(self) -> int:
        return 0 if self.folder else self.source.size

    @functools.cached_property
    def names(self) -> list[str]:
        """The first names in a folder, without the hidden ones; folders end with a slash."""
        if not self.folder:
            return []
        found: list[str] = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    found.append(entry.name + ("/" if entry.is_dir() else ""))
                if len(found) == FOLDER_ENTRIES:
                    break
        return sorted(found)


def never(probe: Probe) -> bool:
    """For formats that have no magic: only the suffix tells."""
    return False


@dataclasses.dataclass(frozen=True)
class Format:
    """Everything about a format, as data. The tables in the README and the docs are made from it."""

    name: str
    title: str
    suffixes: tuple[str, ...]
    spec: str
    reader: type[Reader]
    writer: type[Writer] | None
    sniff: Callable[[Probe], bool] = never
    kinds: tuple[type[Field], ...] = ()
    optional: bool = False
    # None: a folder or a file.
    folder: bool | None = False
    extra: str | None = None
    notes: str = ""
    # A model: named tensors, and no other fields than those of batchplant.tensors.TENSORS.
    tensors: bool = False

    def __post_init__(self) -> None:
        self.reader.format = self.name
        if self.writer is not None:
            self.writer.format = self.name

    def matches(self, probe: Probe) -> bool:
        """Whether the content is this format's; damaged bytes are a no, never an exception."""
        if self.folder is not None and probe.folder != self.folder:
            return False
        return self.sniff(probe)

    def refuses(self, field: Field) -> str | None:
        """Why the format cannot hold a field; None where it can."""
        if not isinstance(field, self.kinds):
            return f"{self.name} cannot hold {field.kind} fields"
        if field.optional and not self.optional:
            return f"{self.name} cannot hold missing values"
        return self.writer.refuses(field) if self.writer is not None else f"{self.name} is read only"

    def check(self, schema: Schema) -> None:
        """SchemaError in one sentence when a field cannot live here."""
        if self.tensors:
            check_schema(schema, self.name)
            return
        for name, field in schema.items():
            reason = self.refuses(field)
            if reason is not None:
                raise SchemaError(
                    f"{reason}; leave {name!r} out (--fields), or write another format"
                    f" (`batchplant formats` says which hold {field.kind})",
                    field=name,
                )

    @property
    def holds(self) -> str:
        """The field kinds, in words."""
        if self.tensors:
            return "named tensors"
        return "every kind" if len(self.kinds) == len(KINDS) else ", ".join(one.kind for one in self.kinds)

    def describe(self) -> dict[str, Any]:
        """The row of this format in generated tables."""
        return {
            "name": self.name,
            "title": self.title,
            "suffixes": list(self.suffixes),
            "read": True,
            "write": self.writer is not None,
            "kinds": [kind.kind for kind in self.kinds],
            "optional": self.optional,
            "tensors": self.tensors,
            "folder": self.folder,
            "extra": self.extra,
            "spec": self.spec,
            "notes": self.notes,
        }
