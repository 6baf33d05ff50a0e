"""Readers beside each other, sample by sample: ``join``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError, Problem, SampleKeyError, SchemaError, located
from ..schema import Field, Schema
from ..schema.columns import I64, Column, Columns
from ..storage.spans import Spans, concat_spans
from .keys import FormatKeys
from .layout import Layout
from .reader import Reader, open_reader

HOW = ("strict", "inner")
# Value of ``on`` for the keys that formats have themselves.
KEY = "key"


def join(
    sources: Sequence[Any], *, on: str | Sequence[str | None] | None = None, how: str = "strict"
) -> Reader:
    """A dataset of several side by side: a sample has the fields of all of them.

    sources: Readers, or what :func:`batchplant.open` takes. on: None joins by position, ``"key"`` by the keys
    that the formats have themselves (names of files, keys of records), a field's name by its values; a list
    names another field for each source (None: its own keys). how: ``strict`` is an error where a sample has
    no partner, ``inner`` leaves it out. The order is that of the first source. Fields keep their places in
    their files, so images are decoded there.

    Raises: SampleKeyError where a sample has no partner (``strict``) or several; OptionError where datasets
    that are joined by position differ in length; SchemaError where two have a field of one name.
    """
    if isinstance(sources, str | os.PathLike | Reader) or len(sources) < 2:
        raise OptionError("join needs a list of two datasets or more")
    readers = [open_reader(source) for source in sources]
    return Join(readers, on=on, how=how)


class Join(Reader):
    """Readers side by side; see :func:`join`."""

    format = "join"

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        on: str | Sequence[str | None] | None = None,
        how: str = "strict",
    ) -> None:
        if how not in HOW:
            raise OptionError(f"how is {' or '.join(HOW)}, not {how!r}")
        self.path = " + ".join(reader.path for reader in readers)
        fields = _fields(readers, on)
        rows = _by_position(readers, how) if on is None else _by_key(readers, fields, how)
        self.parts = [
            reader if part is None else reader.subset(part)
            for reader, part in zip(readers, rows, strict=True)
        ]
        self.length = len(self.parts[0])
        self.window = readers[0].window
        # Field → the part that has it.
        self._owner: dict[str, Reader] = {}
        schema: dict[str, Field] = {}
        for part, key in zip(self.parts, fields, strict=True):
            for name, field in part.schema.items():
                if name in schema and name == key == fields[0]:
                    # Joined by it: it is the same in all of them.
                    continue
                if name in schema:
                    first = self._owner[name].path
                    raise SchemaError(
                        f"{first} and {part.path} both have a field {name!r}: rename it in one, as with "
                        f".rename({{{name!r}: {name + '_2'!r}}}), or leave it out with .select([…])",
                        field=name,
                    )
                schema[name] = field
                self._owner[name] = part
        self.schema = Schema(schema)

    def _layout(self) -> Layout:
        def sizes() -> I64 | None:
            sizes = [part_sizes for part in self.parts if (part_sizes := part.sizes()) is not None]
            return np.sum(sizes, axis=0) if len(sizes) == len(self.parts) else None

        return Layout(
            # Those of the first part that has some.
            blocks=lambda: next((b for part in self.parts if (b := part.blocks()) is not None), None),
            boundaries=lambda: np.unique(np.concatenate([part.boundaries() for part in self.parts])),
            sizes=sizes,
        )

    def _fields_by_part(self, fields: Sequence[str]) -> Iterator[tuple[Reader, list[str]]]:
        for part in self.parts:
            names = [name for name in fields if self._owner[name] is part]
            if names:
                yield part, names

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns: dict[str, Column] = {}
        for part, names in self._fields_by_part(fields):
            with located(path=part.path):
                columns |= part._read(indices, names)
        return Columns((name, columns[name]) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self._owner[field]._spans(field, indices)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        ranges = [part._ranges(names, indices) for part, names in self._fields_by_part(fields)]
        return None if None in ranges else concat_spans([spans for spans in ranges if spans is not None])

    def _keys(self) -> FormatKeys | None:
        return self.parts[0]._keys()

    def where(self, sample: int) -> str:
        return self.parts[0].where(sample)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        by_field = {name: dict(part.attributes.get(name, {})) for name, part in self._owner.items()}
        return {name: attributes for name, attributes in by_field.items() if attributes}

    def facts(self) -> dict[str, object]:
        return {"joined": len(self.parts)}

    def _verify(self) -> Iterator[Problem]:
        for part in self.parts:
            yield from part._verify()

    def own_checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check for part in self.parts for check in part.own_checks()))

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _fields(readers: Sequence[Reader], on: str | Sequence[str | None] | None) -> list[str | None]:
    """Return the field that each reader is joined by; None: the keys of its format."""
    if on is None:
        return [None] * len(readers)
    if isinstance(on, str):
        by_format = on == KEY and not all(KEY in reader.schema for reader in readers)
        fields: list[str | None] = [None if by_format else on] * len(readers)
    else:
        fields = list(on)
        if len(fields) != len(readers):
            raise OptionError(f"on names {len(fields)} fields for {len(readers)} datasets")
    for reader, name in zip(readers, fields, strict=True):
        if name is not None:
            reader._names([name])
    return fields


def _by_position(readers: Sequence[Reader], how: str) -> list[I64 | None]:
    lengths = [len(reader) for reader in readers]
    if len(set(lengths)) == 1:
        return [None] * len(readers)
    if how == "strict":
        counts = ", ".join(f"{reader.path} has {len(reader):,}" for reader in readers)
        raise OptionError(
            f"datasets of one length are joined by position, and {counts}: join them by key (on=…), or take "
            "as many as all have (how='inner')"
        )
    return [np.arange(min(lengths))] * len(readers)


def _by_key(readers: Sequence[Reader], fields: Sequence[str | None], how: str) -> list[I64 | None]:
    first = readers[0]
    keys = list(first.keys(fields[0]))
    if len(keys) < len(first):
        raise OptionError("some samples have no key", path=first.path, field=fields[0])
    joined_rows = np.arange(len(first))
    partner_rows: list[I64] = []
    for reader, field in zip(readers[1:], fields[1:], strict=True):
        partner_keys = reader.keys(field)
        if how == "inner":
            has_partner = np.array([key in partner_keys for key in keys], dtype=np.bool_)
            joined_rows = joined_rows[has_partner[joined_rows]]
            rows = np.full(len(first), -1, dtype=np.int64)
            rows[has_partner] = partner_keys.indices(itertools.compress(keys, has_partner))
        else:
            rows = partner_keys.indices(keys)
            _check_all_joined(first, reader, field, rows)
        partner_rows.append(rows)
    if len(set(keys)) < len(keys):
        seen: dict[Any, int] = {}
        row, earlier = next((n, seen[key]) for n, key in enumerate(keys) if seen.setdefault(key, n) != n)
        message = f"samples {earlier} and {row} have the key {keys[row]!r}"
        raise SampleKeyError(message, path=first.path, field=fields[0])
    complete = len(joined_rows) == len(first)
    return [None if complete else joined_rows, *(rows[joined_rows] for rows in partner_rows)]


def _check_all_joined(first: Reader, reader: Reader, field: str | None, rows: I64) -> None:
    """Check that each sample of ``reader`` has a partner: ``rows`` names all of them."""
    unmatched = np.setdiff1d(np.arange(len(reader)), rows)
    if not len(unmatched):
        return
    key = next(itertools.islice(reader.keys(field), int(unmatched[0]), None))
    also = f", nor have {len(unmatched) - 1:,} others" if len(unmatched) > 1 else ""
    raise SampleKeyError(
        f"the sample {key!r} has no partner in {first.path}{also}; how='inner' leaves such out",
        path=reader.path,
        sample=int(unmatched[0]),
        field=field,
    )
