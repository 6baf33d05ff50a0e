"""Loaders of mixtures that are described in files."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Self

from ..data import mix_config as mixplan
from ..data.mix import Mix
from ..errors import OptionError, listed, near
from .packing import Pack

if TYPE_CHECKING:
    from .loader import Loader


class Planned:
    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """A loader of the mixture that a plan describes, with ``changes`` to its options.

        It gives what ``batchplant mix`` says of the plan. ``steps`` and ``world_size`` are only for that.
        """
        plan = mixplan.read(path)
        options = {"pack": pack_of(plan), **plan.loading, **changes}
        for name in ("steps", "world_size"):
            if name not in changes:
                options.pop(name, None)
        batch_size = options.pop("batch_size", None)
        if batch_size is None:
            raise OptionError("the plan has no batch_size: give one", path=plan.path)
        mix = plan.located(lambda: Mix(plan.open(), **plan.options))
        kind: type[Loader] = cls  # type: ignore[assignment]
        return plan.located(lambda: kind(mix, batch_size, **options))  # type: ignore[return-value]


def pack_of(plan: mixplan.MixPlan) -> Pack | None:
    """How a plan packs."""
    if plan.pack is None:
        return None
    known = {one.name for one in dataclasses.fields(Pack)}
    for name in plan.pack:
        if name not in known:
            place = plan.file.line_prefix("pack", name)
            raise OptionError(
                f"{place}pack has no {name!r}{near(name, known)}; there are {listed(sorted(known))}",
                path=plan.path,
            )
    if "length" not in plan.pack:
        raise OptionError(f"{plan.file.line_prefix('pack')}pack needs a length", path=plan.path)
    try:
        return Pack(**plan.pack)
    except OptionError as error:
        raise OptionError(plan.file.line_prefix("pack") + error.message, path=plan.path) from None
