"""Draw the figures of the benchmarks from their JSON: bar charts, one panel for each case.

usage: _figures.py [FOLDER]        (default benchmarks/results)

Nothing is measured: a change of the drawing needs no new run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Panels = dict[str, dict[str, float]]
OURS, THEIRS = "#2a6f97", "#b0b7bf"
CASES = {"jpeg256": "JPEG 256 px", "jpeg500": "JPEG 500 px", "raw256": "raw 256×256"}


def medians(speeds: dict[str, dict[str, float]], scale: float = 1, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{name}": speed["median"] * scale for name, speed in speeds.items()}


def loader(found: dict[str, Any]) -> tuple[str, Panels]:
    panels = {f"{case['title']}: images/s": medians(case["images/s"]) for case in found["cases"].values()}
    return f"Loading batches of {found['batch']} from .beton, {found['workers']} threads", panels


def loader_threads(found: dict[str, Any]) -> tuple[str, Panels]:
    speeds = {f"batchplant, threads: {n}": value for n, value in found["cases"]["images/s"].items()}
    return "Loading on more threads", {"JPEG 256 px: images/s": medians(speeds)}


def records(found: dict[str, Any]) -> tuple[str, Panels]:
    panels: Panels = {}
    if "loading" in found:
        speeds = found["loading"]["images/s"]
        panels["loading JPEGs of 256 px: images/s"] = medians(speeds, prefix="batchplant ")
    for title, value in found.get("reading", {}).items():
        panels[f"random reads of {title}: thousand records/s"] = medians(value["records/s"], 1e-3)
    if "examples" in found:
        panels["parsing Examples: thousand/s"] = medians(found["examples"]["examples/s"], 1e-3)
    return "Record formats in place", panels


def text(found: dict[str, Any]) -> tuple[str, Panels]:
    panels: Panels = {}
    if "reads" in found:
        panels["random reads: thousand sequences/s"] = medians(found["reads"]["sequences/s"], 1e-3)
    titles = {"packing": "packing", "samples": "rows with labels", "blocks": "rows of a flat file"}
    titles["stream"] = "packed stream of a mixture"
    for part, title in titles.items():
        if part in found:
            panels[f"{title}: million tokens/s"] = medians(found[part]["tokens/s"], 1e-6)
    return "Token data", panels


def tables(found: dict[str, Any]) -> tuple[str, Panels]:
    parts = ("sequential", "lists", "shuffled", "csv")
    cases = [case for part in parts for case in found.get(part, {}).values()]
    return "Tables: thousand rows/s", {case["title"]: medians(case["rows/s"], 1e-3) for case in cases}


def arrays(found: dict[str, Any]) -> tuple[str, Panels]:
    panels: Panels = {}
    if "copies" in found:
        speeds = {
            name if name == "memcpy" else f"batchplant {name}": value
            for name, value in found["copies"]["rows/s"].items()
        }
        panels["random rows of 12 KB: thousand/s"] = medians(speeds, 1e-3)
    for format, value in found.get("chunks", {}).items():
        panels[f"{format} chunks, shuffled: thousand rows/s"] = medians(value["rows/s"], 1e-3)
    return "Arrays", panels


def codecs(found: dict[str, Any]) -> tuple[str, Panels]:
    panels = {
        f"{title}, {found['side']} px: images/s": medians(value["images/s"])
        for title, value in found.get("images", {}).get("cases", {}).items()
    }
    for part, title, unit in (
        ("sound", "1 s of 60-s FLAC: windows/s", "windows/s"),
        ("video", "16 frames of 60-s H.264: clips/s", "clips/s"),
    ):
        if one := found.get(part):
            panels[title] = medians(one[unit])
    return "Media", panels


def remote(found: dict[str, Any]) -> tuple[str, Panels]:
    panels = {
        f"{delay} ms away, {which} epoch: images/s": medians(
            {name: value for name, value in case[f"{which} epoch, images/s"].items() if name != "obstore"}
        )
        for delay, case in found["cases"].items()
        for which in ("first", "second")
    }
    return f"Loading {found['MB']:,.0f} MB of JPEGs from a bucket", panels


def cold(found: dict[str, Any]) -> tuple[str, Panels]:
    def label(side: str) -> str:
        return side if side.startswith(("disk", "torch", "FFCV")) else f"batchplant: {side}"

    panels = {
        f"{case['title']}, {order}: images/s": {
            label(side): value["median"] for side, value in value["images/s"].items()
        }
        for case in found["kinds"].values()
        for order, value in case["orders"].items()
        if order == "random"
    }
    return "Images that are not in memory", panels


def gpu(found: dict[str, Any]) -> tuple[str, Panels]:
    panels = {}
    for name, title in CASES.items():
        if one := found.get(name):
            batch = list(one["by batch"])[-1]
            ours = {f"batchplant {mode}": speed for mode, speed in one["by batch"][batch].items()}
            panels[f"{title}, batches of {batch}: images/s"] = medians({**one["alone"], **ours})
    return f"To {found['gpu']}: normalised float16, 224×224", panels


def convert(found: dict[str, Any]) -> tuple[str, Panels]:
    return "Folder of JPEGs to .beton: images/s", {
        f"{what}, {size}": medians(value["images/s"])
        for what in ("pass-through", "re-encode")
        for size, value in found[what].items()
    }


def opening(found: dict[str, Any]) -> tuple[str, Panels]:
    sides = {side: found[side] for side in ("batchplant", "FFCV") if side in found}
    return f"Opening a .beton of {found['samples']:,} samples", {
        "ms": {side: row["open"]["median"] * 1e3 for side, row in sides.items()},
        "MB of memory": {side: row["grown"]["median"] / 1e6 for side, row in sides.items()},
    }


def simulate(found: dict[str, Any]) -> tuple[str, Panels]:
    ratios = {
        f"{name}, epoch {number + 1}": row["ratio"]
        for name, case in found["cases"].items()
        for number, row in enumerate(case["epochs"])
    }
    return "Simulation", {"seconds of an epoch, predicted / measured": ratios}


def scale(found: dict[str, Any]) -> tuple[str, Panels]:
    panels: Panels = {}
    if "order" in found:
        panels["one of 10^10 positions, in a batch: µs"] = {
            f"batchplant {name}": value["one position of a batch, us"]["median"]
            for name, value in found["order"]["orders"].items()
        }
    if "conversion" in found:
        panels["re-encoding images: images/s"] = medians(
            found["conversion"]["images/s"], prefix="batchplant "
        )
    return "Scale", panels


FIGURES: dict[str, Callable[[dict[str, Any]], tuple[str, Panels]]] = {
    "loader": loader,
    "loader-threads": loader_threads,
    "records": records,
    "text": text,
    "tables": tables,
    "arrays": arrays,
    "codecs": codecs,
    "remote": remote,
    "cold": cold,
    "gpu": gpu,
    "convert": convert,
    "open": opening,
    "simulate": simulate,
    "scale": scale,
}


def draw(folder: Path, name: str) -> None:
    """Draw FOLDER/NAME.svg and .png from FOLDER/NAME.json, where there is a figure of that name."""
    if name not in FIGURES:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no figure")
        return
    import matplotlib

    matplotlib.use("Agg")
    # The same JSON gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = name
    import matplotlib.pyplot as plt

    answer = json.loads((folder / f"{name}.json").read_text())
    title, panels = FIGURES[name](answer)
    if not panels:
        return
    columns = min(2, len(panels))
    titles = list(panels)
    rows = [titles[first : first + columns] for first in range(0, len(titles), columns)]
    # Bars lie on their side, so a label has a line of its own and never meets its neighbour.
    heights = [0.75 + 0.27 * max(len(panels[item]) for item in row) for row in rows]
    figure, axes = plt.subplots(
        len(rows),
        columns,
        figsize=(5.6 * columns, sum(heights) + 0.8),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    for number, (axis, panel) in enumerate(zip(axes.flat, titles, strict=False)):
        values = panels[panel]
        most = max(len(panels[row]) for row in rows[number // columns])
        colours = [OURS if "batchplant" in label else THEIRS for label in values]
        drawn = axis.barh(list(values), list(values.values()), color=colours, height=0.62)
        axis.bar_label(
            drawn,
            fmt=lambda value: f"{value:,.3g}" if value < 100 else f"{value:,.0f}",
            padding=3,
            fontsize=8,
        )
        # Bars of one thickness, also in a panel that has fewer of them than its neighbour.
        axis.set_ylim(most - 0.5, -0.5)
        axis.spines["left"].set_bounds(len(values) - 0.5, -0.5)
        axis.margins(x=0.16)
        axis.tick_params(axis="y", labelsize=9, length=0)
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_title(panel, fontsize=10, loc="left")
    where = answer["machine"]
    figure.suptitle(title, fontsize=12)
    figure.supxlabel(f"{where['cpu']}, {where['cores']} cores; median", fontsize=8, color="#555")
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)
    print(f"wrote {folder / name}.svg")


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
    for each in FIGURES:
        if (place / f"{each}.json").exists():
            draw(place, each)
