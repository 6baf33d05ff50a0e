"""Loader: FFCV's arguments and tuples, batchplant's work."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ....errors import OptionError, no_such
from ....order import default_threads
from ..memory_managers import MemoryManager, OSCacheManager, ProcessCacheManager
from ..pipeline.compiler import Compiler
from ..pipeline.pipeline_spec import PipelineSpec
from ..reader import Reader
from ..source import IDS
from ..translate import Translator, delivery_for
from ..traversal_order import QuasiRandom, Random, Sequential
from ..traversal_order.base import Named, TraversalOrder
from .core import CoreLoader
from .epoch_iterator import EpochIterator


@enum.unique
class OrderOption(enum.Enum):
    """The orders of an epoch."""

    SEQUENTIAL = enum.auto()
    RANDOM = enum.auto()
    QUASI_RANDOM = enum.auto()


# What ``order`` takes; for annotations.
ORDER_TYPE = OrderOption | TraversalOrder | type[TraversalOrder]
ORDER_MAP: Mapping[Any, type[Named]] = {
    OrderOption.RANDOM: Random,
    OrderOption.SEQUENTIAL: Sequential,
    OrderOption.QUASI_RANDOM: QuasiRandom,
}

DEFAULT_PROCESS_CACHE = int(os.environ.get("FFCV_DEFAULT_CACHE_PROCESS", "0"))
DEFAULT_OS_CACHE = not DEFAULT_PROCESS_CACHE


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
            # Ranks have to agree on the order without a word between them.
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
        """A spec for every output: the fields in their order, then what the user named besides."""
        asked: dict[str, PipelineSpec] = {}
        for name, one in pipelines.items():
            if isinstance(one, PipelineSpec):
                asked[name] = PipelineSpec(one.source, one.decoder, one.transforms)
            elif isinstance(one, Sequence) and not isinstance(one, str):
                asked[name] = PipelineSpec(name, transforms=list(one))
            elif one is not None:
                raise OptionError(
                    f"the pipeline of {name!r} is a list of operations or a PipelineSpec, not {one!r}"
                )
        specs = {
            name: asked.get(name) or PipelineSpec(name)
            for name in self.reader.handlers
            if pipelines.get(name, ()) is not None
        }
        specs |= {name: one for name, one in asked.items() if name not in specs}
        for name, spec in specs.items():
            handler = self.reader.handlers.get(spec.source) if isinstance(spec.source, str) else None
            spec.accept_decoder(handler and handler.get_decoder_class(), name)
        return specs

    def _traversal(self, order: Any) -> TraversalOrder:
        if isinstance(order, OrderOption):
            return ORDER_MAP[order](self)
        # FFCV takes instances alone, and calls them; a class is what everybody tries first.
        if isinstance(order, type) and issubclass(order, TraversalOrder):
            return order(self)
        if isinstance(order, TraversalOrder):
            made: TraversalOrder = order(self) if callable(order) else order
            return made
        raise OptionError(f"order is an OrderOption or a subclass of TraversalOrder, not {order!r}")

    def _make_core(self) -> CoreLoader:
        named = self.traversal_order if isinstance(self.traversal_order, Named) else None
        rank, world = _place() if self.distributed and named is not None else (0, 1)
        core = CoreLoader(
            self.reader.source,
            self.batch_size,
            order="sequential" if named is None else named.name,
            # Their own follow in generate_code, once the loader knows where batches go.
            pipelines={**dict.fromkeys(self.reader.handlers), IDS: ()},
            # An order of the user's own names samples of the whole file.
            indices=None if self._args["indices"] is None or named is None else self.indices,
            rank=rank,
            world=world,
            seed=self.seed,
            drop_last=self.drop_last,
            workers=self.num_workers,
            ahead=self.batches_ahead,
            # As FFCV decodes, so that the pixels are the same.
            dct="fast",
        )
        core.own_order = self.traversal_order if named is None else None
        return core

    def generate_code(self) -> None:
        """Take over what the operations say now; an epoch does so itself when their attributes change."""
        self._fingerprint = self._translator.fingerprint()
        self._core.replan(self._translator.pipelines(), delivery_for(self._translator.devices()))
        # For each output what does its steps: functions of the user's operations, and ops of ours.
        self.code: dict[str, list[Any]] = {
            one.name: [one.image] * (one.image is not None)
            + [getattr(step.op, "code", step.op) for step in one.steps]
            for one in self._core.plan.outputs
        }

    # -- epochs ----------------------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next ``iter`` gives."""
        return self._core.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._core.next_epoch = epoch

    def samples_of(self, epoch: int) -> Any:
        """The samples of an epoch in one of batchplant's orders."""
        return self._core.samples_of(epoch)

    def next_traversal_order(self) -> Any:
        """The samples of the next epoch."""
        return self.traversal_order.sample_order(self.next_epoch)

    def __len__(self) -> int:
        if self._length is None:
            self._length = len(self._core)
        return self._length

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self.recompile or self._fingerprint != self._translator.fingerprint():
            self.generate_code()
        return EpochIterator(iter(self._core), list(self.pipeline_specs))  # type: ignore[arg-type]

    def filter(self, field_name: str, condition: Callable[[Any], bool]) -> Loader:
        """A loader of the samples whose value in a field, as its pipeline gives it, fulfils a condition."""
        if field_name not in self.reader.handlers:
            raise OptionError(no_such("field", field_name, self.reader.handlers))
        pipelines = dict.fromkeys(self.reader.handlers) | {
            name: one for name, one in self._args["pipelines"].items() if name == field_name
        }
        if pipelines[field_name] is None:
            del pipelines[field_name]
        changed = {
            "pipelines": pipelines, "order": OrderOption.SEQUENTIAL, "drop_last": False, "distributed": False,
        }  # fmt: skip
        every = Loader(**{**self._args, **changed})
        kept = [bool(condition(sample)) for (batch,) in every for sample in batch]
        return Loader(**{**self._args, "indices": self.indices[np.array(kept, dtype=np.bool_)]})

    # -- what FFCV has not -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the last batch that was given out."""
        return self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, at the very next batch."""
        self._core.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """What the epochs so far waited for, in seconds, and what to do about it."""
        return self._core.stats()

    def close(self) -> None:
        """Stop the running epoch and the threads."""
        self._core.close()


def _place() -> tuple[int, int]:
    """Rank and number of ranks."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise OptionError("distributed=True needs torch.distributed.init_process_group, or RANK and WORLD_SIZE")
