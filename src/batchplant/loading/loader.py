"""The Loader: epochs of batches, made in the background, in an exact order that can be resumed anywhere."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from .. import order as orders
from ..codecs.cells import decode_cell
from ..codecs.tokens import limit_threads
from ..data import hooks
from ..data import mix_config as mixplan
from ..data.buffers import BufferPool
from ..data.mix import Change, Mix
from ..data.reader import Reader
from ..errors import BatchplantError, OptionError, Problem, near
from ..formats.registry import open as open_reader
from ..order.keyed import whole
from ..order.mesh import Mesh, refuse_unused_mesh
from ..schema.columns import I64
from ..storage.settings import NAMES as STORAGE_OPTIONS
from .advice import Traffic, advise, keep_up, stored_bytes, warn_of_obstacles
from .decoded import DecodedCache, DecodedImages, checked_cache
from .epoch import BatchCoalescer, Delivery, Epoch, EpochTotals, Progress, check_process
from .executor import Executor, RemoteExecutor
from .images import DecodeOptions, Device, OnCpu
from .node.client import NodeExecutor
from .node.wire import check_platform
from .ordering import Ordering
from .packing import Pack, PackedShard, Packing, SkippedRows, lay_out, pack_of
from .plan import Pipelines, make_plan
from .recording import Recorder, describe
from .sequence import SequenceCutter
from .service.client import ServiceExecutor, ServiceReader
from .skipping import Skip, Skipping, skip_of

STATE_VERSION = 1
# The engine threads yield to the threads that feed a device: those do little, but must do it at once.
NICENESS_BESIDE_DEVICE = 10
# Pinned buffers that are kept for batches in flight to a device.
DEVICE_BUFFERS = 16
# Bounds of arguments: seeds have 64 bits, and the engine has so many threads at most.
LARGEST_SEED = 2**64 - 1
MAX_WORKERS = 1024
# Samples that `filter` reads at a time.
FILTER_CHUNK_ROWS = 1024
# Environment variable: 1, or a port, gives loaders a dashboard without a change to the program.
DASHBOARD = "BATCHPLANT_DASHBOARD"
# Arguments that moved, and where.
MOVED_ARGUMENTS = {
    "dashboard": "loader.dashboard() shows the page, loader.dashboard(8080) at that port",
    "joint": "pipelines=[{field: [op, …]}, step, …] holds steps of several fields behind those of each",
    "page_cache": 'cache="pages" reads through the page cache, cache=False past it',
}
# Arguments of torch.utils.data.DataLoader, and of datasets that are given to it: their equivalents here.
TORCH_ARGUMENTS = {
    "shuffle": 'order="random" shuffles anew in every epoch, order="sequential" does not',
    "num_workers": "workers= is the number of decoding threads; all cores without it",
    "pin_memory": 'device="cuda" copies through pinned memory by itself',
    "pin_memory_device": 'device="cuda" copies through pinned memory by itself',
    "collate_fn": "what values of a batch become is said by ops and functions: pipelines={field: [Pad(64)]}",
    "sampler": "order= takes an array of sample numbers or a function of the epoch; indices= a subset",
    "batch_sampler": "order= takes sample numbers; pack= and order=bp.order.ByLength(…) make batches by size",
    "prefetch_factor": "prefetch_batches= is the number of batches made in advance",
    "persistent_workers": "threads stay as long as the Loader; there is nothing to set",
    "worker_init_fn": "workers are threads of this process; ops draw from seed= and are seeded by sample",
    "multiprocessing_context": 'workers are threads; Function(fn, parallel="processes") has processes',
    "generator": "seed= decides all random numbers",
    "timeout": "reading is tried again by itself; bp.open has options for servers, such as retry_seconds=",
    "in_order": "batches always come in order",
    "dataset": "the first argument is the source: Loader(path_or_reader, batch_size)",
    "transform": "pipelines={field: [op, …]} holds ops and functions",
    "transforms": "pipelines={field: [op, …]} holds ops and functions",
    "target_transform": "pipelines={field: [op, …]} holds ops and functions",
}


@dataclasses.dataclass(frozen=True)
class ReplayedBatch:
    """The samples of one batch of one rank.

    samples: their numbers; in a packed loader those of the documents. pieces: the (row, place, size, start,
    document) that the documents became. origins: in a mixture, (source, number there, pass) of every sample.
    """

    samples: I64
    pieces: I64 | None = None
    origins: list[tuple[str, int, int]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class LoaderConfig:
    """The arguments of a :class:`Loader` besides its source, checked; copies of a loader replace some."""

    batch_size: int
    order: orders.OrderLike
    pipelines: Pipelines | None
    indices: npt.ArrayLike | None
    pack: Pack | None
    seed: int
    rank: int | None
    world_size: int | None
    mesh: Mesh | None
    drop_last: bool
    evaluate: bool
    on_error: str
    ids: bool
    workers: int | Sequence[int] | None
    prefetch_batches: int
    device: object
    decode: DecodeOptions
    cache: DecodedCache | str | bool | None
    share: str | None
    skip: Skip | None
    record: str | os.PathLike[str] | None
    stall_after: float | None

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1)
        whole("prefetch_batches", self.prefetch_batches, 1)
        whole("seed", self.seed, 0, LARGEST_SEED)
        if isinstance(self.workers, Sequence):
            for core in self.workers:
                whole("a core of workers", core, 0)
        elif self.workers is not None:
            whole("workers", self.workers, 0, MAX_WORKERS)
        if self.on_error not in ("raise", "skip"):
            raise OptionError(f"on_error is raise or skip, not {self.on_error!r}")
        if self.evaluate and self.drop_last:
            raise OptionError("evaluate needs every sample, and drop_last leaves some out: give one of them")
        if self.rank is not None and self.world_size is not None:
            orders.rank_and_world_size(self.rank, self.world_size)
        self.decode.check(self.device)
        if self.share not in (None, "node"):
            raise OptionError(f'share is "node" or None, not {self.share!r}')
        if self.stall_after is not None and not self.stall_after > 0:
            raise OptionError(f"stall_after is a number of seconds, not {self.stall_after!r}")
        replaces = self.skip is not None and self.skip.replace == "next"
        if replaces and (self.evaluate or self.pack is not None):
            raise OptionError(
                'replace="next" gives a sample twice, which evaluation and packed rows cannot have: '
                'skip with replace="drop"'
            )
        if self.share is not None:
            check_platform()

    def check_mesh(self) -> None:
        """Raise OptionError if this run has a mesh and the loader was not told of it."""
        if self.mesh is None and self.rank is None and self.world_size is None:
            refuse_unused_mesh()

    def order_parts(self) -> orders.OrderParts:
        """Return the order, checked."""
        parts = orders.order_parts(self.order, self.batch_size)
        if self.pack is not None and parts.buckets is not None:
            raise OptionError("batches are made by length or by pack: give one of them")
        if self.pack is not None and parts.balance is not None:
            raise OptionError("packed rows are of one size already: give pack or Balanced")
        return parts

    @property
    def decoded_cache(self) -> DecodedCache | None:
        """The cache of decoded images, if there is one."""
        return self.cache if isinstance(self.cache, DecodedCache) else None

    @property
    def page_cache(self) -> bool | None:
        """Whether local files are read through the page cache; None: if the dataset fits into memory."""
        return self.cache == "pages" if self.cache in ("pages", False) else None

    @property
    def cores(self) -> list[int] | None:
        """Cores that the decoding threads stay on; None: any."""
        return list(self.workers) if isinstance(self.workers, Sequence) else None

    @property
    def threads(self) -> int:
        """Number of decoding threads."""
        count = len(self.workers) if isinstance(self.workers, Sequence) else self.workers
        return count or orders.default_threads()


class Loader:
    """Batches of a dataset, epoch after epoch: ``for batch in Loader("train.beton", 256, order="random")``.

    source: a Reader or what :func:`batchplant.open` takes; ``Loader(open(url, cache="/data"), 256)`` is for
    options. order: ``sequential``, ``random``, ``shards``, ``quasi_random``, ``windowed``; an order with
    options, such as ``order.QuasiRandom(window=64)``, ``order.ByLength("tokens")`` or ``order.Balanced()``,
    see :mod:`batchplant.order`; an array of sample numbers, or a function. pipelines: ops for each field,
    None to leave one out; see :class:`batchplant.Pipe`. A list begins with these and goes on with steps that
    see several fields, such as :class:`batchplant.ops.Map`, and with more ops for some of the fields.
    indices: only these samples. pack: rows of tokens in place of samples, see :class:`Pack`; batch_size
    counts rows. seed: of the order and of every op. rank, world_size: this process among many (default: as
    torch.distributed or the environment says when an epoch begins). mesh: the mesh of a run whose ranks do
    not all get different samples: of PyTorch or JAX, Megatron's ``parallel_state``, a dict of sizes, or a
    :class:`Mesh`, which also explains batch_axes and sequence_axis. drop_last: only full batches. evaluate: a
    rank that has no samples left at the end has one batch fewer, not an empty one. on_error: ``raise``, or
    ``skip`` to leave out samples that cannot be read and list them in ``skipped``. ids: add the sample
    numbers as ``ids``. workers: number of decoding threads (default: all cores, divided by LOCAL_WORLD_SIZE),
    or the cores that they stay on, a thread for each. prefetch_batches: batches made in advance. device: a
    torch device, for tensors there; None for NumPy. decode: how images are decoded for the device, as in
    ``"hybrid"``, or :class:`DecodeOptions`. cache: ``"decoded"`` keeps decoded images for later epochs, see
    :class:`DecodedCache`; ``"pages"`` reads local files through the system's page cache, False past it
    (default: through it, unless the dataset is larger than memory). share: ``"node"`` has one server process
    decode what several processes of this machine need, such as the ranks of a tensor-parallel group or the
    trials of a sweep. skip: samples and steps to leave out while all others keep their positions, draws and
    ranks: a :class:`Skip`, or the path of a list of bad samples. record: the file that the run is recorded
    in, see :meth:`record`. stall_after: seconds that the loop may wait for a batch before what that waits for
    is logged, as a warning of the logger ``batchplant``.

    Raises: OptionError for arguments that do not fit the data or each other, and what
    :func:`batchplant.open` raises. While batches are made: DataError, with path, sample and field, where a
    sample cannot be read or decoded (``on_error="skip"`` leaves it out); AccessError where a disk or a server
    does not give the bytes.
    """

    def __init__(
        self,
        source: object,
        batch_size: int,
        *,
        order: orders.OrderLike = "sequential",
        pipelines: Pipelines | None = None,
        indices: npt.ArrayLike | None = None,
        pack: Pack | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: object = None,
        batch_axes: Sequence[str] | None = None,
        sequence_axis: str | None = None,
        drop_last: bool = False,
        evaluate: bool = False,
        on_error: str = "raise",
        ids: bool = False,
        workers: int | Sequence[int] | None = None,
        prefetch_batches: int = 3,
        device: object = None,
        decode: str | DecodeOptions | None = None,
        cache: str | DecodedCache | bool | None = None,
        share: str | None = None,
        skip: Skip | str | os.PathLike[str] | None = None,
        record: str | os.PathLike[str] | None = None,
        stall_after: float | None = None,
        **unknown: Never,
    ) -> None:
        for name in unknown:
            raise _unexpected_argument(name)
        decode = DecodeOptions.of(decode)
        placed = Mesh.of(mesh, rank, world_size, batch_axes, sequence_axis)
        self.config = LoaderConfig(
            batch_size=batch_size, order=order, pipelines=pipelines, indices=indices, pack=pack, seed=seed,
            rank=rank if placed is None else None, world_size=world_size, mesh=placed,
            drop_last=drop_last, evaluate=evaluate, on_error=on_error, ids=ids, workers=workers,
            prefetch_batches=prefetch_batches, device=device, decode=decode,
            cache=checked_cache(cache, decode.backend), share=share, skip=Skip.of(skip), record=record,
            stall_after=stall_after,
        )  # fmt: skip
        self.config.check_mesh()
        parts = self.config.order_parts()
        self.reader = source if isinstance(source, Reader) else open_reader(source)
        self.indices: I64 | None = None if indices is None else self.reader._check(indices)
        length = self.reader.planned_length if isinstance(self.reader, Mix) else len(self.reader)
        self.samples = length if self.indices is None else len(self.indices)
        self.batch_size, self.drop_last, self.seed = batch_size, drop_last, seed
        self.prefetch_batches, self.threads = prefetch_batches, self.config.threads
        if isinstance(self.reader, ServiceReader) and pipelines is None:
            pipelines = self.reader.default_pipelines()
        self.plan = make_plan(self.reader, pipelines, on_device=decode.backend is not None)
        if pack is not None and self.plan.joint:
            raise OptionError(
                f"{self.plan.joint[0].op!r} sees several fields of samples, and packed rows are no samples: "
                "leave out pack, or the step"
            )
        if ids and any(output.name == "ids" for output in self.plan.outputs):
            raise OptionError("ids=True adds the sample numbers as ids, and a field has that name already")
        self._ordering = Ordering(self.reader, self.plan, parts, self.indices, seed)
        if isinstance(self.reader, Mix):
            self.reader._loaders.add(self)
        # Skipped as the arguments say; a state may say more.
        self._chosen_skip = self.config.skip
        self._skip(self._chosen_skip)
        self._epoch, self._position = 0, 0
        # Batches that were taken before the running epoch.
        self._steps_before = 0
        self._recorder: Recorder | None = None
        if record is not None:
            self.record(record)
        # Number of states that were loaded; trainers compare it.
        self.loaded = 0
        # Worker processes share the batches of this rank: (number of this worker, number of workers).
        self._turn = (0, 1)
        self._progress: Progress | None = None
        self._live: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self._closed, self._process = False, os.getpid()
        # The loader knows no framework; a device names one.
        self._delivery: Delivery | None = hooks.part("torch").Delivery(device) if device is not None else None
        self._totals = EpochTotals()
        self._start_executor()
        if decode.backend is not None:
            warn_of_obstacles(self.plan, decode.backend)
        device = self._executor.on_device if self._executor.can_coalesce and pack is None else None
        self._coalescer = BatchCoalescer(prefetch_batches, None if device is None else device.max_samples)
        self._packing: Packing | None = None
        if pack is not None:
            # Up to four arrays of a batch have the same size.
            buffers = self._buffers(4 * (prefetch_batches + 2))
            self._packing = Packing(pack, self.reader, self.plan, self._executor, self.indices, buffers)
        self._cutter: SequenceCutter | None = None
        if placed is not None and placed.sequence_axis is not None:
            # Up to five arrays of a batch have the same size.
            self._cutter = SequenceCutter(placed, pack, self._buffers(5 * (prefetch_batches + 2)))
        self._traffic = Traffic(self.reader, self.plan.fields)
        # The page that shows this loader.
        self._watch: Any = None

    def _skip(self, skip: Skip | None) -> None:
        self.config = dataclasses.replace(self.config, skip=skip)
        self._skipping = Skipping(skip or Skip(), self.reader, self.indices)

    def _start_executor(self) -> None:
        """Start the engine's threads, the device and the cache of decoded images."""
        config, decode = self.config, self.config.decode
        nice = 0 if decode.backend is None else NICENESS_BESIDE_DEVICE
        on_cpu = self._on_cpu(_native.Engine(self.threads, config.cores, nice=nice))
        self._device: Device | None = None
        if self._delivery is not None and decode.backend is not None:
            self._device = self._delivery.images(
                on_cpu, decode.backend, decode.gpu_share, config.prefetch_batches
            )
        self._decoded: DecodedImages | None = None
        if config.decoded_cache is not None and config.share is None:
            self._decoded = DecodedImages(
                config.decoded_cache, self.plan, len(self.reader), on_cpu, fast_scale=decode.fast_scale
            )
        self._executor = Executor(
            self.reader, self.plan, on_cpu, self._device, seed=config.seed, skip=config.on_error == "skip",
            decoded=self._decoded,
        )  # fmt: skip
        self._remote: RemoteExecutor | None = None
        if config.share is not None:
            self._remote = NodeExecutor(self._executor, decode, config.decoded_cache, config.prefetch_batches)
        elif isinstance(self.reader, ServiceReader) and config.decoded_cache is None:
            self._remote = ServiceExecutor(self._executor, decode, config.prefetch_batches, self._totals)
        self._executor = self._remote or self._executor

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """Return a loader of the mixture that a plan describes, with ``changes`` to its options.

        It gives what ``batchplant mix`` says of the plan. ``steps`` and ``world_size`` are only for that.

        Raises: NotFoundError where there is no plan; DataError where it is no YAML, TOML or JSON;
        OptionError, with the line, for what a plan cannot say; and what :class:`Mix` and :class:`Loader`
        raise.
        """
        plan = mixplan.read(path)
        options = {"pack": pack_of(plan), **plan.loading, **changes}
        for name in ("steps", "world_size"):
            if name not in changes:
                options.pop(name, None)
        batch_size = options.pop("batch_size", None)
        if batch_size is None:
            raise OptionError("the plan has no batch_size: give one", path=plan.path)
        mix = plan.located(lambda: Mix(plan.open(), **plan.options))
        return plan.located(lambda: cls(mix, batch_size, **options))

    def _on_cpu(self, engine: _native.Engine) -> OnCpu:
        decode = self.config.decode
        # For a device, more batches may be in flight.
        count = self.prefetch_batches + (2 if decode.backend is None else DEVICE_BUFFERS)
        return OnCpu(engine, self._buffers(count), dct=decode.dct, fast_scale=decode.fast_scale)

    def _buffers(self, count: int) -> BufferPool:
        return BufferPool(count, self._delivery.allocate) if self._delivery else BufferPool(count)

    def __repr__(self) -> str:
        parts = [f"{self.samples:,} samples", f"batches of {self.batch_size:,}"]
        parts.append(f"order {orders.describe(self.config.order)}")
        rank, world_size = self._rank_world()
        parts += [f"rank {rank} of {world_size}"] if world_size > 1 else []
        parts += [self.config.mesh.describe()] if self.config.mesh is not None else []
        parts.append(f"{self.threads} threads")
        parts += [f"on {self.config.device}"] if self._delivery is not None else []
        state = "closed" if self._closed else f"epoch {self._epoch}"
        return f"<Loader of {self.reader.path}: {', '.join(parts)}; {state}>"

    def set_weights(
        self, weights: Mapping[str, float] | Sequence[float], *, at_step: int | None = None
    ) -> None:
        """Change the weights of the mixture that is loaded, from a step on and for the rest of the run.

        weights: of all sources, or by name; sources without one do not come any more. A schedule of the
        mixture ends there. In packed rows it holds from the next window of documents on. at_step: a step of
        the running epoch, as ``steps`` counts them (default: the next). All ranks call it with the same
        arguments before they take that step. The state has the change, so a resumed run goes on with it, on
        any number of ranks; a change that a state has already is not made twice.

        Raises: OptionError where the source is no mixture, for weights that are impossible, and for a step
        that is past or behind the end of the epoch.
        """
        if not isinstance(self.reader, Mix) or self.indices is not None:
            raise OptionError("set_weights is for a Loader of a Mix, without indices")
        if self._decoded is not None:
            raise OptionError("a cache of decoded images is made for the weights that a mixture begins with")
        values = self.reader.weights_of(weights)
        with self._totals.lock:
            running = self._progress is not None and not self._progress.finished
            epoch, start = self._epoch, self._position
            if running and self._progress is not None:
                epoch, start = self._progress.epoch, self._progress.position
            step = self.steps if at_step is None else whole("at_step", at_step, 0)
            shard, count = self._shard(epoch, start), step - self.steps
            if count < 0 and any(values == list(entry[2]) for entry in self._ordering.changes):
                # The state that the run goes on from has it.
                return
            if count < 0 or (count and not shard.has(count - 1)):
                raise OptionError(
                    f"step {step:,} is past, or behind the end of epoch {epoch}; the next is {self.steps:,}"
                )
            position = shard.position_after(count)
            if isinstance(shard, PackedShard | SkippedRows):
                position = shard.packed.next_window(position)
            earlier = [entry for entry in self._ordering.changes if entry[:2] < (epoch, position)]
            self._ordering.changes = (*earlier, (epoch, position, values))
            if self._packing is not None:
                self._packing.forget(epoch)
            if not running:
                return
            self._steps_before, delivered_from = self.steps, self._progress
            self._progress = Progress(epoch, self._shard(epoch, start), _next_shard(self, epoch))
            self._record_stretch(epoch, start)
        for live in list(self._live):
            if live.progress is delivered_from:
                live.restart(self._progress)

    # -- the record of a run ---------------------------------------------------------------------------

    def record(self, path: str | os.PathLike[str]) -> None:
        """Record the run in a file, from the next epoch on; a resumed run goes on in the same file.

        It is small (the batches follow from it) and complete at every moment: a killed process loses
        nothing. All ranks give the same path; rank 0 writes. `batchplant why` reads it.

        Raises: BusyError, when an epoch begins, where another process records in that file.
        """
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = Recorder(path)

    @property
    def steps(self) -> int:
        """Number of batches that the run has taken on this rank, those before a resume included."""
        return self._steps_before + (self._progress.delivered if self._progress else 0)

    def note(self, *, losses: Any = None, **values: float) -> None:
        """Add values, such as ``loss`` and ``grad_norm``, to the batch taken last in the record of the run.

        losses: a loss for each of its samples, in their order; stored as float16. Numbers are read at once,
        so a tensor on a device is waited for.

        Raises: OptionError where nothing is recorded, or no batch was taken.
        """
        if self._recorder is None or not self.steps:
            raise OptionError("note adds to the record of a run: give record=, and take a batch")
        self._recorder.note(self.steps - 1, losses, values)

    def _settings(self) -> dict[str, Any]:
        """Return JSON of what may change while a run goes on."""
        changes = [[epoch, position, list(weights)] for epoch, position, weights in self._ordering.changes]
        skip = self._skipping.state(self._dealt)
        return {**({"skip": skip} if skip else {}), **({"weights": changes} if changes else {})}

    def _record_stretch(self, epoch: int, start: int) -> None:
        if self._recorder is None or self._turn != (0, 1):
            return
        rank, world_size = self._rank_world()
        stretch = {
            "rank": rank, "world_size": world_size, "batch_size": self.batch_size, "step": self._steps_before,
            "epoch": epoch, "start": start, "settings": self._settings(),
            **(self._packing.state(epoch, start) if self._packing else {}),
        }  # fmt: skip
        arguments = {**vars(self.config), "indices": self.indices}
        self._recorder.begin(stretch, lambda: describe(self.reader, arguments))

    @property
    def skipped(self) -> list[Problem]:
        """Samples that were left out so far, with on_error="skip"."""
        return self._totals.skipped

    @property
    def rank(self) -> int:
        """Rank of this process, as far as is known now; an epoch asks when it begins."""
        return self._rank_world()[0]

    @property
    def world_size(self) -> int:
        """Number of processes that share the samples."""
        return self._rank_world()[1]

    def _rank_world(self) -> tuple[int, int]:
        if self.config.mesh is not None:
            return self.config.mesh.resolve()[:2]
        return orders.rank_and_world_size(self.config.rank, self.config.world_size)

    # -- epochs ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of a complete epoch on this rank: of the running epoch, else of the next.

        A resumed epoch counts from its first batch, as trainers expect; ``len(iter(loader))`` counts the
        remaining ones.
        """
        for live in list(self._live):
            if live.progress is not None and live.progress is self._progress and not live.over:
                return len(self._shard(live.progress.epoch, 0))
        return len(self._shard(self._epoch, 0))

    def __iter__(self) -> Epoch:
        """Return the next epoch, or the rest of the one that a loaded state was in.

        The epoch begins with its first batch: an iterator that no batch is taken from, as some trainers
        make, does not count.
        """
        check_process(self._process)
        if self._closed:
            raise OptionError("the loader is closed")
        if self._watch is None and self._turn == (0, 1) and os.environ.get(DASHBOARD, "0") not in ("", "0"):
            self._watch = hooks.part("dashboard").watch_as_told(self, os.environ[DASHBOARD])
        epoch = Epoch(
            self._executor, self._delivery, self._begin, self._totals,
            indices=self.indices, coalescer=self._coalescer, packing=self._packing, cutter=self._cutter,
            ids=self.config.ids, page_cache=self.config.page_cache,
            stall_after=self.config.stall_after,
            on_step=None if self._recorder is None else self._recorder.step,
        )  # fmt: skip
        self._live.add(epoch)
        return epoch

    def _begin(self, count: bool = True) -> Progress:
        """Return the next epoch; with ``count``, the one after it becomes the next."""
        with self._totals.lock:
            progress = Progress(
                self._epoch, self._shard(self._epoch, self._position), _next_shard(self, self._epoch)
            )
            if count:
                self.config.check_mesh()
                self._traffic.warn(self._ordering.parts, self.world_size, self.batch_size)
                self._steps_before = self.steps
                self._record_stretch(self._epoch, self._position)
                self._epoch, self._position, self._progress = self._epoch + 1, 0, progress
        return progress

    def _shard(self, epoch: int, start: int, rank_world: tuple[int, int] | None = None) -> orders.Batches:
        """Return the batches of an epoch on this rank, or on ``rank_world``."""
        shard = self._skipping.shard(self._dealt(epoch, start, rank_world), epoch)
        return shard if self._turn == (0, 1) else orders.Turns(shard, *self._turn)

    def _dealt(
        self, epoch: int, start: int = 0, rank_world: tuple[int, int] | None = None
    ) -> orders.Shard | PackedShard:
        """Return the batches of an epoch with all samples."""
        rank, world_size = rank_world or self._rank_world()
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "start": start,
            "pad": "skip" if self.config.evaluate else "none",
        }
        order = self._make_order(epoch)
        if self._packing is not None:
            return self._packing.shard(order, epoch, **options)
        return orders.shard(order, sizes=self._ordering.sizes, **options)

    def _make_order(self, epoch: int) -> orders.Order:
        return self._ordering.make(epoch)

    def ids_at(self, positions: I64) -> I64:
        """Return the samples at these positions of ``indices``."""
        return positions if self.indices is None else self.indices[positions]

    def replay(
        self,
        step: int,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        epoch: int = 0,
        start: int = 0,
    ) -> ReplayedBatch:
        """Return the samples that a step of a rank sees, or saw, without reading them.

        (Where ``Pack`` puts a token after documents, a few of each source are looked at: see there.)

        rank, world_size: of that run (default: those of this loader). start: the position that steps count
        from, where the run was resumed there; see ``state_dict``.

        Raises: SampleIndexError where the rank has no such step; OptionError where there is no such rank,
        epoch or start.
        """
        same_run = rank is None and world_size is None
        shard = self._shard(epoch, start, None if same_run else orders.rank_and_world_size(rank, world_size))
        samples, pieces = self.ids_at(shard.batch(step)), None
        if isinstance(shard, PackedShard | SkippedRows):
            pieces = lay_out(shard.pieces(step), shard.packed.pack)[0]
        if not isinstance(self.reader, Mix):
            return ReplayedBatch(samples, pieces)
        sources, numbers, laps = (column.tolist() for column in self.reader.origin(samples))
        names = [self.reader.names[source] for source in sources]
        return ReplayedBatch(samples, pieces, list(zip(names, numbers, laps, strict=True)))

    # -- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was given out; small, and JSON can hold it.

        If several epochs are running, it is the position in the one begun last.
        """
        epoch, position, order = self._epoch, self._position, None
        if self._progress is not None and not self._progress.finished:
            epoch, position = self._progress.epoch, self._progress.position
            order = self._progress.shard.order
        elif position:
            order = self._make_order(epoch)
        return {
            "version": STATE_VERSION, "epoch": epoch, "position": position, "seed": self.seed,
            "samples": self.samples, "step": self.steps, **self._ordering.marks(),
            **({"mixture": self.reader.mark()} if isinstance(self.reader, Mix) else {}),
            "drawn": self._drawn(order) if position else None,
            **(self._packing.state(epoch, position) if self._packing else {}),
            **self._settings(),
        }  # fmt: skip

    def _drawn(self, order: orders.Order | None) -> int | None:
        """Return a checksum of an epoch that was begun; None where ranks may have different orders."""
        return None if order is None else orders.drawn(order)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, exactly, with any number of workers and ranks, and any batch size.

        A loader without ``skip`` goes on to skip what the state says.

        Raises: OptionError where it is no state, or that of another dataset, order or seed.
        """
        marks = {**self._ordering.marks(), **({"pack": self._packing.mark} if self._packing else {})}
        if isinstance(self.reader, Mix):
            _check_mixture(state, self.reader, self.samples)
        self._ordering.change(state.get("weights", ()))
        epoch, position = _position_in(state, self.samples, self.seed, marks)
        if self._packing is not None:
            self._packing.go_to(epoch, state.get("window"))
        self._skip(skip_of(state.get("skip"), self._chosen_skip))
        # `_shard` raises where there is no such position.
        drawn = self._drawn(self._shard(epoch, position).order) if position else None
        if drawn is not None and state.get("drawn") not in (None, drawn):
            raise OptionError(
                f"the order of epoch {epoch} is not the one that the state was made with: another function, "
                "a file with other blocks, or a mixture with other weights"
            )
        self.go_to(epoch, position)
        self._steps_before = state.get("step", 0)
        self.loaded += 1

    def go_to(self, epoch: int, position: int = 0) -> None:
        """Go on at a position of an epoch.

        Raises: OptionError where the epoch is below 0, or has no such position.
        """
        self._steps_before = self.steps
        self._epoch, self._position, self._progress = epoch, position, None

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle arguments and state: a copy opens the source again and goes on from here."""
        state = self.state_dict()
        config = dataclasses.replace(self.config, indices=self.indices, record=None)
        position = (state["epoch"], state["position"], state["step"], self._ordering.changes)
        return _remake, (type(self), self.reader, config, *position)

    def _copy(self, reader: Reader, **changes: Any) -> Self:
        """Return a loader with the same config, except for ``changes``."""
        changes = {"indices": self.indices, "record": None, **changes}
        loader = type(self)(reader, **vars(dataclasses.replace(self.config, **changes)))
        loader._ordering.changes = self._ordering.changes
        return loader

    # -- other loaders ---------------------------------------------------------------------------------

    def filter(self, field: str | Sequence[str], predicate: Callable[..., bool]) -> Loader:
        """Return a loader of the samples whose value in ``field`` fulfils ``predicate``.

        For several fields, ``predicate`` gets their values one after another:
        ``loader.filter(["width", "height"], lambda width, height: width > height)``.

        Raises: FieldNameError where there is no such field; DataError where a value cannot be read; and
        what ``predicate`` raises.
        """
        names = [field] if isinstance(field, str) else list(field)
        if not names:
            raise OptionError("filter needs at least one field")
        numbers = np.arange(len(self.reader)) if self.indices is None else self.indices
        matches = _matching_samples(self.reader, numbers, names, predicate)
        return self._copy(self.reader, indices=matches)

    def ranks(self) -> dict[str, Any]:
        """Return the arguments that make a loader of this rank in any process."""
        self.config.check_mesh()
        if self.config.mesh is not None:
            return {"mesh": self.config.mesh.placed()}
        return {"rank": self.rank, "world_size": self.world_size}

    def part(self, number: int, parts: int, **ranks: Any) -> Loader:
        """Return the loader of worker ``number``: it makes every ``parts``-th batch of a rank.

        ``ranks``: as :meth:`ranks` gives them in the process that the workers belong to. Taken in turn, the
        batches of all workers are those of the rank, in order.

        Raises: OptionError where there is no such worker, and where batches are made for a device.
        """
        whole("parts", parts, 1)
        whole("number", number, 0, parts - 1)
        if self._device is not None or (self._delivery is not None and self._delivery.elsewhere):
            raise OptionError("batches for a device are not made in worker processes: use num_workers=0")
        # A file that was opened before a fork shares its position with the parent process.
        reader = self.reader if os.getpid() == self._process else pickle.loads(pickle.dumps(self.reader))
        threads, cores, cache = max(1, self.threads // parts), self.config.cores, self.config.cache
        limit_threads(threads)
        if self._decoded is not None and isinstance(cache, DecodedCache):
            cache = dataclasses.replace(cache, bytes=self._decoded.memory.max_bytes // parts)
        workers = threads if cores is None else cores[:threads]
        changes = {"mesh": None, "rank": None, "world_size": None, **ranks}
        loader = self._copy(reader, **changes, workers=workers, cache=cache)
        loader._turn = (number, parts)
        return loader

    # -- statistics ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what the epochs so far waited for, in seconds, and what to do about it."""
        seconds = self._executor.timer.seconds
        parts = {name: seconds.get(name, 0.0) for name in ("storage", "decode", "transforms", "device")}
        if "servers" in seconds:
            parts["servers"] = seconds["servers"]
        totals, functions = self._totals, dict(self._executor.functions.seconds)
        bottleneck, advice = advise(parts, totals.waited, totals.stepped)
        workers = self._executor.on_cpu.stats()
        busy = workers["decode"] + workers["resize"] + parts["transforms"]
        total = totals.waited + totals.stepped
        servers = self._remote.servers() if self._remote else None
        return {
            **parts, **(self._device.stats() if self._device else {}), **self._traffic.stats(),
            **(self._decoded.stats(self.samples) if self._decoded else {}),
            **(self._packing.stats() if self._packing else {}),
            **({"functions": functions} if functions else {}),
            **({self._remote.name: self._remote.stats()} if self._remote else {}),
            **({"mesh": self.config.mesh.stats()} if self.config.mesh else {}),
            "waited": totals.waited, "step": totals.stepped, "batches": totals.batches,
            "samples": totals.samples, "bytes": totals.bytes, "queue": self._queue(), "workers": workers,
            "jpeg warnings": self._executor.on_cpu.warnings, "skipped": len(self.skipped),
            "bottleneck": bottleneck, "advice": advice,
            "input bound": totals.waited / total if total else 0.0,
            "to keep up": keep_up(totals, busy, self._sample_bytes, servers),
        }  # fmt: skip

    @functools.cached_property
    def _sample_bytes(self) -> float | None:
        return stored_bytes(self.reader, self.plan.fields)

    def _queue(self) -> dict[str, int]:
        """Count the batches of running epochs that are ready and that are being made."""
        queues = [epoch.queue for epoch in list(self._live) if not epoch.over]
        return {
            "ready": sum(ready for ready, _ in queues),
            "making": sum(making for _, making in queues),
            "prefetch_batches": self.prefetch_batches,
        }

    def dashboard(self, port: int | None = None) -> Any:
        """Show on a web page where time goes, while the loop runs; return the page, whose link is ``url``.

        The loaders of a process share a page, which ends with them. port: default any that is free.

        Raises: OptionError for a number that is no port.
        """
        if self._watch is None:
            self._watch = hooks.part("dashboard").watch(self, port)
        return self._watch

    # -- bridges to frameworks: the loader knows none of them, see batchplant.data.hooks ---------------

    def as_iterable_dataset(self) -> Any:
        """Return a torch IterableDataset of complete batches, for code that makes its own DataLoader."""
        return hooks.part("torch").as_iterable_dataset(self)

    def as_data_loader(self, **options: Any) -> Any:
        """Return a torch DataLoader of batches that are sharded already; options: those of DataLoader."""
        return hooks.part("torch").as_data_loader(self, **options)

    def as_map_dataset(self) -> Any:
        """Return a map-style torch dataset of samples, for trainers that sample and batch on their own."""
        return hooks.part("torch").MapDataset(self)

    def as_keras(self, inputs: Any, targets: Any = None, weights: str | None = None) -> Any:
        """Return data for ``model.fit(loader.as_keras("image", "label"))``; each is a field, or several."""
        return hooks.part("keras").KerasData(self, inputs, targets, weights)

    def _repr_html_(self) -> str:
        """Return its first batch, small, for notebooks."""
        return hooks.part("notebook").loader_html(self)

    def close(self) -> None:
        """Stop the running epochs and the engine's threads."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        for live in list(self._live):
            live.stop()
        # Closing the ops ends user functions that run in processes and may take long.
        for op in self.plan.ops:
            op.close()
        for live in list(self._live):
            live.close()
        if self._remote is not None:
            self._remote.close()
        if self._device is not None:
            self._device.close()
        self._executor.on_cpu.close()
        if self._decoded is not None:
            self._decoded.close()
        if self._recorder is not None:
            self._recorder.close()


def _unexpected_argument(name: str) -> TypeError:
    """Return the error for an argument that does not exist, with a hint at the one that was meant."""
    arguments = [field.name for field in dataclasses.fields(LoaderConfig)] + ["batch_axes", "sequence_axis"]
    options = [field.name for field in dataclasses.fields(DecodeOptions)]
    hint = near(name, arguments)
    if name in options:
        hint = f"; it is an option of decoding: decode=bp.DecodeOptions({name}=…)"
    if name in MOVED_ARGUMENTS:
        hint = f"; {MOVED_ARGUMENTS[name]}"
    if name in TORCH_ARGUMENTS:
        hint = f", which is one of torch's DataLoader: {TORCH_ARGUMENTS[name]}"
    if name in STORAGE_OPTIONS:
        hint = f"; open the source with it: bp.open(source, {name}=…)"
    return TypeError(f"Loader() got an unexpected keyword argument {name!r}{hint}")


def _next_shard(loader: Loader, epoch: int) -> Callable[[], orders.Batches | None]:
    """Return a function that gives the shard of the following epoch while the loader is alive."""
    reference = weakref.ref(loader)

    def shard() -> orders.Batches | None:
        alive = reference()
        return None if alive is None else alive._shard(epoch + 1, 0)

    return shard


def _remake(
    loader_class: type[Loader], reader: Reader, config: LoaderConfig, epoch: int, position: int, step: int,
    changes: tuple[Change, ...],
) -> Loader:  # fmt: skip
    loader = loader_class(reader, **vars(config))
    loader._ordering.changes = changes
    loader.go_to(epoch, position)
    loader._steps_before = step
    return loader


def _position_in(
    state: Mapping[str, Any], samples: int, seed: int, marks: Mapping[str, Any]
) -> tuple[int, int]:
    """Return epoch and position of a state, if it is of a loader with the same sequence of samples."""
    try:
        version, its_samples, its_seed = state["version"], state["samples"], state["seed"]
        epoch, position = int(state["epoch"]), int(state["position"])
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"this is no state of a loader: {error!r}") from None
    if version != STATE_VERSION:
        raise OptionError(f"the state is of version {version}, and this reads version {STATE_VERSION}")
    if its_samples != samples:
        raise OptionError(f"the state is of a dataset of {its_samples} samples, this has {samples}")
    difference = orders.difference({**state, "seed": its_seed}, {"seed": seed, **marks})
    if difference is not None:
        raise OptionError(difference)
    return epoch, position


def _check_mixture(state: Mapping[str, Any], mix: Mix, samples: int) -> None:
    """Raise OptionError if a state is of another mixture and in the middle of an epoch, where it matters."""
    mark = state.get("mixture")
    if not isinstance(mark, Mapping) or (not state.get("position") and state.get("samples") == samples):
        return
    difference = mix.difference(mark)
    if difference is not None:
        raise OptionError(
            f"the mixture is not the one that the state was made with: {difference}; go on with the same "
            "mixture, or begin an epoch"
        )


def _matching_samples(
    reader: Reader, numbers: I64, names: Sequence[str], predicate: Callable[..., bool]
) -> I64:
    """Return those of these samples whose values in the named fields fulfil ``predicate``."""
    schema = reader.schema.select(names)
    matches = []
    for start in range(0, len(numbers), FILTER_CHUNK_ROWS):
        chunk = numbers[start : start + FILTER_CHUNK_ROWS]
        columns = reader.read(chunk, names)
        mask = np.zeros(len(chunk), dtype=np.bool_)
        for row, sample in enumerate(chunk):
            values = []
            for name in names:
                try:
                    values.append(decode_cell(schema[name], columns[name], row))
                except BatchplantError as error:
                    path = reader.where(int(sample))
                    raise error.at(path=path, sample=int(sample), field=name) from None
            mask[row] = bool(predicate(*values))
        matches.append(chunk[mask])
    return np.concatenate(matches) if matches else numbers
