"""Write the pages that are made from the code: docs/formats.md and the format table in the README.

usage: generate.py [--check]

Everything comes from the formats' own descriptions. With --check nothing is written; the exit code is 1
when a page is not up to date.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from batchplant.format import Format
from batchplant.reader import Reader
from batchplant.registry import all_formats, own_options
from batchplant.writer import Writer

ROOT = Path(__file__).resolve().parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "formats.md"
START, END = "<!-- formats:start -->", "<!-- formats:end -->"
PACKAGE = "batchplant.formats."

INTRO = """\
<!-- Written by docs/generate.py (make docs) from the formats themselves: edit those, not this page. -->

# Formats

Every format that batchplant knows, made from the same descriptions that the program uses.
`batchplant formats` prints the same, `batchplant formats NAME` prints one of them.
"""

AFTER_TABLE = """\
*Missing values*: whether a field may be `optional`, so that some samples have no value (`None`) there.
*Needs*: what to install besides batchplant itself.

Options of a reader go to `batchplant.open(path, name=value)`, or on the command line to
`--option name=value`. Options of a writer go to `batchplant.create(path, schema, name=value)`, or to
`--to-option name=value`.
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args(argv).check
    old = [path for path, text in pages() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{path.relative_to(ROOT)}: {'out of date; run make docs' if check else 'written'}")
    if not check:
        for path, text in pages():
            path.write_text(text, "utf-8")
    return 1 if check and old else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page and what has to stand in it."""
    formats = own_formats()
    yield README, with_table(README.read_text("utf-8"), table(formats, "docs/formats.md"))
    parts = [INTRO, table(formats, ""), AFTER_TABLE, *(section(one) for one in formats)]
    yield PAGE, "\n".join(parts)


def own_formats() -> list[Format]:
    """The formats that come with batchplant; an installed plug-in is not documented here."""
    ours = [one for one in all_formats().values() if one.reader.__module__.startswith(PACKAGE)]
    return sorted(ours, key=lambda one: one.name)


def with_table(text: str, made: str) -> str:
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"README.md needs the lines {START} and {END}")
    return f"{before}{START}\n{made}{END}{after}"


def table(formats: Iterable[Format], page: str) -> str:
    """One row for each format, its name linked to its section of the page."""
    rows = [["Format", "What it is", "Suffix", "Read", "Write", "Field kinds", "Missing values", "Needs"]]
    rows.append(["---"] * len(rows[0]))
    for one in formats:
        rows.append(
            [
                f"[{one.name}]({page}#{one.name})",
                one.title,
                suffixes(one),
                "yes",
                yes(one.writer is not None),
                kinds(one),
                yes(one.optional),
                f"`batchplant[{one.extra}]`" if one.extra else "",
            ]
        )
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def suffixes(one: Format) -> str:
    return " ".join(f"`{suffix}`" for suffix in one.suffixes) or "a folder"


def kinds(one: Format) -> str:
    return ", ".join(kind.kind for kind in one.kinds)


def section(one: Format) -> str:
    facts = [
        f"- Specification: <{one.spec}>",
        f"- Suffix: {suffixes(one)}",
        f"- Field kinds: {kinds(one)}",
        f"- Missing values: {yes(one.optional)}",
    ]
    if one.extra:
        facts.append(f'- Install: `pip install "batchplant[{one.extra}]"`')
    if one.notes:
        facts.append(f"- Notes: {one.notes}")
    parts = [f"## {one.name}\n", f"{one.title}.\n", "\n".join(facts) + "\n"]
    parts.append(f"### {one.name}: reading\n\n{options(one.reader)}")
    if one.writer is not None:
        parts.append(f"### {one.name}: writing\n\n{options(one.writer)}")
    parts.append(f"### {one.name}: layout\n\n{layout(one)}")
    return "\n".join(parts)


def options(made: type[Reader] | type[Writer]) -> str:
    """What a reader or writer says of itself, and its options with their defaults."""
    lines = [
        f"- `{name}: {one.annotation} = {one.default!r}`"
        if one.default is not one.empty
        else f"- `{name}: {one.annotation}`"
        for name, one in own_options(made).items()
    ]
    said = "\n".join(lines) if lines else "It has no options."
    return f"{markdown(inspect.getdoc(made) or '')}\n{said}\n"


def layout(one: Format) -> str:
    """The docstring of the format's module: what stands where in the file."""
    name = ".".join(one.reader.__module__.split(".")[:3])
    return markdown(inspect.getdoc(importlib.import_module(name)) or "")


def markdown(docstring: str) -> str:
    """Our docstrings need little: tables drawn in text stay as they are, ``code`` has one backtick here."""
    parts = []
    for part in docstring.split("\n\n"):
        drawn = part.startswith("===")
        parts.append(f"```text\n{part}\n```" if drawn else part.replace("``", "`"))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
