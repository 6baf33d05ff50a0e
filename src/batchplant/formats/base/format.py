"""Format: the description of a format, at the end of its module; its Capabilities; Probe: its detection."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ... import _native
from ...data.reader import Reader
from ...data.tensors import TENSORS
from ...data.writer import Writer
from ...errors import NotFoundError, SchemaError
from ...schema import EVERY_KIND, Field, List, Schema, Struct, Tensor
from ...storage import RemoteSource, Source, is_remote, open_source, tree

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


HEAD_SIZE = 16384
FOLDER_ENTRIES = 2000

T = TypeVar("T")


class Probe:
    """Evidence for detecting a format: first bytes of the file, or first names of the folder, at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = self._is_folder()
        self._answers: dict[Callable[[Probe], Any], Any] = {}

    def _is_folder(self) -> bool:
        """True if it is a folder; of a URL without a slash at its end, an object of that name comes first."""
        if not is_remote(self.path):
            with contextlib.suppress(OSError, ValueError):
                return stat.S_ISDIR(os.stat(self.path).st_mode)
        else:
            if not self.path.endswith("/"):
                with contextlib.suppress(NotFoundError):
                    return self.source is None
            if tree.is_folder(self.path):
                return True
        raise NotFoundError("no such file or folder", path=self.path)

    def ask(self, question: Callable[[Probe], T]) -> T:
        """Return a function's answer about this file or folder, cached: several formats may ask the same."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return self._answers[question]

    @functools.cached_property
    def source(self) -> Source:
        return open_source(self.path, HEAD_SIZE)

    @property
    def opened(self) -> Source | None:
        """The file, where somebody looked into it."""
        return self.__dict__.get("source")

    @functools.cached_property
    def head(self) -> bytes:
        """The first bytes of a file; empty for a folder."""
        if self.folder:
            return b""
        if isinstance(self.source, RemoteSource):
            # Whoever reads the file needs them again.
            tree.keep_head(self.path, self.source.first())
        return self.source.peek([(0, min(HEAD_SIZE, self.size))])

    @property
    def size(self) -> int:
        return 0 if self.folder else self.source.size

    @functools.cached_property
    def names(self) -> list[str]:
        """The first names in a folder, without the hidden ones; folders end with a slash."""
        return self._listed(FOLDER_ENTRIES) if self.folder else []

    @functools.cached_property
    def all_names(self) -> list[str]:
        """All names in a folder, however many there are."""
        return self.names if len(self.names) < FOLDER_ENTRIES else self._listed(None)

    def _listed(self, limit: int | None) -> list[str]:
        if is_remote(self.path):
            visible = [entry for entry in tree.entries(self.path) if not entry.name.startswith(".")]
            return [entry.name + ("/" if entry.folder else "") for entry in visible[:limit]]
        with os.scandir(self.path) as entries:
            shown = (entry for entry in entries if not entry.name.startswith("."))
            names = itertools.islice(shown, limit)
            return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in names)


def archives_within(probe: Probe) -> bool:
    """Return whether a file is a tar archive of tar archives."""
    head = np.frombuffer(probe.head[:512], np.uint8)
    return probe.head[:100].rstrip(b"\0").endswith(b".tar") and _native.is_tar_header(head)


def never(probe: Probe) -> bool:
    """Return whether a file is of this format, where the format has no magic: only the suffix tells."""
    return False


class Outline(NamedTuple):
    """Facts that the registry needs before it imports a format's module; :class:`Format` explains them."""

    suffixes: tuple[str, ...]
    folder: bool | None = False
    side_cars: tuple[str, ...] = ()
    describes: bool = False
    media: str | None = None
    has_parts: bool = False
    scheme: str | None = None


@dataclasses.dataclass(frozen=True)
class Format:
    """Everything about a format, as data. The tables of the documentation are made from it.

    - name: identifier of the format, and of its module.
    - title: description in a few words, for tables.
    - suffixes: those of its files, the usual one first; empty where there is none.
    - spec: URL of the specification.
    - reader, writer: classes that read and write it; no writer, a format that is only read.
    - sniff: function from a :class:`Probe` to whether the content is this format's (default: no magic).
    - kinds: kinds of fields that it can hold.
    - optional: whether fields may have missing values.
    - folder: whether a dataset is a folder; None: a folder or a file.
    - extra: extra of the package, as in ``pip install "batchplant[extra]"``, that it needs.
    - notes: limits and peculiarities, for tables.
    - only: schema that every dataset has exactly, its fields in any order; then ``kinds`` is empty.
    - fields: fields by name that it can hold, no others; the first is required.
    - leaves: fields of related formats that it has no place for: ``convert`` omits them, and reports that.
    - describes: whether it is a table of text that, beside files of another format, describes those and is
      no shard.
    - media: kind of the values of a folder of media files; a target without a suffix becomes such a folder.
    - doubt: function that returns why a folder with such files is not one of them, or None.
    - parts: function that returns the files that are read through this one and not on their own, such as
      those that an index names.
    - scheme: prefix before ``://`` of names that are no paths, but that the format resolves itself.
    - upkeep: maintenance of a versioned table, an ``Upkeep`` (base.lake), made with a path and options.
    - can: capabilities besides those that its classes imply.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    spec: str
    reader: type[Reader]
    writer: type[Writer] | None = None
    _: dataclasses.KW_ONLY
    sniff: Callable[[Probe], bool] = never
    kinds: tuple[type[Field], ...] = ()
    optional: bool = False
    folder: bool | None = False
    extra: str | None = None
    notes: str = ""
    only: Schema | None = None
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    describes: bool = False
    media: type[Field] | None = None
    doubt: Callable[[Probe], str | None] | None = None
    parts: Callable[[str], Iterable[str]] | None = None
    scheme: str | None = None
    upkeep: Callable[..., Any] | None = None
    can: Capabilities = dataclasses.field(default_factory=Capabilities)

    def __post_init__(self) -> None:
        derived = self.can.derived(self.reader, self.writer, self.kinds, versions=self.upkeep is not None)
        object.__setattr__(self, "can", derived)
        self.reader.format = self.name
        if self.writer is not None:
            self.writer.format = self.name

    @property
    def outline(self) -> Outline:
        return Outline(
            suffixes=self.suffixes,
            folder=self.folder,
            side_cars=() if self.writer is None else self.writer.side_cars,
            describes=self.describes,
            media=None if self.media is None else self.media.kind,
            has_parts=self.parts is not None,
            scheme=self.scheme,
        )

    def matches(self, probe: Probe) -> bool:
        """True if the content is this format's; damaged bytes are a no, never an exception."""
        if self.folder is not None and probe.folder != self.folder:
            return False
        return self.sniff(probe)

    def refuses(self, field: Field) -> str | None:
        """Return why the format cannot hold a field; None where it can."""
        # Not isinstance: whoever writes numbers may not know what to do with times.
        if type(field) not in self.kinds and field.wide not in self.kinds:
            return f"{self.name} cannot hold {field.kind} fields"
        # A table's column may have gaps as far as its type says: who holds little refuses them one by one.
        if field.optional and not self.optional and not self.fields:
            return f"{self.name} cannot hold missing values"
        return self.writer.refuses(field) if self.writer is not None else f"{self.name} is read only"

    def check(self, schema: Schema) -> None:
        """SchemaError in one sentence when a field cannot live here."""
        if self.only is not None:
            if dict(schema) != dict(self.only):
                wrong = [name for name, field in schema.items() if dict(self.only).get(name) != field]
                kinds = " (batchplant.data.tensors.TENSORS)" if self.tensors else ""
                needed = f"exactly the fields {', '.join(self.only)}{kinds}"
                raise SchemaError(
                    f"{self.name} holds {self.holds}, and needs {needed}, not {', '.join(schema)}",
                    field=wrong[0] if wrong else None,
                )
            return
        if self.fields:
            self._check_names(schema)
        for name, field in schema.items():
            reason = self.refuses(field)
            if reason is not None:
                raise SchemaError(
                    f"{reason}; leave {name!r} out (--fields), or write another format"
                    f" (`batchplant formats` says which hold {field.kind})",
                    field=name,
                )

    def _check_names(self, schema: Schema) -> None:
        first, *optional_names = (f"{name} ({field.kind})" for name, field in self.fields.items())
        needed = next(iter(self.fields))
        fields = ((name, self.fields.get(name)) for name in schema)
        # What the field there is a narrower form of will do: who writes it knows what it needs.
        wrong = [name for name, field in fields if field is None or not isinstance(field, type(schema[name]))]
        if wrong or needed not in schema:
            and_more = (
                f", and at most {' and '.join(optional_names)}" if optional_names else " and nothing else"
            )
            name = wrong[0] if wrong else next(iter(schema))
            advice = f"rename a field (--rename {name}={needed}), and leave others out (--fields)"
            if name == needed:
                advice = f"here, {name} is {schema[name].kind}"
            elif needed in schema:
                advice = f"leave {name!r} out (--fields)"
            raise SchemaError(f"{self.name} holds {first}{and_more}; {advice}", field=name)

    @property
    def tensors(self) -> bool:
        """True if its files are models: every sample is a named tensor."""
        return self.only is not None and dict(self.only) == dict(TENSORS)

    @property
    def holds(self) -> str:
        """The field kinds, in words."""
        if self.tensors:
            return "named tensors"
        if self.fields:
            return ", ".join(self.fields)
        if self.kinds != EVERY_KIND:
            return ", ".join(kind.kind for kind in self.kinds)
        refused = self.writer is not None and self.writer.refuses(Tensor("complex64", (2,))) is not None
        return "every kind, no complex numbers" if refused else "every kind"

    @property
    def called(self) -> str:
        """Describe its file names in words."""
        return " ".join(self.suffixes) or ("a folder" if self.folder else "any name")

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
            "can": self.can.describe(),
        }
