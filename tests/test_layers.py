"""tools/check_layers.py: it finds each kind of breach in a made-up package, and none in the real one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(layers, tmp_path):
    def check(**files: str) -> list[str]:
        package = tmp_path / "batchplant"
        for name, text in {"__init__": "", **files}.items():
            path = package / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return layers.check(package)

    return check


def test_the_package_keeps_its_layers(layers):
    assert layers.check(ROOT / "src" / "batchplant") == []


def test_earlier_layers_and_other_packages_are_fine(check):
    assert check(errors="import os", schema="import numpy\nfrom batchplant.errors import E") == []


@pytest.mark.parametrize(
    "text",
    [
        "from batchplant.loading.loader import Loader",
        "import batchplant.loading.loader",
        "from batchplant import loader",
        "from . import loader",
        "from .loader import Loader",
        "def f():\n    from .loader import Loader",
        "try:\n    import batchplant.loading.loader\nexcept ImportError:\n    pass",
    ],
)
def test_a_later_layer_is_found_however_it_is_imported(check, text):
    assert check(schema=text, loader="") == ["schema: imports loader, which is in a later layer"]


def test_the_compiled_module_counts_as_a_module(check):
    assert check(errors="from batchplant import _native", schema="from ._native import probe") == []


def test_imports_for_type_checkers_do_not_count(check):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .loader import Loader\n"
    assert check(schema=text, loader="") == []
    problems = check(schema=text + "else:\n    from .loader import Loader\n")
    assert problems == ["schema: imports loader, which is in a later layer"]


def test_the_package_itself_is_a_late_layer(check):
    assert check(schema="from batchplant import open") == [
        "schema: imports __init__, which is in a later layer"
    ]
    assert check(schema="", cli="import batchplant") == []


def test_init_may_import_anything(check):
    assert check(__init__="from .cli import main", cli="import batchplant") == []


def test_formats_do_not_know_each_other(check):
    assert check(formats__in__npy="from .tar import x", formats__in__tar="") == [
        "formats.npy: imports formats.tar, but formats must not know each other"
    ]


def test_a_format_of_several_files_may_use_its_own(check):
    files = {"formats__in__beton__in__reader": "from .layout import x", "formats__in__beton__in__layout": ""}
    assert check(**files) == []


def test_cycle_inside_a_layer(check):
    problems = check(schema="def f():\n    from .columns import C", columns="from .schema import S")
    assert problems == ["cycle: columns -> schema -> columns"]


def test_same_layer_without_a_cycle_is_fine(check):
    assert check(schema="from .columns import C", columns="") == []


def test_unknown_module_says_what_to_do(check):
    assert check(novelty="") == ["novelty: in no layer: add it to LAYERS in tools/check_layers.py"]


def test_long_module(check):
    assert check(schema="\n" * 401) == ["schema: 401 lines, more than 400: split it"]


def test_exit_status(layers, check, tmp_path, capsys):
    check(schema="from .loader import Loader", loader="")
    assert layers.main([str(tmp_path / "batchplant")]) == 1
    assert "later layer" in capsys.readouterr().err
