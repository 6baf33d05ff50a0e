"""The documentation site: built strictly, found by search, and wide enough for a phone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import processes
from browser import PATIENCE, browser
from repository import ROOT

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; without mkdocs the tests are skipped."""
    for library in ("mkdocs", "material", "mike"):
        pytest.importorskip(library, reason="needs batchplant[docs]")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    build = processes.run(command, cwd=ROOT, capture_output=True, text=True)
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as driver:
        yield driver


def test_search_works_from_a_folder(site: Path, chromium: Any) -> None:
    page = chromium.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{site.as_uri()}/index.html")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("resume")
    page.locator(".md-search-result__item").first.wait_for()
    titles = page.locator(".md-search-result__item h1").all_inner_texts()
    assert "Loading" in titles
    page.close()


def test_every_block_is_a_block(site: Path) -> None:
    assert [str(path) for path in site.rglob("*.html") if "```" in path.read_text("utf-8")] == []


def test_the_copy_button_copies_commands_without_the_prompt(site: Path, chromium: Any) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{site.as_uri()}/index.html")
    block = page.locator(".highlight", has_text="pip install batchplant").first
    block.hover()
    block.locator(".md-clipboard, .md-code__button").first.click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).length > 0")
    assert page.evaluate("navigator.clipboard.readText()") == "pip install batchplant"
    context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(site: Path, chromium: Any, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(PATIENCE)
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri(), wait_until="load")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(str(path.relative_to(site)))
    page.close()
    assert not wide


def test_the_home_page_leads_everywhere(site: Path, chromium: Any) -> None:
    """Pages that newcomers look for first are one click away."""
    page = chromium.new_page()
    page.goto(f"{site.as_uri()}/index.html")
    links = {link.get_attribute("href") for link in page.locator("article a").all()}
    names = ("folders", "loading", "distributed", "data-in-a-bucket", "add-a-format", "from-webdataset")
    assert {f"guides/{name}.html" for name in names} <= links
    page.close()


def test_every_page_is_listed_for_programs(site: Path) -> None:
    listed = (site / "llms.txt").read_text("utf-8")
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")} - {"404.html"}
    assert [page for page in sorted(pages) if f"({page})" not in listed] == []
