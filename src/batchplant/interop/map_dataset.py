"""A Loader's samples as a map-style torch dataset, for trainers that sample and batch on their own.

The Hugging Face Trainer is one: its sampler chooses the samples of a batch, its collator stacks them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import MissingLibraryError, OptionError
from ..loading.loader import Loader
from ..ops.base import Batch

try:
    import torch.utils.data

    from .torch import as_tensor
except ImportError:
    raise MissingLibraryError("this needs PyTorch: pip install torch") from None


class MapDataset(torch.utils.data.Dataset):
    """``dataset[i]`` is a sample as the loader's pipelines make it. Batch size and order are the trainer's.

    torch asks for all samples of a batch at once (``__getitems__``), so they are decoded together.
    """

    def __init__(self, loader: Loader) -> None:
        if loader._delivery is not None and loader._delivery.elsewhere:
            raise OptionError("a trainer moves its batches itself: make the loader without a device")
        self.loader, self.epoch = loader, 0
        self._process = os.getpid()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that augmentations are drawn for; trainers call this when an epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.loader.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """The samples with these numbers, decoded together."""
        numbers = np.asarray(indices, dtype=np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            # ``for sample in dataset`` ends by this error.
            raise IndexError(f"the samples are 0 to {len(self) - 1}, not {indices}")
        batch = self._process_loader()._executor.run(self.loader.ids_at(numbers), self.epoch)
        columns = {name: as_tensor(value) for name, value in batch.values.items()}
        return [{name: _row(value, row) for name, value in columns.items()} for row in range(len(batch.ids))]

    def _process_loader(self) -> Loader:
        """Return the loader; in a worker process, a copy, because threads do not survive a fork."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None and os.getpid() != self._process:
            self.loader = self.loader.part(worker.id, worker.num_workers, 0, 1)
            self._process = os.getpid()
        return self.loader

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_process": -1}


def _row(value: Batch, row: int) -> Batch:
    if isinstance(value, tuple):
        values, offsets = value
        return values[offsets[row] : offsets[row + 1]]
    return value[row]
