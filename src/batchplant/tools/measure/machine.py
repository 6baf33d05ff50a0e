"""The machine that something was measured on, in one line."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from ..._version import __version__
from ...storage.platform import cpu_count, thread_ids, thread_times


def describe() -> str:
    """Processor, cores, memory, system and versions; what a reader of figures has to know."""
    cores = cpu_count()
    parts = [
        _processor(),
        f"{cores} core{'' if cores == 1 else 's'}",
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"batchplant {__version__}",
    ]
    return ", ".join(parts)


def busy() -> str | None:
    """A sentence on the load where more threads want to run than there are cores; else empty."""
    cores, load = cpu_count(), os.getloadavg()[0]
    if load <= cores:
        return None
    return f"a load of {load:.1f} on {cores} core{'' if cores == 1 else 's'}"


def core_seconds() -> tuple[float, float]:
    """Seconds that the living threads of this process ran, and that they waited for a core; 0 if unknown."""
    times = [thread_times(thread) for thread in thread_ids()]
    return sum(ran for ran, _ in times), sum(waited for _, waited in times)


def core_share(since: tuple[float, float]) -> float:
    """Fraction of the time that our threads got a core when they wanted one, since :func:`core_seconds`."""
    ran, waited = (max(0.0, now - then) for now, then in zip(core_seconds(), since, strict=True))
    return ran / (ran + waited) if ran else 1.0


def _processor() -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # ARM's /proc/cpuinfo has numbers only; lscpu knows their names.
        text = Path("/proc/cpuinfo").read_text()
        if shutil.which("lscpu"):
            text = subprocess.run(
                ["lscpu"], capture_output=True, text=True, timeout=10, env={**os.environ, "LC_ALL": "C"}
            ).stdout
        match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE | re.IGNORECASE)
        if match:
            return f"{' '.join(match[1].split())} ({platform.machine()})"
    return platform.machine()
