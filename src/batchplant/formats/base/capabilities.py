"""Capabilities of a format, as data: ``formats --compare`` and docs/choosing.md are generated from them.

A claim is about what batchplant does with the format, not about what the format could do elsewhere.
tests/formats/test_capabilities.py tries each one with every format, and what is not claimed too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...data.reader import Reader
from ...schema import Field, List, Struct

if TYPE_CHECKING:
    from ...data.writer import Writer

READING, WRITING, FILE = "Reading", "Writing", "The file"


def _claim(group: str, title: str, says: str, default: Any = False) -> Any:
    return dataclasses.field(default=default, metadata={"group": group, "title": title, "says": says})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a format; by default none. ``metadata["says"]`` of each dataclass field describes it.

    spans, row_filters, append, nested and time_travel are derived by :class:`Format` itself.
    """

    random_access: bool = _claim(READING, "random access", "one sample is read without most of the others")
    spans: bool = _claim(READING, "in place", "cells lie in the file as they are, and are used there")
    memory_map: bool = _claim(READING, "memory map", "the file is mapped, and cells are used there")
    column_pruning: bool = _claim(READING, "single columns", "fields that are not asked for are not read")
    row_filters: str = _claim(
        READING, "row filters", "push-down: what cannot match is skipped; scan: every sample is looked at", ""
    )
    remote_ranges: bool = _claim(
        READING, "remote ranges", "read from a server in parts, once it has an index where it needs one"
    )
    splittable: bool = _claim(
        READING, "splittable", "machines can share one file, and nobody has to scan all of it first"
    )
    append: bool = _claim(WRITING, "append", "samples are added, and the old ones are not written again")
    concurrent_writers: bool = _claim(WRITING, "several writers", "several append at once, and all is kept")
    streaming_write: bool = _claim(WRITING, "streaming", "memory does not grow with what is written")
    keeps_schema: bool = _claim(WRITING, "keeps schema", "the fields come back equal, class names too")
    nested: bool = _claim(WRITING, "nested", "lists and structs are fields like others")
    metadata: bool = _claim(WRITING, "metadata", "notes about the file or its fields are kept")
    time_travel: bool = _claim(WRITING, "time travel", "older versions can be opened")
    checksums: str = _claim(FILE, "checksums", "what each checksum of the format's own covers", "")
    compression: tuple[str, ...] = _claim(FILE, "compression", "the kinds that there are", ())
    compressed: str = _claim(FILE, "packed by", "what is compressed in one piece", "")
    max_size: str = _claim(FILE, "limit", "the largest that it holds, where there is a limit", "")
    human_readable: bool = _claim(FILE, "text", "it can be read in an editor")
    ecosystem: tuple[str, ...] = _claim(FILE, "read by", "who reads it besides batchplant", ())

    def derived(
        self,
        reader: type[Reader],
        writer: type[Writer] | None,
        kinds: Iterable[type[Field]],
        *,
        versions: bool,
    ) -> Capabilities:
        """Return the capabilities with what the classes say, so that no format has to repeat it."""
        return dataclasses.replace(
            self,
            spans=reader._spans is not Reader._spans and reader.own_spans,
            row_filters="scan" if reader._prune is Reader._prune else "push-down",
            append=writer is not None and writer.appends,
            nested={List, Struct} <= set(kinds),
            time_travel=versions,
        )

    def describe(self) -> dict[str, Any]:
        """Return the capabilities as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    def shown(self, name: str) -> str:
        """One claim, as it stands in a table; nothing where the format cannot."""
        value = getattr(self, name)
        if isinstance(value, bool):
            return "yes" if value else ""
        return value if isinstance(value, str) else ", ".join(value)


CLAIMS = {field.name: field.metadata for field in dataclasses.fields(Capabilities)}


def groups() -> dict[str, list[str]]:
    """The names of the claims, by the part of a table that they stand in."""
    groups_by_title: dict[str, list[str]] = {}
    for name, about in CLAIMS.items():
        groups_by_title.setdefault(about["group"], []).append(name)
    return groups_by_title
