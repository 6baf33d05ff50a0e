"""What all tests stand on."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from batchplant.testing.damage import EXHAUSTIVE

# Where nothing can be installed (see test-gpu in the Makefile), the tests of pictures run without them.
try:
    import hypothesis
    import psutil
except ImportError:
    hypothesis = psutil = None

# A process that a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without time limits: the machine may be busy. The same examples every time, but for the thorough run.
if hypothesis:
    untimed = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile("quick", untimed, max_examples=50, derandomize=True, database=None)
    hypothesis.settings.register_profile("thorough", untimed, max_examples=500)
    hypothesis.settings.load_profile("thorough" if EXHAUSTIVE else "quick")


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Whether files last through a power cut is not seen by these tests, and takes a fifth of their time.

    That files are synced, and when, test_commit.py and test_faults.py watch.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(os, "sync", lambda: None)
        yield


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A test that was broken off may have left processes; none of them runs on."""
    for child in psutil.Process().children(recursive=True) if psutil else ():
        # Python waits for this one in the end; it goes by itself.
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
