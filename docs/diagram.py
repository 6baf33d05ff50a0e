"""The decision diagram of choosing.md: questions from top to bottom, an answer beside each.

generate.py writes it to figures/choosing.svg.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

WIDTH, MARGIN = 880, 16
ASK, ANSWER, GAP = 344, 420, 84  # the width of a question, of an answer, and between them
STEP, HEIGHT = 92, 66  # from row to row, and of a box

# A card of its own colour, so that it can be read on any page; dark where the reader's system is.
STYLE = """\
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2933 }
.card { fill: #ffffff; stroke: #d5dbe1 }
.ask { fill: #eef2f6; stroke: #8795a1 }
.answer { fill: #e3f0f7; stroke: #2a6f97 }
.end { fill: #e6f2e1; stroke: #4b8b3b }
.bold { font-weight: 600; font-size: 15px }
.note { font-size: 13px; fill: #4a5763 }
.word { font-size: 13px; font-weight: 600; fill: #4a5763 }
.line { stroke: #8795a1; stroke-width: 1.5; fill: none }
.head { fill: #8795a1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #12171d; stroke: #39434d }
  .ask { fill: #1f2731; stroke: #76838f }
  .answer { fill: #12303f; stroke: #59a5cf }
  .end { fill: #1c3218; stroke: #7ab868 }
  .note, .word { fill: #a9b6c2 }
  .line { stroke: #76838f }
  .head { fill: #76838f }
}"""


class Row(NamedTuple):
    """A question in up to two lines, what to take after a yes, and a word on it."""

    question: str
    more: str
    take: str
    note: str


ROWS = (
    Row("Is it fast enough as it is?", "bench loader says: your step is slower", "Keep it",
        "every format is read in place"),
    Row("Weights of a model?", "named tensors, checkpoints", "safetensors",
        "no code in the file; opened by mapping it"),
    Row("Arrays that are cut into samples?", "volumes, scans, fields over time", "Zarr · HDF5",
        "Zarr: many readers, a bucket. HDF5: one file, any tool"),
    Row("Many writers, or old versions?", "rows change while others read", "Delta Lake · Iceberg",
        "transactions, history, changes of the schema"),
    Row("Queries for columns or rows?", "analytics, filters, joins", "Parquet",
        "row groups of 4 MiB to train, 64 MiB and more to analyse"),
    Row("Must people read or edit it?", "a text editor, a spreadsheet, a file manager",
        "CSV · JSON Lines · a folder", "below some thousand files; else pack them"),
    Row("Must another loader read it?", "or another language", "WebDataset · TFRecord · .beton",
        "torch and DALI · tf.data · FFCV: all load equally fast here"),
    Row("Numbers of one shape, or tokens?", "nothing to decode", "NPY · Arrow",
        "mapped into memory, used in place"),
    Row("Read from a bucket, or streamed?", "requests cost more than bytes", "WebDataset shards of 256 MB",
        "indexed, shuffled once when written, cached on disk"),
)  # fmt: skip
LAST = Row("", "", ".beton", "images, sound, text: shuffled from a local disk, decoded in place")


def box(x: float, y: float, width: float, kind: str, title: str, note: str) -> str:
    middle = x + width / 2
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="9"/>\n'
        f'<text class="bold" x="{middle}" y="{y + 28}" text-anchor="middle">{escape(title)}</text>\n'
        f'<text class="note" x="{middle}" y="{y + 49}" text-anchor="middle">{escape(note)}</text>\n'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, word: str) -> str:
    """To the right or down, with a word beside it."""
    if to_x == x:
        head, end = f"{x - 5},{to_y - 9} {x + 5},{to_y - 9}", (x, to_y - 8)
        at = f'x="{x + 10}" y="{(y + to_y) / 2 + 2}"'
    else:
        head, end = f"{to_x - 9},{y - 5} {to_x - 9},{y + 5}", (to_x - 8, y)
        at = f'x="{(x + to_x) / 2 - 4}" y="{y - 7}" text-anchor="middle"'
    return (
        f'<path class="line" d="M{x} {y}L{end[0]} {end[1]}"/>\n'
        f'<polygon class="head" points="{to_x},{to_y} {head}"/>\n'
        f'<text class="word" {at}>{word}</text>\n'
    )


def svg() -> str:
    height = 2 * MARGIN + STEP * len(ROWS) + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title">\n'
        '<title id="title">Which format? Questions from top to bottom; '
        "a yes leads to the answer on the right, a no to the next question.</title>\n"
        f"<style>\n{STYLE}\n</style>\n"
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="12"/>\n'
    ]
    for number, row in enumerate(ROWS):
        top = MARGIN + number * STEP
        right, centre = MARGIN + ASK + GAP, MARGIN + ASK / 2
        parts.append(box(MARGIN, top, ASK, "ask", row.question, row.more))
        parts.append(box(right, top, ANSWER, "answer", row.take, row.note))
        parts.append(arrow(MARGIN + ASK, top + HEIGHT / 2, right, top + HEIGHT / 2, "yes"))
        parts.append(arrow(centre, top + HEIGHT, centre, top + STEP, "no"))
    top = MARGIN + STEP * len(ROWS)
    parts.append(box(MARGIN, top, WIDTH - 2 * MARGIN, "end", LAST.take, LAST.note))
    return "".join([*parts, "</svg>\n"])
