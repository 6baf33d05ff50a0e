"""Errors: one tree, a place in every message, and safe to send between processes."""

import pickle
import re

import pytest

from batchplant import errors
from batchplant.errors import BatchplantError, DamagedError, Problem

ALL = [var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, BatchplantError)]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.OptionError, ValueError),
        (errors.NotFoundError, FileNotFoundError),
        (errors.SampleIndexError, IndexError),
        (errors.FieldNameError, KeyError),
        (errors.FieldNameError, errors.SchemaError),
        (errors.DamagedError, errors.DataError),
        (errors.DecodeError, errors.DataError),
        (errors.EncodeError, errors.DataError),
    ],
)
def test_who_expects_a_builtin_catches_ours(kind, builtin):
    with pytest.raises(builtin):
        raise kind("wrong")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "wrong"),
        ({"path": "a.beton"}, "a.beton: wrong"),
        ({"sample": 0}, "sample 0: wrong"),
        ({"field": "größe"}, "field 'größe': wrong"),
        ({"path": "a", "sample": 3, "field": "x", "offset": 812}, "a, sample 3, field 'x', byte 812: wrong"),
    ],
)
@pytest.mark.parametrize("kind", ALL)
def test_the_place_is_part_of_the_message_and_survives_pickling(kind, place, text):
    error = kind("wrong", **place)
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.message) == (text, "wrong")
    for name in ("path", "sample", "field", "offset"):
        assert getattr(again, name) == place.get(name)


def test_a_place_is_filled_in_only_where_it_is_not_known():
    error = DamagedError("wrong", sample=3)
    assert error.at(path="a", sample=9, field="x") is error
    assert str(error.at(path="b", offset=7)) == "a, sample 3, field 'x', byte 7: wrong"


def test_problems_speak_as_errors_do():
    error = DamagedError("wrong", path="a", sample=1, field="x", offset=2)
    problem = Problem.of(error)
    assert str(problem) == str(error)
    assert pickle.loads(pickle.dumps(problem)) == problem


def test_the_tree_in_the_docstring_is_the_tree():
    assert sorted(re.findall(r"── (\w+)", errors.__doc__)) == sorted(
        item.__name__ for item in ALL if item is not BatchplantError
    )
