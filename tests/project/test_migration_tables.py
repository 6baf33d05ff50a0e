"""The tables of the migration guides name functions, arguments and commands that exist."""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import batchplant as bp
from batchplant.cli import build_parser
from batchplant.formats import registry
from batchplant.storage import StorageOptions
from repository import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").glob("from-*.md"))
# What the guides call objects of ours, and values of users.
OBJECTS = {"loader": bp.Loader, "data": bp.Reader, "reader": bp.Reader}
USERS = {"fn"}
# What returns an object of which a guide calls a method.
RETURNED = {bp.open: bp.Reader, bp.Loader: bp.Loader}


def cells() -> Iterator[tuple[str, str]]:
    """(guide and line, text) of the cells in columns called batchplant."""
    for guide in GUIDES:
        column: int | None = None
        for number, line in enumerate(guide.read_text("utf-8").splitlines(), 1):
            if not line.startswith("|"):
                column = None
                continue
            row = [cell.strip() for cell in line.strip("|").split("|")]
            if column is not None and not row[0].startswith("---"):
                yield f"{guide.stem}:{number}", row[column]
            elif column is None:
                column = row.index("batchplant") if "batchplant" in row else None


CODE = [(place, code) for place, cell in cells() for code in re.findall(r"`([^`]+)`", cell)]


def parameters(function: Callable[..., Any]) -> set[str]:
    return {each.name for each in inspect.signature(function).parameters.values()}


def options() -> set[str]:
    """Options of all formats and stores, which ``open`` and ``create`` pass on."""
    result = {field.name for field in dataclasses.fields(StorageOptions)} | parameters(bp.ImageOptions)
    # Of create, for files of limited size.
    result |= {"shard_samples", "shard_size"}
    for each in registry.own_formats().values():
        for item in filter(None, (each.reader, each.writer)):
            result |= parameters(item.__init__)
    return result


OPTIONS = options()
ARGUMENTS = (
    OPTIONS | parameters(bp.Loader) | parameters(bp.open) | parameters(bp.create) | parameters(bp.convert)
)


def resolve(node: ast.expr) -> Any:
    """The object of ours that an expression names; None for values of users."""
    if isinstance(node, ast.Name):
        if node.id == "bp":
            return bp
        if node.id in OBJECTS:
            return OBJECTS[node.id]
        for module in (bp.ops, bp, builtins):
            if hasattr(module, node.id):
                return getattr(module, node.id)
        return None
    if isinstance(node, ast.Call):
        return RETURNED.get(resolve(node.func))
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value)
        if owner is None:
            return None
        names = getattr(owner, "__annotations__", {})
        assert hasattr(owner, node.attr) or node.attr in names, f"no {ast.unparse(node)}"
        return getattr(owner, node.attr, None)
    return None


def check_call(call: ast.Call) -> None:
    function = resolve(call.func)
    if function is None and isinstance(call.func, ast.Name):
        # A row that names several methods names the object once.
        function = next((getattr(each, call.func.id, None) for each in OBJECTS.values()), None)
    if function is None:
        assert isinstance(call.func, ast.Attribute) or ast.unparse(call.func) in {*USERS, "jax"}, (
            f"no {ast.unparse(call.func)}"
        )
        return
    if getattr(function, "__module__", "") == "builtins":
        return
    signature = inspect.signature(function)
    names = {each.arg for each in call.keywords if each.arg is not None}
    takes_more = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = names - {*signature.parameters} - (OPTIONS if takes_more else set())
    assert unknown == set(), f"{ast.unparse(call.func)} takes no {', '.join(sorted(unknown))}"
    # A method of a class is called with an object; "…" stands for any arguments.
    bound = [None] if inspect.isfunction(function) and "." in function.__qualname__ else []
    if not any(isinstance(each, ast.Constant) and each.value is ... for each in call.args):
        signature.bind(*bound, *call.args, **dict.fromkeys(names))


def check_expression(tree: ast.expr) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            check_call(node)
        elif isinstance(node, ast.Attribute):
            resolve(node)
        elif isinstance(node, ast.Name) and node.id[:1].isupper():
            assert resolve(node) is not None, f"no {node.id}"


def check_command(line: str) -> None:
    """A command, and its options: ``batchplant convert … --processes 8``."""
    words = [word for word in line.split()[1:] if word != "…"]
    command = next((word for word in words if not word.startswith("-")), None)
    parser: argparse.ArgumentParser = build_parser(command)
    commands = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    assert command in commands.choices
    known = commands.choices[command]._option_string_actions
    assert [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize(("place", "code"), CODE, ids=lambda text: text)
def test_what_a_table_names_exists(place: str, code: str) -> None:
    if code.startswith("batchplant ") or code.startswith("--"):
        check_command(code if code.startswith("batchplant") else f"batchplant convert {code}")
        return
    text = re.sub(r"=(?=,|\)|$)", "=...", code.replace("…", "..."))
    try:
        check_expression(ast.parse(text, mode="eval").body)
        return
    except SyntaxError:
        pass
    try:
        # Arguments of a Loader, of open, or of an op.
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        assert re.match(r"for( batch in loader)?$|\w+://", code), f"{code} is no code"
        return
    assert isinstance(call, ast.Call)
    names = {each.arg for each in call.keywords if each.arg is not None}
    assert names <= ARGUMENTS, f"nothing takes {', '.join(sorted(names - ARGUMENTS))}"
    for keyword in call.keywords:
        check_expression(keyword.value)


def test_tables_are_found() -> None:
    result = {place.partition(":")[0] for place, _ in CODE}
    assert len(result) >= 8
    assert len(CODE) > 150


def test_what_does_not_exist_is_found() -> None:
    for code in (
        "bp.Loader(path, wrokers=8)",
        "bp.opne(path)",
        "loader.stat_dict()",
        "Resiz(8)",
        "bp.concat(a, b)",
    ):
        with pytest.raises((AssertionError, TypeError)):
            test_what_a_table_names_exists("", code)
    with pytest.raises(AssertionError):
        test_what_a_table_names_exists("", "batchplant convert a b --wrong 8")
