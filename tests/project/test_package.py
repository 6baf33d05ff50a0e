"""The package as a whole: what importing it costs, what it exports, what it says of itself."""

import ast
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import batchplant
from batchplant.formats import registry

SOURCE = Path(batchplant.__file__).parent
ROOT = SOURCE.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Public under every name that the original has.
MIRRORS = ("batchplant.ffcv", "batchplant.ffrecord", "batchplant.tfrecord")


def public_modules():
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    return [
        one for block in re.findall(r"```text public\n(.*?)```", text, re.DOTALL) for one in block.split()
    ]


def held_names():
    """(module, names) that users have been able to import since the tree was last changed."""
    for line in (Path(__file__).parent / "public_names.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            module, _, names = line.partition(": ")
            yield module, names.split()


def load(module):
    """A module by its name; what needs a library that is missing is skipped."""
    if module.startswith(("batchplant.interop", "batchplant.ffcv", "batchplant.ffrecord.torch")):
        pytest.importorskip("torch")
    # batchplant.index is a name of another module.
    parent, _, name = module.rpartition(".")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(parent), name)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_it_imports_no_heavy_library():
    heavy = ["torch", "PIL", "pyarrow", "rich", "fsspec", "pytest"]
    found = json.loads(run("import json, sys, batchplant; print(json.dumps(list(sys.modules)))"))
    assert "batchplant.formats.registry" in found
    assert [name for name in heavy if name in found] == []


def test_exports_are_sorted_complete_and_there():
    assert batchplant.__all__ == sorted(batchplant.__all__)
    assert [name for name in batchplant.__all__ if not hasattr(batchplant, name)] == []
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        # Not the modules that type checkers import.
        if isinstance(node, ast.ImportFrom)
        and node.module not in (None, "tools.viewer", "interop")
        and node.level
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_") or alias.name == "__version__"
    }
    assert imported == set(batchplant.__all__)
    # What is imported later is there, too, and found under its own name.
    assert {name for name in batchplant._LAZY_NAMES if not hasattr(batchplant, name)} == set()
    assert set(batchplant._LAZY_NAMES) <= set(batchplant.__all__) <= set(dir(batchplant))
    with pytest.raises(AttributeError, match="no attribute 'Loadre'"):
        _ = batchplant.Loadre


def test_versions_for_a_bug_report(capsys):
    batchplant.show_versions()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["batchplant"] == batchplant.__version__
    assert lines["numpy"] == np.__version__
    assert "Python" in lines["machine"]
    # An extra that is in no extra of users.
    assert "pytest" not in lines


def test_the_version_is_written_down_once():
    assert batchplant.__version__ == importlib.metadata.version("batchplant")
    project = (SOURCE.parent.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in project
    assert f'"{batchplant.__version__}"' not in project


def test_types_are_shipped():
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize(
    ("module", "names"), list(held_names()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_no_public_name_is_lost(module, names):
    found = load(module)
    assert [name for name in names if not hasattr(found, name)] == []


@pytest.mark.parametrize("module", public_modules())
def test_public_modules_say_what_is_public(module):
    found = load(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_docs_import_only_what_is_public(page):
    public = public_modules()
    for text in re.findall(
        r"^```python[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        # A file of ours that is quoted names its path first, and imports by relative names.
        if text.startswith("# src/"):
            continue
        for module, name in imported(text):
            there = f"{module}.{name}" in public or module in public or module.startswith(MIRRORS)
            assert there, f"{module} is not public"
            if name is not None and f"{module}.{name}" not in public and not module.startswith(MIRRORS):
                assert name in load(module).__all__, f"{module} does not export {name}"


def imported(text):
    """(module, name) of every import from batchplant in a piece of code; name is None for a whole module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((one.name, None) for one in node.names if one.name.split(".")[0] == "batchplant")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "batchplant":
            yield from ((node.module, one.name) for one in node.names)


@pytest.mark.parametrize(
    "name", [name for name in batchplant.__all__ if inspect.isroutine(getattr(batchplant, name))]
)
def test_options_of_functions_are_keyword_only(name):
    most = {"convert": 2, "create": 2, "split": 2}
    parameters = inspect.signature(getattr(batchplant, name)).parameters.values()
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= most.get(name, 1), positional


@pytest.mark.parametrize("options", [batchplant.ImageOptions, batchplant.WriteOptions])
def test_options_are_given_by_name(options):
    assert {one.kind for one in inspect.signature(options).parameters.values()} == {
        inspect.Parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize("one", registry.own_formats().values(), ids=lambda one: one.name)
def test_options_of_formats_are_keyword_only(one):
    for made, taken in ((one.reader, ["self", "path"]), (one.writer, ["self", "path", "schema", "options"])):
        if made is not None:
            parameters = inspect.signature(made.__init__).parameters.values()
            assert [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY] == taken
