"""Differences between operating systems: cores, memory, locks, the page cache, exchanged names.

Linux's own calls are used where they are there; everything else works on any POSIX system.
``BATCHPLANT_PORTABLE=1`` in the environment forces the latter, so that tests can try it on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import shutil
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

LINUX = sys.platform == "linux" and os.environ.get("BATCHPLANT_PORTABLE", "0") in ("", "0")
# Open for reads past the page cache; nothing where the system has no such flag.
O_DIRECT: int = getattr(os, "O_DIRECT", 0) if LINUX else 0

AT_FDCWD = -100
RENAME_EXCHANGE = 2
# Python has no name for it before 3.12: nobody may map the file to write to it from now on.
F_SEAL_FUTURE_WRITE = 0x10
MADV_POPULATE_READ = 22

MappedT = TypeVar("MappedT", bound=mmap.mmap)


# -- cores and memory --------------------------------------------------------------------------------


def cpu_count() -> int:
    """Return the number of cores that this process may use."""
    if LINUX:
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_limit() -> int:
    """Return the bytes of memory that this process may use: of the machine or its control group."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([limit, *_group_limits()])


def available_memory() -> int:
    """Return the bytes that programs may still take, pages of files included; at most the control group's."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(LookupError):
        available = int(_proc_lines("meminfo")["MemAvailable"].split()[0]) << 10
    return min([available, *_group_limits()])


def resident_memory(kind: str = "VmRSS") -> int:
    """Return the bytes of this process in memory, 0 if unknown; RssAnon: without pages of mapped files."""
    with contextlib.suppress(LookupError):
        return int(_proc_lines("self/status")[kind].split()[0]) << 10
    return 0


def _group_limits() -> Iterator[int]:
    """Yield the limits of the memory of this process's control group."""
    for line in _proc_text("self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root = Path("/sys/fs/cgroup", kinds)
        name = "memory.limit_in_bytes" if kinds else "memory.max"
        # In a container, its own group is the root of what it sees.
        for folder in (root / path.strip("/"), root):
            with contextlib.suppress(OSError, ValueError):
                yield int((folder / name).read_text())


def thread_ids() -> list[int]:
    """Return the system's numbers of the threads of this process; empty if unknown."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc/self/task")] if LINUX else []
    return []


def thread_times(thread: int) -> tuple[float, float]:
    """Return the seconds that a thread of this process ran, and waited for a core; 0 if unknown."""
    # A thread may end meanwhile.
    with contextlib.suppress(ValueError):
        running, waiting, _ = _proc_text(f"self/task/{thread}/schedstat").split()
        return int(running) / 1e9, int(waiting) / 1e9
    return 0.0, 0.0


def boot_id() -> str:
    """Return a text that differs after every start of the machine; empty if unknown."""
    return _proc_text("sys/kernel/random/boot_id").strip()


# -- files -------------------------------------------------------------------------------------------


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process; return False if another one has the lock."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(fd: int) -> None:
    """Lock an open file; wait until no other process has the lock."""
    fcntl.flock(fd, fcntl.LOCK_EX)


def unlock(fd: int) -> None:
    """Release the lock of an open file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders atomically; return False if the system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if LINUX else None


def descriptor_path(fd: int) -> Path | None:
    """Return a path to an open file or folder, whatever becomes of its name; None if there is none."""
    path = Path(f"/proc/self/fd/{fd}")
    return path if LINUX and path.exists() else None


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new file without a name, in memory where the system can."""
    if LINUX:
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def shared_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor of new memory, and the memory, mapped here; no other process can write to it.

    A process that is given the descriptor maps it with :func:`map_copy`. Linux only. Its size is fixed, so no
    access to it fails. The system frees it when no process has it any more, however these ended.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        # Kernels before 5.1 lack the last.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return fd, memory


def map_copy(fd: int, kind: type[MappedT]) -> MappedT:
    """Map the memory of another process, without a copy; what is written to it only this process sees."""
    memory = kind(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    # Page by page, as they are first used, takes longer. Kernels before 5.14 cannot do it.
    with contextlib.suppress(OSError):
        memory.madvise(MADV_POPULATE_READ)
    return memory


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a local socket. Linux only."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", data)
    return process, user


def runtime_folder(name: str) -> Path:
    """Return a folder that only this user can use, for files of running processes; make it if needed.

    It is in XDG_RUNTIME_DIR, or in the folder for temporary files. Raises PermissionError where others can
    use it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base, name) if base else Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            errno.EACCES, "it is no folder of this user that others cannot use", str(folder)
        )
    return folder


@contextlib.contextmanager
def private_copy(path: str) -> Iterator[str]:
    """Give the path of a copy of a file, which is gone at the end."""
    if not LINUX:
        with tempfile.TemporaryDirectory() as folder:
            yield shutil.copyfile(path, os.path.join(folder, os.path.basename(path)))
        return
    fd = anonymous_file(os.path.basename(path))
    try:
        with open(path, "rb") as original:
            size, offset = os.fstat(original.fileno()).st_size, 0
            while offset < size:
                offset += os.sendfile(fd, original.fileno(), offset, size - offset)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def forget_pages(fd: int) -> None:
    """Let the system forget the pages of an open file, where it can."""
    if LINUX:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def resident_pages(fd: int) -> bytes:
    """Return for every page of a file 1 where it is in memory, else 0; empty if unknown."""
    size = os.fstat(fd).st_size
    if not size or not LINUX:
        return b""
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        first = ctypes.c_char.from_buffer(view)
        answer = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(size), states)
        # The view cannot be closed while something points into it.
        del first
    return bytes(state & 1 for state in states) if answer == 0 else b""


def use_huge_pages(memory: mmap.mmap) -> None:
    """Have large pages for this memory, where the system can."""
    with contextlib.suppress(OSError):
        if LINUX and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)


def filesystem(path: str | os.PathLike[str], mounts: str = "self/mounts") -> str:
    """Return the kind of the file system of a path, such as "ext4"; empty if unknown."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in _proc_text(mounts).splitlines():
        _, mount, mount_kind, *_ = line.split()
        # As the kernel writes spaces in names.
        mount = mount.replace("\\040", " ")
        inside = mount == "/" or real == mount or real.startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, mount_kind
    return kind


def _proc_text(name: str) -> str:
    """Return a file of /proc; empty if there is none."""
    with contextlib.suppress(OSError):
        return Path("/proc", name).read_text("utf-8", "replace") if LINUX else ""
    return ""


def _proc_lines(name: str) -> dict[str, str]:
    """Return the values of a file of /proc by their names."""
    lines = (line.partition(":") for line in _proc_text(name).splitlines())
    return {key: value.strip() for key, _, value in lines}
