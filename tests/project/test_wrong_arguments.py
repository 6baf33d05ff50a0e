"""A wrong argument gives an error of ours that says what is wanted, at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.errors import OptionError, SchemaError


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of ten samples without images."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.beton"
    with bp.create(path, {"x": bp.Int(), "row": bp.Tensor("float32", (4,))}) as writer:
        for number in range(10):
            writer.append({"x": number, "row": np.zeros(4, np.float32)})
    return path


LOADERS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"batch_size": "8"}, "batch_size must be a whole number"),
    ({"prefetch_batches": -1}, "prefetch_batches must be at least 1"),
    ({"seed": "x"}, "seed must be a whole number"),
    ({"seed": -1}, "seed must be from 0"),
    ({"workers": -1}, "workers must be from 0"),
    ({"workers": [0, "x"]}, "a core of workers must be a whole number"),
    ({"pipelines": 3}, "pipelines holds ops by field"),
    ({"pipelines": [3]}, "a list of pipelines holds steps"),
    ({"cache": True}, "cache is"),
    ({"source": None}, "can be opened, not None"),
    ({"source": 3}, "can be opened, not 3"),
]


def test_arguments_that_moved_say_where(numbers: Path) -> None:
    moved = {"dashboard": r"loader\.dashboard\(\)", "joint": r"pipelines=\[", "page_cache": 'cache="pages"'}
    for name, message in moved.items():
        with pytest.raises(TypeError, match=message):
            bp.Loader(numbers, 2, **{name: True})


@pytest.mark.parametrize(("arguments", "message"), LOADERS, ids=lambda value: str(value)[:40])
def test_a_loader_refuses(numbers: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bp.Loader(**{"source": numbers, "batch_size": 2, **arguments})


CALLS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: bp.open(path).scan(0), "size must be at least 1"),
    (lambda path: bp.Loader(path, 2).part(2, 2), "number must be from 0 to 1"),
    (lambda path: bp.Loader(path, 2).part(0, 0), "parts must be at least 1"),
    (lambda path: bp.Mix.weighted(path, "row"), "'row': weights are a field of numbers, not Tensor"),
    (lambda path: bp.split(path, "train"), "parts are fractions by name"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_a_call_refuses(numbers: Path, call: Callable[[Path], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(numbers)


def test_a_schema_is_a_dict_of_kinds(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="a schema is a dict"):
        bp.create(tmp_path / "x.beton", 3)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_patches_of_arrays_in_memory_name_no_path() -> None:
    with pytest.raises(OptionError, match=r"^size is 9 along axis 0"):
        bp.Patches({"a": np.zeros((4, 4))}, size=(9, 9))
