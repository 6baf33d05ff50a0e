"""Keras 3: a Loader as what ``model.fit``, ``evaluate`` and ``predict`` take, on every backend.

Keras unpacks ``(inputs, targets, weights)``, and a Loader gives dicts, so :class:`KerasData` is told which
field is which. Keras also takes a batch to learn the shapes before it trains; the epoch must not lose it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import MissingLibraryError, OptionError
from ..loading.loader import Loader

try:
    import keras

    # Keras takes a subclass of this as it is. It has no public name for it.
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:
    raise MissingLibraryError("this needs Keras 3: pip install keras") from None


class KerasData(DataAdapter):  # type: ignore[misc]
    """The batches of a loader as ``(inputs, targets, weights)``; see :meth:`batchplant.Loader.as_keras`.

    Each pass of Keras over the data is an epoch of the loader. A pass that Keras gives up begins again.
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
        for name in (one for part in self.parts for one in ([part] if isinstance(part, str) else part)):
            if name not in names:
                raise OptionError(f"the loader gives no {name!r}, it gives {', '.join(sorted(names))}")
        self._lock = threading.Lock()
        self._pass: object = None
        # Of a pass that has not given out all its batches: where it began, how many it has, and the number of
        # states that the loader had loaded.
        self._begun: tuple[int, int, int, int] | None = None

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        """One pass over an epoch. Of several passes, only the last one goes on."""
        number, total, own = 0, 0, object()
        batches: Any = None
        while True:
            with self._lock:
                if batches is None:
                    self._pass, total, batches = own, self._begin(), iter(self.loader)
                # The thread of a pass that Keras gave up may ask for one more.
                if self._pass is not own or number == total:
                    return
                batch = next(batches)
                number += 1
                if number == total:
                    # Keras counts, and does not ask for the end: so the epoch would seem to go on.
                    next(batches, None)
                    self._begun = None
            yield tuple(self._pick(batch, part) for part in self.parts)

    def _begin(self) -> int:
        """Go to where the next pass begins, and say how many batches it has."""
        if (given_up := self._given_up()) is not None:
            self.loader.go_to(*given_up[:2])
        state = self.loader.state_dict()
        total = self._left()
        self._begun = (state["epoch"], state["position"], total, self.loader.loaded)
        return total

    def _left(self) -> int:
        """Batches of the next pass: a whole epoch, or what is left of the one that a loaded state was in."""
        epoch: Any = iter(self.loader)
        return len(epoch)

    def _given_up(self) -> tuple[int, int, int, int] | None:
        """The pass that has to begin again, unless a state was loaded since."""
        return None if self._begun is None or self._begun[3] != self.loader.loaded else self._begun

    def _pick(self, batch: dict[str, Any], part: str | Sequence[str]) -> Any:
        if not isinstance(part, str):
            return {name: self._pick(batch, name) for name in part}
        if not hasattr(batch[part], "shape"):
            raise OptionError(
                f"Keras needs an array, and {part!r} is none in this batch: add a step that makes one",
                field=part,
            )
        return batch[part]

    # -- what Keras calls --------------------------------------------------------------------------------

    def get_numpy_iterator(self) -> Iterator[tuple[Any, ...]]:
        """For the NumPy backend."""
        return (keras.tree.map_structure(_to_numpy, batch) for batch in self._batches())

    def get_jax_iterator(self) -> Iterator[tuple[Any, ...]]:
        """For JAX, which takes NumPy's arrays."""
        return self.get_numpy_iterator()

    def get_torch_dataloader(self) -> Any:
        """For PyTorch: a DataLoader of tensors on the device that Keras uses."""
        import torch.utils.data

        class Tensors(torch.utils.data.IterableDataset):  # type: ignore[misc]
            def __iter__(own) -> Iterator[Any]:  # noqa: N805
                return (
                    keras.tree.map_structure(keras.ops.convert_to_tensor, batch) for batch in self._batches()
                )

        return torch.utils.data.DataLoader(Tensors(), batch_size=None)

    def get_tf_dataset(self) -> Any:
        """For TensorFlow. It does not prefetch, for the loader does: so the loader's state stays exact."""
        import tensorflow

        def spec(value: Any) -> Any:
            return tensorflow.TensorSpec((None, *value.shape[1:]), value.dtype)

        first = next(self.get_numpy_iterator())
        return tensorflow.data.Dataset.from_generator(
            self.get_numpy_iterator, output_signature=keras.tree.map_structure(spec, first)
        )

    @property
    def num_batches(self) -> int:
        """Batches of the epoch that comes next; after a resume, those that are left."""
        with self._lock:
            given_up = self._given_up()
            return self._left() if given_up is None else given_up[2]

    @property
    def batch_size(self) -> int | None:
        """Unknown, for an epoch is divided evenly among its batches of all ranks."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """Unknown too."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Unknown too."""
        return None


def _to_numpy(value: Any) -> Any:
    # A tensor of torch's, where the loader has a device.
    return value if isinstance(value, np.ndarray) else value.cpu().numpy()
