"""The package as a whole: what importing it costs, what it exports, what it says of itself."""

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import batchplant

SOURCE = Path(batchplant.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_it_imports_no_heavy_library():
    heavy = ["torch", "PIL", "pyarrow", "rich", "fsspec", "pytest"]
    found = json.loads(run("import json, sys, batchplant; print(json.dumps(list(sys.modules)))"))
    assert "batchplant.registry" in found
    assert [name for name in heavy if name in found] == []


def test_exports_are_sorted_complete_and_there():
    assert batchplant.__all__ == sorted(batchplant.__all__)
    assert [name for name in batchplant.__all__ if not hasattr(batchplant, name)] == []
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported - {"annotations"} == set(batchplant.__all__)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_the_version_is_written_down_once():
    assert batchplant.__version__ == importlib.metadata.version("batchplant")
    project = (SOURCE.parent.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in project
    assert f'"{batchplant.__version__}"' not in project


def test_types_are_shipped():
    assert (SOURCE / "py.typed").exists()
