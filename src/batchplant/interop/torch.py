"""PyTorch: batches as tensors on a device, ops on tensors, a DataLoader's face.

``Loader(..., device="cuda:0")`` uses :class:`Delivery`: batches are made in pinned memory, copied on a
stream of their own, and the stream that the training step runs on waits for the copy, not the host.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codecs.cells import decode_sample
from ..data.reader import Reader
from ..errors import BatchplantError, MissingLibraryError, OptionError
from ..loading.on_cpu import OnCpu
from ..ops.base import Draws, Op, Spec, Tensors
from ..ops.dtypes import numpy_dtype, torch_dtype
from ..ops.values import Convert
from ..order.world import process_group_rank
from ..schema import Bool, Duration, Float, Int, Tensor, Time
from ..schema.columns import I64, U8, Columns, Masked
from .gpu.split import Split

try:
    import torch
    import torch.utils.data
except ImportError:
    raise MissingLibraryError("this needs PyTorch: pip install torch") from None

from .gpu.on_device import OnDevice
from .gpu.streams import streams_of

if TYPE_CHECKING:
    from ..loading.loader import Loader

__all__ = [
    "Convert", "Delivery", "ModuleWrapper", "Samples", "ToDevice", "ToTensor", "ToTorchImage",
    "as_data_loader", "as_iterable_dataset", "as_tensor", "numpy_dtype", "torch_dtype",
]  # fmt: skip

# Worker processes of one machine that can be told apart.
SEATS = 4096


def as_tensor(value: Any) -> Any:
    """Arrays as tensors that share their memory; (values, offsets) and lists of arrays inside too."""
    if isinstance(value, np.ndarray):
        # What torch cannot share: memory that must not be written to, and an axis that runs backwards.
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()
        # A number type that torch lacks (uint32, datetime) stays an array.
        try:
            return torch.from_numpy(value)
        except TypeError:
            return value
    if isinstance(value, tuple):
        return tuple(as_tensor(part) for part in value)
    if isinstance(value, list) and any(isinstance(part, np.ndarray) for part in value):
        return [as_tensor(part) for part in value]
    return value


class Delivery:
    """Hands batches to a torch device; see :class:`batchplant.loading.loader.Delivery`."""

    def __init__(self, device: Any) -> None:
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            raise OptionError(f"torch knows no device {device!r}; write cpu, cuda or cuda:0") from None
        self._cuda = self.device.type == "cuda"
        self.elsewhere = self.device.type != "cpu"
        if self._cuda and not torch.cuda.is_available():
            raise OptionError(f"there is no {self.device} here: torch finds no CUDA device")
        self.stream = streams_of(self.device).kernels
        # Events, and what must live until then.
        self._copying: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()
        self._waited: Any = None

    def allocate(self, size: int) -> U8:
        """Memory that the device can copy from at full speed."""
        memory: U8 = torch.empty(size, dtype=torch.uint8, pin_memory=self._cuda).numpy()
        return memory

    def images(self, on_cpu: OnCpu, decode: str, share: float | None, ahead: int) -> OnDevice:
        """What makes images on the device."""
        return OnDevice(self.device, on_cpu, Split(decode, share), ahead)

    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Begin the copies; the second part is the event to wait for."""
        tensors = {name: as_tensor(value) for name, value in values.items()}
        if not self._cuda:
            return {name: self._move(value) for name, value in tensors.items()}, None
        with torch.cuda.stream(self.stream):
            moved = {name: self._move(value) for name, value in tensors.items()}
            event = torch.cuda.Event()
            event.record(self.stream)
        # The pinned memory may be filled again only after the copy has read it; the host waits for none.
        with self._lock:
            while self._copying and self._copying[0][0].query():
                self._copying.popleft()
            self._copying.append((event, tensors))
        return moved, event

    def _move(self, value: Any) -> Any:
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
        # By its number: to find the current device takes torch as long again.
        stream = torch.cuda.current_stream(self.stream.device_index)
        # Of batches that were made together, the first waits for all: each call lets other threads in.
        if self._waited == (ticket, stream):
            return values
        self._waited = ticket, stream
        stream.wait_event(ticket)
        for value in values.values():
            self._keep(value, stream)
        return values

    def _keep(self, value: Any, stream: Any) -> None:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            value.record_stream(stream)
        elif isinstance(value, tuple | list):
            for part in value:
                self._keep(part, stream)


class ToTensor(Op):
    """Arrays as tensors."""

    def infer(self, spec: Spec) -> Spec:
        return spec.but(torch=True)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return as_tensor(batch)

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


class ToDevice(Op):
    """Tensors on another device."""

    def __init__(self, device: Any, non_blocking: bool = True) -> None:
        self.device, self.non_blocking = torch.device(device), non_blocking

    def infer(self, spec: Spec) -> Spec:
        return spec.but(torch=True, device=str(self.device))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, tuple | list):
            return type(batch)(self.run(part, ids, draws) for part in batch)
        found = as_tensor(batch)
        moved = isinstance(found, torch.Tensor)
        return found.to(self.device, non_blocking=self.non_blocking) if moved else found

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


class ToTorchImage(Op):
    """Images as (channels, height, width): the same memory seen as channels_last, or copied."""

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
        return spec.but(dtype=dtype, shape=shape, torch=True, channels_first=True)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        tensor = as_tensor(batch)
        if tensor.dtype == torch.int16 and self.convert_back_int16:
            tensor = tensor.view(torch.float16)
        tensor = tensor.permute(0, 3, 1, 2)
        return tensor if self.channels_last else tensor.contiguous()

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


class ModuleWrapper(Op):
    """A torch module, applied to the batch."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def infer(self, spec: Spec) -> Spec:
        return spec.but(torch=True)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        # A batch is data: no graph hangs on it.
        with torch.no_grad():
            return self.module(as_tensor(batch))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


class _Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Whole batches, of this rank alone; worker processes make them in turn."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        # Worker processes come and go with every epoch, so how many they began is kept where all see it.
        # Each has a row: the state that the count is from, and the count.
        self._begun = torch.zeros((SEATS, 2), dtype=torch.int64).share_memory_()
        self._place: tuple[int, int] | None = None
        self._own: Loader | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_to_be_split()
        # A worker process knows no process group; one that is spawned to join a group will ask that.
        place = None if process_group_rank() is None else (self.loader.rank, self.loader.world_size)
        return {"loader": self.loader, "_begun": self._begun, "_place": place, "_own": None}

    def __iter__(self) -> Iterator[Any]:
        self._refuse_to_be_split()
        worker = torch.utils.data.get_worker_info()
        return iter(self.loader) if worker is None else self._in_worker(worker.id, worker.num_workers)

    def __len__(self) -> int:
        return len(self.loader)

    def _in_worker(self, number: int, workers: int) -> Iterator[Any]:
        rank, world_size = self._place or (self.loader.rank, self.loader.world_size)
        if self._own is None:
            self._own = self.loader.part(number, workers, rank, world_size)
        state = self.loader.state_dict()
        seat = self._begun[(rank * workers + number) % SEATS]
        if int(seat[0]) != self.loader.loaded:
            seat[0], seat[1] = self.loader.loaded, 0
        begun = int(seat[1])
        seat[1] += 1
        self._own.go_to(state["epoch"] + begun, 0 if begun else state["position"])
        return iter(self._own)

    def _refuse_to_be_split(self) -> None:
        """Accelerate deals out what it is given, and these are the batches of one rank already."""
        state = sys.modules.get("accelerate.state")
        active = state.GradientState().active_dataloader if state is not None else None
        if active is None or self.loader.world_size == 1:
            return
        dataset = getattr(active, "dataset", None)
        if self in (dataset, getattr(dataset, "dataset", None)):
            raise OptionError(
                "the loader gives each process its own batches, and Accelerate would deal these out once "
                "more: pass prepare() the Loader itself, or loader.as_data_loader()"
            )


def as_iterable_dataset(loader: Loader) -> Any:
    """Whole batches as a torch dataset: ``DataLoader(dataset, batch_size=None)``."""
    return _Batches(loader)


class _Feed(torch.utils.data.DataLoader):  # type: ignore[misc]
    # Accelerate leaves a DataLoader with this mark as it is.
    _is_accelerate_prepared = True


def as_data_loader(loader: Loader, **options: Any) -> Any:
    """Our batches as a DataLoader; ``options`` are its own, such as ``num_workers``."""
    return _Feed(_Batches(loader), batch_size=None, **options)


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """The samples of a reader, decoded, numbers and arrays as tensors; a map-style dataset."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Many at once, as torch's DataLoader asks for a batch: they are read together."""
        columns = self.reader.read(indices)
        return [self._sample(columns, row, indices[row]) for row in range(columns.rows)]

    def _sample(self, columns: Columns, row: int, index: int) -> dict[str, Any]:
        try:
            sample = decode_sample(self.reader.schema, columns, row)
        except BatchplantError as error:
            raise error.at(path=self.reader.path, sample=index) from None
        for name, field in self.reader.schema.items():
            column = columns[name]
            if isinstance(column, Masked) and f"{name}_mask" not in self.reader.schema:
                # None has no place in a batch of torch's.
                sample[name], sample[f"{name}_mask"] = column.values[row], np.asarray(column.mask[row])
            elif isinstance(field, Time | Duration):
                # The count, as in a batch of ours.
                sample[name] = columns[name][row]
            # A Python number would forget how wide it was.
            if isinstance(field, Int | Float | Bool | Tensor) and sample[name] is not None:
                sample[name] = np.asarray(sample[name], dtype=getattr(field, "dtype", "bool"))
        return {name: as_tensor(value) for name, value in sample.items()}
