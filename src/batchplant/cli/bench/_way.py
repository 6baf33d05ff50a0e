"""Breakdown of the time of a batch, from the first byte to the loop: numbers, text, a figure."""

from __future__ import annotations

from ...tools import Document
from ...tools.measure import figures

# In the order in which they happen, each with what it is drawn with in a terminal.
PARTS = {"open": "·", "read": "░", "decode": "█", "resize": "▓", "transform": "▒", "copy": "≡", "wait": "-"}
WIDTH = 60
COLOURS = dict(zip(PARTS, (*figures.COLOURS[1:5], *figures.COLOURS[6:8], "#d1d5db"), strict=True))
NOTES = {
    "open": "the dataset, once, shared by all batches",
    "read": "to find cells, and for fields without images",
    "decode": "on {threads} at once",
    "resize": "one pass with crop, flip and normalisation",
    "transform": "the ops behind the decoder",
    "copy": "to the device",
    "wait": "for threads that are busy with other batches",
}
# Where a device makes the images, nobody measures one without the other.
TOGETHER = "and resizing and waiting, which are one here"


def split(stats: Document, opened: float) -> Document:
    """Seconds of a batch by what they went into, on average; ``opened``: how long it took to open.

    Decoding threads work on a batch together, so what they add up to is divided by their number.
    """
    batches, workers = max(stats["batches"], 1), stats["workers"]
    busy = {name: workers[name] / workers["threads"] for name in ("decode", "resize")}
    notes = {name: text.format(threads=_threads(workers["threads"])) for name, text in NOTES.items()}
    if "augment" in stats:
        busy = {"decode": stats["decode"], "resize": 0.0}
        notes |= {"decode": TOGETHER, "resize": "see decode"}
    seconds = {
        "open": opened, "read": stats["storage"], **busy, "transform": stats["transforms"],
        "copy": stats["device"], "wait": max(0.0, stats["decode"] - sum(busy.values())),
    }  # fmt: skip
    return {
        "seconds": {name: seconds[name] / batches for name in PARTS},
        "notes": {name: notes[name] for name in PARTS if seconds[name]},
    }


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def bar(seconds: dict[str, float], width: int = WIDTH) -> str:
    """A stacked bar of exactly so many characters; empty where nothing took any time."""
    total = sum(seconds.values())
    if not total:
        return ""
    exact = {name: width * seconds[name] / total for name in PARTS}
    cells = {name: int(size) for name, size in exact.items()}
    # What rounding down left over goes to those that lost most.
    for name in sorted(PARTS, key=lambda name: cells[name] - exact[name])[: width - sum(cells.values())]:
        cells[name] += 1
    return "".join(PARTS[name] * cells[name] for name in PARTS)


def lines(way: Document) -> list[str]:
    """The bar, and what each of its parts is."""
    seconds = way["seconds"]
    total = sum(seconds.values())
    text_lines = [f"a batch on its way to the loop, {1000 * total:,.1f} ms on average", f"  {bar(seconds)}"]
    for name, mark in PARTS.items():
        if seconds[name]:
            share = seconds[name] / total
            line = f"  {mark} {name:<9} {1000 * seconds[name]:>8,.1f} ms {share:>4.0%}"
            text_lines.append(f"{line}  {way['notes'][name]}")
    return text_lines


def draw_bars(axes: figures.Axes, ways: dict[str, Document]) -> None:
    """A stacked bar for each, in milliseconds."""
    starts = dict.fromkeys(ways, 0.0)
    longest = max(sum(batch["seconds"].values()) for batch in ways.values()) or 1.0
    for name in PARTS:
        values = {key: 1000 * batch["seconds"][name] for key, batch in ways.items()}
        # What cannot be seen needs no entry in the legend.
        if max(values.values()) < longest:
            continue
        axes.barh(
            list(ways), list(values.values()), left=list(starts.values()), color=COLOURS[name], label=name,
            height=0.6, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        for key, value in values.items():
            # Thin parts have no room for a number.
            if value > 60 * longest:
                axes.text(
                    starts[key] + value / 2, key, f"{value:,.3g}", ha="center", va="center", fontsize=8,
                    color="white" if name != "wait" else "black",
                )  # fmt: skip
            starts[key] += value
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a batch, on average", fontsize=9)
    figures.tidy(axes)


def draw(result: Document) -> figures.Figure:
    """Draw the breakdown of a batch's time, and that of the loop."""
    figure = figures.blank(8.4, 3.0)
    axes = figure.subplots()
    draw_bars(axes, {"a batch": result["batch"]})
    stats, batches = result["stats"], max(result["stats"]["batches"], 1)
    start = 0.0
    for name, key, colour in (("loop waits", "waited", "#9ca3af"), ("its step", "step", "#374151")):
        value = 1000 * stats[key] / batches
        axes.barh(["the loop"], [value], left=[start], color=colour, label=name, height=0.6)
        start += value
    rate = f"{result['rate']['median']:,.0f} {result['unit']}/s"
    axes.set_title(
        f"{result['path']}: {rate}, batches of {result['batch size']}, order {result['order']}", fontsize=10
    )
    figures.legend_below(figure, axes, len(PARTS) + 2)
    return figure
