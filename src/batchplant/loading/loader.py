"""The Loader: epochs of batches, made in the background, in an exact order that can be resumed anywhere."""

from __future__ import annotations

import inspect
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .. import order as orders
from ..codecs.tokenizers import limit_threads
from ..data import hooks
from ..data.mix import Mix
from ..data.reader import Reader
from ..errors import OptionError, Problem
from ..formats.registry import open as open_reader
from ..schema.columns import I64
from .advice import Traffic, warn_of_obstacles
from .balance import make_sizes
from .batch import Executor
from .bridges import Bridges
from .buffers import Buffers
from .convoy import Pace
from .decoded import Decoded, Wish
from .epoch import Delivery, Epoch, Progress, Tally, after, check_process
from .images import DecodeOptions, Device
from .joining import Joint
from .matching import matching
from .on_cpu import OnCpu
from .ordering import Ordering, make_buckets
from .packed import Packing
from .packing import Pack
from .pipes import Pipelines
from .planned import Planned
from .planning import make_plan
from .replay import Replaying
from .state import STATE_VERSION, check_mixture, place_in
from .stats import Stats

# How nice the engine's threads are to those that feed a device: they do little, but must do it at once.
BESIDE_A_DEVICE = 10
# Pieces of pinned memory that are kept for batches that are under way to a device.
UNDER_WAY = 16


class Loader(Bridges, Planned, Replaying, Stats):
    """Batches of a dataset, epoch after epoch: ``for batch in Loader("train.beton", 256, order="random")``.

    source: a Reader or what :func:`batchplant.open` takes. order: ``sequential``, ``random``, ``shards``,
    ``quasi_random``, ``windowed``, an array of sample numbers, or a function; see :mod:`batchplant.order`.
    pipelines: ops for each field, None to leave one out; see :class:`batchplant.Pipe`. joint: steps
    that see several fields, behind all pipelines, see :class:`batchplant.ops.Map`. indices: only these
    samples. rank, world_size: this process among many (default: as torch.distributed or the environment says
    when an epoch begins). drop_last: only full batches. evaluate: a rank that nothing is left for at the end
    has one batch fewer, not an empty one. balance: ``size`` gives ranks equal bytes at every step, not equal
    numbers of samples; sizes: what counts instead of bytes, a field, a number for every sample, or a function
    of sample numbers. bucket_by_length: batches of samples that are about as long, by a field (True: the only
    one that varies), a number for every sample, or a function; ``order_options`` has ``bucket_window`` (so
    many batches are sorted together) and ``bucket_run`` (so many that are alike follow each other, one for
    each rank). bucket_by: ``aspect`` for batches of images of about one aspect, as their headers say. pack:
    rows of tokens in place of samples, see :class:`Pack`; batch_size counts rows.
    workers: decoding threads (default: all cores, divided by LOCAL_WORLD_SIZE); cpus: the cores they stay on.
    ahead: batches made in advance. device: a torch device, for tensors there; None for NumPy. images: how
    they are made, see :class:`DecodeOptions`; its options can also be given directly, as in
    ``decode="hybrid"``. on_error: ``raise``, or ``skip`` to leave out what cannot be read and list it in
    ``skipped``. ids: add the sample numbers as ``ids``. cache: ``decoded`` keeps images as they come out of
    the decoder, for the epochs that follow; cache_bytes: how much at most (default: a quarter of the memory);
    cache_dir: in a file there, not in memory. page_cache: whether local files are read through it (default:
    images of more bytes than there is memory are not). order_options: as in ``{"window": 64}``, and
    ``{"lanes": world_size}`` for ranks that read from a bucket. source_options: as in ``{"cache": "/data"}``.
    dashboard: True, or a port, to see on a web page where time goes; the link is printed, and
    ``loader.dashboard.url``.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        order: Any = "sequential",
        pipelines: Pipelines | None = None,
        joint: Joint = (),
        indices: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        evaluate: bool = False,
        balance: str | None = None,
        sizes: Any = None,
        bucket_by_length: Any = None,
        bucket_by: str | None = None,
        pack: Pack | None = None,
        workers: int | None = None,
        cpus: list[int] | None = None,
        ahead: int = 3,
        device: Any = None,
        images: DecodeOptions | None = None,
        on_error: str = "raise",
        ids: bool = False,
        page_cache: bool | None = None,
        cache: str | None = None,
        cache_bytes: int | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        order_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
        dashboard: bool | int | None = None,
        **image_options: Any,
    ) -> None:
        if batch_size < 1 or ahead < 1:
            raise OptionError(f"batch_size and ahead are at least 1, not {batch_size} and {ahead}")
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error is raise or skip, not {on_error!r}")
        if evaluate and drop_last:
            raise OptionError("evaluate needs every sample, and drop_last leaves some out: give one of them")
        if images is not None and not isinstance(images, DecodeOptions):
            raise OptionError(f"images is a DecodeOptions, not {images!r}")
        images = (images or DecodeOptions()).but(image_options, inspect.signature(Loader).parameters)
        if order_options and "lanes" in order_options:
            order_options = {"lane_size": batch_size, **order_options}
        if bucket_by is not None or (bucket_by_length is not None and bucket_by_length is not False):
            if pack is not None or balance is not None:
                raise OptionError("batches are made by length, by pack or by balance: give one of them")
            order_options = {"bucket_size": batch_size, **(order_options or {})}
        if page_cache not in (None, True, False):
            raise OptionError(f"page_cache is True, False or None (by itself), not {page_cache!r}")
        self._options = {
            "order": order, "pipelines": pipelines, "joint": joint, "rank": rank, "world_size": world_size,
            "drop_last": drop_last, "evaluate": evaluate, "balance": balance, "sizes": sizes, "pack": pack,
            "bucket_by_length": bucket_by_length, "bucket_by": bucket_by, "seed": seed,
            "workers": workers, "cpus": cpus, "ahead": ahead, "device": device, "images": images,
            "on_error": on_error, "ids": ids, "page_cache": page_cache, "order_options": order_options,
            "cache": cache, "cache_bytes": cache_bytes, "cache_dir": cache_dir, "dashboard": False,
        }  # fmt: skip
        wish = Wish.of(cache, cache_bytes, cache_dir, decode=images.decode)
        self.reader = source if isinstance(source, Reader) else open_reader(source, **(source_options or {}))
        self.indices: I64 | None = None if indices is None else self.reader._check(indices)
        self.samples = len(self.reader) if self.indices is None else len(self.indices)
        self.batch_size, self.drop_last, self.ahead, self.seed = batch_size, drop_last, ahead, seed
        if rank is not None and world_size is not None:
            orders.rank_and_world_size(rank, world_size)
        self.plan = make_plan(self.reader, pipelines, joint, on_device=images.decode is not None)
        self._sizes = make_sizes(self.reader, self.plan.fields, self.indices, balance, sizes)
        if ids and any(output.name == "ids" for output in self.plan.outputs):
            raise OptionError("ids=True adds the sample numbers as ids, and a field has that name already")
        self._delivery: Delivery | None = None
        if device is not None:
            # The loader knows no framework; a device names one.
            self._delivery = hooks.part("torch").Delivery(device)
        images.check(device)
        buckets = make_buckets(self.reader, self.plan, self.indices, bucket_by_length, bucket_by)
        self._ordering = Ordering(self.reader, order, order_options, self.indices, seed, buckets)
        self._epoch, self._position = 0, 0
        # How many states were loaded.
        self.loaded = 0
        # Of so many processes that share the batches of this rank, the one that we are.
        self._turn = (0, 1)
        self._progress: Progress | None = None
        self._live: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self._closed, self._process = False, os.getpid()
        self._threads = workers or (len(cpus) if cpus else orders.default_threads())
        engine = _native.Engine(self._threads, cpus, nice=0 if images.decode is None else BESIDE_A_DEVICE)
        self._device: Device | None = None
        on_cpu = self._on_cpu(engine)
        if self._delivery is not None and images.decode is not None:
            self._device = self._delivery.images(on_cpu, images.decode, images.gpu_share, ahead)
            warn_of_obstacles(self.plan, images.decode)
        self._decoded: Decoded | None = None
        if wish is not None:
            self._decoded = Decoded(wish, self.plan, len(self.reader), on_cpu, fast_scale=images.fast_scale)
        self._executor = Executor(
            self.reader, self.plan, on_cpu, self._device, seed=seed, skip=on_error == "skip",
            decoded=self._decoded,
        )  # fmt: skip
        self._pace = Pace(ahead, possible=self._executor.joins and pack is None)
        self._packing: Packing | None = None
        if pack is not None:
            if balance is not None:
                raise OptionError("packed rows are of one size already: give pack or balance")
            if joint:
                raise OptionError("joint steps see samples, and packed rows are none: give pack or joint")
            # Four arrays of a batch may be of one size.
            rows = self._buffers(4 * (ahead + 2))
            self._packing = Packing(pack, self.reader, self.plan, self._executor, self.indices, rows)
        self._tally = Tally()
        self._traffic = Traffic(self.reader, self.plan.fields)
        self._watched(dashboard)

    def _on_cpu(self, engine: _native.Engine) -> OnCpu:
        images: DecodeOptions = self._options["images"]
        # For a device, more batches may be under way.
        keep = self.ahead + (2 if images.decode is None else UNDER_WAY)
        return OnCpu(engine, self._buffers(keep), dct=images.dct, fast_scale=images.fast_scale)

    def _buffers(self, keep: int) -> Buffers:
        return Buffers(keep, self._delivery.allocate if self._delivery else None)

    def __repr__(self) -> str:
        parts = [f"{self.samples:,} samples", f"batches of {self.batch_size:,}"]
        order = self._options["order"]
        parts.append(f"order {order}" if isinstance(order, str) else "an order of your own")
        rank, world_size = self._place()
        parts += [f"rank {rank} of {world_size}"] if world_size > 1 else []
        parts.append(f"{self._threads} threads")
        parts += [f"on {self._options['device']}"] if self._delivery is not None else []
        state = "closed" if self._closed else f"epoch {self._epoch}"
        return f"<Loader of {self.reader.path}: {', '.join(parts)}; {state}>"

    @property
    def skipped(self) -> list[Problem]:
        """What was left out so far, with on_error="skip"."""
        return self._tally.skipped

    @property
    def rank(self) -> int:
        """Which process this is among many, as far as is known now; an epoch asks when it begins."""
        return self._place()[0]

    @property
    def world_size(self) -> int:
        """How many processes share the samples."""
        return self._place()[1]

    def _place(self) -> tuple[int, int]:
        return orders.rank_and_world_size(self._options["rank"], self._options["world_size"])

    # -- epochs ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank: of the one under way, else of the next.

        A resumed epoch counts as a whole, as trainers expect; ``len(iter(loader))`` is what is left of it.
        """
        for live in list(self._live):
            if live.progress is not None and live.progress is self._progress and not live.over:
                return len(self._shard(live.progress.epoch, 0))
        return len(self._shard(self._epoch, 0))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The next epoch, or the rest of the one that a loaded state was in.

        It begins with its first batch: an iterator that nobody takes anything from, as some trainers make,
        counts for nothing.
        """
        check_process(self._process)
        if self._closed:
            raise OptionError("the loader is closed")
        epoch = Epoch(
            self._executor, self._delivery, self._begin, self._tally,
            indices=self.indices, pace=self._pace,
            ids=self._options["ids"], page_cache=self._options["page_cache"],
        )  # fmt: skip
        self._live.add(epoch)
        return epoch

    def _begin(self, count: bool = True) -> Progress:
        """The epoch that is next; unless it is only to be looked at, the one after it is next then."""
        with self._tally.lock:
            progress = Progress(
                self._epoch, self._shard(self._epoch, self._position), after=after(self, self._epoch)
            )
            if count:
                self._traffic.warn(
                    self._options["order"],
                    self._options["order_options"] or {},
                    self.world_size,
                    self.batch_size,
                )
                self._epoch, self._position, self._progress = self._epoch + 1, 0, progress
        return progress

    def _shard(self, epoch: int, start: int, place: tuple[int, int] | None = None) -> orders.Batches:
        rank, world_size = place or self._place()
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "start": start,
            "pad": "skip" if self._options["evaluate"] else "none",
        }
        order = self._make_order(epoch)
        whole: orders.Batches
        if self._packing is not None:
            whole = self._packing.shard(order, epoch, **options)
        else:
            whole = orders.shard(order, sizes=self._sizes, **options)
        return whole if self._turn == (0, 1) else orders.Turns(whole, *self._turn)

    def _make_order(self, epoch: int) -> orders.Order:
        return self._ordering.make(epoch)

    def ids_at(self, positions: I64) -> I64:
        """The samples that stand at these places of ``indices``."""
        return positions if self.indices is None else self.indices[positions]

    # -- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the last batch that was given out; small, and JSON can hold it.

        Of several epochs under way, it is the one begun last.
        """
        epoch, position, order = self._epoch, self._position, None
        if self._progress is not None and not self._progress.finished:
            epoch, position = self._progress.epoch, self._progress.position
            order = self._progress.shard.order
        elif position:
            order = self._make_order(epoch)
        return {
            "version": STATE_VERSION, "epoch": epoch, "position": position, "seed": self.seed,
            "samples": self.samples, **self._ordering.marks(),
            **({"mixture": self.reader.mark()} if isinstance(self.reader, Mix) else {}),
            "drawn": self._drawn(order) if position else None,
            **(self._packing.state(epoch, position) if self._packing else {}),
        }  # fmt: skip

    def _drawn(self, order: orders.Order | None) -> int | None:
        """A checksum of an epoch that was begun; None where it need not be the same everywhere."""
        return None if order is None else orders.drawn(order)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, exactly, with any number of workers and ranks, and any batch size."""
        marks = {**self._ordering.marks(), **({"pack": self._packing.mark} if self._packing else {})}
        if isinstance(self.reader, Mix):
            check_mixture(state, self.reader, self.samples)
        epoch, position = place_in(state, self.samples, self.seed, marks)
        if self._packing is not None:
            self._packing.go_to(epoch, state.get("window"))
        # Says so where there is no such place.
        own = self._drawn(self._shard(epoch, position).order) if position else None
        if own is not None and state.get("drawn") not in (None, own):
            raise OptionError(
                f"the order of epoch {epoch} is not the one that the state was made with: another function, "
                "a file with other blocks, or a mixture with other weights"
            )
        self.go_to(epoch, position)
        self.loaded += 1

    # -- what else it can do ---------------------------------------------------------------------------

    def filter(self, field: str | Sequence[str], predicate: Callable[..., bool]) -> Loader:
        """A loader of the samples whose value in ``field`` fulfils ``predicate``.

        Of several fields, ``predicate`` gets their values one after another:
        ``loader.filter(["width", "height"], lambda width, height: width > height)``.
        """
        names = [field] if isinstance(field, str) else list(field)
        if not names:
            raise OptionError("filter needs at least one field")
        numbers = np.arange(len(self.reader)) if self.indices is None else self.indices
        found = matching(self.reader, numbers, names, predicate)
        return type(self)(self.reader, self.batch_size, indices=found, **self._options)

    def part(self, number: int, parts: int, rank: int, world_size: int) -> Loader:
        """What one of several worker processes makes for a rank: every ``parts``-th batch from ``number`` on.

        Taken in turn, their batches are those of the rank, in order.
        """
        if self._device is not None or (self._delivery is not None and self._delivery.elsewhere):
            raise OptionError("batches for a device are not made in worker processes: use num_workers=0")
        # What is open before a fork shares its place in the file with the other process.
        reader = self.reader if os.getpid() == self._process else pickle.loads(pickle.dumps(self.reader))
        threads = max(1, self._threads // parts)
        limit_threads(threads)
        options = {
            **self._options,
            "rank": rank,
            "world_size": world_size,
            "workers": threads,
            "indices": self.indices,
        }
        if self._decoded is not None:
            options["cache_bytes"] = self._decoded.store.most // parts
        made = type(self)(reader, self.batch_size, **options)
        made._turn = (number, parts)
        return made

    def go_to(self, epoch: int, position: int = 0) -> None:
        """Go on at a place of an epoch."""
        self._epoch, self._position, self._progress = epoch, position, None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """By its arguments and its state: a copy opens the source again and goes on from here."""
        state = self.state_dict()
        options = {**self._options, "indices": self.indices}
        return _remake, (type(self), self.reader, self.batch_size, options, state["epoch"], state["position"])

    def close(self) -> None:
        """Stop the running epochs and the engine's threads."""
        self._closed = True
        self._unwatched()
        for live in list(self._live):
            live.stop()
        # A function may take long, and in a process it can be ended.
        for op in self.plan.ops:
            op.close()
        for live in list(self._live):
            live.close()
        if self._device is not None:
            self._device.close()
        self._executor.on_cpu.close()
        if self._decoded is not None:
            self._decoded.close()


def _remake(
    kind: type[Loader], reader: Reader, batch_size: int, options: dict[str, Any], epoch: int, position: int
) -> Loader:
    made = kind(reader, batch_size, **options)
    made.go_to(epoch, position)
    return made
