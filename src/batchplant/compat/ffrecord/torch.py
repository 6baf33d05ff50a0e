"""Dataset and DataLoader for PyTorch: a list of sample numbers goes in, a list of samples comes out.

::

    class Images(Dataset):
        def process(self, indices, data):
            return [decode(sample) for sample in data]

    loader = DataLoader(Images("train.ffr"), batch_size=64, shuffle=True, num_workers=4)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from ...errors import OptionError, SampleIndexError
from ...schema.columns import U8
from .fileio import FileReader, Name, gather_parts

__all__ = ["ConcatDataset", "DataLoader", "Dataset", "ReaderRegistry", "Subset"]


class ReaderRegistry:
    """Finds the FileReaders among its attributes, and among those of the registries in them."""

    def ffreaders(self) -> list[FileReader]:
        readers: list[FileReader] = []
        for value in vars(self).values():
            if isinstance(value, FileReader):
                readers.append(value)
            elif isinstance(value, ReaderRegistry):
                readers += value.ffreaders()
        return readers


class Dataset(torch_data.Dataset, ReaderRegistry):  # type: ignore[misc]
    """Samples by lists of their numbers. A subclass turns their bytes into samples in ``process``.

    It may also read other data with its own ``__init__``, ``__len__`` and ``__getitem__``.
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
        """Return a batch for PyTorch's loader."""
        return self[list(indices)]

    def __add__(self, other: Dataset) -> ConcatDataset:
        """Concatenate two datasets. PyTorch's own sum would read one sample at a time."""
        return ConcatDataset([self, other])

    def process(self, indices: Sequence[int], data: list[U8]) -> Any:
        """Return samples made of bytes; the result goes to ``collate_fn``."""
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
        if not self.datasets or not all(isinstance(dataset, Dataset) for dataset in self.datasets):
            raise OptionError("datasets is a list of at least one Dataset")
        self.cumulative_sizes = np.cumsum([len(dataset) for dataset in self.datasets]).tolist()

    def __len__(self) -> int:
        return int(self.cumulative_sizes[-1])

    def ffreaders(self) -> list[FileReader]:
        return [reader for dataset in self.datasets for reader in dataset.ffreaders()]

    def __getitem__(self, indices: Sequence[int]) -> Any:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and (rows.max() >= len(self) or rows.min() < -len(self)):
            raise SampleIndexError(f"there are {len(self)} samples")
        rows = np.where(rows < 0, rows + len(self), rows)
        ends = np.array(self.cumulative_sizes, dtype=np.int64)
        return gather_parts(ends, rows, lambda part, local: self.datasets[part][local.tolist()])


class _Skipping(torch_data.Sampler):  # type: ignore[misc]
    """The batches of another sampler, without the first ``step`` ones."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.step = 0

    def __iter__(self) -> Iterator[Any]:
        return (batch for number, batch in enumerate(self.sampler) if number >= self.step)

    def __len__(self) -> int:
        return len(self.sampler) - self.step


class DataLoader(torch_data.DataLoader):  # type: ignore[misc]
    """PyTorch's DataLoader, which reads whole batches of a :class:`Dataset` and can begin in the middle.

    Accepts PyTorch's own datasets too. Worker processes are forked. ``skippable``: enables set_step.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: object = None,
        batch_sampler: object = None,
        num_workers: int = 0,
        collate_fn: object = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: object = None,
        generator: object = None,
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
            # PyTorch refuses it without workers; ffrecord ignores it.
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
