"""The fuzz targets, which run elsewhere: they compile, know every format, and see what breaks the rule."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
from pathlib import Path
from types import ModuleType

import pytest

import batchplant as bp
import processes
import repository
from batchplant.formats.registry import all_formats
from processes import PATIENCE

FOLDER = repository.ROOT / "fuzz"
COMPILER = shutil.which("g++")


@pytest.fixture(scope="module")
def formats() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module("formats")


def test_every_format_is_fuzzed(formats: ModuleType) -> None:
    assert set(all_formats()) <= set(formats.cases.names())


@pytest.mark.parametrize("name", sorted(all_formats()))
def test_every_format_has_a_seed(name: str, formats: ModuleType, tmp_path: Path) -> None:
    try:
        path = formats.cases.make_seed(name, tmp_path)
        # Damaged pickles are not loaded, only refused: what they would run is anybody's guess.
        trust = {"allow_pickle": True} if name in ("pickle", "joblib") else {}
        with bp.open(path, format=name, **trust) as dataset:
            assert len(dataset) > 0
            assert not list(dataset.verify())
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    file = path if path.is_file() else next(item for item in sorted(path.rglob("*")) if item.is_file())
    whole = file.read_bytes()
    file.write_bytes(formats.mutate(whole, random.Random(0), file.name))
    formats.check(name, path)


@pytest.mark.parametrize("name", ["csv.gz", "json.zst", "zarr.zip", "beton.many", "golden-n5"])
def test_variants_and_files_of_others(name: str, formats: ModuleType, tmp_path: Path) -> None:
    result = formats.cases.make(name, tmp_path)
    assert result
    assert all(item.files() for item in result)
    for item in result[:2]:
        formats.check(item.format, item.path)


def test_damage_is_the_same_every_time(formats: ModuleType, tmp_path: Path) -> None:
    one, two = (formats.Run("csv", tmp_path / name, 1, tmp_path / "kept") for name in ("a", "b"))
    for number in range(20):
        first, second = one.damage(number)[1], two.damage(number)[1]
        assert first.name == second.name
        # The side-car of checksums says what the data are; both were written alike.
        assert first.read_bytes() == second.read_bytes()
        for run in (one, two):
            run.restore()


def run_away() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("KeyError", lambda: {}[1]),
        ("MemoryError", lambda: bytes(8 << 30)),
        ("SIGABRT", os.abort),
        ("SIGPROF", run_away),
        ("SIGALRM", signal.pause),
    ],
)
def test_what_breaks_the_rule_is_kept(
    kind: str, action, formats: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what ends the process, or does not end by itself."""
    run = formats.Run("npy", tmp_path, 1, tmp_path / "kept")
    run.keep.mkdir()
    run.busy_seconds = 0.2 if kind == "SIGPROF" else PATIENCE
    run.waiting_seconds = 1.0 if kind == "SIGALRM" else PATIENCE
    # Not while the libraries are loaded.
    monkeypatch.setattr(formats, "check", lambda name, path, rng=None: action() if rng is not None else True)
    assert run.go(2, 1e9) == 2
    assert run.findings == 2
    told = sorted(run.keep.glob("npy-*/finding.txt"))
    assert told
    assert told[0].read_text().startswith(kind)
    assert (told[0].parent / "dataset").is_dir()
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    for path, data in run.whole.items():
        assert path.read_bytes() == data


# `make fuzz`, which CI runs for every change, compiles them too.
@pytest.mark.exhaustive
@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize("target", [path.name for path in sorted(FOLDER.glob("*.cpp"))])
def test_targets_compile(target: str) -> None:
    done = processes.run(
        [str(COMPILER), "-std=c++20", "-fsyntax-only", FOLDER / target], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
