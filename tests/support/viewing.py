"""Asks the routes of the viewer as its page does, without a browser and without the guard before them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from batchplant.tools.viewer.serve import application
from batchplant.tools.viewer.session import Session


@contextlib.contextmanager
def working(reader: Any, **options: Any) -> Iterator[Any]:
    """A client of the routes, as they are."""
    session = Session(reader, **options)
    with contextlib.closing(session), TestClient(application(session)) as client:
        yield client


@contextlib.contextmanager
def asked(reader: Any, **options: Any) -> Iterator[Any]:
    """``ask(path, status, **params)``: the JSON, of a job its value once it is there; else the response."""
    with working(reader, **options) as client:

        def ask(path: str, expect: int = 200, /, **params: Any) -> Any:
            while True:
                result = client.get(f"/api/{path}", params=params)
                if not result.headers.get("content-type", "").startswith("application/json"):
                    assert result.status_code == expect, result.text
                    return result
                value = result.json()
                if isinstance(value, dict) and value.get("state") == "working":
                    # A request waits for a moment, so this is no busy loop. 409: the samples are looked for.
                    continue
                assert result.status_code == expect, result.text
                return value["value"] if isinstance(value, dict) and value.get("state") == "ready" else value

        yield ask
