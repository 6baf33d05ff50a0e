"""The package as a whole: what importing it costs, what it exports, what it says of itself."""

import ast
import importlib.metadata
import inspect
import json
import os
import pickle
import pydoc
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
        part for block in re.findall(r"```text public\n(.*?)```", text, re.DOTALL) for part in block.split()
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


def run(code, *args):
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    ).stdout


# Libraries that take long, and parts of ours that most programs do not need.
HEAVY = {"torch", "PIL", "pyarrow", "pandas", "rich", "fsspec", "obstore", "pytest", "asyncio", "http.client"}
# Of ours, `import batchplant` imports no more; the rest comes with the name that needs it.
AT_ONCE = {
    "batchplant",
    "batchplant._version",
    "batchplant.compat",
    "batchplant.data",
    "batchplant.data.hooks",
}


# Refuses all libraries but those that every installation has.
BARE = """
import importlib.abc, sys

class Bare(importlib.abc.MetaPathFinder):
    needed = {"numpy", "rich", "markdown_it", "mdurl", "pygments", "batchplant"}

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in self.needed and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"no module {name}", name=name)

sys.meta_path.insert(0, Bare())
"""


def test_every_format_is_known_without_its_library(tmp_path):
    code = "from batchplant.formats.registry import all_formats; print(len(all_formats()))"
    assert int(run(BARE + code)) >= len(registry.all_formats())
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5))
    reading = "import batchplant, sys; print(sum(len(b['data']) for b in batchplant.Loader(sys.argv[1], 2)))"
    assert int(run(BARE + reading, str(path))) == 5


def imported_by(code):
    return set(json.loads(run(f"import json, sys; {code}; print(json.dumps(list(sys.modules)))")))


def test_importing_it_imports_no_more_than_names_need():
    result = imported_by("import batchplant; dir(batchplant)")
    assert {name for name in result if name.split(".")[0] == "batchplant"} == AT_ONCE
    assert result & {*HEAVY, "numpy"} == set()
    assert imported_by("from batchplant import *") & HEAVY == set()
    reading = imported_by("from batchplant import open, Schema")
    assert {name for name in reading if name.startswith(("batchplant.loading", "batchplant.ops"))} == set()


def test_help_of_the_command_line_imports_no_command():
    code = """
import contextlib, json, sys
from batchplant.cli import main
with contextlib.suppress(SystemExit):
    main(["--help"])
print(json.dumps(list(sys.modules)))
"""
    answer = json.loads(run(code).splitlines()[-1])
    ours = {name for name in answer if name.split(".")[0] == "batchplant"}
    assert ours == {*AT_ONCE, "batchplant.errors", "batchplant.cli", "batchplant.cli.parser"}
    assert {*answer} & {*HEAVY, "numpy"} == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_every_part_can_be_the_first_that_is_imported():
    code = """
import importlib, os, sys
import numpy, batchplant
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{name} cannot be imported first")
"""
    run(
        code,
        "batchplant.loading.loader",
        *(f"batchplant.{path.parent.name}" for path in SOURCE.glob("*/__init__.py")),
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_names_can_be_used_first_by_several_threads_at_once():
    code = """
import os, random, sys, threading
import numpy, batchplant
sys.setswitchinterval(1e-5)

def use(names):
    barrier.wait()
    for name in names:
        try:
            getattr(batchplant, name)
        except BaseException as error:
            errors.append(repr(error))

for trial in range(3):
    if os.fork() == 0:
        errors, barrier, chosen = [], threading.Barrier(8), random.Random(trial)
        names = [*batchplant.__all__, "ops", "order", "codecs"]
        threads = [threading.Thread(target=use, args=(chosen.sample(names, 12),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(errors, file=sys.stderr)
        os._exit(bool(errors))
    if os.wait()[1]:
        sys.exit("a name could not be imported")
"""
    run(code)


def test_exports_are_sorted_complete_and_there():
    assert batchplant.__all__ == sorted(batchplant.__all__)
    assert [name for name in batchplant.__all__ if not hasattr(batchplant, name)] == []
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    # What type checkers import, and every name from the module that it is found in.
    imported = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
        if alias.asname is None
    }
    assert {*imported, "__version__"} == set(batchplant.__all__) <= set(dir(batchplant))
    for name, module in imported.items():
        source = importlib.import_module(f"batchplant.{module}")
        assert getattr(batchplant, name) is getattr(source, name), name
    with pytest.raises(AttributeError, match="no attribute 'Loadre'"):
        _ = batchplant.Loadre


def test_names_can_be_pickled_and_documented():
    for name in ("Loader", "Schema", "open", "DamagedError"):
        assert pickle.loads(pickle.dumps(getattr(batchplant, name))) is getattr(batchplant, name)
    text = pydoc.plain(pydoc.render_doc(batchplant))
    assert "class Loader" in text
    assert "open(" in text


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
    ("module", "names"), list(held_names()), ids=lambda item: item if isinstance(item, str) else ""
)
def test_no_public_name_is_lost(module, names):
    loaded = load(module)
    assert [name for name in names if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", public_modules())
def test_public_modules_say_what_is_public(module):
    loaded = load(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


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
            yield from ((name.name, None) for name in node.names if name.name.split(".")[0] == "batchplant")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "batchplant":
            yield from ((node.module, name.name) for name in node.names)


@pytest.mark.parametrize(
    "name", [name for name in batchplant.__all__ if inspect.isroutine(getattr(batchplant, name))]
)
def test_options_of_functions_are_keyword_only(name):
    most = {"convert": 2, "create": 2, "split": 2}
    parameters = inspect.signature(getattr(batchplant, name)).parameters.values()
    positional = [
        parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert len(positional) <= most.get(name, 1), positional


@pytest.mark.parametrize("options", [batchplant.ImageOptions, batchplant.WriteOptions])
def test_options_are_given_by_name(options):
    assert {parameter.kind for parameter in inspect.signature(options).parameters.values()} == {
        inspect.Parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize("one", registry.own_formats().values(), ids=lambda item: item.name)
def test_options_of_formats_are_keyword_only(one):
    for item, taken in ((one.reader, ["self", "path"]), (one.writer, ["self", "path", "schema", "options"])):
        if item is not None:
            parameters = inspect.signature(item.__init__).parameters.values()
            assert [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY] == taken
