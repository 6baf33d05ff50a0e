"""tools/house.py: figures of a made-up package, and no figure of the real one above the baseline."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from repository import ROOT

MODULES = {
    "__init__": '"""Package."""\n',
    "reader": '"""Reader."""\nfrom .parts import lone\nfrom . import writer\nfound = 1\npath = 2\n',
    "writer": (
        "from typing import TYPE_CHECKING, Any\nif TYPE_CHECKING:\n    from .reader import path\n"
        'def f(x: Any):\n    """What it is."""\n    return x  # type: ignore\n'
    ),
    "parts/__init__": "",
    "parts/lone": "x = [1]  # fmt: skip\n",
}


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / "package" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        'monkeypatch.{0}(module, "MAX_BYTES", 1)\npatch.{0}("a.b.ROWS", 2)\n'.format("setattr")
    )
    return tmp_path / "package"


def test_figures_of_a_package(house: ModuleType, package: Path) -> None:
    figures = house.measure(package, package.parent / "tests")
    assert figures == {
        "lines": 13,
        "files": 5,
        "top-level entries": 4,
        # `found` of found, path, x.
        "vague names %": 33.3,
        "question docstrings %": 33.3,
        "lone modules": 3,
        "import circles": 1,
        "type ignores": 1,
        "Any": 1,
        "fmt skips": 1,
        "constants patched": 2,
    }


def test_a_figure_that_rose_is_named(house: ModuleType) -> None:
    baseline = {"lines": 10, "vague names %": 2.0}
    assert house.compare({"lines": 10, "vague names %": 2.04}, baseline) == []
    assert house.compare({"lines": 11, "vague names %": 2.1}, baseline) == ["lines", "vague names %"]


def test_the_baseline_has_every_figure(house: ModuleType, package: Path) -> None:
    figures = house.measure(package, package.parent / "tests")
    assert list(json.loads(house.BASELINE.read_text("utf-8"))) == list(figures)
