"""Local files that are not in memory: the bytes of batches to come, read before threads need them.

Where a dataset fits into memory, the kernel is asked to read ahead, and the pages stay for the next epoch.
Where it does not, pages would be thrown out before they are used again: then cells are read past the page
cache, into memory of our own that is used again and again. That takes the CPU a fraction of the time. What
samples share is read through it all the same."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import order as orders
from ..errors import BatchplantError
from ..schema.columns import I64, U8, Flags, Spans, concat_spans
from ..storage import is_remote
from ..storage.local import MappedSource, mapped_source
from ..storage.staged import Staged
from ..storage.together import Read, aligned_memory, read_together
from . import threads
from .executor import Executor
from .locate import Located
from .on_cpu import BufferPool

# Bytes from cell to cell, at least, of those that are read by themselves: less is a table.
APART = 512
# Of what a sample reads, no more may be its neighbour's too, such as a dictionary that both need.
SHARED = 0.1
# Samples that tell how much an epoch needs: so many in a row, at so many places, for a format may have to
# look at all that lies around one to find it.
IN_A_ROW, PLACES = 16, 16


def size_of(spans: Spans) -> int:
    """The bytes of all cells; those that are missing have none."""
    return int(np.maximum(spans.size, 0).sum())


def needed(executor: Executor, indices: I64 | None, stages: bool) -> float:
    """About how many bytes an epoch has; of images, where those are read here."""
    reader, plan = executor.reader, executor.plan
    count = len(reader) if indices is None else len(indices)
    told = reader._bytes_of(plan.fields)
    if told is not None:
        return told * count / max(1, len(reader))
    some = _some(count)
    some = some if indices is None else indices[some]
    if stages:
        found = [reader.spans(output.field, some) for output in plan.images]
    else:
        found = [reader.ranges(plan.fields, some)]
    return sum(size_of(one) * count / len(some) for one in found if one is not None)


def _some(count: int) -> I64:
    """Samples that tell of all."""
    places = np.linspace(0, max(0, count - IN_A_ROW), PLACES).astype(np.int64)
    found: I64 = np.unique(np.minimum(places[:, None] + np.arange(IN_A_ROW), count - 1))
    return found


def are_apart(executor: Executor, field: str, batch: I64) -> bool:
    """Whether cells lie by themselves: what samples of a batch read, their neighbours do not need."""
    reader = executor.reader
    if len(reader) < 2:
        return False
    even = np.unique(np.minimum(batch & ~1, len(reader) - 2))
    some, others = reader.ranges([field], even), reader.ranges([field], even + 1)
    if some is None or others is None:
        return False
    shared = 0
    for one in dict.fromkeys((*some.files, *others.files)):
        starts, ends = _of_file(some, one)
        begin, stop = _of_file(others, one)
        # Those of some that begin before the end of another have not all ended before it begins.
        meets = np.searchsorted(np.sort(starts), stop) > np.searchsorted(np.sort(ends), begin, "right")
        shared += int((stop - begin)[meets].sum())
        between = np.diff(np.sort(np.concatenate([starts, begin])))
        if len(between) and np.percentile(between, 25) < APART:
            return False
    return shared <= SHARED * size_of(others)


def _of_file(spans: Spans, file: str) -> tuple[I64, I64]:
    rows = np.flatnonzero((spans.size > 0) & (np.array([one == file for one in spans.files])[spans.file]))
    return spans.start[rows], spans.start[rows] + spans.size[rows]


def memory() -> int:
    """Bytes that programs may still take, pages of files included; at most what the control group has."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, KeyError), open("/proc/meminfo") as file:
        told = dict(line.split(":", 1) for line in file)
        found = int(told["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            kind = "memory/" if kinds == "memory" else "" if not kinds else None
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            # In a container, the own group is the root of what it sees.
            for below in () if kind is None else (path.strip("/") + "/", ""):
                limit = f"/sys/fs/cgroup/{kind}{below}{name}"
                with contextlib.suppress(OSError, ValueError), open(limit) as told_there:
                    found = min(found, int(told_there.read()))
    return found


class Held(NamedTuple):
    """What was read together: of each file, which is mapped; ``users``: the batches that need it."""

    users: set[int]
    files: dict[str, tuple[MappedSource, Staged]]


class Shared:
    """Memory that readers find their bytes in. Nothing here is for several threads at once."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def put(self, number: int, read: Read, files: Sequence[str]) -> None:
        """Hold what was read of these files, for this batch and others that will use it."""
        one = Held({number}, {})
        for file, path in enumerate(files):
            source = mapped_source(path)
            if source is not None:
                one.files[path] = source, read.of(file)
                source.staged.put((id(one.users), path), one.files[path][1])
        self._held.append(one)

    def use(self, number: int, spans: Spans) -> Flags:
        """Which cells are here. What has them stays until this batch is done."""
        found = np.zeros(len(spans), np.bool_)
        for one in self._held:
            for file, path in enumerate(spans.files):
                if path not in one.files:
                    continue
                rows = np.flatnonzero(spans.file == file)
                here = one.files[path][1].find(spans.start[rows], spans.size[rows]) >= 0
                found[rows[here]] = True
                if here.any():
                    one.users.add(number)
        return found

    def done(self, number: int) -> None:
        """A batch was made: what nobody else needs goes."""
        for one in self._held:
            one.users.discard(number)
        for one in [one for one in self._held if not one.users]:
            self._drop(one)

    def clear(self) -> None:
        for one in list(self._held):
            self._drop(one)

    def _drop(self, one: Held) -> None:
        self._held = [other for other in self._held if other is not one]
        for path, (source, _) in one.files.items():
            source.staged.drop((id(one.users), path))


# Threads that read, each a batch: one waits for the last bytes of its batch while another asks for the next.
READERS = 2
# What is read before it is used, at most, unless it is less than so many batches.
AHEAD, AHEAD_BATCHES = 64 << 20, 2
# Of a format that reads far more than it needs, not all of it at once.
MOST = 4 * AHEAD
# No farther, however small batches are.
FORESEEN = 64
# Of what more cells of a batch lie in together, all is read; past the page cache where it is less than this
# part of the memory, for two or three such sets may be held at once.
TOGETHER, PART = 4, 6
# A dataset of more than this share of the memory does not stay there from epoch to epoch.
FITS = 0.75
# After so many batches in a row that were in memory, only one of so many is looked at. Where batches share
# what they read, after MOST bytes: fewer may be there because all of it was just read for the first of them.
SURE, LOOKED_AT = 4, 16


class Readahead:
    """Reads for the batches of a shard, in order, some ahead of those that are made.

    ``wait(number)`` is called before a batch is made, ``done(number)`` after; ``close`` ends it. ``stages``:
    it is known without reading where images lie, so they can be read here; ``direct``: past the page cache.
    ``past``: fields that are read past it too, for those who then read samples from the files.
    """

    def __init__(
        self,
        executor: Executor,
        indices: I64 | None,
        shard: orders.Batches,
        *,
        direct: bool,
        stages: bool = True,
        past: Sequence[str] = (),
    ) -> None:
        self._executor, self._indices, self._shard, self.direct = executor, indices, shard, direct
        self._stages, self.past = stages, past
        self.process = os.getpid()
        self._changed = threading.Condition()
        self._stopped = False
        # The next batch to read for, and the latest that somebody makes.
        self._next, self._wanted = 0, 0
        self._busy: set[int] = set()
        # By batch: bytes that were asked for, and what of it lies in memory of ours.
        self._asked: dict[int, int] = {}
        self._staged: dict[int, list[tuple[str, bytes]]] = {}
        # And the files whose readers find it there.
        self._shelved: dict[int, list[MappedSource]] = {}
        # What cells of several batches lie in is read by one thread at a time.
        self._shared, self._sharing = Shared(), threading.Lock()
        # Whether cells of a batch lie together in something, and can be found in it.
        self._together, self._finds = False, True
        # Batches in a row that were in memory, and their bytes.
        self._warm = self._warm_bytes = 0
        # As many as there can be at once, those of batches that are being made included: new ones cost time.
        self._buffers = BufferPool(2 * (READERS + AHEAD_BATCHES), aligned_memory)

    def start(self) -> None:
        # Not kept: who holds the threads that hold us would never be let go.
        made = [
            threading.Thread(target=self._run, name=f"batchplant-readahead-{n}", daemon=True)
            for n in range(READERS)
        ]
        threads.start(made, self)

    def wait(self, number: int) -> None:
        """Until a batch was read, or asked of the kernel: who is faster would wait for page after page."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._wake()
            self._changed.wait_for(
                lambda: self._stopped or (self._next > number and number not in self._busy)
            )

    def done(self, number: int) -> None:
        """A batch was made."""
        with self._changed:
            self._let_go(number)
            self._wake()

    def _wake(self) -> None:
        """Have those go on that read, if there is something to do: of what is in memory, that is seldom."""
        if self._has_room():
            self._changed.notify_all()

    def _let_go(self, number: int) -> None:
        self._asked.pop(number, None)
        for key in self._staged.pop(number, ()):
            self._executor.locator.staged.pop(key, None)
        shelved = [source.staged.drop((id(self), number)) for source in self._shelved.pop(number, ())]
        if shelved and not any(one is not None and one.used for one in shelved):
            # This format looks into its files by itself.
            self.past = ()
        self._shared.done(number)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            for number in {*self._staged, *self._shelved}:
                self._let_go(number)
            self._shared.clear()
            self._changed.notify_all()

    close = stop

    # -- the threads -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (number := self._claim()) is not None:
                over = False
                # Whoever makes the batch meets the same error, and says where.
                with contextlib.suppress(BatchplantError, OSError):
                    # It may take long, where rows are packed of what comes next: nobody waits for that.
                    over = not self._shard.has(number)
                    if not over:
                        self._read(number)
                with self._changed:
                    self._busy.discard(number)
                    self._changed.notify_all()
                if over:
                    return
        # Nobody waits for a thread that is gone.
        except BaseException:
            self.stop()
            raise

    def _claim(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            if self._stopped:
                return None
            # Where the last were in memory, the next are taken to be so.
            enough = self._warm_bytes >= MOST or self._warm >= FORESEEN or not self._together
            sure = self._warm >= SURE and enough
            number = self._next + (-self._next % LOOKED_AT if sure else 0)
            self._next = number + 1
            self._busy.add(number)
            return number

    def _has_room(self) -> bool:
        before = self._next - self._wanted
        if before <= AHEAD_BATCHES:
            return True
        return before < FORESEEN and sum(self._asked.values()) < AHEAD

    def _read(self, number: int) -> None:
        positions = self._shard.batch(number)
        ids = positions if self._indices is None else self._indices[positions]
        warm, size = self._stage(number, ids)
        self._warm = self._warm + 1 if warm else 0
        self._warm_bytes = self._warm_bytes + size if warm else 0

    def _stage(self, number: int, ids: I64) -> tuple[bool, int]:
        """Read for a batch; whether all was in memory, and the bytes of it."""
        plan, reader, past = self._executor.plan, self._executor.reader, self.past
        warm, size = True, 0
        # By field, or what several take together; the rest is asked of the kernel.
        here: list[tuple[str | None, Spans]] = []
        rest = [name for name in (plan.columns if self._stages else plan.fields) if name not in past]
        for field in dict.fromkeys(output.field for output in plan.images if self._stages):
            around = reader.ranges([field], ids)
            shared = around is not None and len(ids) > TOGETHER * len(around)
            self._together = self._together or shared
            if shared and self._finds:
                # They have to be found in what they lie in together, and all of that is read once.
                warm = (self._share if self.direct else self._advise)(number, around) and warm
            spans = reader.spans(field, ids)
            if spans is None or any(map(is_remote, spans.files)):
                rest.append(field)
                self._finds = self._finds and not shared
                continue
            size += size_of(spans)
            spans = spans.compact() if len(spans.files) > 1 else spans
            mapped = [mapped_source(path) for path in spans.files]
            if None in mapped:
                # What no reader has mapped is read here and now, past the page cache or not.
                here.append((field, spans))
            elif not self.direct:
                rest.append(field)
            else:
                left = self._left(number, spans)
                warm = warm and len(left) == len(spans)
                if not _is_warm(left):
                    here.append((field, left))
        spans = reader.ranges(past, ids) if past else None
        if spans is not None and not _are_mapped(spans):
            # Who reads those will not look for bytes of ours.
            rest += past
        elif spans is not None and size_of(spans) <= MOST and not _is_warm(spans):
            here.append((None, spans))
        if here:
            self._put(number, ids, here)
        all_of_it = not self._stages and not past
        asked = self._executor.ranges(ids) if all_of_it else reader.ranges(rest, ids) if rest else None
        if asked is not None:
            size += size_of(asked)
            self._together = self._together or len(ids) > TOGETHER * len(asked)
        return self._advise(number, asked) and warm and not here, size

    def _put(self, number: int, ids: I64, parts: list[tuple[str | None, Spans]]) -> None:
        """Read cells now: of mapped files for who reads those, else for who asks by field and samples."""
        spans = concat_spans([one for _, one in parts])
        read = self._read_together(spans)
        if read is None:
            return
        sources = [mapped_source(path) for path in spans.files]
        with self._changed:
            if self._stopped:
                return
            self._asked[number] = self._asked.get(number, 0) + len(read.memory)
            for file, source in enumerate(sources):
                if source is not None:
                    source.staged.put((id(self), number), read.of(file))
                    self._shelved.setdefault(number, []).append(source)
            at = 0
            for field, one in parts:
                start, at = read.places[at : at + len(one)], at + len(one)
                # Where some are held already, all files are mapped.
                if field is not None and None in sources and len(one) == len(ids):
                    found = Located([read.memory], np.zeros(len(one), np.int32), start, one.size, one.shape)
                    key = field, ids.tobytes()
                    self._executor.locator.staged[key] = found
                    self._staged.setdefault(number, []).append(key)

    def _share(self, number: int, spans: Spans | None) -> bool:
        """Read what cells of this batch and others lie in, past the page cache; whether it was in memory."""
        if spans is None or not _are_mapped(spans) or _is_warm(spans):
            return True
        with self._sharing:
            left = self._left(number, spans)
            read = self._read_together(left) if size_of(left) <= min(MOST, memory() // PART) else None
            if read is None:
                return False
            with self._changed:
                if not self._stopped:
                    self._asked[number] = self._asked.get(number, 0) + len(read.memory)
                    self._shared.put(number, read, left.files)
        return False

    def _left(self, number: int, spans: Spans) -> Spans:
        """The cells that do not lie in what batches share; what has the others is kept for this batch."""
        with self._changed:
            found = self._shared.use(number, spans)
        return spans.take(np.flatnonzero(~found)) if found.any() else spans

    def _read_together(self, spans: Spans) -> Read | None:
        read = read_together(spans, self._memory, direct=self.direct) if len(spans) else None
        if read is None and self.direct and len(spans):
            # A file system that reads only through the page cache.
            read = read_together(spans, self._memory, direct=False)
        return read

    def _memory(self, size: int) -> U8:
        # Few sizes, so that memory is used again.
        step = 1 << max(20, size.bit_length() - 2)
        memory: U8 = self._buffers.take((-(-size // step) * step,), np.dtype(np.uint8))
        return memory

    def _advise(self, number: int, spans: Spans | None) -> bool:
        """Have the kernel read; whether all was in memory."""
        if spans is None or size_of(spans) > MOST:
            return True
        missing = 0
        for source, starts, sizes in _by_file(spans):
            if source is not None and not source.in_memory(starts, sizes, each=True):
                missing += int(sizes.sum())
                source.will_need(starts, sizes, each=True)
        with self._changed:
            self._asked[number] = self._asked.get(number, 0) + missing
        return not missing


def _are_mapped(spans: Spans) -> bool:
    return all(source is not None for source, _, _ in _by_file(spans))


def _is_warm(spans: Spans) -> bool:
    """Whether all is in memory, of files that are mapped."""
    return all(source.in_memory(starts, sizes, each=True) for source, starts, sizes in _by_file(spans))


def _by_file(spans: Spans) -> list[tuple[Any, I64, I64]]:
    """(source, or None where no reader has it mapped, starts, sizes) of every file."""
    found = []
    for number in range(len(spans.files)):
        rows: Any = slice(None) if len(spans.files) == 1 else np.flatnonzero(spans.file == number)
        starts, sizes = np.ascontiguousarray(spans.start[rows]), np.maximum(spans.size[rows], 0)
        if len(starts):
            found.append((mapped_source(spans.files[number]), starts, sizes))
    return found


def make_readahead(
    executor: Executor, indices: I64 | None, shard: orders.Batches, page_cache: bool | None
) -> Readahead | None:
    """A readahead for an epoch; None where nothing is read from local files, or nobody knows from where.

    ``page_cache``: False to read past it, None to do so where the dataset is larger than memory.
    """
    reader, fields = executor.reader, executor.plan.fields
    if not shard.has(0) or not fields or is_remote(reader.path):
        return None
    try:
        batch = shard.batch(0)
        batch = batch if indices is None else indices[batch]
        first = batch[:1]
        spans = reader.ranges(fields, first)
        if spans is None or all(map(is_remote, spans.files)):
            return None
        stages = _is_known(executor, first)
        larger = page_cache is False
        if page_cache is None:
            larger = needed(executor, indices, stages) > FITS * memory()
        own = executor.plan.columns if stages else fields
        alone = larger and executor.decoded is None
        past = [one for one in own if alone and are_apart(executor, one, batch)]
    # It is said of the batch that has it.
    except BatchplantError:
        return None
    direct = larger and (stages or bool(past))
    return Readahead(executor, indices, shard, direct=direct, stages=stages, past=past)


def _is_known(executor: Executor, one: I64) -> bool:
    """Whether it is known without reading where images lie; within a record, they have to be looked for."""
    # Of images that are kept decoded, most are not read.
    if executor.decoded is not None or not executor.plan.images:
        return False
    reader = executor.reader
    for field in {output.field for output in executor.plan.images}:
        cell, read = reader.spans(field, one), reader.ranges([field], one)
        if cell is None or read is None or not np.array_equal(cell.start, read.start):
            return False
    return True
