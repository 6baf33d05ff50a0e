"""What the time of a batch goes into, from the first byte to the loop: as numbers, as text, as a figure."""

from __future__ import annotations

from typing import Any

from ...tools.measure import figures

# In the order in which they happen, each with what it is drawn with in a terminal.
PARTS = {
    "open": "·",
    "read": "░",
    "decode": "█",
    "resize": "▓",
    "transform": "▒",
    "copy": "≡",
    "wait": "-",
}
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


def split(stats: dict[str, Any], opened: float) -> dict[str, Any]:
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
    cells = {name: int(one) for name, one in exact.items()}
    # What rounding down left over goes to those that lost most.
    for name in sorted(PARTS, key=lambda name: cells[name] - exact[name])[: width - sum(cells.values())]:
        cells[name] += 1
    return "".join(PARTS[name] * cells[name] for name in PARTS)


def lines(way: dict[str, Any]) -> list[str]:
    """The bar, and what each of its parts is."""
    seconds = way["seconds"]
    total = sum(seconds.values())
    said = [f"a batch on its way to the loop, {1000 * total:,.1f} ms on average", f"  {bar(seconds)}"]
    for name, mark in PARTS.items():
        if seconds[name]:
            share = seconds[name] / total
            line = f"  {mark} {name:<9} {1000 * seconds[name]:>8,.1f} ms {share:>4.0%}"
            said.append(f"{line}  {way['notes'][name]}")
    return said


def draw_bars(axes: Any, ways: dict[str, dict[str, Any]]) -> None:
    """A stacked bar for each, in milliseconds."""
    left = dict.fromkeys(ways, 0.0)
    most = max(sum(one["seconds"].values()) for one in ways.values()) or 1.0
    for name in PARTS:
        values = {key: 1000 * one["seconds"][name] for key, one in ways.items()}
        # What cannot be seen needs no entry in the legend.
        if max(values.values()) < most:
            continue
        axes.barh(
            list(ways), list(values.values()), left=list(left.values()), color=COLOURS[name], label=name,
            height=0.6, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        for key, value in values.items():
            # Thin parts have no room for a number.
            if value > 60 * most:
                axes.text(
                    left[key] + value / 2, key, f"{value:,.3g}", ha="center", va="center", fontsize=8,
                    color="white" if name != "wait" else "black",
                )  # fmt: skip
            left[key] += value
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a batch, on average", fontsize=9)
    figures.tidy(axes)


def draw(found: dict[str, Any]) -> Any:
    """Where the time of a batch goes, and that of the loop."""
    figure = figures.blank(8.4, 3.0)
    axes = figure.subplots()
    draw_bars(axes, {"a batch": found["batch"]})
    stats, batches = found["stats"], max(found["stats"]["batches"], 1)
    left = 0.0
    for name, key, colour in (("loop waits", "waited", "#9ca3af"), ("its step", "step", "#374151")):
        value = 1000 * stats[key] / batches
        axes.barh(["the loop"], [value], left=[left], color=colour, label=name, height=0.6)
        left += value
    rate = f"{found['rate']['median']:,.0f} {found['unit']}/s"
    axes.set_title(
        f"{found['path']}: {rate}, batches of {found['batch size']}, order {found['order']}", fontsize=10
    )
    figures.legend_below(figure, axes, len(PARTS) + 2)
    return figure
