"""The checksums beside a dataset, and which cells they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...data.concat import Concat
from ...data.quarantine import locate
from ...data.reader import Reader, View
from ...errors import BatchplantError, DamagedError, Problem
from ...schema import Schema
from ...schema.columns import I64, Columns
from ...storage import checksums


class Sums(NamedTuple):
    """The checksums of some fields, and for every sample the version of the side-car that they come from."""

    fields: list[str]
    sums: checksums.Sums
    versions: I64

    def chosen(self, names: Iterable[str], rows: I64 | slice = slice(None)) -> Sums:
        kept = [name for name in names if name in self.fields]
        columns = [self.fields.index(name) for name in kept]
        return Sums(kept, self.sums[rows][:, columns], self.versions[rows])


def side_car(reader: Reader, problems: list[Problem]) -> Sums | None:
    """The checksums beside a dataset; of shards only when every one has its own."""
    if isinstance(reader, View):
        found = side_car(reader.base, problems)
        rows = slice(None) if reader.indices is None else reader.indices
        return None if found is None else found.chosen(reader.schema, rows)
    if isinstance(reader, Concat):
        parts = [side_car(one, problems) for one in reader.readers]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        names = [name for name in reader.schema if all(name in part.fields for part in known)]
        known = [part.chosen(names) for part in known]
        sums, versions = (
            np.concatenate(one) for one in zip(*((p.sums, p.versions) for p in known), strict=True)
        )
        return Sums(names, sums, versions)
    try:
        found_here = checksums.load(reader.path)
    except DamagedError as error:
        problems.append(Problem.of(error))
        return None
    if found_here is None:
        return None
    fields, sums, schema, version = found_here
    beside = reader.path.rstrip("/") + checksums.SUFFIX
    plain = _without_options(reader)
    if plain is not None and len(sums) != plain[1]:
        problems.append(
            Problem(f"the checksums are of {len(sums)} samples, and there are {plain[1]}", beside)
        )
    elif plain is not None and (changed := _changed(plain[0], fields, schema)):
        problems.append(Problem(f"since the checksums were taken, the fields changed: {changed}", beside))
    if len(sums) != len(reader):
        return None
    # What an option makes of a field has other bytes.
    same = [
        name
        for name in fields
        if name in reader.schema and (schema is None or schema[name] == reader.schema[name])
    ]
    return Sums(fields, sums, np.full(len(sums), version)).chosen(same) if same else None


def _without_options(reader: Reader) -> tuple[Schema, int] | None:
    """The schema of a dataset and how many samples it has, when no option chooses; None: it does not open."""
    args, options = reader._init_args
    if not options:
        return reader.schema, len(reader)
    try:
        with type(reader)(*args) as plain:
            return plain.schema, len(plain)
    except BatchplantError:
        return None


def _changed(now: Schema, fields: list[str], then: Schema | None) -> str:
    """How a schema differs from that of which checksums were taken; empty where it does not."""
    said = [f"{name!r} is new" for name in now if name not in fields]
    said += [f"{name!r} is gone" for name in fields if name not in now]
    for name, field in () if then is None else then.items():
        if name in now and now[name] != field:
            said.append(f"{name!r} is {now[name]!s:.200} and was {field!s:.200}")
    return ", ".join(said)


def wrong_sums(reader: Reader, columns: Columns, rows: I64, known: Sums) -> Iterator[Problem]:
    for version in np.unique(known.versions[rows]).tolist():
        here = known.versions[rows] == version
        found = checksums.of_columns(known.fields, columns, version)
        for row, column in np.argwhere((found != known.sums[rows]) & here[:, None]):
            sample, name = int(rows[row]), known.fields[column]
            spans = reader.spans(name, [sample])
            offset = None if spans is None else int(spans.start[0])
            yield Problem("the checksum is wrong", locate(reader, sample).path, sample, name, offset)
