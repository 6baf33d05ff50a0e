"""What all tests stand on."""

import contextlib
import signal

import psutil
import pytest

# A process that a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A test that was broken off may have left processes; none of them runs on."""
    for child in psutil.Process().children(recursive=True):
        # Python waits for this one in the end; it goes by itself.
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
