"""src/batchplant/_native.pyi says what the compiled module is: ``make stubs`` writes it."""

import ast
import importlib.util
from types import ModuleType

import pytest

from repository import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_stubs", ROOT / "tools" / "make_stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_that_of_the_module(tool: ModuleType) -> None:
    nanobind = pytest.importorskip("nanobind", reason="nanobind's stubgen is not installed")
    if tuple(map(int, nanobind.__version__.split(".")[:2])) < tool.LEAST_NANOBIND:
        pytest.skip(f"nanobind {nanobind.__version__} writes other types for arrays")
    fresh, kept = (ast.unparse(ast.parse(text)) for text in (tool.generate(), tool.STUB.read_text()))
    assert fresh.splitlines() == kept.splitlines(), "run make stubs"


RAW = '''
from typing import Annotated, Any

def f(a: Annotated[NDArray[numpy.uint8], dict(shape=(None, 2), order='C')], b: Annotated[NDArray, dict(ndim=1)]) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))] | None:
    """
    First line.

    Second.
    """

class C:
    def g(self) -> Sequence[NDArray]:
        """
        One line.
        """
'''  # noqa: E501
TIDY = '''
from typing import Any

def f(a: NDArray[numpy.uint8], b: NDArray[Any]) -> NDArray[numpy.bool_] | None:
    """First line.

    Second.
    """

class C:
    def g(self) -> Sequence[NDArray[Any]]:
        """One line."""
'''


def test_stubs_are_tidied(tool: ModuleType) -> None:
    assert tool.tidy(RAW) == TIDY
