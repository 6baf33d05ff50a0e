"""Tests that try many cases in one item, which costs pytest as much as a case itself."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case in the error of a test that fails in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name!r}")
        raise
