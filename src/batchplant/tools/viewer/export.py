"""A report as one HTML file: images inside, no script, no external resources."""

from __future__ import annotations

from typing import Any

from .. import Document
from .markup import Markup, style, tag
from .media.colours import css, of_label
from .report import text_of

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
# Bars of a chart, and fields with charts.
MAX_BARS, MAX_CHARTED_FIELDS = 12, 100
MAX_LETTERS = 300
STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --line: #d9d9d4; --text: #1b1d1c;
 --dim: #5a605d; --bar: #1f6b66; --bad: #b3261e; font: 14px/1.45 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --page: #161817; --card: #1f2221;
 --line: #3a403d; --text: #e8eae9; --dim: #a5ada9; --bar: #6cc5bd; --bad: #f2948c; } }
body { margin: 0 auto; max-width: 1200px; padding: 16px; background: var(--page); color: var(--text); }
h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin-top: 28px; }
h3 { font-size: 14px; margin: 0; } p { margin: 4px 0; }
.dim { color: var(--dim); } .bad { color: var(--bad); }
table { border-collapse: collapse; overflow-wrap: anywhere; }
th, td { text-align: left; vertical-align: top; padding: 2px 14px 2px 0; }
.cards, .samples { display: grid; gap: 12px; align-items: start; }
.cards { grid-template-columns: repeat(auto-fill, minmax(min(100%, 260px), 1fr)); }
.samples { grid-template-columns: repeat(auto-fill, minmax(min(100%, 170px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 10px;
 min-width: 0; overflow-wrap: anywhere; }
.card img { display: block; max-width: 100%; object-fit: fill; border-radius: 3px; }
.card svg { width: 100%; height: 90px; display: block; } .chart { fill: var(--bar); }
.card svg.thin { height: 4px; }
.bar, .ends { display: flex; justify-content: space-between; gap: 8px; } .ends { font-size: 12px; }
.wide { overflow-x: auto; }
.shot { position: relative; width: fit-content; max-width: 100%; }
.card .shot svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.shot :is(rect, polygon, path) { vector-effect: non-scaling-stroke; stroke-width: 2px; }
.shot .dots { stroke-width: 5px; stroke-linecap: round; } .shot .dots path { stroke-width: inherit; }
@media print { .card { break-inside: avoid; } }
"""


def html(report: Document) -> str:
    """Return the page of a report."""
    statistics = report["statistics"]
    body = [
        tag("h1", None, report["title"]),
        tag(
            "p",
            {"class": "dim"},
            f"{report['count']:,} samples, {report['format'] or 'in memory'}, {report['path']}",
        ),
        tag("div", {"class": "wide"}, _table([*report["facts"].items()])) if report["facts"] else None,
        tag("h2", None, "Fields"),
        _remarks(statistics),
        tag("div", {"class": "cards"}, [_field(field) for field in _fields(report)]),
        tag("h2", None, f"The first {len(report['samples']):,} of {report['count']:,} samples"),
        tag("div", {"class": "samples"}, [_sample(sample) for sample in report["samples"]]),
        tag("p", {"class": "dim"}, f"Made by batchplant {report['version']}."),
    ]
    head = [
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("title", None, f"{report['title']} – batchplant"),
        style(STYLE),
    ]
    return (
        "<!doctype html>\n"
        + tag("html", {"lang": "en"}, tag("head", None, head), tag("body", None, body))
        + "\n"
    )


def _table(rows: list[tuple[Any, Any]]) -> Markup:
    cells = [(tag("th", {"scope": "row"}, key), tag("td", None, _cut(value))) for key, value in rows]
    return tag("table", None, [tag("tr", None, *pair) for pair in cells])


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_LETTERS else text[:MAX_LETTERS] + "…"


def _remarks(statistics: Document) -> list[Markup]:
    if "error" in statistics:
        return [tag("p", {"class": "bad"}, statistics["error"])]
    looked, of = statistics["looked_at"], statistics["samples"]
    coverage = (
        f"Statistics of all {of:,} samples."
        if looked == of
        else f"Statistics of {looked:,} of {of:,} samples."
    )
    remarks = [tag("p", {"class": "dim"}, coverage)]
    if statistics["unreadable"]:
        remarks.append(tag("p", {"class": "bad"}, f"{statistics['unreadable']:,} of them cannot be read."))
    remarks += [
        tag("p", {"class": "bad"}, _cut(problem["message"])) for problem in statistics["problems"][:5]
    ]
    copies = statistics["copies"]
    if copies and copies["count"]:
        remarks.append(tag("p", None, f"{copies['count']:,} samples equal an earlier one in all fields."))
    return remarks


def _fields(report: Document) -> list[Document]:
    by_name = {field["name"]: field for field in report["statistics"].get("fields", [])}
    return [{**by_name.get(field["name"], {}), **field} for field in report["fields"][:MAX_CHARTED_FIELDS]]


def _field(field: Document) -> Markup:
    parts: list[Any] = [tag("h3", None, field["name"]), tag("p", {"class": "dim"}, _cut(field["kind"]))]
    if field.get("missing"):
        parts.append(tag("p", None, f"{field['missing']:,} missing"))
    if (copies := field.get("copies")) and copies["count"]:
        parts.append(tag("p", None, f"{copies['count']:,} equal an earlier one"))
    values = field.get("values", {})
    for statistic, chart in list(values.items())[:3]:
        parts.append(_bars(statistic, chart))
    if "values" not in values:
        for statistic, chart in list(field.get("numbers", {}).items())[:3]:
            parts.append(_histogram(statistic, chart))
    return tag("section", {"class": "card"}, parts)


def _bars(statistic: str, chart: Document) -> list[Markup]:
    items = chart["items"][:MAX_BARS]
    highest = max((item["count"] for item in items), default=1)
    rows = []
    for item in items:
        label, count = tag("span", None, _cut(item["label"])), tag("span", None, f"{item['count']:,}")
        frame = {
            "class": "thin",
            "viewBox": "0 0 100 1",
            "preserveAspectRatio": "none",
            "aria-hidden": "true",
        }
        size = {"class": "chart", "width": f"{100 * item['count'] / highest:.2f}", "height": 1}
        rows.append(
            tag("div", None, tag("div", {"class": "bar"}, label, count), tag("svg", frame, tag("rect", size)))
        )
    hidden = chart["different"] - len(items)
    return [
        tag("p", {"class": "dim"}, statistic),
        *rows,
        *([tag("p", {"class": "dim"}, f"{hidden:,} more")] if hidden > 0 else []),
    ]


def _histogram(statistic: str, chart: Document) -> list[Markup]:
    counts = chart["counts"]
    caption = (
        f"{statistic}: {_number(chart['min'])} to {_number(chart['max'])}, mean {_number(chart['mean'])}"
    )
    if not counts or not max(counts):
        return [tag("p", {"class": "dim"}, caption)]
    highest, width = max(counts), 100 / len(counts)
    bars = [
        tag(
            "rect",
            {
                "class": "chart",
                "x": f"{position * width:.3f}",
                "y": f"{50 - 50 * count / highest:.3f}",
                "width": f"{0.92 * width:.3f}",
                "height": f"{50 * count / highest:.3f}",
            },
        )
        for position, count in enumerate(counts)
    ]
    ends = chart["texts"] or [_number(edge) for edge in chart["edges"]]
    return [
        tag("p", {"class": "dim"}, caption),
        tag(
            "svg",
            {"viewBox": "0 0 100 50", "preserveAspectRatio": "none", "role": "img", "aria-label": caption},
            bars,
        ),
        tag("div", {"class": "ends dim"}, tag("span", None, ends[0]), tag("span", None, ends[-1])),
    ]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sample(sample: Document) -> Markup:
    parts: list[Any] = [tag("h3", None, f"{sample['sample']:,}")]
    drawn = {
        shape["field"]: name
        for name, cell in sample["cells"].items()
        if "src" in cell
        for shape in cell.get("annotations", [])
    }
    for name, cell in sample["cells"].items():
        if "src" in cell:
            parts.append(thumbnail(name, cell, 148, 148))
        else:
            kind = {"class": "bad"} if "error" in cell else None
            # Boxes show their count; the numbers of an outline are of no use to a reader.
            lines = name in drawn and cell["shows"] != "boxes" and "error" not in cell
            text = f"drawn over {drawn[name]}" if lines else text_of(cell)
            parts.append(tag("p", kind, tag("span", {"class": "dim"}, f"{name}: "), _cut(text)))
    return tag("article", {"class": "card"}, parts)


def thumbnail(name: str, cell: Document, widest: int, tallest: int) -> Markup:
    """Return the square image, stretched back to its shape."""
    width, height = max(1, cell.get("width", 1)), max(1, cell.get("height", 1))
    scale = min(widest / width, tallest / height)
    size = {"width": max(1, round(width * scale)), "height": max(1, round(height * scale))}
    image = tag("img", {"src": cell["src"], "alt": f"{name}, {width}×{height}", **size})
    if not cell.get("annotations"):
        return image
    return tag("div", {"class": "shot"}, image, _draw_annotations(cell["annotations"], width, height))


def _draw_annotations(annotations: list[Document], width: int, height: int) -> Markup:
    """Draw boxes, polygons and points over an image, with their labels as tooltips."""
    view = {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none", "aria-hidden": "true"}
    return tag("svg", view, [_shapes(annotation, width, height) for annotation in annotations])


def _shapes(annotation: Document, width: int, height: int) -> list[Markup]:
    across, down = (width, height) if annotation["relative"] else (1, 1)
    labels = annotation.get("labels", [])
    shapes: list[Markup] = []
    for name in ("polygons", "boxes", "points"):
        for number, value in enumerate(annotation.get(name, [])):
            label = labels[number] if number < len(labels) else None
            colour = css(of_label(number if label is None else label))
            title = tag("title", None, f"{annotation['field']}: {'' if label is None else label}")
            lines = {"stroke": colour, "fill": "none"}
            if value is None:
                continue
            if name == "boxes":
                x, y, wide, high = _corner_and_size(value, annotation["format"])
                box = {
                    "x": x * across,
                    "y": y * down,
                    "width": abs(wide * across),
                    "height": abs(high * down),
                }
                shapes.append(tag("g", lines, title, tag("rect", box)))
            elif name == "polygons":
                rings = [
                    " ".join(
                        f"{x * across:g},{y * down:g}" for x, y in zip(ring[::2], ring[1::2], strict=False)
                    )
                    for ring in value
                ]
                filled = {**lines, "fill": colour, "fill-opacity": 0.25}
                shapes.append(tag("g", filled, title, [tag("polygon", {"points": ring}) for ring in rings]))
            else:
                dots = [f"M{x * across:g} {y * down:g}h0" for x, y, visible in value if visible]
                shapes.append(tag("g", {**lines, "class": "dots"}, title, tag("path", {"d": "".join(dots)})))
    return shapes


def _corner_and_size(box: list[float], format: str) -> tuple[float, float, float, float]:
    a, b, c, d = box
    if format == "xyxy":
        return min(a, c), min(b, d), c - a, d - b
    return (a - c / 2, b - d / 2, c, d) if format == "cxcywh" else (a, b, c, d)
