"""What a state of a loader holds, and whether a loader can go on from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import order as orders
from ..data.mix import Mix
from ..errors import OptionError

STATE_VERSION = 1


def place_in(state: Mapping[str, Any], samples: int, seed: int, marks: Mapping[str, Any]) -> tuple[int, int]:
    """Epoch and position of a state, if it is of a loader with the same row of samples."""
    try:
        version, its_samples, its_seed = state["version"], state["samples"], state["seed"]
        epoch, position = int(state["epoch"]), int(state["position"])
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"this is no state of a loader: {error!r}") from None
    if version != STATE_VERSION:
        raise OptionError(f"the state is of version {version}, and this reads version {STATE_VERSION}")
    if its_samples != samples:
        raise OptionError(f"the state is of a dataset of {its_samples} samples, this has {samples}")
    other = orders.difference({**state, "seed": its_seed}, {"seed": seed, **marks})
    if other is not None:
        raise OptionError(other)
    return epoch, position


def check_mixture(state: Mapping[str, Any], mix: Mix, samples: int) -> None:
    """OptionError where a state is of another mixture, and that matters: within an epoch."""
    mark = state.get("mixture")
    if not isinstance(mark, Mapping) or (not state.get("position") and state.get("samples") == samples):
        return
    other = mix.difference(mark)
    if other is not None:
        raise OptionError(
            f"the mixture is not the one that the state was made with: {other}; go on with the same mixture, "
            "or begin an epoch"
        )
