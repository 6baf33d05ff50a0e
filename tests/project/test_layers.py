"""tools/check_layers.py: it finds each kind of breach in a made-up package, and none in the real one."""

import importlib.util
from types import ModuleType

import pytest

from repository import ROOT


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


# So says `make check`, too.
@pytest.mark.exhaustive
def test_the_package_keeps_its_layers(layers):
    assert layers.check(ROOT / "src" / "batchplant") == []


def test_the_registry_knows_no_family(layers):
    package = ROOT / "src" / "batchplant"
    files = {layers.module_name(package, path): path for path in package.rglob("*.py")}
    known = {
        target
        for module in ("formats.registry", "formats.base.format", "formats._table")
        for target in layers.imports(
            "batchplant", files[module], module, files, layers.runtime_nodes(files[module])
        )
    }
    assert "storage" in known
    shared = {target for target in known if target.startswith("formats.base.")}
    assert shared <= {f"formats.base.{name}" for name in ("format", "capabilities", "options", "memory")}


def test_earlier_layers_and_other_packages_are_fine(check):
    assert check(errors="import os", schema="import numpy\nfrom batchplant.errors import E") == []


@pytest.mark.parametrize(
    "text",
    [
        "from batchplant.loading import Loader",
        "import batchplant.loading",
        "from batchplant import loading",
        "from . import loading",
        "from .loading import Loader",
        "def f():\n    from .loading import Loader",
        "try:\n    import batchplant.loading\nexcept ImportError:\n    pass",
    ],
)
def test_a_later_layer_is_found_however_it_is_imported(check, text):
    assert check(schema=text, loading="") == ["schema: imports loading, which is in a later layer"]


def test_the_compiled_module_counts_as_a_module(check):
    assert check(errors="from batchplant import _native", schema="from ._native import probe") == []


def test_imports_for_type_checkers_do_not_count(check):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .loading import Loader\n"
    assert check(schema=text, loading="") == []
    problems = check(schema=text + "else:\n    from .loading import Loader\n")
    assert problems == ["schema: imports loading, which is in a later layer"]


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


def test_a_circle_inside_a_layer(check):
    problems = check(storage="def f():\n    from .order import C", order="from .storage import S")
    assert problems == ["circle of 2: order, storage (order -> storage -> order)"]


def test_a_circle_is_told_once_however_many_ways_lead_around_it(check):
    problems = check(
        storage__in__a="from . import b, c",
        storage__in__b="from . import c",
        storage__in__c="from . import a",
    )
    assert problems == ["circle of 3: storage.a, storage.b, storage.c (storage.a -> storage.c -> storage.a)"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('import_module("batchplant.loading.loader")', "batchplant.loading.loader by its name"),
        ('importlib.import_module(f"batchplant.loading.{x}")', "batchplant.loading by its name"),
        ('import_module("batchplant.loading." + x)', "batchplant.loading by its name"),
        ('import_module(".loading", __package__)', "batchplant.loading by its name"),
        ('__import__("batchplant.loading")', "batchplant.loading by its name"),
        ("import_module(x)", "a module by a name that only running tells"),
        ('import_module(f"{x}.loading")', "a module by a name that only running tells"),
        ('import_module(f"batch{x}")', "a module by a name that only running tells"),
    ],
)
def test_imports_by_name_are_found(check, text, named):
    problems = check(schema=f"def f():\n    {text}", loading__in____init__="", loading__in__loader="")
    allowed = "formats.registry.find, compat, cli, loading.node.recipe, loading.service.plans, __init__"
    assert f"schema: imports {named}; only {allowed} may" in problems
    layer = "schema: imports loading, which is in a later layer"
    deeper = "schema: imports loading.loader, which is in a later layer"
    assert ("running" in named) != (layer in problems or deeper in problems)


def test_imports_by_name_that_are_fine(check):
    others = 'import_module("numba")\nimport_module(f"PIL.{x}")\nimport_module(f"joblib{x}")\n'
    assert (
        check(schema=others, formats__in__registry__in__find='import_module("batchplant.cli")', cli="") == []
    )


def test_a_circle_through_a_name(check):
    problems = check(storage__in__a='import_module("batchplant.storage.b")', storage__in__b="from . import a")
    assert problems[1:] == ["circle of 2: storage.a, storage.b (storage.a -> storage.b -> storage.a)"]


def test_same_layer_without_a_cycle_is_fine(check):
    assert check(storage="from .order import C", order="") == []


def test_unknown_module_says_what_to_do(check):
    assert check(novelty="") == ["novelty: in no layer: add it to LAYERS in tools/check_layers.py"]


def test_exit_status(layers, check, tmp_path, capsys):
    check(schema="from .loading import Loader", loading="")
    assert layers.main([str(tmp_path / "batchplant")]) == 1
    assert "later layer" in capsys.readouterr().err
