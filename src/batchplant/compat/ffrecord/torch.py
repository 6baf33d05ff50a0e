"""Dataset and DataLoader for PyTorch: a list of sample numbers goes in, a list of samples comes out.

::

    class Images(Dataset):
        def process(self, indices, data):
            return [decode(one) for one in data]

    loader = DataLoader(Images("train.ffr"), batch_size=64, shuffle=True, num_workers=4)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from ...errors import OptionError, SampleIndexError
from ...schema.columns import U8
from .fileio import FileReader, Name

__all__ = ["ConcatDataset", "DataLoader", "Dataset", "ReaderRegistry", "Subset"]


class ReaderRegistry:
    """Knows the FileReaders among its attributes, and among those of the registries it holds."""

    def ffreaders(self) -> list[FileReader]:
        found: list[FileReader] = []
        for value in vars(self).values():
            if isinstance(value, FileReader):
                found.append(value)
            elif isinstance(value, ReaderRegistry):
                found += value.ffreaders()
        return found


class Dataset(torch_data.Dataset, ReaderRegistry):  # type: ignore[misc]
    """Samples by the list. A subclass says in ``process`` what becomes of their bytes.

    It may also read whatever it likes itself: by its own ``__init__``, ``__len__`` and ``__getitem__``.
    """

    def __init__(self, fnames: Name | Sequence[Name], check_data: bool = True) -> None:
        self.fnames = fnames
        self.reader = FileReader(fnames, check_data)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Sequence[int]) -> Any:
        if not isinstance(indices, list | tuple):
            raise TypeError("indices is a list of sample numbers")
        return self.process(indices, self.reader.read(indices))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """What PyTorch's loader calls for a batch."""
        return self[list(indices)]

    def __add__(self, other: Dataset) -> ConcatDataset:
        """This dataset and then another. PyTorch's own sum would ask for one sample at a time."""
        return ConcatDataset([self, other])

    def process(self, indices: Sequence[int], data: list[U8]) -> Any:
        """Samples from bytes; ``collate_fn`` gets what it returns."""
        raise NotImplementedError("a subclass says how samples are made of bytes")


class Subset(Dataset):
    """Some samples of a dataset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, indices: Sequence[int]) -> Any:
        return self.dataset[[self.indices[index] for index in indices]]


class ConcatDataset(Dataset):
    """Datasets one after another."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets or not all(isinstance(one, Dataset) for one in self.datasets):
            raise OptionError("datasets is a list of at least one Dataset")
        self.cumulative_sizes = np.cumsum([len(one) for one in self.datasets]).tolist()

    def __len__(self) -> int:
        return int(self.cumulative_sizes[-1])

    def ffreaders(self) -> list[FileReader]:
        return [reader for one in self.datasets for reader in one.ffreaders()]

    def __getitem__(self, indices: Sequence[int]) -> Any:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.max() >= len(self) or rows.min() < -len(self)):
            raise SampleIndexError(f"there are {len(self)} samples")
        rows = np.where(rows < 0, rows + len(self), rows)
        parts = np.searchsorted(self.cumulative_sizes, rows, side="right")
        found: list[Any] = [None] * len(rows)
        for part in np.unique(parts):
            where = np.flatnonzero(parts == part)
            first = self.cumulative_sizes[part] - len(self.datasets[part])
            for place, sample in zip(where, self.datasets[part][(rows[where] - first).tolist()], strict=True):
                found[place] = sample
        return found


class _Skipping(torch_data.Sampler):  # type: ignore[misc]
    """The batches of another sampler, without the first few."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.step = 0

    def __iter__(self) -> Iterator[Any]:
        return (batch for number, batch in enumerate(self.sampler) if number >= self.step)

    def __len__(self) -> int:
        return len(self.sampler) - self.step


class DataLoader(torch_data.DataLoader):  # type: ignore[misc]
    """PyTorch's DataLoader, which asks a :class:`Dataset` for whole batches and can begin in the middle.

    Takes PyTorch's own datasets too. Worker processes are forked. ``skippable``: whether there is set_step.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        skippable: bool = True,
    ) -> None:
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            generator=generator,
            multiprocessing_context="fork" if num_workers else None,
            # Without workers PyTorch takes none at all, which the original did not mind.
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
        )
        if skippable and self.batch_sampler is not None:
            # PyTorch guards the attribute against changes after __init__.
            object.__setattr__(self, "batch_sampler", _Skipping(self.batch_sampler))

    def set_step(self, step: int) -> None:
        """Begin every epoch from now on with this batch; 0 is the first."""
        batches = self.batch_sampler
        if not isinstance(batches, _Skipping):
            raise OptionError("there is no set_step without batches, or with skippable=False")
        if not 0 <= step < len(batches.sampler):
            raise OptionError(f"there is no step {step}; there are {len(batches.sampler)}")
        batches.step = step
