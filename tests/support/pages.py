"""The code on a page of the documentation: its blocks are run in order, in one namespace.

The word behind the three backticks says what a block is:

    python               run; a ``text`` block right behind it is what it prints
    python torch keras   run where these modules are installed
    python skip: WHY     not run; test_docs.py counts these
    console              its ``$ batchplant …`` lines are run; a ``$ echo $?`` tells the exit code
    console skip: WHY    not run

``python tests/support/pages.py PAGE`` runs a page in the current folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from batchplant.cli import main
from repository import ROOT

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Guides that tests/interop/test_frameworks.py runs, each in a process of its own.
FRAMEWORKS = ("lightning", "accelerate", "hf-trainer", "jax", "keras")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]


def load_script(path: Path) -> ModuleType:
    """Import a script that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, what else stands in the first line, text) of the fenced blocks, in order.

    A text block right behind another is output of that; one with words between is an image of something.
    """
    written, end = page.read_text("utf-8"), -1
    for match in FENCE.finditer(written):
        kind, _, rest = match[1].partition(" ")
        if kind == "text" and not rest and end >= 0 and not written[end : match.start()].strip():
            kind = "output"
        yield kind, rest, match[2]
        end = match.end()


def commands(text: str) -> Iterator[tuple[str, int]]:
    """The commands of a console block and the exit codes they should have: 0 unless the block says so."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("$ batchplant "):
            after = [n for n in range(number + 1, len(lines)) if lines[n].startswith("$ ")]
            asked = bool(after) and lines[after[0]] == "$ echo $?"
            yield line.removeprefix("$ "), int(lines[after[0] + 1]) if asked else 0


def is_installed(modules: str) -> bool:
    try:
        return all(importlib.util.find_spec(module) is not None for module in modules.split())
    except ModuleNotFoundError:  # the package of a submodule
        return False


def run(page: Path, compare: bool = True) -> int:
    """Run a page in the current folder; how much of it ran. ``compare``: check what it prints, too."""
    names: dict[str, object] = {"__name__": "example"}
    ran = 0
    printed: str | None = None
    for kind, rest, text in blocks(page):
        if kind == "output":
            # Trainers print reports of their own before.
            same = printed is None or (printed.endswith(text) if page.stem in FRAMEWORKS else printed == text)
            assert same or not compare, f"{page.name} prints\n{printed}\nand not\n{text}"
        printed = None
        if rest.startswith("skip:"):
            continue
        if kind == "python" and is_installed(rest):
            with contextlib.redirect_stdout(io.StringIO()) as shown, warnings.catch_warnings():
                if set(rest.split()) - {"torch"}:  # webdataset leaves files open, for example
                    warnings.simplefilter("ignore")
                # In angle brackets: libraries that look for the source of a function find none on a page.
                exec(compile(text, f"<{page}>", "exec"), names)
            printed = shown.getvalue()
            ran += 1
        elif kind == "console":
            for line, expected in commands(text):
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()) as errors,
                ):
                    code = main(shlex.split(line)[1:])
                assert code == expected, f"{line}: {errors.getvalue()}"
                ran += 1
    return ran


if __name__ == "__main__":
    run(Path(sys.argv[1]))
