"""Images that were decoded once, kept for the epochs that follow: ``Loader(cache="decoded")``.

What is kept becomes a cell of raw pixels, which the engine takes as it takes any other. So a batch is the
same, bit for bit, whether its images were kept or not. Where a decoder cuts an image in the same way in
every epoch (``Resize``, ``CenterCrop``), the result is kept; where it draws a box, the whole image. What
does not fit, or cannot be decoded, takes the usual way.
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
import numpy.typing as npt

from ..errors import AccessError, DecodeError, OptionError
from ..ops.cutting import Cuts
from ..ops.decode import CenterCrop, Decode, Resize, whole_boxes
from ..ops.each import Threads
from ..order.world import local_world_size
from ..schema.columns import I32, I64, U8
from ..storage.settings import DEFAULT_CACHE_BYTES, bytes_of
from .images import Request, Result
from .locate import Located
from .on_cpu import OnCpu
from .plan import Output, Plan
from .stage import LONGEST_SIDE, Target

# Disk space is taken in steps of this, before it is written to: on a full disk, writing to a mapped file
# would kill the process.
STEP = 64 << 20
# Instead of a place: somebody is about to keep the image, or it could not be kept, nor can it be later.
CLAIMED = -1
# Their boxes depend on nothing but the size of the image.
FIXED = (Decode.boxes, Resize.boxes, CenterCrop.boxes)


class Store:
    """Memory, or a file without a name in ``folder``, of which at most ``most`` bytes are given out."""

    def __init__(self, most: int, folder: str | None = None) -> None:
        self.most, self.used = most, 0
        self._lock = threading.Lock()
        self._file: int | None = None
        # Of the file, what the disk has promised.
        self._promised = 0
        self.data: U8 = np.empty(0, dtype=np.uint8)
        try:
            if folder is None:
                # The system gives pages when they are written to.
                self.data = np.empty(most, dtype=np.uint8)
            elif most:
                self._map(folder)
        except MemoryError:
            raise OptionError(
                f"there is no memory for cache_bytes={most:,}; give less, or name a folder: cache_dir="
            ) from None
        except OSError as error:
            raise AccessError(f"decoded images cannot be kept there: {error.strerror}", path=folder) from None

    def _map(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        # It has no name, so that nothing is left of it, however the process ends.
        with tempfile.TemporaryFile(dir=folder) as file:
            os.ftruncate(file.fileno(), self.most)
            self.data = np.frombuffer(mmap.mmap(file.fileno(), self.most), dtype=np.uint8)
            self._file = os.dup(file.fileno())

    @property
    def room(self) -> int:
        return self.most - self.used

    def take(self, size: int, count: int) -> tuple[int, int]:
        """Room for up to ``count`` images of ``size`` bytes: where it begins, and for how many it is."""
        with self._lock:
            count = min(count, self.room // size)
            if self._file is not None and self.used + count * size > self._promised:
                self._promise(self.used + count * size)
                count = min(count, self.room // size)
            start, self.used = self.used, self.used + count * size
            return start, count

    def _promise(self, end: int) -> None:
        """Have the disk promise the bytes up to ``end``, and some more; where it is full, that is all."""
        assert self._file is not None
        end = min(self.most, -(-end // STEP) * STEP)
        try:
            os.posix_fallocate(self._file, self._promised, end - self._promised)
            self._promised = end
        except OSError:
            self.most = self._promised

    def close(self) -> None:
        """Give everything back, once nobody uses it."""
        with self._lock:
            self.most, self.data = self.used, np.empty(0, dtype=np.uint8)
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            if getattr(self, "_file", None) is not None:
                os.close(self._file)  # type: ignore[arg-type]


class Kind(NamedTuple):
    """Of which field images are, in which mode, turned or not; and ``made`` how, if they are not whole."""

    field: str
    mode: str
    orient: bool
    made: str | None


class Shelf:
    """Images of one kind, by sample."""

    def __init__(self, store: Store, samples: int, target: Target, *, fixed: bool) -> None:
        self.store, self.fixed, self.size = store, fixed, (target.height, target.width)
        self.channels = target.channels
        # Where each begins, and one more, for zeros cost nothing until they are written to.
        self._place = np.zeros(samples, dtype=np.int64)
        # Height and width; zeros for what was cut and resized already.
        self._sides = np.zeros((samples, 2), dtype=np.uint16)
        self._lock = threading.Lock()
        self.count, self.hits, self.misses = 0, 0, 0

    def holds(self, ids: I64) -> npt.NDArray[np.bool_]:
        return self._place[ids] > 0

    def free(self, ids: I64) -> npt.NDArray[np.bool_]:
        """Which are neither kept nor being kept."""
        found: npt.NDArray[np.bool_] = self._place[ids] == 0
        return found

    def claim(self, ids: I64) -> npt.NDArray[np.bool_]:
        """Which of them are the caller's to keep, from now on."""
        with self._lock:
            mine = np.zeros(len(ids), dtype=np.bool_)
            # An order may have a sample twice in a batch.
            mine[np.unique(ids, return_index=True)[1]] = True
            mine &= self.free(ids)
            self._place[ids[mine]] = CLAIMED
            return mine

    def put(self, ids: I64, starts: I64, size: tuple[int, int] | None) -> None:
        """They were decoded to these places; ``size`` None: cut and resized as the decoder says."""
        self._sides[ids] = size or (0, 0)
        with self._lock:
            self._place[ids] = starts + 1
            self.count += len(ids)

    def places(self, ids: I64) -> tuple[I64, I32, npt.NDArray[np.bool_]]:
        """Of images that are held: where they begin, their shapes, and which need no cutting any more."""
        sides = self._sides[ids].astype(np.int32)
        ready = (sides == 0).all(axis=1)
        sides[ready] = self.size
        shape = np.column_stack([sides, np.full(len(ids), self.channels, dtype=np.int32)])
        return self._place[ids] - 1, np.ascontiguousarray(shape, dtype=np.int32), ready

    def find(self, ids: I64, find: Callable[[I64], Located]) -> tuple[Located, npt.NDArray[np.bool_]]:
        """The cells of these samples: those that are held, and what ``find`` says of the others.

        And which of them are cut and resized already.
        """
        held = self.holds(ids)
        rows = np.flatnonzero(held)
        start, shape, some = self.places(ids[rows])
        ready = np.zeros(len(ids), dtype=np.bool_)
        ready[rows] = some
        if len(rows) == len(ids):
            self._tell(len(rows), 0)
            size = shape.prod(axis=1, dtype=np.int64)
            return Located([self.store.data], np.zeros(len(ids), np.int32), start, size, shape), ready
        others = np.flatnonzero(~held)
        rest = find(ids[others])
        self._tell(len(rows), int((~rest.raw).sum()))
        if not len(rows):
            return rest, ready
        base, starts, sizes = np.zeros(len(ids), np.int32), np.zeros(len(ids), np.int64), np.zeros_like(ids)
        shapes = np.zeros((len(ids), 3), dtype=np.int32)
        base[others], starts[others], sizes[others] = rest.base, rest.start, rest.size
        if rest.shape is not None:
            shapes[others] = rest.shape
        return self.over(Located(rest.bases, base, starts, sizes, shapes), rows, start, shape), ready

    def over(self, cells: Located, rows: I64, start: I64, shape: I32) -> Located:
        """The cells, of which these rows lie here."""
        base, starts, sizes = cells.base.copy(), cells.start.copy(), cells.size.copy()
        shapes = np.zeros((len(base), 3), np.int32) if cells.shape is None else cells.shape.copy()
        base[rows], starts[rows], shapes[rows] = len(cells.bases), start, shape
        sizes[rows] = shape.prod(axis=1, dtype=np.int64)
        return Located([*cells.bases, self.store.data], base, starts, sizes, shapes)

    def _tell(self, hits: int, misses: int) -> None:
        with self._lock:
            self.hits += hits
            self.misses += misses


class Keeping:
    """A :class:`~batchplant.loading.images.Backend` that keeps what it decodes for the first time."""

    def __init__(self, on_cpu: OnCpu, shelf: Shelf, *, whole: bool) -> None:
        self._on_cpu, self._shelf, self._whole = on_cpu, shelf, whole
        # Not the engine's, which the images of each call may need.
        self._threads = Threads(on_cpu.engine.threads)

    def close(self) -> None:
        self._threads.close()

    def begin(self, request: Request) -> Callable[[], Result]:
        if not len(self._candidates(request)[0]):
            return self._on_cpu.begin(request)
        return lambda: self._on_cpu.begin(self._kept(request))()

    def _candidates(self, request: Request) -> tuple[I64, I64]:
        """The rows that are encoded, and that there may be room for; height and width to keep them in.

        That is cut and resized, or whole where that is smaller.
        """
        rows = np.flatnonzero(~request.cells.raw & self._shelf.free(request.ids))
        target, sizes = request.target, request.sizes[rows].astype(np.int64)
        if self._shelf.fixed:
            larger = sizes.prod(axis=1) >= target.height * target.width
            sizes[larger | ~sizes.all(axis=1) | (not self._whole)] = (target.height, target.width)
        fits = sizes.prod(axis=1) * target.channels <= self._shelf.store.room
        # Of some, the header does not tell the size.
        fits &= sizes.all(axis=1) & (sizes <= LONGEST_SIDE).all(axis=1)
        return rows[fits], sizes[fits]

    def _kept(self, request: Request) -> Request:
        """The request with those rows as raw pixels that could be kept."""
        shelf, (rows, sizes) = self._shelf, self._candidates(request)
        mine = shelf.claim(request.ids[rows])
        rows, sizes = rows[mine], sizes[mine]
        groups = [
            ((high, wide), rows[(sizes == (high, wide)).all(axis=1)])
            for high, wide in np.unique(sizes, axis=0).tolist()
        ]
        kept = self._threads.each(len(groups), lambda n: self._keep(request, *groups[n]))
        found = np.concatenate([rows[:0], *kept])
        start, shape, ready = shelf.places(request.ids[found])
        new_sizes, boxes = request.sizes.copy(), request.boxes.copy()
        new_sizes[found] = shape[:, :2]
        boxes[found[ready]] = whole_boxes(shape[ready, :2])
        cells = shelf.over(request.cells, found, start, shape)
        return dataclasses.replace(request, cells=cells, sizes=new_sizes, boxes=boxes)

    def _keep(self, request: Request, size: tuple[int, int], rows: I64) -> I64:
        """Decode images that become one size to where they are kept; gives the rows that could be."""
        shelf, pixels = self._shelf, request.target.pixels
        ready = shelf.fixed and size == shelf.size
        bytes_each = size[0] * size[1] * pixels.channels
        start, count = shelf.store.take(bytes_each, len(rows))
        rows = rows[:count]
        if not count:
            return rows
        out = shelf.store.data[start : start + count * bytes_each].reshape(count, *size, pixels.channels)
        if ready:
            part = dataclasses.replace(request.part(rows, pixels), flips=None, downs=None)
        else:
            whole = dataclasses.replace(
                pixels, height=size[0], width=size[1], filter="nearest", as_stored=False, collate=None
            )
            boxes = whole_boxes(request.sizes[rows])
            part = dataclasses.replace(
                request.part(rows, whole), flips=None, downs=None, places=None, boxes=boxes, redraw=_refuse
            )
        failed = self._on_cpu.decode(part, out)
        starts = start + bytes_each * np.arange(count)
        good = np.delete(np.arange(count), list(failed))
        shelf.put(request.ids[rows[good]], starts[good], None if ready else size)
        return rows[good]


def _refuse(row: int, size: tuple[int, int]) -> Cuts:
    raise DecodeError(f"the image is {size[1]}×{size[0]}, and its header says otherwise")


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a Loader was asked to keep: ``cache``, ``cache_bytes`` and ``cache_dir``, checked."""

    bytes: int
    folder: str | None

    @classmethod
    def of(cls, cache: Any, cache_bytes: Any, cache_dir: Any, *, decode: str | None) -> Wish | None:
        """None where nothing is to be kept."""
        fetched = 'what comes from a server is kept by source_options={"cache": …, "cache_bytes": …}'
        if cache is None:
            if cache_bytes is not None or cache_dir is not None:
                raise OptionError(f'cache_bytes and cache_dir go with cache="decoded"; {fetched}')
            return None
        if cache != "decoded":
            raise OptionError(f'cache is "decoded" or None, not {cache!r}; {fetched}')
        if decode is not None:
            raise OptionError(
                f'cache="decoded" keeps pixels that the CPU made, and decode={decode!r} makes others on the '
                "device: leave one of them out"
            )
        folder = None if cache_dir is None else str(os.fspath(cache_dir))
        if cache_bytes is not None:
            return cls(bytes_of("cache_bytes", cache_bytes), folder)
        return cls(DEFAULT_CACHE_BYTES if folder else _memory() // 4 // local_world_size(), folder)


def _memory() -> int:
    """Bytes of memory that this process may use: the machine's, or what its container was given."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}") as file:
            found = min(found, int(file.read()))
    return found


class Decoded:
    """What a loader keeps of all its images."""

    def __init__(self, wish: Wish, plan: Plan, samples: int, on_cpu: OnCpu, *, fast_scale: bool) -> None:
        self.store = Store(wish.bytes, wish.folder)
        self._shelves: dict[Kind, Shelf] = {}
        self.of: dict[str, tuple[Shelf, Keeping]] = {}
        for output in plan.images:
            kind = _kind(output, fast_scale)
            assert output.image is not None
            target, fixed = output.image.target, kind.made is not None
            shelf = self._shelves.get(kind) or Shelf(self.store, samples, target, fixed=fixed)
            self._shelves[kind] = shelf
            self.of[output.name] = shelf, Keeping(on_cpu, shelf, whole=not fast_scale)

    def close(self) -> None:
        """Give everything back; nobody makes batches any more."""
        for _, keeping in self.of.values():
            keeping.close()
        self.store.close()

    def holds(self, ids: I64) -> npt.NDArray[np.bool_]:
        """The samples of which all images are kept."""
        found = np.ones(len(ids), dtype=np.bool_)
        for shelf in self._shelves.values():
            found &= shelf.holds(ids)
        return found

    def stats(self, samples: int) -> dict[str, Any]:
        """Images that were there when they were needed, and that were not; bytes; the share of all."""
        shelves = self._shelves.values()
        images = samples * len(shelves)
        return {
            "cache hits": sum(one.hits for one in shelves),
            "cache misses": sum(one.misses for one in shelves),
            "cache bytes": self.store.used, "cache limit": self.store.most,
            "cache share": sum(one.count for one in shelves) / images if images else 0.0,
        }  # fmt: skip


def _kind(output: Output, fast_scale: bool) -> Kind:
    assert output.image is not None
    decoder, target = output.image.decoder.op, output.image.target
    made = None
    if output.image.plain and type(decoder).boxes in FIXED:
        made = f"{decoder!r} {target.filter} {target.height} {target.width}"
    elif fast_scale:
        raise OptionError(
            f"with fast_scale, images are not decoded whole, and {decoder!r} needs another part in every "
            'epoch: leave out fast_scale or cache="decoded"',
            field=output.name,
        )
    return Kind(output.field, target.mode, decoder.orient, made)
