"""How others take a loader: PyTorch, Keras, a notebook, the page that shows it while it runs."""

from __future__ import annotations

import os
from typing import Any

from ..data import hooks

# A variable of the environment: 1, or a port, gives loaders a dashboard without a change to the program.
DASHBOARD = "BATCHPLANT_DASHBOARD"


class Bridges:
    """The loader knows none of them; see :mod:`batchplant.data.hooks`."""

    # The page of this loader, with its ``url``; None without ``dashboard``.
    dashboard: Any = None

    def as_iterable_dataset(self) -> Any:
        """A torch IterableDataset of whole batches, for code that wants to make its own DataLoader."""
        return hooks.part("torch").as_iterable_dataset(self)

    def as_data_loader(self, **options: Any) -> Any:
        """A torch DataLoader of our batches, dealt out to ranks already; options: the DataLoader's own."""
        return hooks.part("torch").as_data_loader(self, **options)

    def as_map_dataset(self) -> Any:
        """A map-style torch dataset of single samples, for trainers that sample and batch on their own."""
        return hooks.part("map_dataset").MapDataset(self)

    def as_keras(self, inputs: Any, targets: Any = None, weights: str | None = None) -> Any:
        """What Keras takes: ``model.fit(loader.as_keras("image", "label"))``; each is a field, or several."""
        return hooks.part("keras").KerasData(self, inputs, targets, weights)

    def _repr_html_(self) -> str:
        """Its first batch, small, for notebooks."""
        text: str = hooks.part("notebook").loader_html(self)
        return text

    def _watched(self, dashboard: bool | int | None) -> None:
        """Show it on a page, if that is wanted, here or by who started the program."""
        if dashboard or (dashboard is None and os.environ.get(DASHBOARD, "0") not in ("", "0")):
            self.dashboard = hooks.part("dashboard").watch(self, dashboard)

    def _unwatched(self) -> None:
        if self.dashboard is not None:
            self.dashboard.close()
