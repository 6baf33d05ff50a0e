"""The viewer in a real browser: what every part of the page has to keep to."""

from __future__ import annotations

from typing import Any

import batchplant as bp
from browser import viewed


def test_page_opens_and_is_accessible(chromium: Any) -> None:
    reader = bp.open({"label": [0, 1, 2]})
    with viewed(chromium, reader) as tab:
        tab.go()
        tab.page.wait_for_selector("[role=tab]")
        assert tab.axe() == []
