"""The cache of decoded images: ``Loader(cache="decoded")``.

A cached image is a cell of raw pixels, which the engine takes like any other cell. So a batch is the same,
bit for bit, whether its images were cached or not. If a decoder crops an image in the same way in every epoch
(``Resize``, ``CenterCrop``), the result is cached; if it draws a box, the full image. Images that do not fit
into the cache, or cannot be decoded, are decoded in every epoch.

``CachedImages`` holds the images of one kind in a ``CacheMemory``; ``CachingBackend`` decodes into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..errors import AccessError, DecodeError, OptionError
from ..ops.crops import CenterCrop, Decode, Resize, whole_boxes
from ..ops.cutting import Cuts
from ..ops.parallel import Threads
from ..order.ranks import local_world_size
from ..schema.columns import I32, I64, U8, Flags
from ..storage.platform import memory_limit
from ..storage.settings import DEFAULT_CACHE_BYTES, bytes_of
from ..storage.spans import Located
from .images import OnCpu, Request, Result
from .plan import Output, Plan
from .stage import LONGEST_SIDE, Target

# Disk space is allocated in steps of this before it is written to: on a full disk, writing to a mapped file
# would kill the process.
ALLOCATION_BYTES = 64 << 20
# In place of an address: a thread is about to cache the image, or it cannot be cached.
CLAIMED = -1
# Decoders whose boxes depend on nothing but the size of the image.
FIXED_BOXES = (Decode.boxes, Resize.boxes, CenterCrop.boxes)


class CacheMemory:
    """Memory, or an unnamed file in ``folder``, of which at most ``max_bytes`` are handed out."""

    def __init__(
        self, max_bytes: int, folder: str | None = None, *, allocation_bytes: int = ALLOCATION_BYTES
    ) -> None:
        self.max_bytes, self.used, self._allocation_bytes = max_bytes, 0, allocation_bytes
        self._lock = threading.Lock()
        self._file: int | None = None
        # Bytes of the file that have disk space.
        self._allocated = 0
        self.data: U8 = np.empty(0, dtype=np.uint8)
        try:
            if folder is None:
                # The system provides pages when they are written to.
                self.data = np.empty(max_bytes, dtype=np.uint8)
            elif max_bytes:
                self._map(folder)
        except MemoryError:
            raise OptionError(
                f"there is no memory for a DecodedCache of {max_bytes:,} bytes; give less, or a folder: dir="
            ) from None
        except OSError as error:
            raise AccessError(f"decoded images cannot be kept there: {error.strerror}", path=folder) from None

    def _map(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        # Without a name, nothing is left of it however the process ends.
        with tempfile.TemporaryFile(dir=folder) as file:
            os.ftruncate(file.fileno(), self.max_bytes)
            self.data = np.frombuffer(mmap.mmap(file.fileno(), self.max_bytes), dtype=np.uint8)
            self._file = os.dup(file.fileno())

    @property
    def room(self) -> int:
        return self.max_bytes - self.used

    def take(self, size: int, count: int) -> tuple[int, int]:
        """Reserve space for up to ``count`` images of ``size`` bytes; returns its start and their number."""
        with self._lock:
            count = min(count, self.room // size)
            if self._file is not None and self.used + count * size > self._allocated:
                self._allocate(self.used + count * size)
                count = min(count, self.room // size)
            start, self.used = self.used, self.used + count * size
            return start, count

    def _allocate(self, end: int) -> None:
        """Allocate disk space up to ``end``, and some more; a full disk becomes the limit."""
        assert self._file is not None
        end = min(self.max_bytes, -(-end // self._allocation_bytes) * self._allocation_bytes)
        try:
            os.posix_fallocate(self._file, self._allocated, end - self._allocated)
            self._allocated = end
        except OSError:
            self.max_bytes = self._allocated

    def close(self) -> None:
        """Release the memory; views of it stay valid."""
        with self._lock:
            self.max_bytes, self.data = self.used, np.empty(0, dtype=np.uint8)
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            # `__init__` may have failed before it set the attribute.
            file: int | None = getattr(self, "_file", None)
            if file is not None:
                os.close(file)


class CacheKey(NamedTuple):
    """Properties that images in one cache have in common; ``crop``: how they are cropped, None if not."""

    field: str
    mode: str
    orient: bool
    crop: str | None


class CachedImages:
    """Images of one kind, by sample; ``fixed``: they are cropped and resized."""

    def __init__(self, memory: CacheMemory, samples: int, target: Target, *, fixed: bool) -> None:
        self.memory, self.fixed, self.size = memory, fixed, (target.height, target.width)
        self.channels = target.channels
        # Start of each image plus 1: pages of zeros take no memory until they are written to.
        self._address = np.zeros(samples, dtype=np.int64)
        # Height and width; zeros for images that are cropped and resized.
        self._sides = np.zeros((samples, 2), dtype=np.uint16)
        self._lock = threading.Lock()
        self.count, self.hits, self.misses = 0, 0, 0

    def holds(self, ids: I64) -> Flags:
        return self._address[ids] > 0

    def free(self, ids: I64) -> Flags:
        """Return which are neither cached nor claimed."""
        return self._address[ids] == 0

    def claim(self, ids: I64) -> Flags:
        """Claim free images for the caller, who will cache them; returns which they are."""
        with self._lock:
            claimed = np.zeros(len(ids), dtype=np.bool_)
            # An order may have a sample twice in a batch.
            claimed[np.unique(ids, return_index=True)[1]] = True
            claimed &= self.free(ids)
            self._address[ids[claimed]] = CLAIMED
            return claimed

    def put(self, ids: I64, starts: I64, size: tuple[int, int] | None) -> None:
        """Record where images were decoded to; ``size`` None: cropped and resized by the decoder."""
        self._sides[ids] = size or (0, 0)
        with self._lock:
            self._address[ids] = starts + 1
            self.count += len(ids)

    def locate(self, ids: I64) -> tuple[I64, I32, Flags]:
        """Return the starts of cached images, their shapes, and which are cropped and resized already."""
        sides = self._sides[ids].astype(np.int32)
        ready = (sides == 0).all(axis=1)
        sides[ready] = self.size
        shape = np.column_stack([sides, np.full(len(ids), self.channels, dtype=np.int32)])
        return self._address[ids] - 1, np.ascontiguousarray(shape, dtype=np.int32), ready

    def find(self, ids: I64, find: Callable[[I64], Located]) -> tuple[Located, Flags]:
        """Return the cells of these samples, and which of them are cropped and resized already.

        ``find`` returns the cells of samples that are not cached.
        """
        cached = self.holds(ids)
        rows = np.flatnonzero(cached)
        start, shape, cropped = self.locate(ids[rows])
        ready = np.zeros(len(ids), dtype=np.bool_)
        ready[rows] = cropped
        if len(rows) == len(ids):
            self._count(len(rows), 0)
            size = shape.prod(axis=1, dtype=np.int64)
            return Located([self.memory.data], np.zeros(len(ids), np.int32), start, size, shape), ready
        missing = np.flatnonzero(~cached)
        cells = find(ids[missing])
        self._count(len(rows), int((~cells.raw).sum()))
        if not len(rows):
            return cells, ready
        base, starts, sizes = np.zeros(len(ids), np.int32), np.zeros(len(ids), np.int64), np.zeros_like(ids)
        shapes = np.zeros((len(ids), 3), dtype=np.int32)
        base[missing], starts[missing], sizes[missing] = cells.base, cells.start, cells.size
        if cells.shape is not None:
            shapes[missing] = cells.shape
        return self.replace(Located(cells.bases, base, starts, sizes, shapes), rows, start, shape), ready

    def replace(self, cells: Located, rows: I64, start: I64, shape: I32) -> Located:
        """Return the cells, with cached images in these rows."""
        base, starts, sizes = cells.base.copy(), cells.start.copy(), cells.size.copy()
        shapes = np.zeros((len(base), 3), np.int32) if cells.shape is None else cells.shape.copy()
        base[rows], starts[rows], shapes[rows] = len(cells.bases), start, shape
        sizes[rows] = shape.prod(axis=1, dtype=np.int64)
        return Located([*cells.bases, self.memory.data], base, starts, sizes, shapes)

    def _count(self, hits: int, misses: int) -> None:
        with self._lock:
            self.hits += hits
            self.misses += misses


class CachingBackend:
    """A :class:`~batchplant.loading.images.Backend` that caches what it decodes for the first time.

    ``full``: full images may be cached where they are smaller than cropped and resized ones.
    """

    def __init__(self, on_cpu: OnCpu, cache: CachedImages, *, full: bool) -> None:
        self._on_cpu, self._cache, self._full = on_cpu, cache, full
        # Not the engine's threads, which the images of each call may need.
        self._threads = Threads(on_cpu.engine.threads)

    def close(self) -> None:
        self._threads.close()

    def begin(self, request: Request) -> Callable[[], Result]:
        if not len(self._candidates(request)[0]):
            return self._on_cpu.begin(request)
        return lambda: self._on_cpu.begin(self._cached(request))()

    def _candidates(self, request: Request) -> tuple[I64, I64]:
        """Return the rows that are encoded and may fit into the cache, and the sizes to cache them in.

        They are cached cropped and resized, or as full images where these are smaller.
        """
        rows = np.flatnonzero(~request.cells.raw & self._cache.free(request.ids))
        target, sizes = request.target, request.sizes[rows].astype(np.int64)
        if self._cache.fixed:
            larger = sizes.prod(axis=1) >= target.height * target.width
            sizes[larger | ~sizes.all(axis=1) | (not self._full)] = (target.height, target.width)
        fits = sizes.prod(axis=1) * target.channels <= self._cache.memory.room
        # Some headers tell no size.
        fits &= sizes.all(axis=1) & (sizes <= LONGEST_SIDE).all(axis=1)
        return rows[fits], sizes[fits]

    def _cached(self, request: Request) -> Request:
        """Cache what is possible; returns the request with those rows as raw pixels."""
        cache, (rows, sizes) = self._cache, self._candidates(request)
        claimed = cache.claim(request.ids[rows])
        rows, sizes = rows[claimed], sizes[claimed]
        groups = [
            ((high, wide), rows[(sizes == (high, wide)).all(axis=1)])
            for high, wide in np.unique(sizes, axis=0).tolist()
        ]
        decoded = self._threads.each(len(groups), lambda n: self._decode(request, *groups[n]))
        rows = np.concatenate([rows[:0], *decoded])
        start, shape, ready = cache.locate(request.ids[rows])
        new_sizes, boxes = request.sizes.copy(), request.boxes.copy()
        new_sizes[rows] = shape[:, :2]
        boxes[rows[ready]] = whole_boxes(shape[ready, :2])
        cells = cache.replace(request.cells, rows, start, shape)
        return dataclasses.replace(request, cells=cells, sizes=new_sizes, boxes=boxes)

    def _decode(self, request: Request, size: tuple[int, int], rows: I64) -> I64:
        """Decode images of one size into the cache; returns the rows that were."""
        cache, pixels = self._cache, request.target.pixels
        ready = cache.fixed and size == cache.size
        image_bytes = size[0] * size[1] * pixels.channels
        start, count = cache.memory.take(image_bytes, len(rows))
        rows = rows[:count]
        if not count:
            return rows
        out = cache.memory.data[start : start + count * image_bytes].reshape(count, *size, pixels.channels)
        if ready:
            part = dataclasses.replace(request.part(rows, pixels), flips=None, downs=None)
        else:
            full = dataclasses.replace(
                pixels, height=size[0], width=size[1], filter="nearest", as_stored=False, collate=None
            )
            boxes = whole_boxes(request.sizes[rows])
            part = dataclasses.replace(
                request.part(rows, full), flips=None, downs=None, places=None, boxes=boxes, redraw=_refuse
            )
        failed = self._on_cpu.decode(part, out)
        starts = start + image_bytes * np.arange(count)
        good = np.delete(np.arange(count), list(failed))
        cache.put(request.ids[rows[good]], starts[good], None if ready else size)
        return rows[good]


def _refuse(row: int, size: tuple[int, int]) -> Cuts:
    raise DecodeError(f"the image is {size[1]}×{size[0]}, and its header says otherwise")


@dataclasses.dataclass(frozen=True)
class DecodedCache:
    """A cache of decoded images for later epochs: ``Loader(…, cache=DecodedCache("2GB"))``.

    bytes: how much at most, as in ``"2GB"`` (default: a quarter of the memory). dir: keep them in a file
    there, not in memory.
    """

    bytes: int | str | None = None
    dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            bytes_of("bytes", self.bytes)

    @property
    def max_bytes(self) -> int:
        if self.bytes is not None:
            return bytes_of("bytes", self.bytes)
        return DEFAULT_CACHE_BYTES if self.dir is not None else memory_limit() // 4 // local_world_size()


def checked_cache(
    cache: str | DecodedCache | bool | None, backend: str | None
) -> DecodedCache | str | bool | None:
    """Return the ``cache`` of a Loader, checked; ``"decoded"`` stands for a DecodedCache with defaults."""
    if cache in (None, False, "pages"):
        return cache
    if cache != "decoded" and not isinstance(cache, DecodedCache):
        raise OptionError(
            f'cache is "decoded", a DecodedCache, "pages", False or None, not {cache!r}; what comes from a '
            "server is kept by bp.open(…, cache=…, cache_bytes=…)"
        )
    if backend is not None:
        raise OptionError(
            f'cache="decoded" keeps pixels that the CPU made, and decode={backend!r} makes others on the '
            "device: leave one of them out"
        )
    return cache if isinstance(cache, DecodedCache) else DecodedCache()


class DecodedImages:
    """The decoded images of a loader; outputs that decode a field alike share them.

    ``by_output``: the images of an output, and the back end that fills them.
    """

    def __init__(
        self, options: DecodedCache, plan: Plan, samples: int, on_cpu: OnCpu, *, fast_scale: bool
    ) -> None:
        folder = None if options.dir is None else os.fspath(options.dir)
        self.memory = CacheMemory(options.max_bytes, folder)
        self._by_key: dict[CacheKey, CachedImages] = {}
        self.by_output: dict[str, tuple[CachedImages, CachingBackend]] = {}
        for output in plan.images:
            key = _cache_key(output, fast_scale)
            assert output.image is not None
            target, fixed = output.image.target, key.crop is not None
            images = self._by_key.get(key) or CachedImages(self.memory, samples, target, fixed=fixed)
            self._by_key[key] = images
            self.by_output[output.name] = images, CachingBackend(on_cpu, images, full=not fast_scale)

    def close(self) -> None:
        """Release threads and memory, once no batch is being made."""
        for _, backend in self.by_output.values():
            backend.close()
        self.memory.close()

    def holds(self, ids: I64) -> Flags:
        """Return the samples of which all images are cached."""
        cached = np.ones(len(ids), dtype=np.bool_)
        for images in self._by_key.values():
            cached &= images.holds(ids)
        return cached

    def stats(self, samples: int) -> dict[str, Any]:
        """Return cache hits and misses, bytes, and the share of images that are cached."""
        caches = self._by_key.values()
        images = samples * len(caches)
        return {
            "cache hits": sum(cache.hits for cache in caches),
            "cache misses": sum(cache.misses for cache in caches),
            "cache bytes": self.memory.used, "cache limit": self.memory.max_bytes,
            "cache share": sum(cache.count for cache in caches) / images if images else 0.0,
        }  # fmt: skip


def _cache_key(output: Output, fast_scale: bool) -> CacheKey:
    assert output.image is not None
    decoder, target = output.image.decoder.op, output.image.target
    crop = None
    if output.image.plain and type(decoder).boxes in FIXED_BOXES:
        crop = f"{decoder!r} {target.filter} {target.height} {target.width}"
    elif fast_scale:
        raise OptionError(
            f"with fast_scale, images are not decoded whole, and {decoder!r} needs another part in every "
            'epoch: leave out fast_scale or cache="decoded"',
            field=output.name,
        )
    return CacheKey(output.field, target.mode, decoder.orient, crop)
