"""The streams that pictures come to a device by: what runs on each, and what must live until it is done.

Memory that was freed on a stream goes to the next who asks on that stream, since what is done there is done
in order. Kernels run on another stream than copies and decoders, so what those fill is held until the kernel
has read it.
"""

from __future__ import annotations

import contextlib
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
    """The streams of one loader on a device; without CUDA there are none, and all is done at once.

    ``most``: batches that may be under way before those who make them have to wait.
    """

    def __init__(self, device: Any, kernels: Any, most: int) -> None:
        self.device, self.kernels, self.cuda = device, kernels, device.type == "cuda"
        self.copies = torch.cuda.Stream(device) if self.cuda else None
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

    def copied(self, memory: Any, transfer: Transfer, waits: Any = None) -> Any:
        """Bytes in pinned memory on the device; a stream, or that of the kernels, waits for the copy."""
        if not self.cuda:
            return memory
        transfer.held.append(memory)
        with torch.cuda.stream(self.copies):
            room = torch.empty(rounded(memory.numel()), dtype=torch.uint8, device=self.device)
            target = room[: memory.numel()].view(memory.shape)
            began = self.event(self.copies)
            target.copy_(memory, non_blocking=True)
            ended = self.event(self.copies)
        (waits or self.kernels).wait_event(ended)
        transfer.events.append(("copy", began, ended))
        return target

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
