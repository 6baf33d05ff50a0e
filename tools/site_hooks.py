"""Hooks of the documentation site (mkdocs.yml): links out of docs/, search from a folder, and llms.txt."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/batchplant/batchplant/blob/main/"
# The theme would have the search worker of pages in a folder from there.
REMOTE_WORKER = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside of docs/ at the repository, and those to README.md at the home page."""
    folder = posixpath.dirname(page.file.src_uri)

    def change(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[1].partition("#")
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if not path.startswith("docs/"):
            return f"]({REPOSITORY}{path}{hash_sign}{anchor})"
        if path == "docs/README.md":
            return f"]({posixpath.relpath('index.md', folder or '.')})"
        return match[0]

    return LINK.sub(change, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load the worker of the search from this site."""
    return output.replace(
        REMOTE_WORKER, posixpath.relpath("assets/worker.js", posixpath.dirname(page.url) or ".")
    )


def on_post_build(config: Any) -> None:
    """Write llms.txt: the pages with their titles, for programs that read instead of people."""
    docs = Path(config.docs_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav:
        for name, entries in section.items():
            lines += [f"## {name}", ""]
            pages = [path for path in flatten(entries) if "://" not in path]
            lines += [f"- [{title_of(docs / path)}]({path[:-3]}.html)" for path in pages]
            lines.append("")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), "utf-8")


def flatten(entries: Any) -> list[str]:
    """Paths of the pages below an entry of the navigation."""
    if isinstance(entries, str):
        return [entries]
    children = entries.values() if isinstance(entries, dict) else entries
    return [path for child in children for path in flatten(child)]


def title_of(path: Path) -> str:
    """Return the first heading of a page."""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# "):
            return line[2:]
    return path.stem
