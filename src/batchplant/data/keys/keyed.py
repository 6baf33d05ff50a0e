"""Keyed: what a Reader has for keys, and what a format with keys of its own implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...schema import Field, Schema
from ...schema.columns import I64, Column, Columns, Ragged
from ..tensors import TENSORS, is_tensors
from .lookup import Keys
from .table import Table, key_table

if TYPE_CHECKING:
    from ..reader import Reader


class Keyed:
    """The part of :class:`~batchplant.data.reader.Reader` that finds samples by key."""

    schema: Schema
    _known_keys: dict[str | None, Keys] | None = None

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        raise NotImplementedError

    # -- what a format implements ----------------------------------------------------------------------

    def _key_kind(self) -> Field | None:
        """What kind the format's own keys are; None where it has none. A model has the names of tensors."""
        return TENSORS["name"] if is_tensors(self.schema) else None

    def _keys(self, indices: I64, short: bool = False) -> Column | None:
        """The format's own keys of these samples.

        ``short``: without the part that users may leave out; None where there is no such part.
        """
        if short:
            return None
        return self._read(indices, ("name",))["name"]

    def _find_keys(self, keys: Ragged) -> I64 | None:
        """The samples that have these keys of the format's own, -1 for none; None: hashes have to tell."""
        return None

    def _key_table(self: Reader, field: str | None, short: bool) -> Table:  # type: ignore[misc]
        """The hashes of all keys: the format's own, or those in a field."""
        return key_table(self, field, short)

    # -- what everybody uses ---------------------------------------------------------------------------

    def keys(self: Reader, field: str | None = None) -> Keys:  # type: ignore[misc]
        """The keys of all samples: the format's own, or the values of a field that tells samples apart.

        ``key in keys``, ``len(keys)``, ``keys.index(key)``, ``keys.indices(many)``; iterating gives them in
        the order of the samples.
        """
        known = self._known_keys = self._known_keys or {}
        found = known.get(field)
        # A copy with other fields shares the dict, and a dataset can grow.
        if found is None or found.reader is not self or found.samples != len(self):
            found = known[field] = Keys(self, field)
        return found

    def by_key(self: Reader, key: Any, field: str | None = None) -> dict[str, Any]:  # type: ignore[misc]
        """The sample, decoded, that has this key: the format's own, or the value of a field."""
        return self[self.keys(field).index(key)]
