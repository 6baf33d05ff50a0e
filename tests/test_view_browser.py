"""The viewer in a real browser: what every part of the page has to keep to."""

from __future__ import annotations

from typing import Any

import numpy as np

import batchplant as bp
from browser import viewed


def test_page_opens_and_is_accessible(chromium: Any) -> None:
    reader = bp.open({"label": [0, 1, 2]})
    with viewed(chromium, reader) as tab:
        tab.go()
        tab.page.wait_for_selector("[role=tab]")
        assert tab.axe() == []


def test_class_names_neither_turn_nor_fill_the_page(chromium: Any) -> None:
    """Marks of direction are shown as codes in every part of the page; a name of any length is cut."""
    names = ["cat", "evil\u202egnp", "L" * 10_000]
    kinds = {"image": bp.Image(encoding="raw"), "label": bp.Int(names=names)}
    data = {"image": np.zeros((6, 8, 8, 3), np.uint8), "label": [0, 1, 2] * 2}
    with viewed(chromium, bp.open(data, schema=bp.Schema(kinds))) as tab:
        page = tab.go().page
        for hash, ready in (
            ("", ".tile .label .hidden-letter"), ("layout=table", ".line .hidden-letter"),
            ("sample=1", "article .hidden-letter"), ("sample=2", "article pre.text"),
            ("tab=overview", ".bars .hidden-letter"), ("tab=order", ".plot-legend .hidden-letter"),
            ("tab=health", ".health .verdict"),
        ):  # fmt: skip
            page.evaluate("(hash) => { location.hash = hash; }", hash)
            page.wait_for_selector(ready)
            text = page.evaluate("document.body.innerText")
            read = page.evaluate(
                "[...document.querySelectorAll('[title], [aria-label]')]"
                ".map((one) => `${one.title} ${one.ariaLabel}`).join()"
            )
            assert "\u202e" not in text + read, hash
            assert "L" * 2001 not in text + read, hash
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), hash
