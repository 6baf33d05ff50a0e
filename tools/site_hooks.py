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
# A note to editors, before the heading that is the title.
NOTE = re.compile(r"\A<!--.*?-->\s*", re.DOTALL)
# What follows a block's language says to the tests what the block needs; Markdown knows only the language.
FENCE = re.compile(r"^( *```)(\w+) (.+)$", re.MULTILINE)
# Links to the sections below, which the site has beside the page.
CONTENTS = re.compile(r"^(?:- \[[^\]\n]+\]\(#[^)\n]+\)\n){3,}\n", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ at the repository; leave out what only GitHub needs."""
    markdown = FENCE.sub(language, CONTENTS.sub("", NOTE.sub("", markdown), count=1))
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


def language(fence: re.Match[str]) -> str:
    """The first line of a block with its language alone; signatures are Python."""
    return fence[1] + ("python" if fence[3] == "signature" else fence[2])


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
