"""Write what is made from the code: pages of the formats and the ops, tables of other pages and the registry.

usage: generate.py [--check]

Everything comes from the formats' and the ops' own descriptions. With --check nothing is written; the exit
code is 1 when something is not up to date.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import diagram
import reference

from batchplant import formats, ops
from batchplant.data.reader import Reader
from batchplant.data.writer import Writer
from batchplant.formats.base.format import CLAIMS, Format, Outline, groups
from batchplant.formats.base.options import own_options

ROOT = Path(__file__).resolve().parent.parent
PAGE, OPS = ROOT / "docs" / "formats.md", ROOT / "docs" / "reference" / "ops.md"
DIAGRAM = ROOT / "docs" / "figures" / "choosing.svg"
TABLE = ROOT / "src" / "batchplant" / "formats" / "_table.py"
CHOOSING = ROOT / "docs" / "choosing.md"

TABLE_TEXT = '''\
"""Facts about each format that the registry needs before it imports its module, by module name.

Written by docs/generate.py (make docs) from the formats themselves: edit those, not this file.
"""

from .base.format import Outline

# fmt: off
# ruff: noqa: E501
OUTLINES: dict[str, Outline] = {{
{rows}
}}
'''

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

OPS_INTRO = """\
<!-- Written by docs/generate.py (make docs) from the ops themselves: edit those, not this page. -->

# Ops

The steps of a pipeline. They are in `batchplant.ops`; those for PyTorch are in `batchplant.interop.torch`.
[Loading](../guides/loading.md#pipelines) shows how they are used, and how to write one of your own.

An op that draws random numbers has the option `share`: ops with the same name there draw the same numbers
for a sample, in whatever field they run. So an image and its mask get the same box and the same flip.

*On a device*: with `Loader(device=…, decode=…)` the op runs on the device; the others run on the CPU, after
the batch was copied back ([Images on the GPU](../guides/gpu.md#what-runs-on-the-device)).
"""

OPS_SECTIONS = {
    "crops": (
        "Images: decoding, crops, flips, padding",
        """\
A decoder is the first step of an image field's pipeline; without one it is `Decode()`. `filter` is one of
`area`, `bilinear`, `bicubic`, `nearest`. Crops, flips and padding that follow the decoder, then `Normalize`
and `ChannelsFirst`, are done by the engine while it decodes, and cost no pass of their own.
[Crop, resize and rotate](../guides/crops.md) shows them.
""",
    ),
    "colour": (
        "Augmentation: colours, levels, erasing",
        """\
Batches of images, (samples, height, width, channels), `uint8`, go in and come out; colours need three
channels. `RandomErasing` takes any dtype, channels first or last.
[Augment images](../guides/augmentation.md) shows them.
""",
    ),
    "policies": (
        "Augmentation: policies",
        """\
Changes drawn for each sample from a list; images of `uint8`, of one or three channels.
[Augment images](../guides/augmentation.md#policies) shows them.
""",
    ),
    "warping": (
        "Augmentation: rotation and perspective",
        """\
Images of `uint8`. [Crop, resize and rotate](../guides/crops.md#rotation-affine-maps-perspective) shows
them.
""",
    ),
    "annotations": (
        "Boxes, keypoints, polygons",
        """\
The first step of such a field, which goes with its image; without one it follows by itself.
[Detection](../guides/detection.md#augmentation-moves-them) shows them.
""",
    ),
    "joint": (
        "Steps that see several fields",
        "They stand beside the pipelines of fields: `pipelines=[{…}, Map(…)]`, like those of the next one.\n",
    ),
    "mixing": ("Several samples in one", ""),
    "audio": (
        "Sounds",
        "`DecodeAudio` is the first step of an audio field; the others follow it. "
        "[Audio](../guides/audio.md#train) shows them.\n",
    ),
    "spectrogram": ("Spectrograms", "[Audio](../guides/audio.md#spectrograms) shows them.\n"),
    "video": (
        "Videos",
        "The first step of a video field; ops of images follow. "
        "[Video](../guides/video.md#train-on-random-clips) shows it.\n",
    ),
    "volumes": (
        "Augmentation: volumes",
        "[Arrays and patches](../guides/arrays-and-patches.md#augment-volumes) shows them.\n",
    ),
    "values": (
        "Numbers, labels, text",
        """\
`Fill`, `Categories` and `Tokenize` are the first step of a field.
[Tables in the loader](../guides/tables-in-the-loader.md#missing-values) and
[Text](../guides/text.md) show them.
""",
    ),
    "sparse": (
        "Rows of sparse matrices",
        """\
Of a `Sparse` field, whose batches are `(indptr, indices, values, columns)` with `.to_scipy()`, `.to_torch()`
(a tensor of the layout `sparse_csr`) and `.to_dense(columns)`.
""",
    ),
    "normalize": (
        "Normalisation",
        "Of images, clips and numbers, by what you say or by what is found in the data.\n",
    ),
    "function": ("Functions of your own", "[Loading](../guides/loading.md) shows it.\n"),
    "torch": (
        "PyTorch",
        """\
From `batchplant.interop.torch`. A loader with a `device` gives tensors by itself; these are for pipelines
that go on with tensors.
""",
    ),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args(argv).check
    old = [path for path, text in pages() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{path.relative_to(ROOT)}: {'out of date; run make docs' if check else 'written'}")
    if not check:
        for path, text in pages():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if check and old else 0


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page and what has to stand in it."""
    found = own_formats()
    yield CHOOSING, between(CHOOSING, "capabilities", capabilities(found))
    parts = [INTRO, table(found), AFTER_TABLE, *(section(one) for one in found)]
    yield PAGE, "\n".join(parts)
    yield TABLE, TABLE_TEXT.format(rows="\n".join(f'    "{one.name}": {outline(one)},' for one in found))
    check_ops()
    yield OPS, "\n".join([OPS_INTRO, *(ops_section(name) for name in OPS_SECTIONS)])
    yield DIAGRAM, diagram.svg()
    yield from reference.pages()


def own_formats() -> list[Format]:
    """The formats that come with batchplant, found by their modules: the registry's table is made here."""
    shared = ("base", "registry")
    names = [module.name for module in pkgutil.iter_modules(formats.__path__) if module.name not in shared]
    found = {
        name: importlib.import_module(f"{formats.__name__}.{name}").FORMAT
        for name in sorted(names)
        if not name.startswith("_")
    }
    wrong = [name for name, one in found.items() if one.name != name]
    if wrong:
        raise SystemExit(f"a format is called as its module, and these are not: {', '.join(wrong)}")
    return list(found.values())


def outline(one: Format) -> str:
    """The outline as it is written in Python, without what is as usual."""
    suffixes, *others = one.outline._asdict().items()
    usual = Outline._field_defaults
    given = [f"{name}={value!r}" for name, value in others if value != usual[name]]
    return f"Outline({', '.join([repr(suffixes[1]), *given])})".replace("'", '"')


def between(path: Path, name: str, made: str) -> str:
    """The page with this between the two comments of that name."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, found, rest = path.read_text("utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{path.name} needs the lines {start} and {end}")
    return f"{before}{start}\n{made}{end}{after}"


def table(formats: Iterable[Format]) -> str:
    """Return one row for each format, its name linked to its section of the page."""
    rows = [["Format", "What it is", "Suffix", "Read", "Write", "Field kinds", "Missing values", "Needs"]]
    rows.append(["---"] * len(rows[0]))
    for one in formats:
        rows.append(
            [
                f"[{one.name}](#{one.name})",
                one.title,
                suffixes(one),
                "yes",
                yes(one.writer is not None),
                one.holds,
                yes(one.optional),
                f"`batchplant[{one.extra}]`" if one.extra else "",
            ]
        )
    return lines(rows)


def lines(rows: Iterable[Iterable[str]]) -> str:
    """The rows of a table; the first is its head, the second the line below."""
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)


def capabilities(found: list[Format]) -> str:
    """A table for each group of claims, and what each claim means."""
    parts = ["<!-- Written by docs/generate.py (make docs) from the formats themselves. -->\n"]
    parts.append("An empty place: it cannot. `batchplant formats --compare NAMES` puts some side by side.\n")
    for group, names in groups().items():
        titles = [CLAIMS[name]["title"] for name in names]
        rows = [["Format", *(title.capitalize() for title in titles)], ["---"] * (len(names) + 1)]
        rows += [
            [f"[{one.name}](formats.md#{one.name})", *(one.can.shown(name) for name in names)]
            for one in found
        ]
        says = [
            f"- *{title.capitalize()}*: {CLAIMS[name]['says']}.\n"
            for name, title in zip(names, titles, strict=True)
        ]
        parts += [f"### {group}\n", lines(rows), "".join(says)]
    return "\n".join(parts)


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def suffixes(one: Format) -> str:
    return " ".join(f"`{suffix}`" for suffix in one.suffixes) or one.called


def section(one: Format) -> str:
    facts = [
        f"- Specification: <{one.spec}>",
        f"- Suffix: {suffixes(one)}",
        f"- Field kinds: {one.holds}",
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


def check_ops() -> None:
    """Every public op stands in some section."""
    found = {one.__module__ for one in map(vars(ops).get, ops.__all__) if isinstance(one, type)}
    left = found - {f"batchplant.ops.{name}" for name in OPS_SECTIONS} - {"batchplant.ops.base"}
    if left:
        raise SystemExit(f"{', '.join(sorted(left))}: no section of the page of ops shows them")


def ops_section(name: str) -> str:
    title, intro = OPS_SECTIONS[name]
    rows = torch_ops() if name == "torch" else own_ops(name)
    table = "".join(f"| `{call}` | {said} | {there} |\n" for call, said, there in rows)
    head = "| Op | What it does | On a device |\n| --- | --- | --- |\n"
    return "\n".join(filter(None, [f"## {title}\n", intro, head + table]))


def own_ops(module: str) -> Iterator[tuple[str, str, str]]:
    """Of every public op in a module of batchplant.ops: call, first words, whether it has a device form."""
    found = [one for one in map(vars(ops).get, ops.__all__) if isinstance(one, type)]
    found = [
        one
        for one in found
        if one.__module__ == f"batchplant.ops.{module}" and one not in (ops.ImageDecoder, ops.JointOp)
    ]
    for one in sorted(found, key=lambda one: inspect.getsourcelines(one)[1]):
        arguments = [] if one.__init__ is object.__init__ else inspect.signature(one).parameters.values()
        shown = [argument.replace(annotation=argument.empty) for argument in arguments]
        there = one.on_device is not None or issubclass(one, ops.ImageDecoder)
        yield f"{one.__name__}{inspect.Signature(shown)}", summary(inspect.getdoc(one) or ""), yes(there)


def torch_ops() -> Iterator[tuple[str, str, str]]:
    """The same for PyTorch; read, not imported, since it may not be installed."""
    source = ROOT / "src" / "batchplant" / "interop" / "torch.py"
    for one in ast.parse(source.read_text("utf-8")).body:
        if not isinstance(one, ast.ClassDef) or [ast.unparse(base) for base in one.bases] != ["Op"]:
            continue
        made = [part for part in one.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        shown = ""
        for function in made:
            for argument in function.args.args:
                argument.annotation = None
            shown = ast.unparse(function.args).removeprefix("self").removeprefix(", ")
        there = any(isinstance(part, ast.FunctionDef) and part.name == "on_device" for part in one.body)
        yield f"{one.name}({shown})", summary(ast.get_docstring(one) or ""), yes(there)


def summary(docstring: str) -> str:
    """The first paragraph on one line, fit for a table."""
    return " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`").replace("|", r"\|")


def markdown(docstring: str) -> str:
    """Our docstrings need little: tables drawn in text stay as they are, ``code`` has one backtick here."""
    parts = []
    for part in docstring.split("\n\n"):
        drawn = part.startswith("===")
        parts.append(f"```text\n{part}\n```" if drawn else part.replace("``", "`"))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
