"""A real browser, for the tests of the viewer: Chromium as the system has it, driven by Playwright."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from batchplant.data.reader import Reader

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing that asks servers elsewhere; without a GPU; root cannot have a sandbox.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    # A busy machine does not slow pages down on purpose.
    "--disable-renderer-backgrounding", "--disable-background-timer-throttling",
]  # fmt: skip
# The machine may be busy: what does not come in this time does not come.
PATIENCE = 120_000


def executable() -> str:
    """The browser; without one the test is skipped."""
    path = os.environ.get("BATCHPLANT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    return path


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    for needed in ("starlette", "uvicorn"):
        pytest.importorskip(needed)
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = executable()
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE)
        try:
            yield chromium
        finally:
            chromium.close()


class Tab:
    """A page of the viewer over a dataset. What goes wrong in it is in ``complaints``, and fails the test."""

    def __init__(self, page: Any, server: Any) -> None:
        self.page, self.server = page, server
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", self._requested)

    def _logged(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        # Only a script out of the data would open one.
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.server.url, "blob:", "data:")):
            self.complaints.append(f"a request to elsewhere: {request.url}")

    def go(self, hash: str = "") -> Tab:
        """Opens the page at this state, as a link would."""
        # Another hash of the same page would not load it again.
        shown = self.page.url.startswith(self.server.url)
        self.page.goto(self.server.url + (f"#{hash}" if hash else ""))
        if shown and hash:
            self.page.reload()
        return self

    def axe(self) -> list[str]:
        """Accessibility violations that axe-core finds in the page."""
        pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
        source = importlib.resources.files("axe_playwright_python") / "axe.min.js"
        # Not as a script element, which the page's own policy forbids; it stays until the page is left.
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(source.read_text())
        # What is still being computed is shown pale.
        self.page.wait_for_function("() => !document.querySelector('[aria-busy=\"true\"]')")
        result = self.page.evaluate("() => axe.run({resultTypes: ['violations']})")
        return [
            f"{violation['id']} ({violation['impact']}): {violation['help']}: {node['html'][:200]}"
            for violation in result["violations"]
            for node in violation["nodes"][:3]
        ]


@contextlib.contextmanager
def viewed(
    browser: Any,
    reader: Reader,
    *,
    allowed: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[Tab]:
    """A page that shows this dataset. Whatever it complains of fails the test, but for these texts.

    ``width``, ``height`` and ``scheme`` are the window's; what else is given goes to the session.
    """
    from batchplant.tools.viewer.serve import serving
    from batchplant.tools.viewer.session import Session

    size = {"width": options.pop("width", 1280), "height": options.pop("height", 800)}
    scheme = options.pop("scheme", "light")
    with serving(Session(reader, **options)) as server:
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        try:
            tab = Tab(context.new_page(), server)
            yield tab
        finally:
            context.close()
        wrong = [complaint for complaint in tab.complaints if not any(text in complaint for text in allowed)]
        assert not wrong, wrong
