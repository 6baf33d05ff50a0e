"""CUDA streams that bring images to a device, and the memory that must outlive the work on them.

torch gives memory that was freed on a stream to the next allocation on that stream, which is safe because a
stream runs in order. Kernels run on another stream than copies and decoders, so the memory that those fill is
kept alive until the kernel has read it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from ...schema.columns import AnyArray

# Smallest allocation.
MIN_ALLOCATION_BYTES = 8 << 20


def round_up(size: int) -> int:
    """Round a number of bytes up to one of few sizes, so that batches whose parts vary reuse memory.

    Allocating new memory, pinned or on the device, stops all work on the device.
    """
    return max(MIN_ALLOCATION_BYTES, 1 << (size - 1).bit_length())


class DeviceStreams(NamedTuple):
    """Streams of a device, which all loaders share.

    CUDA runs few streams concurrently, torch reuses its own after 32, and memory belongs to a stream.
    ``idle_scan_streams``: those on which no scans are being read.
    """

    kernels: torch.cuda.Stream
    copies: torch.cuda.Stream
    idle_scan_streams: list[torch.cuda.Stream]


def streams_of(device: torch.device) -> DeviceStreams:
    if device.type != "cuda":
        return DeviceStreams(None, None, [])
    return _streams_of(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _streams_of(index: int) -> DeviceStreams:
    return DeviceStreams(torch.cuda.Stream(index), torch.cuda.Stream(index), [])


class _Work(NamedTuple):
    """Work on a stream: activities with their first and last events, the last event of all, and memory."""

    events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]]
    last: torch.cuda.Event
    keep_alive: list[object]


class Transfer:
    """Copies of one batch to the device: their events, and the memory that must outlive them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.keep_alive: list[object] = []


class Streams:
    """Work of one loader on a device. Without CUDA there are no streams, and everything runs synchronously.

    ``max_batches``: batches that may be in flight before the threads that make them have to wait.
    """

    def __init__(self, device: torch.device, max_batches: int) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.kernels, self.copies, self._idle_scan_streams = streams_of(device)
        self._in_flight: deque[_Work] = deque()
        self._max_batches = max_batches
        self._lock = threading.Lock()
        self.seconds = {"copy": 0.0, "augment": 0.0}

    def on(self, stream: torch.cuda.Stream) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(stream) if self.cuda else contextlib.nullcontext()

    def event(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        if not self.cuda:
            return None
        # A thread that waits for it sleeps instead of spinning: the engine needs the cores.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def take_scan_stream(self) -> torch.cuda.Stream:
        """Take a stream to read scans on, concurrently with others."""
        with contextlib.suppress(IndexError):
            return self._idle_scan_streams.pop()
        return torch.cuda.Stream(self.device)

    def return_scan_stream(self, stream: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        """Return a stream of ``take_scan_stream``; the kernels wait for its event ``done``."""
        self.kernels.wait_event(done)
        self._idle_scan_streams.append(stream)

    def allocate(self, pinned: Tensor) -> Tensor:
        """Allocate as many bytes on the device as this tensor has."""
        if not self.cuda:
            return pinned
        with torch.cuda.stream(self.copies):
            memory = torch.empty(round_up(pinned.numel()), dtype=torch.uint8, device=self.device)
        return memory[: pinned.numel()].view(pinned.shape)

    def copy(
        self, pinned: Tensor, memory: Tensor, transfer: Transfer, stream: torch.cuda.Stream | None = None
    ) -> None:
        """Copy pinned memory to the device; ``stream``, by default that of the kernels, waits for it."""
        if not self.cuda:
            return
        transfer.keep_alive.append(pinned)
        with torch.cuda.stream(self.copies):
            began = self.event(self.copies)
            memory.copy_(pinned, non_blocking=True)
            ended = self.event(self.copies)
        (stream or self.kernels).wait_event(ended)
        transfer.events.append(("copy", began, ended))

    def upload(self, pinned: Tensor, transfer: Transfer) -> Tensor:
        """Copy pinned memory to new memory on the device, for the kernels."""
        memory = self.allocate(pinned)
        self.copy(pinned, memory, transfer)
        return memory

    def upload_small(self, array: AnyArray, transfer: Transfer) -> Tensor:
        """Copy a small array to the device, on the stream of the kernels."""
        if not self.cuda:
            return torch.from_numpy(array)
        pinned = torch.from_numpy(array).pin_memory()
        transfer.keep_alive.append(pinned)
        return pinned.to(self.device, non_blocking=True)

    def hold(self, transfer: Transfer, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """Keep the memory of a batch alive until its kernel is done; wait if too many are in flight."""
        if not self.cuda:
            return
        with self._lock:
            events = [*transfer.events, ("augment", began, ended)]
            self._in_flight.append(_Work(events, ended, transfer.keep_alive))
            oldest = self._in_flight[0] if len(self._in_flight) > self._max_batches else None
        if oldest is not None:
            oldest.last.synchronize()
        self.release_finished()

    def wait(self) -> None:
        """Block until all work on the device is done."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def release_finished(self) -> None:
        """Release the memory of all work that is done, and count its seconds."""
        with self._lock:
            while self._in_flight and self._in_flight[0].last.query():
                work = self._in_flight.popleft()
                for activity, began, ended in work.events:
                    self.seconds[activity] += began.elapsed_time(ended) / 1000

    def close(self) -> None:
        with self._lock:
            in_flight = list(self._in_flight)
        for work in in_flight:
            work.last.synchronize()
        self.release_finished()
