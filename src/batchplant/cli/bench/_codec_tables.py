"""Output of `bench codecs`: two tables and a figure."""

from __future__ import annotations

import math
from typing import Any

from ...errors import Problem
from ...tools import Document
from ...tools.measure import figures
from ..terminal import console, human_size
from ._coding import BY_PILLOW

STORED = "as stored"
SHOWN = 10


def print_found(result: Document) -> None:
    kinds = ", ".join(f"{count} {name}" for name, count in result["stored as"].items())
    mean = result["megapixels"] / result["images"]
    print(
        f"{result['path']}, field {result['field']}: {result['images']} of {result['samples']:,} images "
        f"({kinds}), {mean:.3g} megapixels on average; best and median of {result['rounds']}\n"
    )
    sizes = figures.table(
        "size and loss", "an image", "of stored", "bits/px", "PSNR", "SSIM", "ImageNet", "yours"
    )
    speeds = figures.table("one core", "encode/s", "(best)", "MP/s", "decode/s", "(best)", "MP/s")
    before = None
    for name, row in result["formats"].items():
        resolution = row["max resolution"]
        if resolution != before:
            for table in (sizes, speeds):
                table.add_row(f"at most {resolution} px" if resolution else "full size")
        before = resolution
        _add_row(sizes, speeds, name.partition(",")[0], row)
    console().print(sizes)
    print()
    console().print(speeds)
    print(f"\nImageNet: 1.28 million images like these; yours: {result['samples']:,}")
    by_pillow = [title for key, title in BY_PILLOW.items() if _has(result, key)]
    if by_pillow:
        print(f"{' and '.join(by_pillow)}: by Pillow; the Loader and convert do not know them")
    for name, why in result["left out"].items():
        print(f"left out: {name}: {why}")
    for problem in result["skipped"][:SHOWN]:
        print(f"skipped: {Problem(**problem)}")
    if len(result["skipped"]) > SHOWN:
        print(f"… and {len(result['skipped']) - SHOWN} more (--json lists all)")
    for line in result["advice"]:
        print(f"advice: {line}")


def _has(result: Document, encoding: str) -> bool:
    return any(row["encoding"] == encoding for row in result["formats"].values())


def _add_row(sizes: Any, speeds: Any, name: str, row: Document) -> None:
    psnr, ssim = row["PSNR"], row["SSIM"]
    sizes.add_row(
        name, human_size(row["bytes per image"]), f"{row['of stored']:.2f}",
        f"{row['bits per pixel']:.2f}",
        "–" if psnr is None else f"{psnr['median']:.1f}",
        "–" if ssim is None else f"{ssim['median']:.3f}",
        human_size(row["bytes of ImageNet"]), human_size(row["bytes of dataset"]),
    )  # fmt: skip
    shown: list[str] = []
    for part in (row["encode"], row["decode"]):
        keys = ("images/s, median", "images/s, best", "megapixels/s, median")
        shown += ["–"] * 3 if part is None else [_number(part[key]) for key in keys]
    speeds.add_row(name, *shown)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(result: Document) -> figures.Figure:
    """Size against decoding speed, a panel for each resolution."""
    resolutions = {row["max resolution"] for row in result["formats"].values()}
    sizes = sorted(resolutions, key=lambda size: size or math.inf)
    if len(sizes) > 1 and sum(row["max resolution"] is None for row in result["formats"].values()) == 1:
        # Of full size there is only what is stored, which stands in every panel.
        sizes.remove(None)
    figure = figures.blank(7.6 if len(sizes) == 1 else 1 + 4.2 * len(sizes), 5.2)
    panels = figure.subplots(1, len(sizes), squeeze=False, sharex=True, sharey=True)[0]
    for axes, size in zip(panels, sizes, strict=True):
        panel_rows = {
            name.partition(",")[0]: row
            for name, row in result["formats"].items()
            if row["max resolution"] == size or name == STORED
        }
        _panel(axes, panel_rows)
        if len(sizes) > 1:
            axes.set_title(f"at most {size} px" if size else "full size", fontsize=10)
        axes.set_xlabel("kB an image (smaller is better)", fontsize=9)
    panels[0].set_ylabel("images decoded a second, one core", fontsize=9)
    figures.legend_below(figure, panels[-1], 8)
    for axes in panels:
        figures.logarithmic(axes)
        axes.margins(0.12)
        figures.tidy(axes)
        # kB an image times 1.28 million images are so many GB.
        above = axes.secondary_xaxis("top", functions=(lambda kb: kb * 1.281167, lambda gb: gb / 1.281167))
        above.set_xlabel("GB for 1.28 million images, as ImageNet has", fontsize=8, color=figures.GREY)
        figures.plain_numbers(above.xaxis)
        above.tick_params(labelsize=8, colors=figures.GREY)
        above.spines["top"].set_color(figures.GREY)
    figure.suptitle(f"{result['images']} images of {result['path']}", fontsize=10)
    return figure


def _panel(axes: figures.Axes, formats: Document) -> None:
    families: dict[str, list[tuple[float, float, str]]] = {}
    for name, row in formats.items():
        family = name if row["quality"] is None else name.rpartition(" ")[0]
        label = name if row["quality"] is None else str(row["quality"])
        label += f" ({row['PSNR']['median']:.0f} dB)" if row["PSNR"] else ""
        point = row["bytes per image"] / 1000, row["decode"]["images/s, median"], label
        families.setdefault(family, []).append(point)
    for (family, points), colour in zip(families.items(), figures.COLOURS, strict=False):
        x, y, labels = zip(*points, strict=True)
        is_stored = family == STORED
        # What is stored is often what one of the others makes, so it lies around it and not upon it.
        look = (
            {"marker": "o", "fillstyle": "none", "markersize": 13}
            if is_stored
            else {"marker": "o", "markersize": 6}
        )
        axes.plot(x, y, color=colour, linewidth=1, label=family, zorder=3 if is_stored else 2, **look)
        # The legend names it; a label would lie upon those of its neighbours.
        for number, text in enumerate(() if is_stored else labels):
            axes.annotate(
                text, (x[number], y[number]), xytext=(3, 5), textcoords="offset points", ha="left",
                rotation=30, rotation_mode="anchor", fontsize=7, color=colour,
            )  # fmt: skip
