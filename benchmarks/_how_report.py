"""Write the tables and figures of docs/guides/how-loading-works.md from how-loading-works.json.

usage: _how_report.py [FOLDER]        (default benchmarks/results)

Nothing is measured here. What a machine could not measure is said in place of its table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _report import FIGURES, HERE, filled, machine, number, table

PAGE = HERE.parent / "docs" / "guides" / "how-loading-works.md"
BLUE, ORANGE, GREEN, GREY = "#2a6f97", "#e07a1f", "#4b8b3b", "#b0b7bf"
Found = dict[str, Any]


def kib(text: str) -> str:
    return f"{int(text) // 1024} KiB"


def sizes(found: Found) -> list[str]:
    """The record sizes of the part `reads`."""
    return [key for key in found["reads"] if key.isdigit()]


def ways(name: str) -> str:
    """As a table of what comes from the disk calls it."""
    return name.removeprefix("disk, ").replace("mapped, random", "mapped, MADV_RANDOM")


def reads(found: Found) -> Iterator[str]:
    part = found["reads"]
    chosen = sizes(found)
    rows = [["records at random, per second", *map(kib, chosen)]]
    rows += [
        [way, *(number(part[size][way]["records/s"]) for size in chosen)]
        for way in part[chosen[0]]
        if way != "disk, mapped, random"
    ]
    yield table(rows)
    small = part[chosen[0]]
    ratio = small["memory, read()"]["records/s"] / small["disk, read()"]["records/s"]
    yield (
        f"Of {part['file'] / 1e6:,.0f} MB, {len_of(small):,} records of {kib(chosen[0])} and "
        f"{len_of(part[chosen[1]]):,} of {kib(chosen[1])}. The page cache gave the small ones "
        f"{ratio:,.0f} times as fast as the disk.\n"
    )


def len_of(part: Found) -> int:
    one = next(iter(part.values()))
    return round(one["records/s"] * one["seconds"])


def readahead(found: Found) -> Iterator[str]:
    rows = [["start to end, 64 KiB at a time", "MB/s", "waits for the disk"]]
    for name, value in found["readahead"].items():
        counted = name.startswith("mapped")
        rows.append([name, number(value["MB/s"]), f"{value['waits']:,.0f}" if counted else "–"])
    yield table(rows)
    part = found["reads"]
    rows = [["at random, from the disk: MB read for each MB wanted", *map(kib, sizes(found))]]
    for way in ("disk, read()", "disk, mapped", "disk, mapped, random"):
        each = (part[size][way] for size in sizes(found))
        rows.append([ways(way), *(f"{row['from disk'] / row['bytes']:.1f}" for row in each)])
    yield table(rows)
    ahead = part["read ahead by the system"]
    known = f"{ahead / 1024:,.0f} KiB" if ahead else "what it likes"
    yield f"*waits* are page faults that the disk had to answer. This system reads {known} ahead.\n"


def queue(found: Found) -> Iterator[str]:
    speeds = found["queue"]["reads/s"]
    yield table([["threads that read", *speeds], ["reads/s", *map(number, speeds.values())]])
    one, best = speeds["1"], max(speeds, key=lambda key: speeds[key])
    yield (
        f"Records of {kib(str(found['queue']['record']))} at random, from the disk. {best} threads read "
        f"{speeds[best] / one:.1f} times as much as one.\n"
    )


def epochs(found: Found) -> Iterator[str]:
    part = found["epochs"]
    rows = [["order", "samples/s from the disk", "from the page cache", "MB from the disk : MB of samples"]]
    for name, states in part["orders"].items():
        disk, memory = states["disk"], states["memory"]
        moved = f"{disk['from disk'] / disk['bytes']:.2f}"
        rows.append([f"`{name}`", number(disk["samples/s"]), number(memory["samples/s"]), moved])
    yield table(rows)
    yield (
        f"{part['samples']:,} samples of {kib(str(part['record']))} in a `.beton` file, batches of 64, "
        "nothing to decode.\n"
    )


def ahead(found: Found) -> Iterator[str]:
    part = found["ahead"]
    each = part["by ahead"]
    waits = [f"{value['waited']:.0%}" for value in each.values()]
    yield table(
        [
            ["`prefetch_batches`", *each],
            ["time spent waiting", *waits],
            ["seconds", *(f"{value['seconds']:.2f}" for value in each.values())],
        ]
    )
    yield (
        f"{part['batches']} batches; a step takes {part['step'] * 1e3:.0f} ms. Making a batch takes "
        f"{part['usual'] * 1e3:.0f} ms, but every {part['every']}th time {part['late'] * 1e3:.0f} ms.\n"
    )


def handing(found: Found) -> Iterator[str]:
    part = found["handing"]
    rows = [[f"a batch of {part['MB']:.1f} MB comes from", "ms"]]
    yield table(rows + [[name, number(value)] for name, value in part["ms"].items()])


def numa(found: Found) -> Iterator[str]:
    if part := found.get("numa"):
        yield table([["a copy of memory on the", "GB/s"], *([n, number(v)] for n, v in part["GB/s"].items())])
    else:
        yield "Not measured: this machine has one node.\n"


def pinned(found: Found) -> Iterator[str]:
    if part := found.get("pinned"):
        rows = [
            [
                f"{part['MB']:.1f} MB to an {part['gpu']}",
                "ms, until it is there",
                "ms, until the call returns",
            ]
        ]
        for name in ("plain", "pinned"):
            rows.append([name, number(part["ms"][name]), number(part["ms"][f"{name}, the call"])])
        yield table(rows)
    else:
        yield "Not measured: this machine has no GPU.\n"


def orders(found: Found) -> Iterator[str]:
    part = found["orders"]
    rows = [
        [
            "order",
            "label entropy, sorted file",
            "shuffled file",
            "neighbours",
            "blocks kept",
            "read, times the data",
        ]
    ]
    for name, value in part["orders"].items():
        mixed = value["mixed"]
        rows.append([
            f"`{name.partition(',')[0]}`{''.join(name.partition(',')[1:])}",
            f"{mixed['sorted']:.0%}", f"{mixed['mixed']:.0%}", f"{value['neighbours']:.1%}",
            f"{value['kept']:,}", f"{value['read']:.1f}",
        ])  # fmt: skip
    yield table(rows)
    yield (
        f"{part['samples']:,} samples of {part['classes']} classes in blocks of {part['block']}, batches of "
        f"{part['batch']}. The number is the window: of `windowed` in samples, of `quasi_random` in blocks.\n"
    )


SECTIONS: dict[str, Callable[[Found], Iterator[str]]] = {
    "reads": reads,
    "readahead": readahead,
    "queue": queue,
    "epochs": epochs,
    "ahead": ahead,
    "handing": handing,
    "numa": numa,
    "pinned": pinned,
    "orders": orders,
    "machine": lambda item: iter([machine(item)]),
}


def bars(axes: Any, names: list[str], values: list[float], colours: list[str], title: str) -> None:
    drawn = axes.barh(names, values, color=colours, height=0.65)
    axes.bar_label(
        drawn, fmt=lambda value: f"{value:,.3g}" if value < 100 else f"{value:,.0f}", padding=3, fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.margins(x=0.18)
    axes.tick_params(axis="y", labelsize=9, length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=10, loc="left")


def draw_reads(found: Found, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    size = sizes(found)[0]
    part = {name: one for name, one in found["reads"][size].items() if name != "disk, mapped, random"}
    colours = [GREY if name.startswith("disk") else BLUE for name in part]
    bars(left, list(part), [one["records/s"] for one in part.values()], colours,
         f"{kib(size)} records at random, per second")  # fmt: skip
    part = {ways(name): one for name, one in found["reads"][size].items() if name.startswith("disk")}
    bars(right, list(part), [one["from disk"] / one["bytes"] for one in part.values()], [ORANGE] * len(part),
         f"MB read from the disk for each MB of {kib(size)} records")  # fmt: skip


def draw_ahead(found: Found, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    each = found["ahead"]["by ahead"]
    left.plot([int(n) for n in each], [value["waited"] * 100 for value in each.values()], "o-", color=BLUE)
    left.set_title("% of the time that the loop waits", fontsize=10, loc="left")
    left.set_xlabel("prefetch_batches: batches", fontsize=9)
    left.set_xticks([int(n) for n in each])
    speeds = found["queue"]["reads/s"]
    right.plot([int(n) for n in speeds], list(speeds.values()), "o-", color=ORANGE)
    right.set_xscale("log", base=2)
    right.set_xticks([int(n) for n in speeds], list(speeds))
    right.set_title("reads/s from the disk", fontsize=10, loc="left")
    right.set_xlabel("threads that read", fontsize=9)
    right.yaxis.set_major_formatter("{x:,.0f}")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)


def draw_orders(found: Found, figure: Any) -> None:
    axes = figure.subplots()
    colours = {"quasi_random": BLUE, "random": GREEN, "windowed": ORANGE}
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, value in found["orders"]["orders"].items():
        kind = name.partition(", ")[0]
        at = (value["kept"], value["mixed"]["sorted"] * 100)
        label = f"{name}: reads the data {value['read']:.0f} times" if value["read"] > 1.05 else name
        lines.setdefault(f"{kind} again" if value["read"] > 1.05 else kind, []).append(at)
        right = value["kept"] < found["orders"]["blocks"] / 2
        axes.annotate(
            label, at, (8 if right else -8, -8), textcoords="offset points", fontsize=8,
            ha="left" if right else "right",
        )  # fmt: skip
    for kind, points in lines.items():
        style = {"color": colours.get(kind.removesuffix(" again"), "#6b7280")}
        axes.plot(*zip(*points, strict=True), "o-", mfc="white" if "again" in kind else None, **style)
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_xlim(1.6, 1300)
    axes.set_ylim(0, 103)
    axes.set_xlabel(f"blocks kept in memory, of {found['orders']['blocks']:,}", fontsize=9)
    axes.set_title(
        "How mixed the labels of a batch are, in %; a file that is sorted by class", fontsize=10, loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


DRAWN: dict[str, tuple[Callable[[Found, Any], None], tuple[float, float]]] = {
    "how-reads": (draw_reads, (10.5, 2.3)),
    "how-ahead": (draw_ahead, (9, 3)),
    "how-orders": (draw_orders, (8, 3.8)),
}


def draw(found: Found) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    for name, (drawing, size) in DRAWN.items():
        # The same JSON gives the same file.
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure = Figure(figsize=size, layout="constrained")
            drawing(found, figure)
            figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None})
        print(f"wrote {FIGURES / name}.svg")


def page(found: Found, text: str) -> str:
    """The page with its tables as the results have them."""
    for name, section in SECTIONS.items():
        text = filled(text, name, "\n".join(section(found)), PAGE)
    return text


def main(folder: Path) -> None:
    answer = json.loads((folder / "how-loading-works.json").read_text())
    PAGE.write_text(page(answer, PAGE.read_text("utf-8")), "utf-8")
    print(f"wrote {PAGE}")
    draw(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results")
