"""The side-car index: fresh or stale, damaged, in other places, made by many at once; and its command.

The scanner here reads a toy format: records with a u32 length before each.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant
import processes
import repository
from batchplant.errors import BatchplantError, DamagedError, MissingLibraryError, NotFoundError, OptionError
from batchplant.formats import registry
from batchplant.formats.base.options import own_options
from batchplant.formats.registry import find
from batchplant.storage import RemoteSource, Source, index, open_source
from batchplant.storage.index import progress, sets, sidecar
from batchplant.testing.cases import EXHAUSTIVE, cut_points
from processes import PATIENCE
from toy_index import Size, Toy, load, write_records
from variants import exhaustive


def right(found: index.Index, path: Path) -> bool:
    """Whether an index says what scanning says."""
    arrays, facts = Toy()(open_source(str(path)), lambda done: None)
    same = all(np.array_equal(found.arrays[name], array) for name, array in arrays.items())
    return same and set(found.arrays) == set(arrays) and found.facts == facts


def beside(path: Path) -> Path:
    return path.with_name(path.name + ".bpindex")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("BATCHPLANT_INDEX_DIR", raising=False)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of its own folder, larger than what is sampled whole."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    return write_records(tmp_path / "data" / "a.toy", [rng.bytes(size) for size in range(0, 900)])


# -- fresh and stale -----------------------------------------------------------------------------------


def test_the_second_opening_scans_nothing(data: Path) -> None:
    toy = Toy()
    first, second = load(data, toy), load(data, toy)
    assert toy.runs == 1
    assert first.built
    assert not second.built
    assert first.place == second.place == str(beside(data))
    assert right(first, data)
    assert right(second, data)
    assert names(data.parent) == {"a.toy", "a.toy.bpindex"}


def test_arrays_are_read_only_and_mapped(data: Path) -> None:
    for item in (load(data, Toy(), "memory"), load(data, Toy())):
        with pytest.raises(ValueError, match="read-only"):
            item.arrays["starts"][0] = 1
    # Not copied: the bytes are those of the file.
    base: Any = load(data, Toy()).arrays["starts"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj, mmap.mmap)


def test_small_files_are_scanned_every_time(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy()
    assert load(data, toy, "auto").place is None
    assert names(data.parent) == {"a.toy"}
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=data.stat().st_size))
    assert load(data, toy, "auto").place == str(beside(data))
    # One that is there is used, however small the file.
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=1 << 30))
    assert not load(data, toy, "auto").built
    assert toy.runs == 2


def test_memory_touches_no_side_car_and_rebuild_always_scans(data: Path) -> None:
    toy = Toy()
    load(data, toy, "memory")
    assert names(data.parent) == {"a.toy"}
    load(data, toy, "rebuild")
    before = beside(data).stat()
    assert load(data, toy, "memory").place is None
    load(data, toy, "rebuild")
    assert toy.runs == 4
    assert beside(data).stat().st_ino != before.st_ino or beside(data).stat().st_mtime_ns > before.st_mtime_ns
    with pytest.raises(OptionError, match="auto, write, memory, rebuild"):
        load(data, toy, "sometimes")


def test_stale_by_size(data: Path) -> None:
    load(data, Toy())
    with data.open("ab") as file:
        file.write(Size.pack(3) + b"abc")
    loaded = load(data, Toy())
    assert loaded.built
    assert right(loaded, data)
    assert not load(data, Toy()).built


def test_stale_by_time(data: Path) -> None:
    load(data, Toy())
    status = data.stat()
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert load(data, Toy()).built
    assert not load(data, Toy()).built


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_stale_by_content_of_the_same_size_and_time(data: Path, where: str) -> None:
    load(data, Toy())
    status = data.stat()
    content = bytearray(data.read_bytes())
    # The middle one of the sampled pieces.
    middle = 16 * (len(content) - sidecar.SAMPLE_BYTES) // (sidecar.SAMPLE_PIECES - 1)
    content[{"first": 8, "middle": middle, "last": len(content) - 1}[where]] ^= 1
    data.write_bytes(content)
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load(data, Toy()).built


def test_every_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    path = write_records(tmp_path / "small.toy", [b"abc", b"", b"defg"])
    for at in range(4, 7):
        load(path, Toy())
        status, content = path.stat(), bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert load(path, Toy()).built


def test_another_kind_or_version_is_not_used(data: Path) -> None:
    load(data, Toy())
    assert load(data, Toy(), version=2).built
    assert load(data, Toy()).built
    other = index.load(open_source(str(data)), "other", lambda *_: ({}, {"other": True}), mode="write")
    assert other.facts == {"other": True}
    assert load(data, Toy()).built


def test_a_reader_may_refuse_what_makes_no_sense(data: Path) -> None:
    index.load(open_source(str(data)), "toy", lambda *_: ({"starts": np.zeros(2, "u1")}, {}), mode="write")

    def check(found: index.Index) -> bool:
        return bool(found.arrays["sizes"].dtype == np.int64)

    # No array of that name there: as good as a no.
    loaded = load(data, Toy(), check=check)
    assert loaded.built
    assert right(loaded, data)
    assert not load(data, Toy(), check=check).built
    assert load(data, Toy(), check=lambda item: False).built


def test_a_file_that_changes_while_it_is_scanned_gets_no_side_car(data: Path) -> None:
    def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        result = Toy()(source, report)
        os.utime(data, ns=(1, 1))
        return result

    assert load(data, build).place is None
    assert names(data.parent) == {"a.toy"}


def test_a_file_that_was_replaced_since_it_was_opened_gets_no_side_car(data: Path) -> None:
    source = open_source(str(data))
    write_records(data.with_name("new"), [b"x"])
    os.replace(data.with_name("new"), data)
    loaded = index.load(source, "toy", Toy(), mode="write")
    assert len(loaded.arrays["sizes"]) == 900
    assert names(data.parent) == {"a.toy"}
    data.unlink()
    assert len(index.load(source, "toy", Toy(), mode="rebuild").arrays["sizes"]) == 900
    assert names(data.parent) == set()


def test_an_error_of_the_scanner_leaves_nothing_and_comes_once(data: Path) -> None:
    with data.open("ab") as file:
        file.write(Size.pack(1 << 30))
    toy = Toy()
    with pytest.raises(DamagedError, match="the file ends at"):
        load(data, toy)

    # It is an OSError too, as those of a place that cannot be written.
    def missing(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        toy.runs += 1
        raise NotFoundError("gone")

    with pytest.raises(NotFoundError):
        load(data, missing)
    assert toy.runs == 2
    assert names(data.parent) == {"a.toy"}


# -- what is stored ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*sidecar.DTYPES, ">i4"])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: str) -> None:
    path = write_records(tmp_path / "a.toy", [b"abc"])
    rng = np.random.default_rng(1)
    arrays = {
        "flat": rng.integers(0, 100, 1001).astype(dtype),
        "table": rng.integers(0, 100, (7, 3)).astype(dtype),
        "part": rng.integers(0, 100, (20, 4)).astype(dtype)[::2, 1:3],
        "none": np.empty(0, dtype),
        "rows of none": np.empty((0, 5), dtype),
    }

    def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        return dict(arrays), {"a": (1, 2), "b": {3: None}, "c": "ü"}

    for mode in ("memory", "write", "auto"):
        loaded = load(path, build, mode)
        assert loaded.built == (mode != "auto")
        assert loaded.facts == {"a": [1, 2], "b": {"3": None}, "c": "ü"}
        assert list(loaded.arrays) == list(arrays)
        for name, array in arrays.items():
            assert loaded.arrays[name].shape == array.shape
            assert loaded.arrays[name].dtype == np.dtype(dtype).newbyteorder("<")
            assert np.array_equal(loaded.arrays[name], array)
    # In place, so that processors may read it in wide steps.
    assert all(array.ctypes.data % 64 == 0 for array in loaded.arrays.values())


def test_only_empty_arrays_and_none_at_all_come_back(tmp_path: Path) -> None:
    path = write_records(tmp_path / "empty.toy", [])
    for arrays in ({"a": np.empty(0, np.int64), "b": np.empty(0, np.int64)}, {}):
        load(path, lambda *_, arrays=arrays: (dict(arrays), {}), "rebuild")
        loaded = load(path, Toy())
        assert not loaded.built
        assert list(loaded.arrays) == list(arrays)


@pytest.mark.parametrize("array", [np.array([object()]), np.array(["text"]), np.array([True])])
def test_what_an_index_cannot_hold_is_refused(data: Path, array: Any) -> None:
    for mode in ("memory", "write"):
        with pytest.raises(TypeError, match="cannot hold"):
            load(data, lambda *_: ({"a": array}, {}), mode)
    assert names(data.parent) == {"a.toy"}


# -- damage --------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, bytes]:
    path = write_records(tmp_path / "small.toy", [b"abc", b"", b"defg"])
    load(path, Toy())
    return path, beside(path).read_bytes()


def test_a_side_car_cut_anywhere_is_made_anew(
    small: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = small
    # Hundreds of times is slow on a busy disk.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for size in range(len(content)) if EXHAUSTIVE else cut_points(len(content), 60):
        beside(path).write_bytes(content[:size])
        loaded = load(path, Toy())
        assert loaded.built, size
        assert right(loaded, path)
    assert not load(path, Toy()).built
    assert beside(path).read_bytes() == content


def test_a_flipped_bit_anywhere_does_no_harm(small: tuple[Path, bytes]) -> None:
    path, content = small
    rng = np.random.default_rng(2)
    ignored = 0
    for at in range(0, len(content), 1 if EXHAUSTIVE else 5):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        beside(path).write_bytes(damaged)
        loaded = load(path, Toy(), "auto")
        assert right(loaded, path), at
        ignored += not loaded.built
    # Only the zeros between the parts are free to change.
    assert ignored < 3 * sidecar.ALIGN


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "start", "crc", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    value=VALUES, key=st.sampled_from(["arrays", "facts", "stamp", "kind", "dtype", "shape", "start", "crc"])
)
def test_a_header_that_lies_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, value: Any, key: str
) -> None:
    """Whoever can write a side-car can write checksums that fit."""
    path = write_records(tmp_path_factory.mktemp("lies") / "a.toy", [b"abc", b"de"])
    # Hundreds of times is slow on a busy disk.
    with mock.patch.object(os, "fsync"):
        load(path, Toy())
        header, start, data = sidecar.read(beside(path))
        (header["arrays"]["starts"] if key in header["arrays"]["starts"] else header)[key] = value
        text = json.dumps(header).encode()
        forge(path, text, data[start:].tobytes())
        loaded = load(path, Toy(), check=lambda item: right(item, path))
    assert right(loaded, path)


def forge(path: Path, text: bytes, arrays: bytes = bytes(64)) -> None:
    forge_at(beside(path), text, arrays)


def forge_at(place: Path, text: bytes, arrays: bytes) -> None:
    crc = batchplant._native.crc32c(text)
    head = sidecar.MAGIC + Size.pack(len(text)) + Size.pack(crc) + text
    place.write_bytes(head + bytes(-len(head) % sidecar.ALIGN) + arrays)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "|O", "shape": [1], "start": 0},
        {"dtype": "<M8[s]", "shape": [1], "start": 0},
        {"dtype": "<i8", "shape": [1 << 60], "start": 0},
        {"dtype": "<i8", "shape": [1 << 32, 1 << 32], "start": 0},
        {"dtype": "<i8", "shape": [0, 1 << 80], "start": 0},
        {"dtype": "<i8", "shape": [-1], "start": 0},
        {"dtype": "<i8", "shape": [1] * 100, "start": 0},
        {"dtype": "<i8", "shape": [1], "start": -64},
        {"dtype": "<i8", "shape": [1], "start": 8},
        {"dtype": "<i8", "shape": [1], "start": 64},
        {"dtype": "<i8", "shape": [1], "start": 1 << 70},
        {"dtype": "<i8", "shape": [1], "start": 0.0},
        {"dtype": "<i8", "shape": 1, "start": 0},
        {"dtype": ["<i8"], "shape": [1], "start": 0},
        {},
        None,
    ],
)  # fmt: skip
def test_an_array_that_cannot_be_is_not_followed(small: tuple[Path, bytes], entry: Any) -> None:
    path, _ = small
    header, _, _ = sidecar.read(beside(path))
    if entry:
        size = int(np.prod(entry["shape"], dtype=object)) * 8 if isinstance(entry["shape"], list) else 8
        entry["crc"] = batchplant._native.crc32c(bytes(size if 0 <= size <= 64 else 0))
    header["arrays"]["starts"] = entry
    forge(path, json.dumps(header).encode())
    assert load(path, Toy()).built


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b"[" * 100_000, b'{"kind": "toy"}', b"\xff"])
def test_a_header_that_is_none_is_not_followed(small: tuple[Path, bytes], text: bytes) -> None:
    path, _ = small
    forge(path, text)
    assert load(path, Toy()).built
    assert not load(path, Toy()).built


def test_odd_things_of_that_name(data: Path, cache: Path) -> None:
    # A pipe would let an open wait for ever.
    os.mkfifo(beside(data))
    assert right(load(data, Toy()), data)
    beside(data).unlink()
    # A folder cannot be replaced: the cache it is.
    beside(data).mkdir()
    loaded = load(data, Toy())
    assert loaded.place is not None
    assert loaded.place.startswith(str(cache))
    assert not load(data, Toy()).built


def test_a_link_in_place_of_the_draft_is_not_followed(data: Path, tmp_path: Path, cache: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    sidecar.draft_path(beside(data)).symlink_to(victim)
    loaded = load(data, Toy())
    assert victim.read_text() == "precious"
    assert loaded.place is not None
    assert loaded.place.startswith(str(cache))


# -- other places --------------------------------------------------------------------------------------


def run_as_nobody(work: Callable[[], str]) -> str:
    """What a function returns in a process that may not write where only root may."""
    # Where only root may read Python itself, nobody can load an encoding.
    b"".decode("utf-8-sig")
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            os.write(into, work().encode())
        except BaseException as error:
            os.write(into, f"failed: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def read_only(data: Path) -> Iterator[Path]:
    data.parent.chmod(0o555)
    for parent in (data, *data.parents):
        if parent.stat().st_uid == os.getuid() and parent != data.parent and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o055)
    yield data
    data.parent.chmod(0o755)


def test_a_read_only_folder_leads_to_the_cache(read_only: Path, cache: Path) -> None:
    for parent in (cache, *cache.parents[:3]):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o077)
    toy = Toy()

    def work() -> str:
        first, second = load(read_only, toy), load(read_only, toy)
        assert right(first, read_only)
        assert right(second, read_only)
        return f"{toy.runs} {first.place} {second.place}"

    runs, first, second = run_as_nobody(work).split(" ")
    assert runs == "1"
    assert first == second
    assert Path(first).parent == cache / "batchplant" / "index"
    assert re.fullmatch(r"[0-9a-f]{32}\.bpindex", Path(first).name)
    assert names(read_only.parent) == {"a.toy"}
    assert names(Path(first).parent) == {Path(first).name}


def test_without_any_place_it_stays_in_memory(
    read_only: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    for place in ("/nobody/may/write/here", str(cache / "file")):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        toy = Toy()

        def work(toy: Toy = toy) -> str:
            loaded = load(read_only, toy)
            assert right(loaded, read_only)
            return f"{toy.runs} {loaded.place}"

        assert run_as_nobody(work) == "1 None"


@pytest.mark.parametrize("broken", ["pwrite", "fsync", "replace", "ftruncate"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_full_disk_leads_elsewhere(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, broken: str, everywhere: bool
) -> None:
    real = getattr(os, broken)
    calls = 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if everywhere or calls == 1:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, broken, fail)
    toy = Toy()
    loaded = load(data, toy)
    monkeypatch.undo()
    assert toy.runs == 1
    assert right(loaded, data)
    assert names(data.parent) == {"a.toy"}
    assert loaded.place is None if everywhere else str(loaded.place).startswith(str(cache))
    assert not [path for path in cache.rglob("*") if path.is_file() and str(path) != loaded.place]


def test_a_file_system_without_locks_leads_elsewhere(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert right(load(data, Toy()), data)


def test_a_folder_for_all(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "all" / "indexes"))
    loaded = load(data, Toy())
    assert Path(str(loaded.place)).parent == tmp_path / "all" / "indexes"
    assert not load(data, Toy()).built
    assert names(data.parent) == {"a.toy"}


def test_relative_and_absolute_paths_have_one_index(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "all"))
    monkeypatch.chdir(data.parent)
    load(Path("a.toy"), Toy())
    assert not load(data, Toy()).built


def test_a_user_without_a_home_has_no_cache(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert index.places(str(data)) == [beside(data)]
    assert index.places("memory://x") == []


def test_a_name_too_long_for_a_side_car(tmp_path: Path, cache: Path) -> None:
    path = write_records(tmp_path / ("n" * 250), [b"abc"])
    assert str(load(path, Toy()).place).startswith(str(cache))
    assert not load(path, Toy()).built


# -- URLs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("mode", ["auto", "write"])
def test_the_index_of_a_url_lies_beside_it_or_in_the_cache(
    data: Path, cache: Path, told: bool, mode: str
) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    url, toy = f"memory://index/{told}-{mode}.toy", Toy()

    def found() -> index.Index:
        source = open_source(url)
        assert isinstance(source, RemoteSource)
        assert source.tag
        source.tag = source.tag if told else ""
        return index.load(source, "toy", toy, mode=mode)

    content = data.read_bytes()
    memory.pipe(url, content)
    first = found()
    assert str(first.place).startswith(str(cache) if mode == "auto" else url)
    assert memory.exists(f"{url}.bpindex") == (mode == "write")
    assert not found().built
    assert right(found(), data)
    # Written anew: the store tells the time, or else the last bytes tell.
    memory.pipe(url, content[:-1] + bytes([content[-1] ^ 1]))
    assert found().built
    assert not found().built
    assert toy.runs == 2


def test_a_store_that_tells_nothing_is_no_failure(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("memory://index/silent.toy", data.read_bytes())

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the driver's own")

    source = open_source("memory://index/silent.toy")
    monkeypatch.setattr(type(memory), "info", fail)
    assert index.load(source, "toy", Toy(), mode="write").built
    assert not index.load(source, "toy", Toy(), mode="write").built


# -- many at once --------------------------------------------------------------------------------------


def slow(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
    """A scanner that takes long enough for the others to come, and notes that it ran."""
    Path(f"{source.path}.runs-{os.getpid()}").touch()
    time.sleep(0.3)
    return Toy()(source, report)


def open_in_a_process(path: Path, gate: Any, out: Any) -> None:
    gate.wait()
    loaded = load(path, slow)
    out.put((right(loaded, path), loaded.place))


def test_eight_processes_at_once_make_one(data: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate, out = context.Barrier(8), context.Queue()
    children = [context.Process(target=open_in_a_process, args=(data, gate, out)) for _ in range(8)]
    with processes.started(*children):
        actual = processes.answers(out, *children, count=8)
    assert actual == [(True, str(beside(data)))] * 8
    there = names(data.parent)
    assert len([name for name in there if ".runs-" in name]) == 1
    assert {name for name in there if ".runs-" not in name} == {"a.toy", "a.toy.bpindex"}


def test_threads_at_once_make_one(data: Path) -> None:
    result: list[index.Index] = []
    toy, entered = Toy(), threading.Event()

    def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        entered.set()
        time.sleep(0.1)
        return toy(source, report)

    threads = [threading.Thread(target=lambda: result.append(load(data, build))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert toy.runs == 1
    assert sum(item.built for item in result) == 1
    assert all(right(item, data) for item in result)
    assert names(data.parent) == {"a.toy", "a.toy.bpindex"}


def test_who_waits_too_long_builds_in_memory(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "tuning", index.IndexTuning(wait_seconds=0.05))
    with sidecar.Draft(beside(data), 0):
        loaded = load(data, Toy())
        assert loaded.place is None
        assert right(loaded, data)
        # A draft that somebody works on is not removed.
        assert index.remove(str(data)) == []
        assert sidecar.draft_path(beside(data)).exists()
    assert load(data, Toy()).place == str(beside(data))


def test_a_draft_that_was_taken_away_before_it_was_locked_is_opened_anew(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, draft = fcntl.flock, sidecar.draft_path(beside(data))
    calls = 0

    def flock(fd: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            draft.unlink()
        elif calls == 2:
            os.replace(draft, beside(data))
            draft.write_text("another's")
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with sidecar.Draft(beside(data), PATIENCE) as taken:
        assert calls == 3
        assert os.path.samestat(os.fstat(taken._fd), draft.stat())


# Where a child finds this module and what it imports.
MODULES = str(repository.SUPPORT)

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(os.pathsep)
import toy_index
from batchplant.storage.index import sidecar

real, when = os.pwrite, sys.argv[3]

def stop():
    print("now", flush=True)
    signal.pause()

def pwrite(*args):
    done = real(*args)
    stop()
    return done

def build(source, report):
    if when == "scanning":
        stop()
    return toy_index.Toy()(source, report)

os.pwrite = pwrite
toy_index.load(Path(sys.argv[2]), build)
"""


@pytest.mark.parametrize(
    ("when", "old"),
    [("scanning", False), ("writing", True), *exhaustive(("scanning", True), ("writing", False))],
)
def test_a_killed_process_leaves_no_lock_and_no_half_index(data: Path, when: str, old: bool) -> None:
    if old:
        load(data, Toy())
        os.utime(data, ns=(1, 1))
    arguments = [sys.executable, "-c", KILLED, MODULES, str(data), when]
    with processes.start(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
    assert ".a.toy.bpindex.partial" in names(data.parent)
    assert beside(data).exists() == old
    loaded = load(data, Toy())
    assert loaded.built
    assert loaded.place == str(beside(data))
    assert right(loaded, data)
    assert names(data.parent) == {"a.toy", "a.toy.bpindex"}
    assert not load(data, Toy()).built


def test_a_fork_meanwhile_does_not_keep_the_lock(data: Path) -> None:
    children: list[int] = []

    def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
        return Toy()(source, report)

    try:
        load(data, build)
        with sidecar.Draft(beside(data), wait=0):
            pass
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# -- opening many --------------------------------------------------------------------------------------


def test_in_parallel_keeps_order_and_raises_the_first_error() -> None:
    assert progress.in_parallel(lambda path: path * 2, list("abcdef")) == ["aa", "bb", "cc", "dd", "ee", "ff"]
    assert progress.in_parallel(str, []) == []
    late = threading.Event()

    def work(path: str) -> str:
        if path == "b":
            assert late.wait(PATIENCE)
            raise DamagedError("b", path=path)
        if path == "c":
            late.set()
            raise DamagedError("c", path=path)
        return path

    with pytest.raises(DamagedError, match="b: b"):
        progress.in_parallel(work, list("abc"))


def test_an_error_stops_the_scans_of_the_others(data: Path) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def endless(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        begun.set()
        try:
            while True:
                time.sleep(0.001)
                report(0)
        except progress.Stopped:
            stopped.set()
            raise

    def work(path: str) -> index.Index:
        if path == "bad":
            assert begun.wait(PATIENCE)
            raise DamagedError("bad")
        return load(Path(path), endless)

    with pytest.raises(DamagedError, match="bad"):
        progress.in_parallel(work, ["bad", str(data)])
    assert stopped.is_set()
    assert names(data.parent) == {"a.toy"}


INTERRUPTED = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1].split(os.pathsep)
import toy_index
from batchplant.storage.index import progress

def endless(source, report):
    os.write(1, b"now\\n")
    while True:
        time.sleep(0.001)
        report(0)

progress.in_parallel(lambda path: toy_index.load(Path(path), endless), sys.argv[2:])
"""


def test_ctrl_c_stops_many_scans(tmp_path: Path) -> None:
    paths = [write_records(tmp_path / f"{number}.toy", [b"abc"]) for number in range(3)]
    arguments = [sys.executable, "-c", INTERRUPTED, MODULES, *map(str, paths)]
    with processes.start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in paths:
            assert child.stdout.readline() == "now\n"
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in error
    assert child.returncode != 0
    assert names(tmp_path) == {"0.toy", "1.toy", "2.toy"}


def test_many_shards_open_in_order(tmp_path: Path) -> None:
    for number in range(25):
        np.save(tmp_path / f"part-{number}.npy", np.full(2, number))
    for path in (str(tmp_path / "part-*.npy"), str(tmp_path)):
        reader = batchplant.open(path)
        assert [reader[row]["data"] for row in range(0, 50, 2)] == list(range(25))
    (tmp_path / "part-7.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "part-9.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DamagedError, match=r"part-7\.npy"):
        batchplant.open(str(tmp_path / "part-*.npy"))


def test_a_glob_leaves_side_cars_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-1.npy", "a-2.npy", "a-1.npy.bpindex", "a-2.npy.crc", "a-3.npy.crc"):
        Path(name).touch()
    assert registry.expand("./a-*") == ["./a-1.npy", "./a-2.npy", "./a-3.npy.crc"]
    assert registry.expand("a-*.crc") == ["a-2.npy.crc", "a-3.npy.crc"]


# -- the bar -------------------------------------------------------------------------------------------


BAR = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1].split(os.pathsep)
import toy_index
from batchplant.storage.index import progress

progress.MIN_BAR_BYTES = 1

def build(source, report):
    for done in range(0, source.size + 1, max(1, source.size // 20)):
        report(done)
        time.sleep(0.02)
    return {}, {}

progress.in_parallel(lambda path: toy_index.load(Path(path), build), sys.argv[2:])
print("rich" in sys.modules)
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_large_file_shows_a_bar_on_a_terminal(data: Path, terminal: bool) -> None:
    other = write_records(data.with_name("b.toy"), [b"abc"] * 100)
    arguments = [sys.executable, "-c", BAR, MODULES, str(data), str(other)]
    if terminal:
        shown = processes.run_in_terminal(arguments, 100)
        assert "indexing" in shown
        assert "B/s" in shown
        assert shown.rstrip().endswith("True")
    else:
        done = processes.run(arguments, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("False\n", "")


# -- the command ---------------------------------------------------------------------------------------


class ToyReader(batchplant.Reader):
    """Reads .toy files."""

    def __init__(self, path: str, *, index: str = "auto") -> None:
        self.path = path
        self.schema = batchplant.Schema({"data": batchplant.Bytes()})
        self.index = load(Path(path), Toy(), index)
        self.length = len(self.index.arrays["starts"])


@pytest.fixture
def toy_format(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = batchplant.Format("toy", "Toy", (".toy",), "https://example.org/toy", ToyReader, None)
    monkeypatch.setattr(find, "plug_ins", lambda: {"toy": toy})


def main(arguments: list[str]) -> int:
    # Not on top, for it imports rich, and the scripts above import this file.
    from batchplant.cli import main

    return main(arguments)


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    assert main(["index", *map(str, argv), "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.usefixtures("toy_format")
def test_the_command_builds_and_tells(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, data, "--where") == [{"file": str(data), "state": "not built"}]
    (row,) = run_json(capsys, data)
    assert row.pop("seconds") >= 0
    size = beside(data).stat().st_size
    built = {"file": str(data), "samples": 900, "index": size, "place": str(beside(data)), "state": "built"}
    assert row == built
    assert run_json(capsys, data)[0]["state"] == "fresh"
    assert run_json(capsys, data, "--force")[0]["state"] == "rebuilt"
    os.utime(data, ns=(1, 1))
    assert run_json(capsys, data)[0]["state"] == "rebuilt"
    assert run_json(capsys, data, "--where")[0]["state"] == "there"
    sidecar.draft_path(beside(data)).touch()
    assert run_json(capsys, data, "--remove")[0]["state"] == "removed"
    assert names(data.parent) == {"a.toy"}
    assert run_json(capsys, data, "--remove")[0]["state"] == "there was none"


@pytest.mark.usefixtures("toy_format")
def test_the_command_takes_many_and_prints_a_table(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data.parent)
    write_records(Path("b.toy"), [b"abc"] * 1500)
    np.save("c.npy", np.arange(3))
    assert main(["index", "{a,b}.toy", "c.npy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "samples", "index", "state", "seconds", "place"]
    assert re.fullmatch(r"a\.toy +900 +\d+\.?\d* kB  built +\d+\.\d\d  _index\.bpindex", lines[1])
    assert re.fullmatch(r"b\.toy +1,500 +\d+\.?\d* kB  built +\d+\.\d\d  _index\.bpindex", lines[2])
    assert re.fullmatch(r"c\.npy +npy needs no index", lines[3])
    assert names(data.parent) == {"a.toy", "b.toy", "c.npy", "_index.bpindex"}
    # Side-cars do not come along with a glob, and a folder is its shards.
    assert [row["file"] for row in run_json(capsys, "*.toy*")] == ["a.toy", "b.toy"]
    Path("c.npy").unlink()
    assert [row["state"] for row in run_json(capsys, ".")] == ["fresh", "fresh"]


@pytest.mark.usefixtures("toy_format")
def test_the_command_tells_of_an_index_in_memory(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index, "places", lambda path: [])
    assert run_json(capsys, data)[0]["state"] == "in memory only"


@pytest.mark.usefixtures("toy_format")
def test_the_command_fails_as_the_others_do(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(data.with_name("none.toy"))]) == 2
    assert "no such file" in capsys.readouterr().err
    data.write_bytes(Size.pack(10))
    assert main(["index", str(data)]) == 1
    assert "a.toy, byte 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["index", str(data), "--force", "--remove"])


INDEXED = [
    (name, item.suffixes[0])
    for name, item in registry.own_formats().items()
    if "index" in own_options(item.reader) and item.writer is not None and not item.fields
]


def test_there_are_formats_with_an_index() -> None:
    assert {"tfrecord", "webdataset", "recordio", "msgpack"} <= {name for name, _ in INDEXED}


@pytest.mark.parametrize(("name", "suffix"), INDEXED)
def test_formats_with_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    cells = [bytes([number]) * (number % 7 + 1) for number in range(50)]
    try:
        with batchplant.create(path, {"data": batchplant.Bytes()}, format=name) as out:
            for cell in cells:
                out.append({"data": cell})
    except MissingLibraryError as error:
        pytest.skip(str(error))
    before = {str(path) for path in tmp_path.rglob("*")}
    (row,) = run_json(capsys, path)
    assert row["samples"] == 50
    if row["state"] == "none is needed":
        assert {str(path) for path in tmp_path.rglob("*")} == before
        return
    assert row["state"] == "built"
    assert {str(path) for path in tmp_path.rglob("*")} == before | {row["place"]}
    assert Path(row["place"]).name.endswith(".bpindex")
    assert run_json(capsys, path)[0]["state"] == "fresh"
    assert run_json(capsys, path, "--force")[0]["state"] == "rebuilt"
    assert run_json(capsys, path, "--where")[0]["place"] == row["place"]
    for mode in index.MODES:
        with batchplant.open(path, index=mode) as reader:
            assert [sample["data"] for sample in reader] == cells
    # Whatever a side-car says, a reader gives cells that are right or one of our errors.
    content = Path(row["place"]).read_bytes()
    header, start, data = sidecar.read(Path(row["place"]))
    rng = np.random.default_rng(3)
    for _ in range(20):
        damaged = data[start:].copy()
        damaged[rng.integers(len(damaged), size=8)] = rng.integers(256, size=8)
        for value in header["arrays"].values():
            size = int(np.prod(value["shape"])) * np.dtype(value["dtype"]).itemsize
            value["crc"] = batchplant._native.crc32c(damaged[value["start"] : value["start"] + size].data)
        forge_at(Path(row["place"]), json.dumps(header).encode(), damaged.tobytes())
        with contextlib.suppress(BatchplantError), batchplant.open(path) as reader:
            list(reader)
            reader.spans("data")
    Path(row["place"]).write_bytes(content)
    assert run_json(capsys, path, "--remove")[0]["state"] == "removed"
    assert {str(path) for path in tmp_path.rglob("*")} == before


# -- sets ----------------------------------------------------------------------------------------------


def shards_of(folder: Path, count: int = 4) -> list[Path]:
    folder.mkdir()
    return [write_records(folder / f"{number}.toy", [bytes([number])] * 5) for number in range(count)]


@pytest.mark.usefixtures("toy_format")
def test_files_of_a_folder_share_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "many"
    paths = shards_of(folder)
    rows = run_json(capsys, folder)
    assert [row["state"] for row in rows] == ["built"] * 4
    assert {row["place"] for row in rows} == {str(folder / "_index.bpindex")}
    assert names(folder) == {*(path.name for path in paths), "_index.bpindex"}
    before = (folder / "_index.bpindex").stat().st_mtime_ns
    assert [row["state"] for row in run_json(capsys, folder)] == ["fresh"] * 4
    assert (folder / "_index.bpindex").stat().st_mtime_ns == before
    # A glob of everything means the data.
    monkeypatch.chdir(folder)
    assert registry.expand("*") == ["0.toy", "1.toy", "2.toy", "3.toy"]
    # Opening uses it, and scans what changed and nothing else.
    write_records(paths[2], [b"new"] * 9)
    toy = Toy()
    result = [load(path, toy, "auto") for path in paths]
    assert toy.runs == 1
    assert [item.built for item in result] == [False, False, True, False]
    assert all(right(item, path) for item, path in zip(result, paths, strict=True))
    assert [row["state"] for row in run_json(capsys, folder)] == ["fresh", "fresh", "rebuilt", "fresh"]
    # A file of its own in another one: the others stay.
    rows = run_json(capsys, "{0,1}.toy", "--remove")
    assert [row["state"] for row in rows] == ["removed"] * 2
    assert [row["state"] for row in run_json(capsys, ".", "--where")] == ["not built"] * 2 + ["there"] * 2
    run_json(capsys, ".", "--remove")
    assert names(folder) == {path.name for path in paths}


@pytest.mark.usefixtures("toy_format")
def test_files_that_are_gone_leave_the_index_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = shards_of(tmp_path / "many")
    run_json(capsys, tmp_path / "many")
    paths[0].unlink()
    write_records(paths[1], [b"new"])
    # Only those that are named are indexed; of the others, those stay that are as they were.
    run_json(capsys, paths[2], paths[3], "--force")
    index_set = sets.IndexSet("", sidecar.read(tmp_path / "many" / "_index.bpindex"))
    assert list(index_set) == ["2.toy", "3.toy"]


@pytest.mark.usefixtures("toy_format")
def test_the_index_of_a_folder_that_is_damaged_anywhere_does_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = shards_of(tmp_path / "many", 2)
    run_json(capsys, tmp_path / "many")
    place = tmp_path / "many" / "_index.bpindex"
    content = place.read_bytes()
    rng = np.random.default_rng(4)
    flips = []
    step = 1 if EXHAUSTIVE else 11
    for at in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        flips.append(bytes(damaged))
    used = 0
    for bad in (*flips, *(content[:end] for end in range(0, len(content), 7 * step))):
        place.write_bytes(bad)
        for path in paths:
            loaded = load(path, Toy(), "auto")
            assert right(loaded, path)
            used += not loaded.built
    # What is damaged is one file's, or all of it.
    assert 0 < used < 2 * len(flips)


@pytest.mark.usefixtures("toy_format")
def test_where_a_folder_takes_no_index_every_file_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = shards_of(tmp_path / "many")
    # It cannot be replaced by a file.
    (tmp_path / "many" / "_index.bpindex").mkdir()
    rows = run_json(capsys, tmp_path / "many" / "*.toy")
    # Then each has its own.
    assert [row["place"] for row in rows] == [str(beside(path)) for path in paths]
    assert all("remark" in row for row in rows)
    assert [row["state"] for row in rows] == ["built"] * 4
