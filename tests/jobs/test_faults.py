"""Whatever system call of a conversion fails or kills: the old dataset is there or the new, whole, resumable.

And of the cache of blocks: no wrong byte, never over the limit, and whoever comes next can use it.

`make test` tries some calls of the formats that write in a way of their own; `make test-all` tries all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

import processes
import repository
from batchplant.formats.registry import all_formats

FAULTS = repository.SUPPORT / "faults"
# Side-cars; a folder; rows in a database; a table; a library that dies of full disks; many files; a log.
OWN_WAYS = ("tfrecord", "zarr", "lmdb", "parquet", "hdf5", "imagefolder", "delta")
# A tail with side-cars; chunks; a library that writes all over; a transaction; bytes in the middle; a tail
# and an index that takes the place of the old one.
APPEND_WAYS = ("tfrecord", "zarr", "hdf5", "lmdb", "webdataset", "megatron")
WRITERS = sorted(name for name, item in all_formats().items() if item.writer is not None)
# Where a folder of shards has no meaning.
NO_SHARDS = ("imagefolder", "audiofolder", "videofolder")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    source = str(FAULTS / "shim.c")
    processes.run([compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.fixture
def drive(shim, tmp_path):
    """Run a script with the shim, and check that it found nothing bad."""

    def run(*args: str, script: str = "drive.py") -> None:
        done = processes.run(
            [sys.executable, str(FAULTS / script), *args],
            env={**os.environ, "LD_PRELOAD": str(shim), "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["tried"] > 0
        assert not answer["bad"], "\n".join(
            f"{mode} at {point}: {what}" for mode, point, what in answer["bad"]
        )

    return run


def each(*modes: str) -> list[str]:
    return [f"--mode={mode}" for mode in modes]


def test_some_calls(drive):
    """Calls while the writer closes, a full disk before; those of an append; those of shards."""
    closing = ["--close", *each("kill", "EIO")]
    appending = ["--append", "--close", *each("kill", "ENOSPC")]
    sharding = ["--sharded", "--overwrite", *each("kill", "interrupt", "ENOSPC")]
    drive(
        *OWN_WAYS, "--overwrite", "--most", "1", *closing, "--anywhere", "ENOSPC",
        "then", *APPEND_WAYS, "--most", "1", *appending,
        "then", "beton", "--most", "2", *sharding,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_every_call(drive, name, sharded, overwrite):
    if sharded and name in NO_SHARDS:
        pytest.skip("a folder of images, sounds or videos has no shards")
    drive(name, *(["--sharded"] if sharded else []), *(["--overwrite"] if overwrite else []))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [writer for writer in WRITERS if all_formats()[writer].writer.appends])
def test_every_call_of_an_append(drive, name):
    drive(name, "--append")


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_every_call_of_shards_that_are_added(drive):
    drive("parquet", "--append", "--sharded")


def test_some_calls_of_the_cache(drive):
    drive("--most", "4", script="cache.py")


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_every_call_of_the_cache(drive):
    drive(script="cache.py")
