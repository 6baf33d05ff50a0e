"""Damage to what writers leave under hidden names: commit notes, checkpoints, staged uploads, cached blocks.

A case is a folder as a killed writer, or a reader with a cache, leaves it. After one of its hidden files was
damaged, a user reads, resumes or writes there. Only a `BatchplantError` may come out, and nothing outside the
folder may change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from cases import Case

import batchplant as bp
from batchplant.data.writer import WriteOptions
from batchplant.formats.registry.creating import create_with
from batchplant.storage import commit as commits
from batchplant.storage.remote.disk import DiskCache

ROWS = 6
KINDS = {"number": bp.Int(), "text": bp.Text(), "array": bp.Tensor("float32", (2,))}
# Formats whose writers resume: streams, blocks, columns, chunks, folders.
RESUMABLE = (
    ".beton",
    ".csv",
    ".jsonl",
    ".tfrecord",
    ".tar",
    ".parquet",
    ".arrow",
    ".h5",
    ".zarr",
    ".mds",
    ".rec",
)


def row(number: int) -> dict[str, object]:
    return {"number": number, "text": "x" * number, "array": np.full(2, number, np.float32)}


def write(path: str | Path, numbers: range, **options: Any) -> None:
    with bp.create(path, KINDS, **options) as out:
        for number in numbers:
            out.append(row(number))


@dataclasses.dataclass
class HiddenCase(Case):
    """A folder with hidden files: how it is built, and how a user meets it."""

    build: Callable[[Path], None]
    meet: Callable[[Path], None]

    def files(self) -> list[Path]:
        return [path for path in super().files() if any(part.startswith(".") for part in self._parts(path))]

    def _parts(self, path: Path) -> tuple[str, ...]:
        return path.relative_to(self.folder).parts

    def rebuild(self) -> None:
        """Make the folder anew: a plan names inodes, so that a copy would not do."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        canary(self.folder).write_text("untouched")
        self.build(self.path)

    def check(self) -> bool:
        """Return whether a user who meets the folder sees nothing wrong."""
        try:
            self.meet(self.path)
            return True
        except bp.BatchplantError as error:
            str(error).encode()
            return False
        finally:
            if canary(self.folder).read_text() != "untouched":
                raise AssertionError("a file outside of the folder was changed")


def canary(folder: Path) -> Path:
    """Return a file beside the case's folder that nothing in the folder may reach."""
    return folder.with_name(f"{folder.name}-canary")


# -- a commit that was decided, and not carried out ----------------------------------------------------


def build_commit(path: Path) -> None:
    """Kill a writer between its decision and the first rename."""
    write(path, range(2), checksums=True)
    child = os.fork()
    if child == 0:
        commits._carry_out = lambda *_: os._exit(0)  # type: ignore[assignment]
        try:
            write(path, range(ROWS), overwrite=True, checksums=True)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the writer was not killed where it should have been")


def meet_commit(path: Path) -> None:
    with bp.open(path) as data:
        data.read(range(len(data)))
    write(path, range(3), overwrite=True)


# -- a checkpoint --------------------------------------------------------------------------------------


def build_checkpoint(path: Path) -> None:
    out = bp.create(path, KINDS)
    for number in range(ROWS // 2):
        out.append(row(number))
    out.checkpoint()
    out.suspend()


def meet_checkpoint(path: Path) -> None:
    with create_with(os.fspath(path), bp.Schema(KINDS), WriteOptions(resume=True)) as out:
        for number in range(out.received, ROWS):
            out.append(row(number))
    with bp.open(path) as data:
        data.read(range(len(data)))


def build_conversion(path: Path) -> None:
    """Kill a conversion to shards when some of them are complete."""
    write(path.with_name(".source.jsonl"), range(ROWS))

    def kill(done: int, _: int) -> None:
        if done > ROWS // 2:
            os._exit(0)

    child = os.fork()
    if child == 0:
        try:
            bp.convert(
                path.with_name(".source.jsonl"),
                path,
                shard_samples=2,
                progress=kill,
                options=bp.ConvertOptions(workers=1),
            )
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the conversion was not killed where it should have been")


def meet_conversion(path: Path) -> None:
    bp.convert(
        path.with_name(".source.jsonl"),
        path,
        shard_samples=2,
        resume=True,
        options=bp.ConvertOptions(workers=1),
    )


# -- an upload that was decided, and a cache, both with a store in memory ------------------------------

STORE = "memory://fuzz/"
CACHE_KEY, BLOCK = "0123456789abcdef", bytes(range(256)) * 4


def build_staging(path: Path) -> None:
    """Lay down what a writer killed in the middle of its copies leaves in a bucket."""
    staging = path.parent / f".{path.name}.partial"
    write(path, range(2), shard_samples=1)
    staging.mkdir()
    shards = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    for name in shards:
        shutil.copy(path.parent / name, staging / name)
    steps = [["mark", []], ["remove", []], ["copy", shards], ["copy", []], ["remove", ["old.tar"]]]
    (staging / commits.NOTE_NAME).write_bytes(json.dumps({"steps": steps}).encode())


def meet_staging(path: Path) -> None:
    store = fsspec.filesystem("memory")
    with contextlib.suppress(FileNotFoundError):
        store.rm("/fuzz", recursive=True)
    store.pipe("/other/keep", b"untouched")
    for file in path.parent.rglob("*"):
        if file.is_file():
            store.pipe(f"/fuzz/{file.relative_to(path.parent).as_posix()}", file.read_bytes())
    try:
        write(f"{STORE}{path.name}", range(3), overwrite=True, shard_samples=1)
    finally:
        if store.cat("/other/keep") != b"untouched":
            raise AssertionError("an object outside of the folder was changed")


def build_cache(path: Path) -> None:
    cache = DiskCache(path.parent / ".cache", 1 << 20)
    cache.describe(CACHE_KEY, "s3://bucket/data.tar", "tag", 3 * len(BLOCK))
    for number in range(3):
        cache.put(CACHE_KEY, number * len(BLOCK), np.frombuffer(BLOCK, np.uint8))


def meet_cache(path: Path) -> None:
    """Read every block; a damaged one counts as missing."""
    cache = DiskCache(path.parent / ".cache", 1 << 20)
    for number in range(3):
        block = cache.get(CACHE_KEY, number * len(BLOCK), len(BLOCK))
        if block is not None and block.tobytes() != BLOCK:
            raise AssertionError("a damaged block was taken for whole")
    cache.info()
    build_cache(path)


# name → (names of datasets, how the folder is built, how a user meets it)
CASES: dict[str, tuple[tuple[str, ...], Callable[[Path], None], Callable[[Path], None]]] = {
    "hidden-commit": (("seed.csv", "seed.mds", "seed.tfrecord"), build_commit, meet_commit),
    "hidden-checkpoint": (tuple(f"seed{suffix}" for suffix in RESUMABLE), build_checkpoint, meet_checkpoint),
    "hidden-conversion": (("seed.beton", "seed.tar"), build_conversion, meet_conversion),
    "hidden-staging": (("seed.tar",), build_staging, meet_staging),
    "hidden-cache": (("cache",), build_cache, meet_cache),
}


def make(name: str, folder: Path) -> list[HiddenCase]:
    datasets, build, meet = CASES[name]
    cases = []
    for dataset in datasets:
        place = folder / dataset.replace(".", "-")
        case = HiddenCase(name, None, place / dataset, place, build, meet)
        with contextlib.suppress(bp.MissingLibraryError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.rebuild()
            cases.append(case)
    return cases
