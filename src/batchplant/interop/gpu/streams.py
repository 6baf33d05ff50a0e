"""The streams that images come to a device by: what runs on each, and what must live until it is done.

Memory that was freed on a stream goes to the next who asks on that stream, since what is done there is done
in order. Kernels run on another stream than copies and decoders, so what those fill is held until the kernel
has read it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from typing import Any, NamedTuple

import torch

# The least memory that is taken.
LEAST = 8 << 20


def rounded(size: int) -> int:
    """Room for so many bytes, of few different sizes: batches whose parts vary use the same memory again.

    To take new memory, pinned or on the device, stops all that goes on there.
    """
    return max(LEAST, 1 << (size - 1).bit_length())


class Shared(NamedTuple):
    """The streams of a device, which all loaders share: CUDA has few that run side by side, torch gives the
    same out again after 32, and memory belongs to one.

    ``reading``: those on which no scans are read just now.
    """

    kernels: Any
    copies: Any
    reading: list[Any]


def streams_of(device: Any) -> Shared:
    if device.type != "cuda":
        return Shared(None, None, [])
    return _streams_of(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _streams_of(index: int) -> Shared:
    return Shared(torch.cuda.Stream(index), torch.cuda.Stream(index), [])


class _Work(NamedTuple):
    """Work on a stream: what it was, its events, and what must live until it is done."""

    events: list[tuple[str, Any, Any]]
    last: Any
    held: list[Any]


class Transfer:
    """The copies of one batch to the device: what must live until they are done, and when they were made."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any, Any]] = []
        self.held: list[Any] = []


class Streams:
    """The work of one loader on a device; without CUDA there are no streams, and all is done at once.

    ``most``: batches that may be under way before those who make them have to wait.
    """

    def __init__(self, device: Any, most: int) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.kernels, self.copies, self._reading = streams_of(device)
        self._under_way: deque[_Work] = deque()
        self._most = most
        self._lock = threading.Lock()
        self.seconds = {"copy": 0.0, "augment": 0.0}

    def on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream) if self.cuda else contextlib.nullcontext()

    def event(self, stream: Any) -> Any:
        if not self.cuda:
            return None
        # Who waits for it sleeps: the engine's threads need the processors.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def reading(self) -> Any:
        """A stream to read scans on, beside others; ``read`` gives it back."""
        return self._reading.pop() if self._reading else torch.cuda.Stream(self.device)

    def read(self, stream: Any, done: Any) -> None:
        """The kernels go on from an event of such a stream."""
        self.kernels.wait_event(done)
        self._reading.append(stream)

    def room(self, memory: Any) -> Any:
        """As many bytes on the device."""
        if not self.cuda:
            return memory
        with torch.cuda.stream(self.copies):
            room = torch.empty(rounded(memory.numel()), dtype=torch.uint8, device=self.device)
        return room[: memory.numel()].view(memory.shape)

    def copy(self, memory: Any, room: Any, transfer: Transfer, waits: Any = None) -> None:
        """Bytes of pinned memory into that; a stream, or that of the kernels, waits for the copy."""
        if not self.cuda:
            return
        transfer.held.append(memory)
        with torch.cuda.stream(self.copies):
            began = self.event(self.copies)
            room.copy_(memory, non_blocking=True)
            ended = self.event(self.copies)
        (waits or self.kernels).wait_event(ended)
        transfer.events.append(("copy", began, ended))

    def copied(self, memory: Any, transfer: Transfer) -> Any:
        """Bytes in pinned memory on the device, for the kernels."""
        room = self.room(memory)
        self.copy(memory, room, transfer)
        return room

    def upload(self, array: Any, transfer: Transfer) -> Any:
        """A small array on the device, by the stream of the kernels."""
        if not self.cuda:
            return torch.from_numpy(array)
        pinned = torch.from_numpy(array).pin_memory()
        transfer.held.append(pinned)
        return pinned.to(self.device, non_blocking=True)

    def hold(self, transfer: Transfer, began: Any, ended: Any) -> None:
        """Keep what a kernel reads until it is done; if too much is, this thread waits for the oldest."""
        if not self.cuda:
            return
        with self._lock:
            self._under_way.append(_Work([*transfer.events, ("augment", began, ended)], ended, transfer.held))
            oldest = self._under_way[0] if len(self._under_way) > self._most else None
        if oldest is not None:
            oldest.last.synchronize()
        self.let_go()

    def wait(self) -> None:
        """Until all is done."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def let_go(self) -> None:
        """Of all that is done."""
        with self._lock:
            while self._under_way and self._under_way[0].last.query():
                work = self._under_way.popleft()
                for what, began, ended in work.events:
                    self.seconds[what] += began.elapsed_time(ended) / 1000

    def close(self) -> None:
        with self._lock:
            under_way = list(self._under_way)
        for work in under_way:
            work.last.synchronize()
        self.let_go()
