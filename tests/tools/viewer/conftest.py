"""The browser that the viewer's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser import browser


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """Run Chromium for this folder only: meanwhile no other asyncio loop can run in the thread."""
    with browser() as running:
        yield running
