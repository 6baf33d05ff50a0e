"""Check that the package keeps its shape: who may import whom, no circles.

usage: check_layers.py [PACKAGE_FOLDER]

Imports inside functions count like those at the top, and so do those of a module by its name,
`import_module("batchplant.…")`. Only `if TYPE_CHECKING:` blocks are left out.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# A module may import from its own layer and from those above it in this list. The names are the parts
# right below the package; "__init__" stands for the package's own __init__, which may import anything.
LAYERS = [
    ["errors", "_native", "_version"],
    ["schema"],
    ["storage", "order"],
    ["codecs"],
    ["data"],
    ["formats"],
    ["jobs"],
    ["ops"],
    ["loading"],
    ["interop"],
    ["tools"],
    ["compat", "cli", "testing", "__init__", "__main__"],
]
# The only ones that import modules of ours by their names, and why. They are not held to the layers by it.
BY_NAME = {
    "formats.registry.find": "a format is imported when a file of that format is opened",
    "compat": "scripts import the mirrors under other names",
    "cli": "a command is imported when it is asked for",
    "loading.node.recipe": "a recipe of another process names the classes of what it is made of",
    "loading.service.plans": "a plan may name code of the user, where that is allowed",
    "__init__": "what takes long to import is imported when it is asked for",
}
# Parts whose members know nothing of each other, and the members that all may import or that import all.
ISLANDS = {"formats": ["base", "registry", "_table"]}
# The functions that import a module by its name, and what has statements in it.
IMPORTERS = ("import_module", "__import__")
AST_WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
# Modules that exist without a .py file.
COMPILED = ["_native"]

Graph = dict[str, set[str]]
Nodes = list[ast.Import | ast.ImportFrom | ast.Call]


def main(argv: list[str]) -> int:
    default = Path(__file__).parent.parent / "src" / "batchplant"
    problems = check(Path(argv[0]) if argv else default)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def check(package: Path) -> list[str]:
    files = {module_name(package, path): path for path in sorted(package.rglob("*.py"))}
    nodes = {module: runtime_nodes(path) for module, path in files.items()}
    graph = {
        module: imports(package.name, path, module, files, nodes[module]) for module, path in files.items()
    }
    return [
        *find_unknown(files),
        *find_by_name(package.name, files, nodes),
        *find_wrong_layers(graph),
        *find_linked_islands(graph),
        *find_circles(graph),
    ]


def module_name(package: Path, path: Path) -> str:
    """The dotted name below the package; the package's own __init__ is "__init__"."""
    parts = list(path.relative_to(package).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def imports(package: str, path: Path, module: str, files: dict[str, Path], nodes: Nodes) -> set[str]:
    result = set()
    parent = parent_of(package, path, module)
    named = () if module in BY_NAME else named_imports(nodes, package, parent)
    for name in [*imported_names(nodes, parent), *(name for name in named if name is not None)]:
        target = resolve(name, package, files)
        if target is not None and target != module:
            result.add(target)
    return result


def parent_of(package: str, path: Path, module: str) -> list[str]:
    """The parts of the name that relative imports start from."""
    here = [package, *(module.split(".") if module != "__init__" else [])]
    return here if path.name == "__init__.py" else here[:-1]


def imported_names(nodes: Nodes, parent: list[str]) -> Iterator[str]:
    """Absolute dotted names; `from a import b` gives a.b, for b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parent[: len(parent) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def named_imports(nodes: Nodes, package: str, parent: list[str]) -> Iterator[str | None]:
    """Names of ours that are imported as text, as far as the text is known; None where nothing of it is."""
    for node in nodes:
        if not isinstance(node, ast.Call) or called(node) not in IMPORTERS:
            continue
        text = known_text(node.args[0]) if node.args else ""
        if text.startswith("."):
            dots = len(text) - len(text.lstrip("."))
            text = ".".join([*parent[: len(parent) - dots + 1], text.lstrip(".")])
        first = text.split(".")[0]
        if not first or (package.startswith(first) and text == first != package):
            yield None
        elif first == package:
            yield text.rstrip(".")


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    result = node.func
    return (
        result.attr
        if isinstance(result, ast.Attribute)
        else result.id
        if isinstance(result, ast.Name)
        else ""
    )


def known_text(node: ast.expr) -> str:
    """How the text of an expression begins; nothing where only running it would tell."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return known_text(node.values[0]) if node.values else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return known_text(node.left)
    return ""


def runtime_nodes(path: Path) -> Nodes:
    """What imports or calls something when a file is run, in order."""
    result: Nodes = []
    text = path.read_text("utf-8")
    # Imports are statements; expressions are many, and only a few files have calls that count.
    inside = AST_WITH_STATEMENTS if not any(name in text for name in IMPORTERS) else (ast.AST,)
    waiting: list[ast.AST] = [ast.parse(text, str(path))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            result.append(node)
        if isinstance(node, ast.If) and is_type_checking(node.test):
            waiting += reversed(node.orelse)
        else:
            waiting += reversed([item for item in ast.iter_child_nodes(node) if isinstance(item, inside)])
    return result


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def resolve(name: str, package: str, files: dict[str, Path]) -> str | None:
    """The module of the package that a dotted name leads to, None when it is somebody else's."""
    first, *rest = name.split(".")
    if first != package:
        return None
    while rest:
        module = ".".join(rest)
        if module in files or module in COMPILED:
            return module
        rest.pop()
    return "__init__"


def part_of(module: str) -> str:
    return module.split(".")[0]


def rank_of(module: str) -> int | None:
    for rank, layer in enumerate(LAYERS):
        if part_of(module) in layer:
            return rank
    return None


def find_unknown(files: dict[str, Path]) -> Iterator[str]:
    for part in sorted({part_of(module) for module in files}):
        if rank_of(part) is None:
            yield f"{part}: in no layer: add it to LAYERS in tools/check_layers.py"


def find_by_name(package: str, files: dict[str, Path], nodes: dict[str, Nodes]) -> Iterator[str]:
    for module, path in files.items():
        if module in BY_NAME:
            continue
        for name in named_imports(nodes[module], package, parent_of(package, path, module)):
            what = "a module by a name that only running tells" if name is None else f"{name} by its name"
            yield f"{module}: imports {what}; only {', '.join(BY_NAME)} may"


def find_wrong_layers(graph: Graph) -> Iterator[str]:
    for module, target in edges(graph):
        mine, theirs = rank_of(module), rank_of(target)
        if mine is not None and theirs is not None and theirs > mine:
            yield f"{module}: imports {target}, which is in a later layer"


def find_linked_islands(graph: Graph) -> Iterator[str]:
    for module, target in edges(graph):
        here, there = module.split("."), target.split(".")
        on_islands = here[0] == there[0] and here[0] in ISLANDS and len(here) > 1 and len(there) > 1
        if on_islands and here[1] != there[1] and not {here[1], there[1]} & {*ISLANDS[here[0]]}:
            yield f"{module}: imports {target}, but {here[0]} must not know each other"


def edges(graph: Graph) -> Iterator[tuple[str, str]]:
    """Every import that has to follow the rules."""
    for module in sorted(graph):
        if module != "__init__":
            yield from ((module, target) for target in sorted(graph[module]))


def find_circles(graph: Graph) -> Iterator[str]:
    """One line for all modules that lead to each other, with a shortest way around."""
    reached = {module: reachable(graph, module) for module in graph if module != "__init__"}
    seen: set[str] = set()
    for module in sorted(reached):
        circle = {other for other in reached[module] if module in reached.get(other, ())}
        if not circle or module in seen:
            continue
        seen |= circle
        way = " -> ".join(way_back(graph, module))
        yield f"circle of {len(circle)}: {', '.join(sorted(circle))} ({way})"


def reachable(graph: Graph, module: str) -> set[str]:
    result: set[str] = set()
    waiting = [module]
    while waiting:
        for target in graph.get(waiting.pop(), set()) - result - {"__init__"}:
            result.add(target)
            waiting.append(target)
    return result


def way_back(graph: Graph, module: str) -> list[str]:
    """A shortest way from a module to itself."""
    ways = [[module]]
    seen: set[str] = set()
    for way in ways:
        for target in sorted(graph.get(way[-1], set()) - seen - {"__init__"}):
            if target == module:
                return [*way, module]
            seen.add(target)
            ways.append([*way, target])
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
