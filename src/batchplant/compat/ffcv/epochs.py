"""Loader: FFCV's arguments, orders and tuples on top of batchplant's Loader."""

from __future__ import annotations

import enum
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ... import order as orders
from ...errors import OptionError, no_such
from ...loading import loader as loading
from ...loading.epoch import Epoch
from ...loading.executor import Executor
from ...loading.images import DecodeOptions
from ...loading.plan import Pipelines, make_plan
from ...order import default_threads
from ...schema.columns import I64
from .operations import Compiler
from .reader import IDS, MemoryManager, OSCacheManager, ProcessCacheManager, Reader
from .translate import Delivery, PipelineSpec, Translator, delivery_for


class TraversalOrder(ABC):
    """Defines the samples that an epoch of this process reads, and their order."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.indices = loader.indices
        self.seed = loader.seed
        self.distributed = loader.distributed
        self.sampler: Any = None

    @abstractmethod
    def sample_order(self, epoch: int) -> Any:
        """Return the sample numbers of an epoch, taken from ``self.indices``."""


class Named(TraversalOrder):
    """One of batchplant's own orders; see :mod:`batchplant.order`."""

    name: str

    def sample_order(self, epoch: int) -> Any:
        return self.loader.samples_of(epoch)


class Random(Named):
    """All samples shuffled, anew for every epoch."""

    name = "random"


class QuasiRandom(Named):
    """Pages in random order, their samples shuffled among a few pages; in distributed training too."""

    name = "quasi_random"


class Sequential(Named):
    """Samples in the order of the file."""

    name = "sequential"


class EpochIterator:
    """The batches of an epoch; ``close``, or dropping the iterator, stops the work."""

    def __init__(self, epoch: Epoch, names: Sequence[str]) -> None:
        self._epoch, self._names = epoch, tuple(names)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        """Number of remaining batches."""
        return len(self._epoch)

    def __next__(self) -> tuple[Any, ...]:
        batch = next(self._epoch)
        return tuple(batch[name] for name in self._names)

    def close(self) -> None:
        self._epoch.close()


@enum.unique
class OrderOption(enum.Enum):
    """The orders of an epoch."""

    SEQUENTIAL = enum.auto()
    RANDOM = enum.auto()
    QUASI_RANDOM = enum.auto()


# Type of ``order``, for annotations.
ORDER_TYPE = OrderOption | TraversalOrder | type[TraversalOrder]
ORDER_MAP: Mapping[Any, type[Named]] = {
    OrderOption.RANDOM: Random,
    OrderOption.SEQUENTIAL: Sequential,
    OrderOption.QUASI_RANDOM: QuasiRandom,
}

DEFAULT_PROCESS_CACHE = int(os.environ.get("FFCV_DEFAULT_CACHE_PROCESS", "0"))
DEFAULT_OS_CACHE = not DEFAULT_PROCESS_CACHE


class CoreLoader(loading.Loader):
    """batchplant's Loader with orders of users and pipelines that change between epochs.

    ``user_order``: a TraversalOrder, which names samples of the whole file and knows its rank itself.
    """

    user_order: Any = None

    def replan(self, pipelines: Pipelines, delivery: Delivery | None) -> None:
        """Use these pipelines from the next epoch on; a running epoch keeps its own."""
        old = self._executor
        self.plan = make_plan(self.reader, pipelines)
        self._delivery = delivery
        on_cpu = self._on_cpu(old.on_cpu.engine)
        self._executor = Executor(self.reader, self.plan, on_cpu, seed=self.seed, skip=old.skip)
        self._executor.timer = old.timer

    def _make_order(self, epoch: int) -> orders.Order:
        if self.user_order is None:
            return super()._make_order(epoch)
        return orders.from_array(self.user_order.sample_order(epoch), samples=len(self.reader))

    def __len__(self) -> int:
        """Number of batches of a whole epoch, as FFCV counts them: an order of the user is evaluated once."""
        return len(self._shard(0, 0))

    def _drawn(self, order: orders.Order | None) -> int | None:
        # An order of the user may differ between ranks.
        return super()._drawn(order) if self.user_order is None else None

    def __reduce__(self) -> NoReturn:
        raise OptionError("a loader with FFCV's face is not pickled: make it in the process that uses it")

    @property
    def next_epoch(self) -> int:
        return self._epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._epoch, self._position = int(epoch), 0

    def samples_of(self, epoch: int) -> I64:
        """Return the samples of an epoch on this rank, including the last incomplete batch."""
        shard = orders.shard(
            self._make_order(epoch), rank=self.rank, world_size=self.world_size, batch_size=self.batch_size
        )
        positions = shard.order[:] if self.world_size == 1 else _concatenate(shard)
        return self.ids_at(positions)


def _concatenate(shard: orders.Shard) -> Any:
    return np.concatenate([np.empty(0, dtype=np.int64), *shard])


class Loader:
    """Batches of a .beton file, as tuples in the order of its fields.

    fname, batch_size: what to read, and how many samples make a batch. num_workers: decoding threads
    (below 1: all cores). os_cache: kept for FFCV's sake; the file is mapped either way. order: an
    OrderOption, or a subclass of TraversalOrder. distributed: this process reads its rank's part. seed: of
    the order and of every random step. indices: only these samples. pipelines: for each field its decoder
    and steps, None to leave it out; further names with a PipelineSpec come behind the fields.
    custom_fields: the Field of fields that are not FFCV's own. drop_last: leave out a last batch that is
    not full. batches_ahead: batches made in advance. recompile: ask operations of users for their code
    before every epoch.
    """

    def __init__(
        self,
        fname: str,
        batch_size: int,
        num_workers: int = -1,
        os_cache: bool = DEFAULT_OS_CACHE,
        order: Any = OrderOption.SEQUENTIAL,
        distributed: bool = False,
        seed: int | None = None,
        indices: Sequence[int] | None = None,
        pipelines: Mapping[str, Any] = {},
        custom_fields: Mapping[str, Any] = {},
        drop_last: bool = True,
        batches_ahead: int = 3,
        recompile: bool = False,
    ) -> None:
        if seed is None:
            # Ranks must agree on the order without communication.
            seed = 0 if distributed else int(np.random.randint(np.iinfo(np.int32).max))
        self._args = {
            "fname": fname, "batch_size": batch_size, "num_workers": num_workers, "os_cache": os_cache,
            "order": order, "distributed": distributed, "seed": seed, "indices": indices,
            "pipelines": pipelines, "custom_fields": custom_fields, "drop_last": drop_last,
            "batches_ahead": batches_ahead, "recompile": recompile,
        }  # fmt: skip
        self.fname, self.batch_size, self.batches_ahead, self.seed = (
            str(fname),
            batch_size,
            batches_ahead,
            seed,
        )
        self.reader = Reader(self.fname, custom_fields)
        self.num_workers = num_workers if num_workers >= 1 else default_threads()
        self.drop_last, self.distributed, self.recompile = drop_last, distributed, recompile
        self.indices = (
            np.arange(self.reader.num_samples, dtype=np.uint64) if indices is None else np.array(indices)
        )
        manager = OSCacheManager if os_cache else ProcessCacheManager
        self.memory_manager: MemoryManager = manager(self.reader)
        self.field_name_to_f_ix = {name: number for number, name in enumerate(self.reader.handlers)}
        self.pipeline_specs = self._specs(pipelines)
        self.traversal_order = self._traversal(order)
        Compiler.set_num_threads(self.num_workers)
        self._translator = Translator(self.reader, self.memory_manager, self.pipeline_specs, recompile)
        self._core = self._make_core()
        self._fingerprint = ""
        self.generate_code()
        self._length: int | None = None

    # -- how it is made --------------------------------------------------------------------------------

    def _specs(self, pipelines: Mapping[str, Any]) -> dict[str, PipelineSpec]:
        """Return a spec for every output: the fields in their order, then the other names of the user."""
        user_specs: dict[str, PipelineSpec] = {}
        for name, pipeline in pipelines.items():
            if isinstance(pipeline, PipelineSpec):
                user_specs[name] = PipelineSpec(pipeline.source, pipeline.decoder, pipeline.transforms)
            elif isinstance(pipeline, Sequence) and not isinstance(pipeline, str):
                user_specs[name] = PipelineSpec(name, transforms=list(pipeline))
            elif pipeline is not None:
                raise OptionError(
                    f"the pipeline of {name!r} is a list of operations or a PipelineSpec, not {pipeline!r}"
                )
        specs = {
            name: user_specs.get(name) or PipelineSpec(name)
            for name in self.reader.handlers
            if pipelines.get(name, ()) is not None
        }
        specs |= {name: spec for name, spec in user_specs.items() if name not in specs}
        for name, spec in specs.items():
            handler = self.reader.handlers.get(spec.source) if isinstance(spec.source, str) else None
            spec.accept_decoder(handler and handler.get_decoder_class(), name)
        return specs

    def _traversal(self, order: Any) -> TraversalOrder:
        if isinstance(order, OrderOption):
            return ORDER_MAP[order](self)
        # FFCV accepts only instances, and calls them; users usually try a class first.
        if isinstance(order, type) and issubclass(order, TraversalOrder):
            return order(self)
        if isinstance(order, TraversalOrder):
            return order(self) if callable(order) else order
        raise OptionError(f"order is an OrderOption or a subclass of TraversalOrder, not {order!r}")

    def _make_core(self) -> CoreLoader:
        named = self.traversal_order if isinstance(self.traversal_order, Named) else None
        rank, world_size = _rank_and_world_size() if self.distributed and named is not None else (0, 1)
        core = CoreLoader(
            self.reader.source,
            self.batch_size,
            order="sequential" if named is None else named.name,
            # generate_code sets the pipelines, once the loader knows the device.
            pipelines={**dict.fromkeys(self.reader.handlers), IDS: ()},
            # An order of the user names samples of the whole file.
            indices=None if self._args["indices"] is None or named is None else self.indices,
            rank=rank,
            world_size=world_size,
            seed=self.seed,
            drop_last=self.drop_last,
            workers=self.num_workers,
            prefetch_batches=self.batches_ahead,
            # FFCV's choice, for equal pixels.
            decode=DecodeOptions(dct="fast"),
        )
        core.user_order = self.traversal_order if named is None else None
        return core

    def generate_code(self) -> None:
        """Read the operations' attributes again; an epoch does so itself when they change."""
        self._fingerprint = self._translator.fingerprint()
        self._core.replan(self._translator.pipelines(), delivery_for(self._translator.devices()))
        # The functions of the user's operations and our ops, by output.
        self.code: dict[str, list[Any]] = {
            output.name: [output.image] * (output.image is not None)
            + [getattr(step.op, "code", step.op) for step in output.steps]
            for output in self._core.plan.outputs
        }

    # -- epochs ----------------------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next ``iter`` starts."""
        return self._core.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._core.next_epoch = epoch

    def samples_of(self, epoch: int) -> Any:
        """Return the samples of an epoch in one of batchplant's orders."""
        return self._core.samples_of(epoch)

    def next_traversal_order(self) -> Any:
        """Return the samples of the next epoch."""
        return self.traversal_order.sample_order(self.next_epoch)

    def __len__(self) -> int:
        if self._length is None:
            self._length = len(self._core)
        return self._length

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self.recompile or self._fingerprint != self._translator.fingerprint():
            self.generate_code()
        return EpochIterator(iter(self._core), list(self.pipeline_specs))

    def filter(self, field_name: str, condition: Callable[[Any], bool]) -> Loader:
        """Return a loader of the samples whose value in a field, after its pipeline, meets a condition."""
        if field_name not in self.reader.handlers:
            raise OptionError(no_such("field", field_name, self.reader.handlers))
        pipelines = dict.fromkeys(self.reader.handlers) | {
            name: pipeline for name, pipeline in self._args["pipelines"].items() if name == field_name
        }
        if pipelines[field_name] is None:
            del pipelines[field_name]
        changed = {
            "pipelines": pipelines, "order": OrderOption.SEQUENTIAL, "drop_last": False, "distributed": False,
        }  # fmt: skip
        all_samples = Loader(**{**self._args, **changed})
        matches = [bool(condition(sample)) for (batch,) in all_samples for sample in batch]
        return Loader(**{**self._args, "indices": self.indices[np.array(matches, dtype=np.bool_)]})

    # -- beyond FFCV -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was handed out."""
        return self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with the next batch."""
        self._core.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Return the seconds that epochs waited for each stage so far, and advice."""
        return self._core.stats()

    def close(self) -> None:
        """Stop the running epoch and the threads."""
        self._core.close()


def _rank_and_world_size() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise OptionError("distributed=True needs torch.distributed.init_process_group, or RANK and WORLD_SIZE")
