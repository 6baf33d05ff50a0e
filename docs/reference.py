"""Pages of the reference of the API and of the command line, made of signatures, docstrings and parsers."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import reference_examples

import batchplant
from batchplant.cli import build_parser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NAMES = ROOT / "tests" / "project" / "public_names.txt"
# Public under every name that the original has; their guides describe them.
MIRRORS = {
    "batchplant.ffcv": "from-ffcv",
    "batchplant.ffrecord": "from-ffrecord",
    "batchplant.tfrecord": "from-tfdata",
}
# A library that is not installed everywhere would be imported; the page of ops lists these.
ELSEWHERE = ("batchplant.interop.torch",)
HEAD = "<!-- Written by docs/generate.py (make docs) from the code: edit docstrings, not this page. -->"

# Page: (title, introduction, modules, packages whose names in `batchplant` stand there).
PAGES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "loading": (
        "Loading",
        "The `Loader` and its options. [Loading](../guides/loading.md) shows how they are used.",
        (),
        ("loading", "order.mesh"),
    ),
    "orders": (
        "Orders",
        "`batchplant.order`: which sample comes when. [Shuffling](../guides/shuffling.md) compares them.",
        ("batchplant.order", "batchplant.order.quality"),
        (),
    ),
    "data": (
        "Data and views",
        "Readers, and what combines them. A view copies nothing.",
        ("batchplant.data.arrays", "batchplant.data.tensors"),
        ("data", "storage", "schema.columns", "tools"),
    ),
    "schema": (
        "Kinds and schema",
        "Kinds of fields. [Add a format](../guides/add-a-format.md#how-cells-look) has their cells.",
        ("batchplant.schema",),
        ("schema",),
    ),
    "jobs": (
        "Jobs",
        "Work on whole datasets: open, write, convert, verify, count.",
        ("batchplant.jobs.engines", "batchplant.jobs.stats", "batchplant.jobs.lake"),
        ("jobs", "codecs", "data.writer", "formats.registry"),
    ),
    "tools": (
        "Tools",
        "What measures, advises, examines and simulates.",
        (
            "batchplant.tools.doctor",
            "batchplant.tools.advise",
            "batchplant.tools.measure",
            "batchplant.tools.simulation",
            "batchplant.tools.seen",
            "batchplant.tools.metrics",
        ),
        (),
    ),
    "ops-api": (
        "Ops: the classes",
        "`batchplant.ops` in full. [Ops](ops.md) has them in tables, by purpose.",
        ("batchplant.ops",),
        (),
    ),
    "errors": (
        "Errors",
        "Every error is a `BatchplantError` with the attributes `path`, `sample`, `field` and `offset`.",
        (),
        ("errors",),
    ),
    "storage": (
        "Storage and codecs",
        "For authors of formats: sources of bytes, targets, and codecs of cells.",
        ("batchplant.storage", "batchplant.codecs"),
        (),
    ),
    "formats-api": (
        "Formats and their bases",
        "For authors of formats, see [Add a format](../guides/add-a-format.md); functions of single formats.",
        (
            "batchplant.formats.base.records",
            "batchplant.formats.base.text",
            "batchplant.formats.base.tables",
            "batchplant.formats.base.lake",
            "batchplant.formats.base.arrays",
            "batchplant.formats.base.folders",
            "batchplant.formats.base.tensors",
            "batchplant.formats.base.objects",
            "batchplant.formats.json",
            "batchplant.formats.tfrecord",
            "batchplant.formats.zarr",
            "batchplant.formats.n5",
            "batchplant.formats.energon",
            "batchplant.formats.nifti",
            "batchplant.formats.anndata",
        ),
        ("formats.base",),
    ),
    "testing": (
        "Testing",
        "The tests that every format passes, for authors of formats.",
        ("batchplant.testing",),
        (),
    ),
}


def pages() -> Iterator[tuple[Path, str]]:
    """Every page of the reference and its text."""
    placed: set[str] = set()
    for page, (title, intro, modules, _) in PAGES.items():
        parts = [HEAD, f"# {title}", intro]
        top = sorted(name for name in batchplant.__all__ if page_of(name) == page)
        if top:
            parts += ["## `batchplant`", *(text for name in top for text in entry(batchplant, name, page))]
        for module in modules:
            held = load(module)
            parts += [f"## `{module}`", prose(held)]
            parts += [text for name in public_names(held) for text in entry(held, name, page)]
        placed.update(top)
        yield FOLDER / f"{page}.md", tidy(parts)
    missing = set(batchplant.__all__) - placed
    if missing:
        raise SystemExit(f"no page of the reference has {', '.join(sorted(missing))}: see PAGES")
    yield FOLDER / "mirrors.md", mirrors()
    yield FOLDER / "cli.md", command_line()


def tidy(parts: Iterable[str]) -> str:
    text = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE) + "\n"


def page_of(name: str) -> str:
    """The page of a name of `batchplant`: by the longest package that holds it."""
    value = getattr(batchplant, name)
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "batchplant.data")
    inner = module.removeprefix("batchplant.")
    held = [
        (len(package), page)
        for page, (*_, packages) in PAGES.items()
        for package in packages
        if f"{inner}.".startswith(f"{package}.")
    ]
    return max(held)[1] if held else "data"


def load(module: str) -> ModuleType:
    return importlib.import_module(module)


def public_names(module: ModuleType) -> list[str]:
    """The names that a module exports; those of `batchplant` stand there."""
    return [
        name
        for name in sorted(module.__all__)
        if getattr(batchplant, name, None) is not getattr(module, name)
        and f"{module.__name__}.{name}"
        not in {other for _, _, others, _ in PAGES.values() for other in others}
    ]


def entry(module: ModuleType, name: str, page: str = "") -> Iterator[str]:
    """Heading, signature, docstring, example, attributes and methods of one name."""
    value = getattr(module, name)
    yield f"### `{name}`"
    if inspect.isclass(value):
        yield code(call(name, value))
        bases = [
            base.__name__ for base in value.__bases__ if base is not object and base.__name__ != "Generic"
        ]
        if bases:
            yield f"Bases: {', '.join(f'`{base}`' for base in bases)}."
        yield prose(value)
        yield from claims(value)
        yield from example(page, name)
        yield from members(value)
    elif callable(value):
        yield code(call(name, value))
        yield prose(value)
        yield from example(page, name)
    elif inspect.ismodule(value):
        yield "A module."
        yield prose(value)
        for inner in held_names().get(f"batchplant.{name}", ()):
            yield from entry(value, inner)
    else:
        shown = Shown(value).text
        if isinstance(value, str | int | float | tuple) and len(shown) < 200 and name != "__version__":
            yield code(f"{name} = {shown}")
        else:
            yield f"A value of type `{type(value).__name__}`."


def example(page: str, name: str) -> Iterator[str]:
    """An example and what it prints, unless that differs from machine to machine."""
    if f"{page}/{name}" in reference_examples.EXAMPLES:
        written, printed = reference_examples.EXAMPLES[f"{page}/{name}"]
        yield f"```python\n{written}\n```"
        if printed:
            yield f"```text\n{printed}\n```"


def claims(value: type) -> Iterator[str]:
    """Parameters of a dataclass that are described by the metadata of its fields."""
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    rows = [f"- {field.name}: {field.metadata['says']}." for field in fields if "says" in field.metadata]
    if rows:
        yield "\n".join(rows)


def members(value: type) -> Iterator[str]:
    """Public properties and methods that a class defines itself."""
    rows = []
    for name, raw in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(raw, property | functools.cached_property):
            rows.append(f"- `{name}`: {first(raw)}")
        elif isinstance(raw, staticmethod | classmethod) or inspect.isfunction(raw):
            rows.append(f"- `{call(name, getattr(value, name))}`: {first(getattr(value, name))}")
    if rows:
        yield "Methods and attributes:"
        yield "\n".join(row.removesuffix(": ") for row in rows)


def call(name: str, value: object) -> str:
    """A signature with types and defaults, as on one line."""
    # Versions of Python differ in what they say of these.
    if inspect.isclass(value) and issubclass(value, dict | list | enum.Enum):
        return name
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name
    parameters = [
        parameter.replace(
            annotation=hint(parameter.annotation),
            default=parameter.default if parameter.default is parameter.empty else Shown(parameter.default),
        )
        for parameter in signature.parameters.values()
        # A `**unknown: Never` is there to make good messages for names that are none.
        if parameter.name not in ("self", "cls") and "Never" not in str(parameter.annotation)
    ]
    returns = hint(signature.return_annotation)
    if inspect.isclass(value):
        returns = inspect.Signature.empty
    return f"{name}{signature.replace(parameters=parameters, return_annotation=returns)}".replace("'", '"')


class Hint:
    """An annotation as it is written in the code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Shown(Hint):
    """A default as its repr, without the addresses of objects."""

    def __init__(self, value: object) -> None:
        if inspect.isfunction(value) or inspect.isclass(value):
            text = value.__name__
        elif isinstance(value, tuple):
            inner = ", ".join(Shown(each).text for each in value)
            text = f"({inner},)" if len(value) == 1 else f"({inner})"
        elif dataclasses.is_dataclass(value):
            text = f"{type(value).__name__}(…)"
        else:
            text = repr(value)
        super().__init__("…" if " at 0x" in text or len(text) > 80 else text)


def hint(annotation: object) -> object:
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Hint(text.replace("batchplant.", ""))


def code(text: str) -> str:
    """A signature in a block; a long one has a line for each parameter."""
    if len(text) > 100 and "(" in text:
        head, _, rest = text.partition("(")
        inside, _, tail = rest.rpartition(")")
        text = f"{head}(\n" + "".join(f"    {part},\n" for part in split(inside)) + f"){tail}"
    return f"```text signature\n{text}\n```"


def split(inside: str) -> Iterator[str]:
    """The parameters of a signature, at the commas that are in no bracket and no string."""
    depth, quoted, start = 0, False, 0
    for at, letter in enumerate(inside):
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0:
                yield inside[start:at].strip()
                start = at + 1
    yield inside[start:].strip()


def prose(value: object) -> str:
    """A docstring as Markdown; what dataclasses write by themselves repeats the signature."""
    text = inspect.getdoc(value) or ""
    own = getattr(value, "__doc__", None)
    if not own or text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    names = parameter_names(value)
    parts = []
    for part in text.split("\n\n"):
        drawn = part.startswith(("===", "    ")) or "\n    " in part
        parts.append(f"```text\n{part}\n```" if drawn else listed(part, names).replace("``", "`"))
    return "\n\n".join(parts)


def parameter_names(value: object) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []


def listed(part: str, names: list[str]) -> str:
    """A paragraph that describes parameters, as ``seed: of it. ids: add them.``, as a list of them."""
    if not names:
        return part
    one = rf"(?:{'|'.join(map(re.escape, names))})"
    sentences = re.split(rf"(?:\A|(?<=[.;)])\s+)(?=(?:{one}, )*{one}: )", part)
    described = [sentence for sentence in sentences[1:] if sentence]
    if len(described) < 2:
        return part
    items = [re.sub(rf"\A((?:{one}, )*{one}): ", r"``\1``: ", item) for item in described]
    bullets = "\n".join("- " + " ".join(item.split()) for item in items)
    return f"{sentences[0]}\n\n{bullets}".strip()


def first(value: object) -> str:
    return " ".join(prose(value).partition("\n\n")[0].split())


def held_names() -> dict[str, list[str]]:
    """Names that users may import, by module."""
    lines = [line for line in NAMES.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {module: names.split() for module, _, names in (line.partition(": ") for line in lines)}


def mirrors() -> str:
    """The names of the mirrors, by module."""
    parts = [HEAD, "# Mirrors", "Names of other packages; their guides say what differs."]
    rows = ["| Module | Names |", "| --- | --- |"]
    for module, names in held_names().items():
        for mirror, guide in MIRRORS.items():
            if f"{module}.".startswith(f"{mirror}."):
                shown = ", ".join(f"`{name}`" for name in names)
                rows.append(f"| [`{module}`](../guides/{guide}.md) | {shown} |")
    return tidy([*parts, "\n".join(rows)])


def command_line() -> str:
    """All commands with their options, from their parsers."""
    parts = [
        HEAD,
        "# Commands",
        "Every command and option. [The command line](../guides/command-line.md) shows how they are used.",
        "Exit codes: 0 all is well, 1 a problem was found in the data, 2 wrong use, 130 stopped.",
    ]
    return tidy([*parts, *commands(build_parser(), 2)])


def commands(parser: argparse.ArgumentParser, depth: int) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                nested = any(isinstance(each, argparse._SubParsersAction) for each in child._actions)
                yield f"{'#' * depth} `{child.prog}`"
                yield sentence(child.description or helps.get(name, ""))
                if not nested:
                    yield f"```text usage\n{usage(child)}\n```"
                yield options(child)
                if child.epilog:
                    yield f"```text examples\n{child.epilog.replace('%(prog)s', child.prog).strip()}\n```"
                if nested:
                    yield from commands(child, depth + 1)


def sentence(text: str) -> str:
    text = " ".join(text.replace("%%", "%").split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") or not text else ".")


def usage(parser: argparse.ArgumentParser) -> str:
    """Usage on a line of our own: that of argparse differs from one version of Python to the next."""
    words = [parser.prog]
    optional = [each for each in parser._actions if each.option_strings and each.dest != "help"]
    words += [f"{each.option_strings[-1]} {value(each)}".strip() for each in optional if each.required]
    words += ["[options]"] if optional else []
    words += [value(each) for each in parser._actions if not each.option_strings]
    return " ".join(words)


def value(action: argparse.Action) -> str:
    """Return the value of an argument as the usage line shows it: NAME, NAME …, a|b."""
    if action.nargs == 0:
        return ""
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    if metavar is None and action.choices is not None:
        metavar = "|".join(map(str, action.choices))
    shown = metavar or (action.dest.upper() if action.option_strings else action.dest)
    shown = f"{shown} …" if action.nargs in ("+", "*", argparse.REMAINDER) else shown
    return f"[{shown}]" if action.nargs in ("?", "*") else shown


def options(parser: argparse.ArgumentParser) -> str:
    rows = []
    for each in parser._actions:
        shown = each.help or ""
        if isinstance(each, argparse._SubParsersAction) or shown == argparse.SUPPRESS or each.dest == "help":
            continue
        names = ", ".join(each.option_strings)
        text = " ".join((shown % {**vars(each), "prog": parser.prog} if "%" in shown else shown).split())
        written = f"{names} {value(each)}".strip().replace("|", r"\|")
        rows.append(f"| `{written}` | {escape(text)} |")
    return "\n".join(["| Argument | |", "| --- | --- |", *rows]) if rows else ""


def escape(text: str) -> str:
    """Text for the cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
