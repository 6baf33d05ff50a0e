"""The platform module, with Linux's own calls and without them (BATCHPLANT_PORTABLE=1)."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

import processes
from batchplant import _native
from batchplant.storage import platform


def run_script(text: str, **environment: str) -> str:
    """Run a script in another process; return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(text)]
    environment = {**os.environ, **environment}
    output: str = processes.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return output


def test_cores_and_memory_are_plausible() -> None:
    assert 1 <= platform.cpu_count() <= os.cpu_count()
    assert platform.available_memory() > 0
    assert platform.memory_limit() > 0
    if platform.LINUX:
        assert 1 << 20 < platform.resident_memory() < platform.memory_limit()
        assert os.getpid() in platform.thread_ids()
        assert platform.filesystem("/proc") == "proc"


def test_a_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = f"""
        import os
        from batchplant.storage import platform
        fd = os.open({str(path)!r}, os.O_RDWR)
        print(platform.try_lock(fd), platform.try_lock(fd, shared=True))
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert platform.try_lock(fd)
        assert run_script(script) == "False False\n"
        platform.unlock(fd)
        assert platform.try_lock(fd, shared=True)
        assert run_script(script) == "False True\n"
        platform.unlock(fd)
        assert run_script(script) == "True True\n"
    finally:
        os.close(fd)


def test_folders_are_exchanged_or_left_alone(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchanged = platform.exchange(tmp_path / "first", tmp_path / "second")
    assert (tmp_path / "first" / ("second" if exchanged else "first")).exists()
    assert (tmp_path / "second" / ("first" if exchanged else "second")).exists()


def test_anonymous_files_have_no_name_and_private_copies_go(tmp_path: Path) -> None:
    fd = platform.anonymous_file("x")
    try:
        assert os.write(fd, b"abc") == 3
        assert os.pread(fd, 3, 0) == b"abc"
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)
    original = tmp_path / "library.so"
    original.write_bytes(bytes(range(256)) * 1000)
    with platform.private_copy(str(original)) as copy:
        assert Path(copy).read_bytes() == original.read_bytes()
        assert not os.path.samefile(copy, original)
    assert not os.path.exists(copy)


def test_pages_are_counted_where_the_system_tells(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb") as file:
        assert set(platform.resident_pages(file.fileno())) == ({1} if platform.LINUX else set())
        platform.forget_pages(file.fileno())


@pytest.mark.skipif(not platform.LINUX, reason="runs without Linux's calls already")
def test_the_environment_forces_what_every_system_has() -> None:
    script = """
        from batchplant import _native
        from batchplant.storage import platform
        print(platform.LINUX, platform.O_DIRECT, [platform.boot_id()], platform.thread_ids())
        print(_native.features()["fetch"])
    """
    assert run_script(script, BATCHPLANT_PORTABLE="1") == "False 0 [''] []\nthreads\n"


def test_the_native_core_follows() -> None:
    assert _native.features()["fetch"] in (("io_uring", "threads") if platform.LINUX else ("threads",))
