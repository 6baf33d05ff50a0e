"""Datasets and helpers that the tests of ops, plans and loaders share."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import batchplant as bp
from batchplant.codecs.cells import encode_samples
from batchplant.codecs.media import image
from batchplant.loading.loader import Loader
from batchplant.schema.columns import I64
from batchplant.storage.local import MappedSource
from batchplant.storage.spans import read_spans
from processes import PATIENCE


class MixedWithPrevious(bp.ops.Op):
    """An op whose result for a sample depends on the other samples of the batch."""

    mixes = True

    def run(self, batch: Any, ids: Any, draws: bp.ops.Draws) -> Any:
        return batch // 2 + np.roll(batch, 1, axis=0) // 2


def pixels(sample: int, height: int = 12, width: int = 16, channels: int = 3) -> Any:
    """The image of a sample: noise, the same every time, with the sample's number in its first pixel."""
    image = np.random.default_rng([sample, height, width]).integers(
        0, 256, (height, width, channels), dtype=np.uint8
    )
    image[0, 0, :2] = divmod(sample, 256)
    return image


def smooth(sample: int, height: int, width: int) -> Any:
    """An image without sharp edges, which survives JPEG and resizing."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    rng = np.random.default_rng(sample)
    waves = [np.sin(x * rng.uniform(1, 5) + y * rng.uniform(1, 5) + rng.uniform(0, 6)) for _ in range(3)]
    return (np.stack(waves, axis=-1) * 100 + 128).astype(np.uint8)


def write(
    path: Path | str,
    schema: Mapping[str, bp.Field],
    samples: Iterable[Mapping[str, Any]],
    **options: Any,
) -> str:
    with bp.create(str(path), schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return str(path)


def write_raw(path: Path | str, count: int = 20, height: int = 12, width: int = 16) -> str:
    """``pixels(n)`` as raw images of one size, and ``label`` n."""
    samples = ({"image": pixels(n, height, width), "label": n} for n in range(count))
    return write(path, {"image": bp.Image(), "label": bp.Int()}, samples)


def write_jpeg(path: Path | str, count: int = 20, damaged: Iterable[int] = ()) -> str:
    """``smooth`` images of several sizes as JPEG, and ``label`` n; some cut short."""
    damaged = set(damaged)

    def sample(n: int) -> dict[str, Any]:
        data = image.encode(smooth(n, 24 + n % 5, 32 + n % 7), "jpeg")
        # Where the pixels are: a decoder could make up what is missing.
        return {"image": data[: len(data) * 9 // 10] if n in damaged else data, "label": n}

    return write(path, {"image": bp.Image(), "label": bp.Int()}, map(sample, range(count)))


def numbers(path: Path | str, count: int = 20) -> str:
    """A dataset without images: ``value`` n."""
    return write(path, {"value": bp.Int()}, ({"value": n} for n in range(count)))


class Memory(bp.Reader):
    """Samples that no format holds; reading one of ``damaged`` fails."""

    def __init__(
        self,
        schema: Mapping[str, bp.Field],
        samples: Iterable[Mapping[str, Any]],
        damaged: Iterable[int] = (),
    ) -> None:
        self.path, self.schema, self.damaged = "memory", bp.Schema(schema), set(damaged)
        self.columns = encode_samples(self.schema, list(samples))
        self.length = self.columns.rows

    def _read(self, indices: I64, fields: Sequence[str]) -> bp.Columns:
        for index in indices:
            if int(index) in self.damaged:
                raise bp.DamagedError("it is gone", path=self.path, sample=int(index), field=fields[0])
        return bp.Columns((name, self.columns[name]) for name in fields).take(indices)


def checksum(batches: Iterable[Mapping[str, Any]]) -> str:
    """The SHA-256 of all samples one after another, however they were dealt into batches."""
    digest = hashlib.sha256()
    for batch in batches:
        rows = len(next(iter(batch.values())))
        for row in range(rows):
            for name in sorted(batch):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(batch[name][row]).tobytes())
    return digest.hexdigest()


def ids_of(loader: Loader | Iterable[Any], name: str = "ids") -> list[int]:
    return [int(number) for batch in loader for number in batch[name]]


def producers() -> list[threading.Thread]:
    """Threads that somebody has to end; those that unpack chunks of arrays serve the whole process."""
    ours = (thread for thread in threading.enumerate() if thread.name.startswith("batchplant-"))
    return [thread for thread in ours if not thread.name.startswith("batchplant-chunks")]


_others: list[threading.Thread] = []  # Those that ran when the test began.


def note_others() -> None:
    """Threads that run now are not those of the test that begins."""
    _others[:] = producers()


def _new_producers() -> list[threading.Thread]:
    return [thread for thread in producers() if thread not in _others]


def assert_no_producers() -> None:
    """The threads that made batches for this test have ended, or are about to."""
    for thread in _new_producers():
        deadline = time.monotonic() + PATIENCE
        # One whose start was cut short by Ctrl-C cannot be joined yet.
        while thread.is_alive() or thread in threading.enumerate():
            assert time.monotonic() < deadline, thread
            time.sleep(0.001)
    assert _new_producers() == []


def leaves_nothing() -> Iterator[None]:
    """A fixture: after the test, none of its threads makes batches any more."""
    note_others()
    yield
    if _new_producers():
        # The traceback of a test that failed may hold an epoch, which nobody then ends.
        sys.last_value = sys.last_traceback = None
        gc.collect()
    assert_no_producers()


def all_cold(monkeypatch: Any) -> list[int]:
    """A fixture: no page is in memory, as far as anybody is told. How many cells are read together."""
    monkeypatch.setattr(MappedSource, "_in_memory", lambda *_: False)
    reads: list[int] = []

    def noted(spans: Any, allocate: Any, *, direct: bool) -> Any:
        reads.append(len(spans))
        return read_spans(spans, allocate, direct=direct)

    monkeypatch.setattr("batchplant.loading.prefetch.local.read_spans", noted)
    return reads


def running() -> set[str]:
    """The threads of the process, native ones too."""
    return set(os.listdir("/proc/self/task"))


def assert_ended(before: set[str]) -> None:
    """No other threads than these are left; one that was joined may take a moment to go."""
    deadline = time.monotonic() + PATIENCE
    while new := running() - before:
        assert time.monotonic() < deadline, new
        time.sleep(0.001)


def in_thread(work: Callable[[], Any]) -> Any:
    """Run it in another thread, and return or raise what it did."""
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append((True, work()))
        except BaseException as error:
            outcomes.append((False, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert outcomes, "it hangs"
    worked, value = outcomes[0]
    if not worked:
        raise value
    return value
