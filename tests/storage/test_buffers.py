"""Memory that answers of servers come into."""

import gc
import threading

import numpy as np
import pytest

from batchplant.storage.remote import ranges
from batchplant.storage.remote.client import TransientError

SIZE = 2 << 20


@pytest.fixture(autouse=True)
def _nothing_free(monkeypatch):
    monkeypatch.setattr(ranges, "_FREE", type(ranges._FREE)())


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_nobody_holds_it():
    first = ranges.take(SIZE)
    place = address(first)
    del first
    again = ranges.take(SIZE - 1000)
    assert address(again) == place
    assert len(again) == SIZE - 1000


@pytest.mark.parametrize(
    "part", [lambda array: array[5:9], lambda array: memoryview(array)[5:9], lambda array: array[::2].T]
)
def test_a_part_holds_the_memory(part):
    first = ranges.take(SIZE)
    first[:] = 7
    held = part(first)
    del first
    gc.collect()
    other = ranges.take(SIZE)
    other[:] = 9
    assert (np.asarray(held) == 7).all()
    place = address(other)
    del held, other
    assert {address(ranges.take(SIZE)), address(ranges.take(SIZE))} & {place}


def test_what_is_too_large_for_the_need_is_left():
    large = ranges.take(8 * SIZE)
    place = address(large)
    del large
    assert address(ranges.take(SIZE)) != place


def test_few_wait_for_their_next_use():
    held = [ranges.take(SIZE) for _ in range(3 * ranges.MAX_FREE_BUFFERS)]
    del held
    assert len(ranges._FREE) == ranges.MAX_FREE_BUFFERS
    huge = ranges.take(ranges.MAX_FREE_BYTES + 1)
    ranges._FREE.clear()
    del huge
    assert not ranges._FREE


def test_many_threads_never_get_the_same():
    wrong = []

    def work(number):
        for _ in range(50):
            mine = ranges.take(SIZE)
            mine[:4096] = number
            if not (mine[:4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert wrong == []


def test_chunks_fill_it():
    data = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8).tobytes()
    chunks = [data[at : at + 70_000] for at in range(0, SIZE, 70_000)]
    assert ranges.fill(SIZE, chunks, "s3://a/b", 5).tobytes() == data
    assert ranges.fill(3, [b"abc"], "s3://a/b", 5).tobytes() == b"abc"
    with pytest.raises(TransientError, match="70000 of 2097152 bytes came"):
        ranges.fill(SIZE, chunks[:1], "s3://a/b", 5)
    with pytest.raises(TransientError, match="more than 2097151 bytes came"):
        ranges.fill(SIZE - 1, chunks, "s3://a/b", 5)
