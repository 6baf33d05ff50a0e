"""Adding samples to a dataset that is there: which ones fit, and what becomes of its checksums.

A writer that appends (``Writer.appends``) works in the hidden folder like any other, and makes only what is
new there. At the end one change (storage/commit.py) writes that behind the old bytes, or moves it beside the
old files, and replaces the small files that count the samples. Old bytes are not written again.
"""

from __future__ import annotations

import dataclasses
import os

from ..errors import DamagedError, OptionError, SchemaError
from ..schema import Bytes, Field, Schema
from ..storage import Patch, Spool, checksums, side_car
from .reader import Reader

# What a field of the dataset may leave open, and a field of new samples may say.
OPEN = ("encoding", "mode", "names", "rate", "channels", "fps", "width", "height")


def check_fields(there: Schema, given: Schema, path: str) -> None:
    """SchemaError where samples with the fields ``given`` do not fit to those of the dataset."""
    missing, unknown = [one for one in there if one not in given], [one for one in given if one not in there]
    if missing or unknown:
        lacking = f"the samples lack {', '.join(missing)}" if missing else ""
        more = f"the dataset has no {', '.join(unknown)}" if unknown else ""
        raise SchemaError(
            f"{' and '.join(filter(None, (lacking, more)))}; its fields are {', '.join(there)}",
            path=path,
            field=(missing or unknown)[0],
        )
    for name, field in there.items():
        if given[name].optional and not field.optional:
            message = "it may be missing in the new samples, and is never missing in the dataset"
            raise SchemaError(message, path=path, field=name)
        if not _fits(field, dataclasses.replace(given[name], optional=field.optional)):
            raise SchemaError(f"it is {given[name]}, and in the dataset {field}", path=path, field=name)


def _fits(there: Field, given: Field) -> bool:
    if isinstance(there, Bytes):
        return isinstance(given, Bytes)
    if type(there) is not type(given):
        return False
    for part in dataclasses.fields(there):
        old, new = getattr(there, part.name), getattr(given, part.name)
        if part.name == "shape":
            if len(old) != len(new) or not all(one in (None, two) for one, two in zip(old, new, strict=True)):
                return False
        # Numbers without names are what they are; other names would be other classes.
        elif (
            old != new and not (part.name in OPEN and old is None) and not (part.name == "names" and not new)
        ):
            return False
    return True


def refusal(name: str, others: list[str], path: str) -> OptionError:
    """The error where a format cannot append."""
    return OptionError(
        f"{name} files cannot be appended to; add shards beside it (shard_samples, --shard-samples), which "
        f"every format can, or write one that can: {', '.join(others)}",
        path=path,
    )


def has_checksums(base: Reader, wanted: bool) -> bool:
    """Whether the side-car of checksums goes on; it must not be left behind."""
    there = os.path.exists(side_car(base.path, checksums.SIDE_CAR))
    if wanted and not there:
        raise OptionError(
            "there are no checksums of the samples that are there, so those of new ones have no place; "
            "append without, or write all of it anew with checksums",
            path=base.path,
        )
    return there


def grown_checksums(path: str, spool: Spool, added: int) -> Patch:
    """Complete the checksums of new samples, which go behind the old ones."""
    place = side_car(path, checksums.SIDE_CAR)
    try:
        at = checksums.grow(place, spool, added)
    except ValueError as error:
        raise DamagedError(f"the checksums cannot be appended to: {error}", path=place) from None
    return Patch(spool.path.name, place.name, at)
