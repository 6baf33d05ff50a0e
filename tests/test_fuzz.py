"""The fuzz targets, which run elsewhere: they compile, and they know every format."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import batchplant as bp
from batchplant.registry import all_formats

FOLDER = Path(__file__).parent.parent / "fuzz"
COMPILER = shutil.which("g++")


@pytest.fixture(scope="module")
def formats() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_formats", FOLDER / "formats.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(all_formats()))
def test_every_format_has_a_seed(name: str, formats: ModuleType, tmp_path: Path) -> None:
    if all_formats()[name].writer is None and name not in formats.READ_ONLY:
        assert name == "lst", "neither written nor in READ_ONLY: it is never fuzzed"
        return
    try:
        path = formats.make_seed(name, tmp_path)
        # Damaged pickles are not loaded, only refused: what they would run is anybody's guess.
        trust = {"allow_pickle": True} if name in ("pickle", "joblib") else {}
        with bp.open(path, format=name, **trust) as dataset:
            assert len(dataset) > 0
            assert not list(dataset.verify())
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    file = path if path.is_file() else next(one for one in sorted(path.rglob("*")) if one.is_file())
    whole = file.read_bytes()
    for seed in range(3):
        file.write_bytes(formats.mutate(whole, random.Random(seed)))
        formats.check(name, path)


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
@pytest.mark.parametrize("target", [path.name for path in sorted(FOLDER.glob("*.cpp"))])
def test_targets_compile(target: str) -> None:
    done = subprocess.run(
        [str(COMPILER), "-std=c++20", "-fsyntax-only", FOLDER / target], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
