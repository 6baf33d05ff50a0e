"""PyTorch: batches as tensors on a device, ops on tensors, and the interface of a DataLoader.

``Loader(..., device="cuda:0")`` uses :class:`Delivery`: batches are made in pinned memory and copied on a
separate stream; the stream of the training step waits for the copy, the host does not.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codecs.cells import decode_sample
from ..data.reader import Reader
from ..errors import MissingLibraryError, OptionError, located
from ..loading.images import OnCpu
from ..ops.base import Batch, Draws, Op, Spec, Tensors
from ..ops.dtypes import numpy_dtype, torch_dtype
from ..ops.function import part_of
from ..ops.values import Convert
from ..order.ranks import process_group_rank
from ..schema import Bool, Duration, Float, Int, Tensor, Time
from ..schema.columns import I64, U8, Columns, Masked
from .gpu.split import Split

try:
    import torch
    import torch.utils.data
except ImportError:
    raise MissingLibraryError("this needs PyTorch: pip install torch") from None

from .gpu import ipc
from .gpu.on_device import OnDevice
from .gpu.streams import streams_of

if TYPE_CHECKING:
    from ..loading.loader import Loader

__all__ = [
    "Convert", "Delivery", "ModuleWrapper", "Samples", "ToDevice", "ToTensor", "ToTorchImage",
    "as_data_loader", "as_iterable_dataset", "as_tensor", "numpy_dtype", "torch_dtype",
]  # fmt: skip

# Worker processes of one machine whose epochs are counted separately.
MAX_WORKERS = 4096


def as_tensor(value: Batch) -> Batch:
    """Convert arrays to tensors that share their memory, also inside of (values, offsets) and lists."""
    if isinstance(value, np.ndarray):
        # torch cannot share memory that is read-only, nor an axis that runs backwards.
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()
        # A number type that torch lacks (uint32, datetime) stays an array.
        try:
            return torch.from_numpy(value)
        except TypeError:
            return value
    if isinstance(value, tuple):
        return type(value)(as_tensor(part) for part in value)
    if isinstance(value, list) and any(isinstance(part, np.ndarray) for part in value):
        return [as_tensor(part) for part in value]
    return value


def shared_delivery(name: str) -> Delivery:
    """Return the delivery to the device that the processes of a machine call ``name``."""
    return Delivery(ipc.device_named(name))


class Delivery:
    """Hands batches to a torch device; see :class:`batchplant.loading.loader.Delivery`."""

    def __init__(self, device: torch.device | str) -> None:
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise OptionError(f"torch knows no device {device!r}; write cpu, cuda or cuda:0") from None
        self._cuda = self.device.type == "cuda"
        self.elsewhere = self.device.type != "cpu"
        if self._cuda and not torch.cuda.is_available():
            raise OptionError(f"there is no {self.device} here: torch finds no CUDA device")
        self.stream = streams_of(self.device).kernels
        # Events of copies, and the memory that must outlive them.
        self._copies_in_flight: deque[tuple[torch.cuda.Event, Batch]] = deque()
        self._lock = threading.Lock()
        # The last event that a stream was made to wait for, and the stream.
        self._waited: torch.cuda.Event | None = None

    def allocate(self, size: int) -> U8:
        """Allocate memory that the device can copy from at full speed."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._cuda).numpy()

    def images(self, on_cpu: OnCpu, decode: str, share: float | None, prefetch_batches: int) -> OnDevice:
        """Return the backend that makes images on the device."""
        return OnDevice(self.device, on_cpu, Split(decode, share), prefetch_batches)

    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Begin the copies; the second part is the event to wait for."""
        tensors = {name: as_tensor(value) for name, value in values.items()}
        if not self._cuda:
            return {name: self._move(value) for name, value in tensors.items()}, None
        with torch.cuda.stream(self.stream):
            moved = {name: self._move(value) for name, value in tensors.items()}
            event = torch.cuda.Event()
            event.record(self.stream)
        # Pinned memory may be reused only after the copy has read it; the host does not wait for that.
        with self._lock:
            while self._copies_in_flight and self._copies_in_flight[0][0].query():
                self._copies_in_flight.popleft()
            self._copies_in_flight.append((event, tensors))
        return moved, event

    def _move(self, value: Batch) -> Batch:
        if isinstance(value, torch.Tensor):
            return value.to(self.device, non_blocking=True)
        if isinstance(value, tuple | list):
            return type(value)(self._move(part) for part in value)
        return value

    def receive(self, values: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Make the caller's stream wait for the copies."""
        if "ids" in values and isinstance(values["ids"], np.ndarray):
            values["ids"] = torch.from_numpy(values["ids"])
        if ticket is None:
            return values
        # By index: looking up the current device would take torch as long again.
        stream = torch.cuda.current_stream(self.stream.device_index)
        # The first of coalesced batches waits for all of them, because each call releases the GIL.
        if self._waited == (ticket, stream):
            return values
        self._waited = ticket, stream
        stream.wait_event(ticket)
        for value in values.values():
            self._record_stream(value, stream)
        return values

    def _record_stream(self, value: Batch, stream: torch.cuda.Stream) -> None:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            value.record_stream(stream)
        elif isinstance(value, tuple | list):
            for part in value:
                self._record_stream(part, stream)


class ToTensor(Op):
    """Converts arrays to tensors."""

    def infer(self, spec: Spec) -> Spec:
        return spec.replace(torch=True)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return as_tensor(batch)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return self.run(batch, ids, draws)


class ToDevice(Op):
    """Copies tensors to another device."""

    def __init__(self, device: torch.device | str, non_blocking: bool = True) -> None:
        self.device, self.non_blocking = torch.device(device), non_blocking

    def infer(self, spec: Spec) -> Spec:
        return spec.replace(torch=True, device=str(self.device))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, tuple | list):
            return type(batch)(self.run(part, ids, draws) for part in batch)
        value = as_tensor(batch)
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, non_blocking=self.non_blocking)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return self.run(batch, ids, draws)


class ToTorchImage(Op):
    """Turns images into (channels, height, width): a channels_last view of the same memory, or a copy."""

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        self.channels_last, self.convert_back_int16 = channels_last, convert_back_int16

    def infer(self, spec: Spec) -> Spec:
        if len(spec.shape) != 3 or spec.channels_first or spec.dtype is None:
            raise OptionError(f"ToTorchImage needs images (height, width, channels), not {spec}")
        height, width, channels = spec.shape
        dtype = spec.dtype
        if dtype == np.int16 and self.convert_back_int16:
            dtype = np.dtype(np.float16)
        shape = (channels, height, width)
        return spec.replace(dtype=dtype, shape=shape, torch=True, channels_first=True)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        tensor = as_tensor(batch)
        if tensor.dtype == torch.int16 and self.convert_back_int16:
            tensor = tensor.view(torch.float16)
        tensor = tensor.permute(0, 3, 1, 2)
        return tensor if self.channels_last else tensor.contiguous()

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return self.run(batch, ids, draws)


class ModuleWrapper(Op):
    """Applies a torch module to the batch."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def infer(self, spec: Spec) -> Spec:
        return spec.replace(torch=True)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        # A batch is data and needs no gradients.
        with torch.no_grad():
            return self.module(as_tensor(batch))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return self.run(batch, ids, draws)


class _Batches(torch.utils.data.IterableDataset):
    """Whole batches of this rank; worker processes make them in turn."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        # Worker processes start anew with every epoch, so the epochs that they began are counted in shared
        # memory. A row for each worker: number of the loaded state that the count is from, and the count.
        self._epochs_begun = torch.zeros((MAX_WORKERS, 2), dtype=torch.int64).share_memory_()
        # Of the process group, for worker processes, which have none: arguments of the loader, and the rank.
        self._ranks: tuple[dict[str, Any], int] | None = None
        self._worker_loader: Loader | None = None
        # Whether the loader recorded its run when this was pickled.
        self._recorded = False

    def __getstate__(self) -> dict[str, object]:
        self._refuse_to_be_split()
        # A worker process has no process group; one that is spawned to join a group will ask that group.
        group = process_group_rank()
        return {
            "loader": self.loader,
            "_epochs_begun": self._epochs_begun,
            "_ranks": None if group is None else (self.loader.ranks(), group[0]),
            "_worker_loader": None,
            "_recorded": self.loader._recorder is not None,
        }

    def __iter__(self) -> Iterator[Any]:
        self._refuse_to_be_split()
        worker = torch.utils.data.get_worker_info()
        return iter(self.loader) if worker is None else self._in_worker(worker.id, worker.num_workers)

    def __len__(self) -> int:
        return len(self.loader)

    def check_workers(self, workers: int) -> None:
        """Raise OptionError if worker processes would make batches of a run that this process records."""
        if workers and (self._recorded or self.loader._recorder is not None):
            raise OptionError(
                "the record of a run lacks what worker processes make: use num_workers=0 (the threads of the "
                "Loader, workers=, make batches in the background), or leave out record="
            )

    def _in_worker(self, number: int, workers: int) -> Iterator[Any]:
        self.check_workers(workers)
        ranks, process = self._ranks or (
            self.loader.ranks(),
            (process_group_rank() or (self.loader.rank, 0))[0],
        )
        if self._worker_loader is None:
            self._worker_loader = self.loader.part(number, workers, **ranks)
        state = self.loader.state_dict()
        counter = self._epochs_begun[(process * workers + number) % MAX_WORKERS]
        if int(counter[0]) != self.loader.loaded:
            counter[0], counter[1] = self.loader.loaded, 0
        begun = int(counter[1])
        counter[1] += 1
        self._worker_loader.go_to(state["epoch"] + begun, 0 if begun else state["position"])
        return iter(self._worker_loader)

    def _refuse_to_be_split(self) -> None:
        """Raise if Accelerate would divide these batches among ranks: they belong to one rank already."""
        state = sys.modules.get("accelerate.state")
        active = state.GradientState().active_dataloader if state is not None else None
        # Ranks of a mesh may all have the same batches, and would be given parts of them as well.
        processes = (process_group_rank() or (0, self.loader.world_size))[1]
        if active is None or processes == 1:
            return
        dataset = getattr(active, "dataset", None)
        if self in (dataset, getattr(dataset, "dataset", None)):
            raise OptionError(
                "the loader gives each process its own batches, and Accelerate would deal these out once "
                "more: pass prepare() the Loader itself, or loader.as_data_loader()"
            )


def as_iterable_dataset(loader: Loader) -> Any:
    """Return whole batches as a torch dataset, for ``DataLoader(dataset, batch_size=None)``."""
    return _Batches(loader)


class _BatchLoader(torch.utils.data.DataLoader):
    # Accelerate leaves a DataLoader with this attribute unchanged.
    _is_accelerate_prepared = True


def as_data_loader(loader: Loader, **options: Any) -> Any:
    """Return the batches as a DataLoader; ``options`` are those of DataLoader, such as ``num_workers``."""
    batches = _Batches(loader)
    batches.check_workers(options.get("num_workers", 0))
    return _BatchLoader(batches, batch_size=None, **options)


class Samples(torch.utils.data.Dataset):
    """A map-style dataset of a reader's samples, decoded; numbers and arrays are tensors."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Read many samples at once; torch's DataLoader calls this for a batch."""
        columns = self.reader.read(indices)
        return [self._sample(columns, row, indices[row]) for row in range(columns.rows)]

    def _sample(self, columns: Columns, row: int, index: int) -> dict[str, Any]:
        with located(path=self.reader.path, sample=index):
            sample = decode_sample(self.reader.schema, columns, row)
        for name, field in self.reader.schema.items():
            column = columns[name]
            if isinstance(column, Masked) and f"{name}_mask" not in self.reader.schema:
                # torch cannot batch None.
                sample[name], sample[f"{name}_mask"] = column.values[row], np.asarray(column.mask[row])
            elif isinstance(field, Time | Duration):
                # The integer count, as in a batch of a Loader.
                sample[name] = columns[name][row]
            # A Python number would lose its width.
            if isinstance(field, Int | Float | Bool | Tensor) and sample[name] is not None:
                sample[name] = np.asarray(sample[name], dtype=getattr(field, "dtype", "bool"))
        return {name: as_tensor(value) for name, value in sample.items()}


class MapDataset(torch.utils.data.Dataset):
    """``dataset[i]`` is a sample as the loader's pipelines make it. Batch size and order are the trainer's.

    It is for trainers that sample and batch on their own, such as Hugging Face's.

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
        return [
            {name: part_of(value, row) for name, value in columns.items()} for row in range(len(batch.ids))
        ]

    def _process_loader(self) -> Loader:
        """Return the loader; in a worker process, a copy, because threads do not survive a fork."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None and os.getpid() != self._process:
            self.loader = self.loader.part(worker.id, worker.num_workers, rank=0, world_size=1)
            self._process = os.getpid()
        return self.loader

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_process": -1}
