"""Readers beside each other, sample by sample: ``join``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BatchplantError, OptionError, Problem, SampleKeyError, SchemaError
from ..schema import Field, Schema
from ..schema.columns import I64, Columns, Spans, concat_spans
from .keys import FormatKeys
from .reader import Reader, open_reader

HOW = ("strict", "inner")
# What ``on`` says for the keys that formats have themselves.
KEY = "key"


def join(
    sources: Sequence[Any], *, on: str | Sequence[str | None] | None = None, how: str = "strict"
) -> Reader:
    """Datasets side by side as one: a sample has the fields of all of them.

    sources: Readers, or what :func:`batchplant.open` takes. on: None joins by position, ``"key"`` by the keys
    that the formats have themselves (names of files, keys of records), a field's name by its values; a list
    names another field for each source (None: its own keys). how: ``strict`` is an error where a sample has
    no partner, ``inner`` leaves it out. The order is that of the first source. Fields keep their places in
    their files, so images are decoded there.
    """
    if isinstance(sources, str | os.PathLike | Reader) or len(sources) < 2:
        raise OptionError("join needs a list of two datasets or more")
    return Join([one if isinstance(one, Reader) else open_reader(one) for one in sources], on=on, how=how)


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
        self.path = " + ".join(one.path for one in readers)
        fields = _fields(readers, on)
        rows = _by_position(readers, how) if on is None else _by_key(readers, fields, how)
        self.parts = [
            one if some is None else one.subset(some) for one, some in zip(readers, rows, strict=True)
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
                    other = self._owner[name].path
                    raise SchemaError(
                        f"{other} and {part.path} both have a field {name!r}: rename it in one, as with "
                        f".rename({{{name!r}: {name + '_2'!r}}}), or leave it out with .select([…])",
                        field=name,
                    )
                schema[name] = field
                self._owner[name] = part
        self.schema = Schema(schema)

    def boundaries(self) -> I64:
        return np.unique(np.concatenate([part.boundaries() for part in self.parts]))

    def _of_parts(self, fields: Sequence[str]) -> Iterator[tuple[Reader, list[str]]]:
        for part in self.parts:
            mine = [name for name in fields if self._owner[name] is part]
            if mine:
                yield part, mine

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found: dict[str, Any] = {}
        for part, mine in self._of_parts(fields):
            try:
                found |= part._read(indices, mine)
            except BatchplantError as error:
                raise error.at(path=part.path) from None
        return Columns((name, found[name]) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self._owner[field]._spans(field, indices)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        found = [part._ranges(mine, indices) for part, mine in self._of_parts(fields)]
        return None if None in found else concat_spans([one for one in found if one is not None])

    def blocks(self) -> I64 | None:
        """Those of the first that has some."""
        return next((found for one in self.parts if (found := one.blocks()) is not None), None)

    def sizes(self) -> I64 | None:
        found = [one.sizes() for one in self.parts]
        known = [one for one in found if one is not None]
        return np.sum(known, axis=0) if len(known) == len(found) else None

    def _keys(self) -> FormatKeys | None:
        return self.parts[0]._keys()

    def where(self, sample: int) -> str:
        return self.parts[0].where(sample)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        found = {name: dict(part.attributes.get(name, {})) for name, part in self._owner.items()}
        return {name: one for name, one in found.items() if one}

    def facts(self) -> dict[str, Any]:
        return {"joined": len(self.parts)}

    def _verify(self) -> Iterator[Problem]:
        for part in self.parts:
            yield from part._verify()

    def own_checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for part in self.parts for one in part.own_checks()))

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _fields(readers: Sequence[Reader], on: str | Sequence[str | None] | None) -> list[str | None]:
    """The field that each is joined by; None where it is the keys that it has itself."""
    if on is None:
        return [None] * len(readers)
    if isinstance(on, str):
        own = on == KEY and not all(KEY in reader.schema for reader in readers)
        fields: list[str | None] = [None if own else on] * len(readers)
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
        said = ", ".join(f"{reader.path} has {len(reader):,}" for reader in readers)
        raise OptionError(
            f"datasets of one length are joined by position, and {said}: join them by key (on=…), or take "
            "as many as all have (how='inner')"
        )
    return [np.arange(min(lengths))] * len(readers)


def _by_key(readers: Sequence[Reader], fields: Sequence[str | None], how: str) -> list[I64 | None]:
    first, *others = readers
    keys = list(first.keys(fields[0]))
    if len(keys) < len(first):
        raise OptionError("some samples have no key", path=first.path, field=fields[0])
    kept = np.arange(len(first))
    found: list[I64] = []
    for reader, field in zip(others, fields[1:], strict=True):
        known = reader.keys(field)
        if how == "inner":
            there = np.array([key in known for key in keys], dtype=np.bool_)
            kept = kept[there[kept]]
            rows = np.full(len(first), -1, dtype=np.int64)
            rows[there] = known.indices([key for key, one in zip(keys, there, strict=True) if one])
        else:
            rows = known.indices(keys)
            _check_all(first, reader, field, rows)
        found.append(rows)
    if len(set(keys)) < len(keys):
        seen: dict[Any, int] = {}
        twice = next((one, seen[key]) for one, key in enumerate(keys) if seen.setdefault(key, one) != one)
        message = f"samples {twice[1]} and {twice[0]} have the key {keys[twice[0]]!r}"
        raise SampleKeyError(message, path=first.path, field=fields[0])
    whole = len(kept) == len(first)
    return [None if whole else kept, *(rows[kept] for rows in found)]


def _check_all(first: Reader, reader: Reader, field: str | None, rows: I64) -> None:
    """Each sample of the other has a partner, too."""
    left = np.setdiff1d(np.arange(len(reader)), rows)
    if not len(left):
        return
    key = next(one for number, one in enumerate(reader.keys(field)) if number == left[0])
    more = f", nor have {len(left) - 1:,} others" if len(left) > 1 else ""
    raise SampleKeyError(
        f"the sample {key!r} has no partner in {first.path}{more}; how='inner' leaves such out",
        path=reader.path,
        sample=int(left[0]),
        field=field,
    )
