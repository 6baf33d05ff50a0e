"""Measure how the package reads, and compare with the baseline: no figure may rise.

usage: house.py [--update] [--by-part]

- lines, files, top-level entries of the package
- vague names: share of bound names that do not say what they hold (`one`, `found`, `made` …), in per cent
- question docstrings: share of docstrings that start with What, Who, Of …, in per cent
- lone modules: modules of at most 120 lines that exactly one other module imports
- import circles, with imports under `if TYPE_CHECKING:` counted
- type ignores, Any, fmt skips
- constants patched: module constants that tests replace through monkeypatch

The baseline is tools/house.json. A figure that fell is written there with --update; a commit that raises one
changes the baseline by hand and says why in its message.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "batchplant"
TESTS = ROOT / "tests"
BASELINE = Path(__file__).with_suffix(".json")
MAX_LONE_LINES = 120
# fmt: off
VAGUE_NAMES = frozenset([
    "one", "found", "some", "made", "told", "said", "given", "known", "held", "kept", "asked", "left",
    "here", "there", "own", "other", "others", "each", "which", "what", "how", "wanted", "place", "at",
    "whole", "both", "most", "least", "such", "so", "more", "rest", "went", "gone", "come", "came",
    "taken", "took", "gets", "got",
])
# fmt: on
QUESTION_WORDS = ("What ", "Who ", "Whoever ", "Whether ", "Which ", "Of ", "How ", "Where ")
# Shares may rise by rounding when good code is deleted.
TOLERANCES = {"vague names %": 0.05, "question docstrings %": 0.05}
PATCHED_CONSTANT = re.compile(r"setattr\([^()]*(?:\([^()]*\))?[^()]*[\"'.]([A-Z][A-Z0-9_]{2,})[\"']")

Graph = dict[str, set[str]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write figures that fell to the baseline")
    parser.add_argument("--by-part", action="store_true", help="show the figures of each top-level part")
    arguments = parser.parse_args(argv)
    if arguments.by_part:
        print_parts()
        return 0
    figures = measure(PACKAGE, TESTS)
    baseline = json.loads(BASELINE.read_text("utf-8")) if BASELINE.exists() else {}
    risen = compare(figures, baseline)
    for name, value in figures.items():
        note = f"(baseline {baseline[name]})" if name in baseline else "(new)"
        print(f"{name:22}{value:>10} {note}{'  ROSE' if name in risen else ''}")
    if arguments.update:
        lowest = {name: min(value, baseline.get(name, value)) for name, value in figures.items()}
        BASELINE.write_text(json.dumps(lowest, indent=2) + "\n", "utf-8")
    if risen:
        print(f"{', '.join(risen)}: see tools/house.py; lower them, or change {BASELINE.name} and say why")
    return 1 if risen else 0


def compare(figures: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """Names of the figures that are above the baseline."""
    return [
        name
        for name, value in figures.items()
        if name in baseline and value > baseline[name] + TOLERANCES.get(name, 0)
    ]


def measure(package: Path, tests: Path) -> dict[str, float]:
    """All figures by name."""
    modules = find_modules(package)
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules.items()}
    counts = sum((count(trees[name], path) for name, path in modules.items()), collections.Counter[str]())
    graph = {name: imports_of(trees[name], name, path, modules) for name, path in modules.items()}
    return {
        "lines": counts["lines"],
        "files": len(modules),
        "top-level entries": len([path for path in package.iterdir() if is_entry(path)]),
        "vague names %": share(counts["vague"], counts["bound"]),
        "question docstrings %": share(counts["questions"], counts["docstrings"]),
        "lone modules": len(find_lone(graph, modules)),
        "import circles": len(list(find_circles(graph))),
        "type ignores": counts["ignores"],
        "Any": counts["any"],
        "fmt skips": counts["skips"],
        "constants patched": sum(
            len(PATCHED_CONSTANT.findall(path.read_text("utf-8"))) for path in tests.rglob("*.py")
        ),
    }


def is_entry(path: Path) -> bool:
    return path.name != "__pycache__" and path.suffix != ".so"


def share(part: int, total: int) -> float:
    return round(100 * part / max(1, total), 1)


def find_modules(package: Path) -> dict[str, Path]:
    """Files of the package by dotted name; the package's own ``__init__`` is "__init__"."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    return modules


def count(tree: ast.Module, path: Path) -> collections.Counter[str]:
    """Figures of one module that add up."""
    text = path.read_text("utf-8")
    counts = collections.Counter[str]()
    counts["lines"] = text.count("\n")
    counts["ignores"] = text.count("# type: ignore")
    counts["skips"] = text.count("# fmt: skip") + text.count("# fmt: off")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts["bound"] += 1
            counts["vague"] += node.id.lstrip("_") in VAGUE_NAMES
        elif isinstance(node, ast.Name) and node.id == "Any":
            counts["any"] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            counts["docstrings"] += bool(docstring)
            counts["questions"] += bool(docstring) and docstring.startswith(QUESTION_WORDS)
    return counts


def imports_of(tree: ast.Module, name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the package that a module imports by relative names."""
    parts = [] if name == "__init__" else name.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    targets = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        for alias in node.names:
            full = ".".join([*base, alias.name])
            target = full if full in modules else ".".join(base)
            if target in modules and target != name:
                targets.add(target)
    return targets


def find_lone(graph: Graph, modules: dict[str, Path]) -> list[str]:
    importers = collections.Counter(target for targets in graph.values() for target in targets)
    return [
        name
        for name, path in modules.items()
        if importers[name] == 1
        and path.name != "__init__.py"
        and path.read_text("utf-8").count("\n") <= MAX_LONE_LINES
    ]


def find_circles(graph: Graph) -> Iterator[list[str]]:
    """Sets of modules that import each other, directly or through others."""
    reached = {name: reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        circle = {other for other in reached[name] if name in reached[other]}
        if len(circle) > 1 and name not in seen:
            seen |= circle
            yield sorted(circle)


def reachable(graph: Graph, start: str) -> set[str]:
    """Modules that a module imports, directly or through others."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        for target in graph[pending.pop()] - reached:
            reached.add(target)
            pending.append(target)
    return reached


def print_parts() -> None:
    parts = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for name, path in find_modules(PACKAGE).items():
        counts = parts[name.split(".")[0]]
        counts.update(count(ast.parse(path.read_text("utf-8")), path))
        counts["files"] += 1
    print(f"{'part':16}{'files':>6}{'lines':>8}{'vague':>8}{'question':>10}{'ignores':>9}{'Any':>6}")
    for part, counts in sorted(parts.items(), key=lambda item: -item[1]["lines"]):
        vague = share(counts["vague"], counts["bound"])
        questions = share(counts["questions"], counts["docstrings"])
        figures = f"{vague:7.1f}%{questions:9.1f}%{counts['ignores']:9}{counts['any']:6}"
        print(f"{part:16}{counts['files']:6}{counts['lines']:8}{figures}")


if __name__ == "__main__":
    sys.exit(main())
