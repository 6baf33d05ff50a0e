"""ChunkCache: what it keeps, what it throws out, and many threads at once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant.errors import DamagedError
from batchplant.storage.cache import DEFAULT_MAX_BYTES, ChunkCache
from processes import PATIENCE, in_fork


def test_a_value_is_made_once():
    cache = ChunkCache(100)
    result = []

    def get(key):
        return cache.get(key, lambda: result.append(key) or f"value {key}", len)

    assert [get(1), get(2), get(1)] == ["value 1", "value 2", "value 1"]
    assert result == [1, 2]
    assert (cache.hits, cache.misses, cache.bytes, len(cache)) == (1, 2, 14, 2)


def test_what_was_not_asked_for_longest_goes_first():
    cache = ChunkCache(30)
    for key in "abcad":
        cache.get(key, lambda: bytes(10), len)
    # There was room for three: b went when d came, because a had been asked for again.
    before = cache.misses
    for key in "acd":
        cache.get(key, lambda: bytes(10), len)
    assert cache.misses == before
    cache.get("b", lambda: bytes(10), len)
    assert cache.misses == before + 1
    assert (cache.bytes, len(cache)) == (30, 3)


def test_a_value_that_is_larger_than_the_cache_is_not_kept():
    cache = ChunkCache(30)
    cache.get("small", lambda: bytes(10), len)
    assert len(cache.get("large", lambda: bytes(31), len)) == 31
    assert (cache.bytes, len(cache)) == (10, 1)
    nothing = ChunkCache(0)
    nothing.get("small", lambda: bytes(1), len)
    assert len(nothing) == 0


def test_many_threads_that_ask_for_one_key_make_it_once():
    cache = ChunkCache(1000)
    result = []
    everybody = threading.Barrier(8)

    def make():
        result.append(threading.get_ident())
        time.sleep(0.05)
        return b"value"

    def ask(_):
        everybody.wait()
        return cache.get("key", make, len)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [b"value"] * 8
    assert len(result) == 1


def test_other_keys_need_not_wait():
    cache = ChunkCache(1000)
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(PATIENCE)
        return b"slow"

    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(cache.get, "slow", slow, len)
        assert begun.wait(PATIENCE)
        assert cache.get("quick", lambda: b"quick", len) == b"quick"
        go_on.set()
        assert waited.result(PATIENCE) == b"slow"


def test_damage_is_remembered_and_nothing_else_is():
    cache = ChunkCache(1000)
    asked = []

    def fail(error):
        asked.append(error)
        raise error

    for _ in range(3):
        with pytest.raises(bp.DamagedError, match="bad chunk") as caught:
            cache.get("bad", lambda: fail(bp.DamagedError("bad chunk")), len)
        # What is written into one error does not stand in the next.
        assert caught.value.sample is None
        caught.value.at(sample=7)
    assert len(asked) == 1
    for _ in range(3):
        with pytest.raises(OSError, match="the server"):
            cache.get("far", lambda: fail(OSError("the server")), len)
    assert len(asked) == 4
    cache.clear()
    assert cache.get("bad", lambda: b"mended", len) == b"mended"


def test_an_exception_goes_to_all_who_wait():
    cache = ChunkCache(1000)
    begun, go_on = threading.Event(), threading.Event()

    def fail():
        begun.set()
        assert go_on.wait(PATIENCE)
        raise bp.DamagedError("bad chunk")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "key", fail, len)
        assert begun.wait(PATIENCE)
        second = pool.submit(cache.get, "key", lambda: pytest.fail("made twice"), len)
        while not second.running():
            time.sleep(0.001)
        time.sleep(0.02)
        go_on.set()
        for item in (first, second):
            with pytest.raises(bp.DamagedError, match="bad chunk"):
                item.result(PATIENCE)


def test_what_is_made_while_the_cache_is_cleared_is_not_kept():
    cache = ChunkCache(1000)

    def make():
        cache.clear()
        return b"of a closed file"

    assert cache.get("key", make, len) == b"of a closed file"
    assert (cache.bytes, len(cache)) == (0, 0)
    assert cache.get("key", lambda: b"new", len) == b"new"


def test_a_forked_process_begins_anew_even_while_the_lock_is_held():
    cache = ChunkCache(1000)
    cache.get("key", lambda: b"parent", len)
    with cache._lock:
        assert in_fork(lambda: cache.get("key", lambda: b"child", len) == b"child")
    assert cache.get("key", lambda: b"again", len) == b"parent"


def test_the_size_by_variable(monkeypatch):
    assert ChunkCache().max_bytes == DEFAULT_MAX_BYTES
    monkeypatch.setenv("BATCHPLANT_CHUNK_CACHE", "12345")
    assert ChunkCache().max_bytes == 12345
    assert ChunkCache(5).max_bytes == 5
    monkeypatch.setenv("BATCHPLANT_CHUNK_CACHE", "much")
    with pytest.raises(bp.OptionError, match="BATCHPLANT_CHUNK_CACHE is a number of bytes, not 'much'"):
        ChunkCache()


# --- known order --------------------------------------------------------------------------------------


def misses_of(uses, size, *, announce):
    """Misses of a cache of so many values, one needed by each batch."""
    cache = ChunkCache(size)
    if announce:
        for batch, key in enumerate(uses, 1):
            cache.expect(batch, [key])
    for batch, key in enumerate(uses, 1):
        if announce:
            cache.reach(batch)
        assert cache.get(key, lambda key=key: key, lambda _: 1) == key
        assert cache.bytes <= size
    return cache.misses


def test_in_a_known_order_what_is_needed_last_is_evicted():
    round_and_round = list("abcde") * 20
    assert misses_of(round_and_round, 4, announce=False) == 100
    # Of five values in turn, Belady's rule misses one in four.
    assert misses_of(round_and_round, 4, announce=True) <= 5 + 96 / 4


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(0, 6))
def test_a_known_order_never_misses_more(uses, size):
    assert misses_of(uses, size, announce=True) <= misses_of(uses, size, announce=False)


def test_what_was_announced_can_be_forgotten():
    cache = ChunkCache(2)
    cache.expect(1, ["a"])
    cache.expect(1000, ["a"])
    cache.reach(1)
    cache.reach(None)
    for key in "abc":
        cache.get(key, lambda: 0, lambda _: 1)
    assert cache.all_of(["a"]) is None
    assert cache.all_of(["b", "c"]) == [0, 0]


def test_several_values_are_made_at_once():
    cache = ChunkCache(100)
    cache.get("b", lambda: "B", len)
    written = []

    def make(places):
        written.append(places)
        return [DamagedError("bad") if place == 2 else "x" for place in places]

    result = cache.get_all(["a", "b", "c", "d"], make, len)
    assert result[:2] + result[3:] == ["x", "B", "x"]
    assert isinstance(result[2], DamagedError)
    assert written == [[0, 2, 3]]
    with pytest.raises(DamagedError, match="bad"):
        cache.get("c", lambda: "C", len)
    assert cache.get_all(["a", "d"], make, len) == ["x", "x"]
    assert written == [[0, 2, 3]]
