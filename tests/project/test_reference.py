"""The reference has an entry for every public name, and docstrings name their parameters."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import pytest

import batchplant as bp
import pages
import processes
from repository import ROOT

FOLDER = ROOT / "docs" / "reference"
NAMES = Path(__file__).parent / "public_names.txt"


def entries() -> dict[str, str]:
    """Text of the entries of all pages, by name."""
    result: dict[str, str] = {}
    for page in FOLDER.glob("*.md"):
        for part in re.split(r"^#{3} `", page.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            name, _, text = part.partition("`")
            result[name] = result.get(name, "") + text
    return result


def test_every_public_name_has_an_entry() -> None:
    result, mirrors = entries(), (FOLDER / "mirrors.md").read_text("utf-8")
    ops = (FOLDER / "ops.md").read_text("utf-8")
    missing = []
    for line in NAMES.read_text("utf-8").splitlines():
        module, _, names = line.partition(": ")
        for name in names.split() if not line.startswith("#") else ():
            shown = name in result or (module in mirrors and f"`{name}`" in mirrors)
            # PyTorch may be missing where pages are made; the page of ops reads that module as text.
            shown = shown or (module == "batchplant.interop.torch" and f"`{name}" in ops)
            missing += [] if shown else [f"{module}.{name}"]
    missing += [name for name in bp.__all__ if name not in result]
    assert missing == []


def test_signatures_are_complete() -> None:
    text = entries()["Loader"]
    for parameter in inspect.signature(bp.Loader).parameters.values():
        assert parameter.kind is parameter.VAR_KEYWORD or f"\n    {parameter.name}: " in text


def test_every_example_is_shown() -> None:
    examples = pages.load_script(ROOT / "docs" / "reference_examples.py").EXAMPLES
    for key, (code, _) in examples.items():
        assert code in (FOLDER / f"{key.split('/')[0]}.md").read_text("utf-8"), key


def shared(module: ModuleType) -> set[str]:
    """Parameters that the docstring of a module describes for all of its names."""
    _, _, text = (inspect.getdoc(module) or "").partition("Parameters that mean the same")
    return {name for names in re.findall(r"(\w+(?:, \w+)*):(?!:)", text) for name in names.split(", ")}


def undocumented(module: ModuleType, name: str) -> list[str]:
    """Parameters that neither a docstring of ours nor the metadata of a field describes."""
    value = getattr(module, name)
    if (
        not (inspect.isclass(value) or inspect.isroutine(value))
        or (inspect.isclass(value) and issubclass(value, Exception | dict))
        or not value.__module__.startswith("batchplant")
    ):
        return []
    text = inspect.getdoc(value) or ""
    text = "" if text.startswith(f"{name}(") else text
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    described = {field.name for field in fields if "says" in field.metadata} | shared(module)
    return [
        each.name
        for each in inspect.signature(value).parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        and each.name not in described
        and not each.name.startswith("_")
        and not re.search(rf"\b{each.name}\b", text)
    ]


DOCUMENTED = [bp, bp.ops, bp.order]


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__)
def test_docstrings_describe_every_parameter(module: ModuleType) -> None:
    assert {name: names for name in module.__all__ if (names := undocumented(module, name))} == {}


def functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Public functions of a module, and public methods of its classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value
        for method, raw in vars(value).items() if inspect.isclass(value) else ():
            function = raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw
            if inspect.isfunction(function) and not method.startswith("_"):
                yield f"{name}.{method}", function


# The first line names the result, or a sentence says what is returned.
RESULT = re.compile(r"\A(An?|All|Every|How|Number|One|The|These|True)\b|\b[Rr]eturns?\b|\b[Yy]ields?\b")


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__)
def test_docstrings_describe_the_returned_value(module: ModuleType) -> None:
    silent = [
        name
        for name, function in functions(module)
        # The device form returns what `run` does.
        if function.__annotations__.get("return") not in (None, "None", "NoReturn")
        and not name.endswith(".on_device")
        and not RESULT.search(inspect.getdoc(function) or "")
    ]
    assert silent == []


def test_what_is_raised_are_errors_of_ours() -> None:
    for module in DOCUMENTED:
        for name, function in functions(module):
            _, _, raised = (inspect.getdoc(function) or "").partition("Raises: ")
            names = re.findall(r"\b\w+Error\b", raised)
            assert [each for each in names if each not in bp.__all__] == [], name


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_pages_are_in_the_navigation(page: Path) -> None:
    assert f"reference/{page.name}" in (ROOT / "mkdocs.yml").read_text("utf-8")
    assert list(pages.blocks(page)) or page.stem in ("ops", "mirrors")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_the_site_gets_headings_and_blocks_that_it_knows(page: Path) -> None:
    hooks = pages.load_script(ROOT / "tools" / "site_hooks.py")
    file = SimpleNamespace(src_uri=page.relative_to(ROOT / "docs").as_posix())
    text = hooks.on_page_markdown(page.read_text("utf-8"), SimpleNamespace(file=file))
    assert text.startswith("# ")
    assert re.findall(r"^ *```\S+ .+$", text, re.MULTILINE) == []


def test_parameters_are_shown_as_a_list() -> None:
    text = entries()["Loader"]
    assert "\n- `order`: " in text
    assert "\n- `rank, world_size`: " in text
    assert "unknown" not in text


@pytest.mark.exhaustive
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'batchplant[docs]'")
    done = processes.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
