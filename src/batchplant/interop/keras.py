"""Keras 3: adapts a Loader to ``model.fit``, ``evaluate`` and ``predict``, on every backend.

Keras unpacks ``(inputs, targets, weights)``, and a Loader yields dicts, so :class:`KerasData` has the names
of the fields. Keras also takes a batch to learn the shapes before it trains; the epoch must not lose it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import MissingLibraryError, OptionError
from ..loading.loader import Loader
from ..ops.base import Batch

try:
    import keras

    # Keras accepts a subclass of this unchanged, but has no public name for it.
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:
    raise MissingLibraryError("this needs Keras 3: pip install keras") from None


class _Pass(NamedTuple):
    """Start of a pass over the data, its batches, and the number of states that the loader had loaded."""

    epoch: int
    position: int
    batches: int
    loaded: int


class KerasData(DataAdapter):
    """The batches of a loader as ``(inputs, targets, weights)``; see :meth:`batchplant.Loader.as_keras`.

    Each pass of Keras over the data is an epoch of the loader. A pass that Keras abandons begins again.
    """

    def __init__(
        self,
        loader: Loader,
        inputs: str | Sequence[str],
        targets: str | Sequence[str] | None = None,
        weights: str | None = None,
    ) -> None:
        if weights is not None and targets is None:
            raise OptionError("weights are for targets: name these too")
        self.loader = loader
        self.parts = [part for part in (inputs, targets, weights) if part is not None]
        names = loader.plan.names
        for part in self.parts:
            for name in [part] if isinstance(part, str) else part:
                if name not in names:
                    raise OptionError(f"the loader gives no {name!r}, it gives {', '.join(sorted(names))}")
        self._lock = threading.Lock()
        # Identifies the last pass that began.
        self._pass: object = None
        # A pass that has not yielded all its batches.
        self._unfinished: _Pass | None = None

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        """One pass over an epoch. Of several passes, only the last one goes on."""
        number, total, this_pass = 0, 0, object()
        batches: Any = None
        while True:
            with self._lock:
                if batches is None:
                    self._pass, total, batches = this_pass, self._begin(), iter(self.loader)
                # The thread of a pass that Keras abandoned may ask for one more.
                if self._pass is not this_pass or number == total:
                    return
                batch = next(batches)
                number += 1
                if number == total:
                    # Keras counts and does not ask for the end, so the epoch would seem to go on.
                    next(batches, None)
                    self._unfinished = None
            yield tuple(self._pick(batch, part) for part in self.parts)

    def _begin(self) -> int:
        """Go to where the next pass begins, and return its number of batches."""
        if (abandoned := self._abandoned_pass()) is not None:
            self.loader.go_to(abandoned.epoch, abandoned.position)
        state = self.loader.state_dict()
        total = self._remaining_batches()
        self._unfinished = _Pass(state["epoch"], state["position"], total, self.loader.loaded)
        return total

    def _remaining_batches(self) -> int:
        """Batches of the next pass: a whole epoch, or the remainder of the one that a loaded state was in."""
        epoch: Any = iter(self.loader)
        return len(epoch)

    def _abandoned_pass(self) -> _Pass | None:
        """The pass that has to begin again, unless a state was loaded since."""
        unfinished = self._unfinished
        return None if unfinished is None or unfinished.loaded != self.loader.loaded else unfinished

    def _pick(self, batch: dict[str, Any], part: str | Sequence[str]) -> object:
        if not isinstance(part, str):
            return {name: self._pick(batch, name) for name in part}
        if not hasattr(batch[part], "shape"):
            raise OptionError(
                f"Keras needs an array, and {part!r} is none in this batch: add a step that makes one",
                field=part,
            )
        return batch[part]

    # -- called by Keras ---------------------------------------------------------------------------------

    def get_numpy_iterator(self) -> Iterator[tuple[Any, ...]]:
        """For the NumPy backend."""
        return (keras.tree.map_structure(_to_numpy, batch) for batch in self._batches())

    def get_jax_iterator(self) -> Iterator[tuple[Any, ...]]:
        """For JAX, which takes NumPy's arrays."""
        return self.get_numpy_iterator()

    def get_torch_dataloader(self) -> object:
        """For PyTorch: a DataLoader of tensors on the device that Keras uses."""
        import torch.utils.data

        batches = self._batches

        class Tensors(torch.utils.data.IterableDataset):
            def __iter__(self) -> Iterator[Any]:
                return (keras.tree.map_structure(keras.ops.convert_to_tensor, batch) for batch in batches())

        return torch.utils.data.DataLoader(Tensors(), batch_size=None)

    def get_tf_dataset(self) -> object:
        """For TensorFlow. It does not prefetch: the loader does, and so the loader's state stays exact."""
        import tensorflow

        def spec(value: Batch) -> Batch:
            return tensorflow.TensorSpec((None, *value.shape[1:]), value.dtype)

        first = next(self.get_numpy_iterator())
        return tensorflow.data.Dataset.from_generator(
            self.get_numpy_iterator, output_signature=keras.tree.map_structure(spec, first)
        )

    @property
    def num_batches(self) -> int:
        """Batches of the epoch that comes next; after a resume, those that are left."""
        with self._lock:
            abandoned = self._abandoned_pass()
            return self._remaining_batches() if abandoned is None else abandoned.batches

    @property
    def batch_size(self) -> int | None:
        """Unknown, because an epoch is divided evenly among its batches of all ranks."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """Unknown too."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Unknown too."""
        return None


def _to_numpy(value: Batch) -> Batch:
    # A torch tensor if the loader has a device.
    return value if isinstance(value, np.ndarray) else value.cpu().numpy()
