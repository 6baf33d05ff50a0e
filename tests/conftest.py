"""Fixtures and settings of all tests, and ``--quick``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing.util
import os
import pkgutil
import shutil
import signal
import sqlite3
import sqlite3.dbapi2
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from batchplant.storage import platform
from batchplant.testing.cases import EXHAUSTIVE
from loaders import note_others

if TYPE_CHECKING:
    from proxy import Proxy
    from servers import Bucket, Web

# The tests run beside each other on all cores. Threads of PyTorch and NumPy would fight for them, and spin
# while they wait: the tests of devices took three times as long.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The tests write hundreds of thousands of small files. A container may have little memory for files.
MEMORY = "/dev/shm"
MIN_FREE_BYTES = 4 << 30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Where nothing can be installed (see test-gpu in the Makefile), the tests of images run without them.
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
    hypothesis.settings.register_profile("quick", untimed, max_examples=12, derandomize=True, database=None)
    hypothesis.settings.register_profile("thorough", untimed, max_examples=500)
    hypothesis.settings.load_profile("thorough" if EXHAUSTIVE else "quick")


# Collecting makes much and drops little: the garbage collector starts with the first test (`_imported`).
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="the first parameter set of each test; tests that start processes are skipped",
    )


def pytest_xdist_auto_num_workers() -> int:
    """Start more processes than there are cores: tests of servers, browsers and commands wait for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


# What a quick run leaves out: tests that measure, draw, look at the repository as a whole, wait, or start
# processes from a thread; and those, by parts of their names, that do one thing many times over.
NOT_QUICK_FILES = (
    *("tests/tools", "tests/project", "tests/examples", "tests/compat", "tests/cli/test_bench*"),
    *(
        "tests/loading/test_node.py",
        "tests/ops/test_user_functions.py",
        "tests/formats/test_stored_listing.py",
    ),
)
NOT_QUICK = ("::test_damage_gives", "::test_an_interrupted_conversion", "::test_files_of_other_formats")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a quick run, do not even import what it leaves out."""
    left_out = any(collection_path.match(pattern) for pattern in NOT_QUICK_FILES)
    return True if left_out and config.getoption("quick") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if not platform.LINUX else ():
        if item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason="needs Linux"))
    if not config.getoption("quick"):
        return
    chosen: dict[tuple[object, str], pytest.Item] = {}
    for item in items:
        # A suite that wraps another one has the same parser behind a compression.
        wraps = getattr(getattr(item, "cls", None), "wraps", False)
        left_out = wraps or any(part in item.nodeid for part in NOT_QUICK)
        if not left_out and not item.get_closest_marker("exhaustive"):
            chosen.setdefault((item.parent, getattr(item, "originalname", item.name)), item)
    items[:] = chosen.values()


@pytest.fixture(scope="session", autouse=True)
def _no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a quick run, skip a test as soon as it starts a process: a server, a command, a worker."""

    def skip(*args: object, **options: object) -> NoReturn:
        pytest.skip("starts a process, which a quick run does not")

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", skip)
            patch.setattr(os, "fork", skip)
            patch.setattr(multiprocessing.util, "spawnv_passfds", skip)
        yield


@pytest.fixture(scope="session", autouse=True)
def _imported() -> None:
    """Import modules first: one that a test imports would keep the constants that the test patches."""
    for package in ("storage", "loading", "jobs", "tools.simulation"):
        parent = importlib.import_module(f"batchplant.{package}")
        for module in pkgutil.walk_packages(parent.__path__, f"{parent.__name__}."):
            # A module may need a library that is not installed.
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    # Modules and items stay: spare the garbage collector from looking through them, and through what tests
    # allocate by the thousand, again and again.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own: in memory, but on a disk for tests that are marked so."""
    if request.node.get_closest_marker("on_disk"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        yield tmp_path


known_threads = pytest.fixture(autouse=True)(note_others)


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Turn fsync off, which takes a fifth of the time and which these tests cannot see.

    test_commit.py and test_faults.py check that files are synced, and when.
    """
    connect = sqlite3.dbapi2.connect

    def connect_unsynced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        # A damaged or locked file: its user gets the error.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(os, "sync", lambda: None)
        # Catalogs of Iceberg.
        patch.setattr(sqlite3.dbapi2, "connect", connect_unsynced)
        yield


# Servers, for the tests that ask for one; one real server per process of tests, a bucket for each test.


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    from servers import s3_server

    root = str(tmp_path_factory.mktemp("buckets"))
    with s3_server(root) as endpoint:
        yield root, endpoint


@pytest.fixture
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide keys, profiles, proxies and configuration of the user who runs the tests."""
    for name in os.environ:
        if name == "BATCHPLANT_PORTABLE":
            continue
        if name.startswith(("AWS_", "BATCHPLANT_", "GOOGLE_", "AZURE_", "XDG_")) or "_proxy" in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A permanent failure shall not take a minute; a request is tried three times in any case.
    monkeypatch.setenv("BATCHPLANT_RETRY_SECONDS", "0.1")
    from batchplant.storage.remote import fetch

    # On a busy machine everything stalls, and would be fetched twice; tests of that set it themselves.
    with fetch.tuned(min_stall_seconds=600.0):
        yield


@pytest.fixture
def bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _no_settings: None
) -> Iterator[Bucket]:
    """An empty bucket of a real S3 server, and the credentials for it in the environment."""
    from servers import KEY, SECRET, Bucket

    pytest.importorskip("obstore", reason="pip install 'batchplant[remote]'")
    root, endpoint = request.getfixturevalue("_s3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    os.mkdir(os.path.join(root, name))
    yield Bucket(name, os.path.join(root, name), endpoint)
    # The server looks through all of them for whatever it is asked.
    shutil.rmtree(os.path.join(root, name), ignore_errors=True)


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    """Proxy in front of the server of ``bucket``: requests to ``proxy.endpoint`` can be made to fail."""
    from proxy import Proxy

    with Proxy(bucket.endpoint, root=os.path.dirname(bucket.root)) as proxy:
        yield proxy


@pytest.fixture
def web(tmp_path: Path, _no_settings: None) -> Iterator[Web]:
    """A web server with an empty folder, reached through a Proxy."""
    from proxy import Proxy
    from servers import Web, http_server

    root = tmp_path / "web"
    root.mkdir()
    with http_server(str(root)) as endpoint, Proxy(endpoint) as proxy:
        yield Web(str(root), proxy.endpoint, proxy)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Kill processes that an interrupted test left behind."""
    for child in psutil.Process().children(recursive=True) if psutil else ():
        # The resource tracker ends by itself, and Python waits for it.
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
