"""Write the tables of docs/benchmarks.md from the JSON that the benchmarks left, and copy their figures.

usage: _report.py [FOLDER]        (default benchmarks/results)

A benchmark that has left nothing there keeps the table it has.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
FIGURES = PAGE.parent / "figures"


def table(rows: Iterable[Iterable[str]]) -> str:
    """The first row is the head; all columns but the first are numbers."""
    head, *rest = (list(row) for row in rows)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rest]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def machine(found: dict[str, Any]) -> str:
    where = found["machine"]
    output = f"{where['cpu']}, {where['cores']} cores, Python {where['python']}"
    if (share := found.get("used by other processes")) is not None:
        output += f"; other processes used {share:.0%} of the machine meanwhile"
    return f"Measured on {output}.\n"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def loader(found: dict[str, Any]) -> Iterator[str]:
    cases = found["cases"].values()
    sides = list(dict.fromkeys(side for case in cases for side in case["images/s"]))
    rows = [["images/s, median", *sides, "batchplant : FFCV", "(best)"]]
    for case in cases:
        speeds = [case["images/s"].get(side, {}).get("median") for side in sides]
        ratio = case.get("ratio to FFCV", {})
        shown = [f"{ratio[key]:.2f}" if key in ratio else "–" for key in ("median", "best")]
        rows.append([case["title"], *map(number, speeds), *shown])
    yield table(rows)
    for key, title in (("first batch, s", "seconds to the first batch"), ("peak memory, MB", "peak MB")):
        rows = [[title, *sides]]
        rows += [[case["title"], *(number(case[key].get(side)) for side in sides)] for case in cases]
        yield table(rows)
    yield machine(found)


def peers(results: dict[str, Any]) -> Iterator[str]:
    for part in ("images", "rows", "tokens", "media"):
        cases = list(results[part].values())
        names = list(dict.fromkeys(name for case in cases for name in case["batchplant over"]))[1:]
        titles = [case["title"] for case in cases]
        rows = [["batchplant over", *(head for title in titles for head in (title, "by CPU time"))]]
        for name in names:
            ratios = [case["batchplant over"].get(name, {}) for case in cases]
            cells = [ratio.get(key) for ratio in ratios for key in ("median", "by CPU time")]
            rows.append([name, *("–" if cell is None else f"{cell:.2f}" for cell in cells)])
        yield table(rows)
    yield machine(results)


def video(results: dict[str, Any]) -> Iterator[str]:
    sides = list(dict.fromkeys(side for case in results["cases"].values() for side in case["images/s"]))
    rows = [["samples/s, median", *sides, *(f"by CPU time: {side}" for side in sides[1:])]]
    for name, case in results["cases"].items():
        speeds, cpu = case["images/s"], case["CPU s"]
        ratios = [f"{cpu[side] / cpu['batchplant']:.2f}" if side in cpu else "–" for side in sides[1:]]
        rows.append([name, *(number(speeds.get(side, {}).get("median")) for side in sides), *ratios])
    yield table(rows)
    ratios = {key: value for key, value in results.get("s3", {}).items() if isinstance(value, float)}
    if ratios:
        rows = [["random frames from S3, 30 ms", "ratio"]]
        yield table(rows + [[key, f"{value:.2f}"] for key, value in ratios.items()])
    yield machine(results)


def service(results: dict[str, Any]) -> Iterator[str]:
    units = {"decoded": "images/s", "raw": "GB/s", "transports": "GB/s", "beside tf.data service": "images/s"}
    # The results of runs on other machines, which were put into these, name their machine.
    parts = sorted((part for part in units if part in results), key=lambda part: "machine" in results[part])
    for at, part in enumerate(parts):
        unit, result = units[part], results[part]
        if at and "machine" in result and "machine" not in results[parts[at - 1]]:
            yield machine(results)
        rows = [[f"{part}, {unit}", "median", "best", "ratio of medians"]]
        for name, speed in result[unit].items():
            ratio = f"{result['ratios'][name]['median']:.2f}"
            rows.append([name, number(speed["median"]), number(speed["best"]), ratio])
        yield table(rows)
        if "machine" in result:
            yield machine(result)
    if "machine" not in results[parts[-1]]:
        yield machine(results)


def node(results: dict[str, Any]) -> Iterator[str]:
    rows = [["readers", "seconds, median", "best", "CPU seconds", "MB"]]
    for name, seconds in results["seconds"].items():
        cells = [
            seconds["median"],
            seconds["best"],
            results["CPU seconds"][name],
            results["bytes"][name] / 1e6,
        ]
        rows.append([name, *map(number, cells)])
    yield table(rows)
    yield table([["ratio", ""], *([name, f"{ratio:.2f}"] for name, ratio in results["ratios"].items())])
    yield machine(results)


def formats2(results: dict[str, Any]) -> Iterator[str]:
    rows = [["", "median", "best"]]
    pairs = [
        (f"images/s from {name} : .beton", ratio)
        for name, ratio in results["loading"]["ratio to beton"].items()
    ]
    pairs += [("random records/s of .array_record, batchplant : array_record", results["reading"]["ratio"])]
    seconds = results["indexing"]["seconds"]
    speeds = {key: seconds["read"][key] / seconds["index"][key] for key in ("median", "best")}
    pairs += [("bytes/s of indexing an archive of archives : reading it", speeds)]
    rows += [
        [name, *(f"{ratio[key]:.2f}" for key in ("median", "best"))]
        for name, ratio in pairs
        if "beton :" not in name
    ]
    yield table(rows)
    opened = results["opening"]["CPU seconds"].items()
    rows = [[f"opening {results['opening']['rows']:,} rows", "CPU seconds, median", "best"]]
    yield table(
        rows + [[name, *(number(entry[key]) for key in ("median", "best"))] for name, entry in opened]
    )
    yield machine(results)


def loader_threads(found: dict[str, Any]) -> Iterator[str]:
    case = found["cases"]
    rows = [["threads", "images/s, median", "best", "times one thread, median", "best"]]
    for name, speeds in case["images/s"].items():
        up = [f"{case['speed-up'][key][name]:.2f}" for key in ("median", "best")]
        rows.append([name, number(speeds["median"]), number(speeds["best"]), *up])
    yield table(rows)
    yield machine(found)


def convert(found: dict[str, Any]) -> Iterator[str]:
    for what, peer in (("pass-through", "cp -r"), ("re-encode", "FFCV")):
        rows = [[f"{what}, images/s, median", "batchplant", peer, f"batchplant : {peer}", "(best)"]]
        for size, value in found[what].items():
            speeds = [value["images/s"].get(side, {}).get("median") for side in ("batchplant", peer)]
            ratio = value.get(f"ratio to {peer}", {})
            shown = [f"{ratio[key]:.2f}" if key in ratio else "–" for key in ("median", "best")]
            rows.append([size, *map(number, speeds), *shown])
        yield table(rows)
    yield machine(found)


def opening(found: dict[str, Any]) -> Iterator[str]:
    sides = [side for side in ("batchplant", "FFCV") if side in found]
    rows = [[f"{found['samples']:,} samples, median", *sides]]
    for title, key, unit in (("ms to open", "open", 1e3), ("MB that it took", "grown", 1e-6)):
        rows.append([title, *(number(found[side][key]["median"] * unit) for side in sides)])
    yield table(rows)
    yield machine(found)


def per_second(what: str, found: dict[str, Any], ratio: dict[str, Any], head: str) -> str:
    """Speeds by side, with the ratio that the part gives for each."""
    rows = [[what, "median", "best", head, "(best)"]]
    for name, value in found.items():
        shown = [f"{ratio[name][key]:.2f}" if name in ratio else "–" for key in ("median", "best")]
        rows.append([name, number(value["median"]), number(value["best"]), *shown])
    return table(rows)


def records(found: dict[str, Any]) -> Iterator[str]:
    one = found["loading"]
    yield per_second("loading, images/s", one["images/s"], one["ratio to beton"], "times .beton")
    rows = [["indexing, median", *(f"{title}: {unit}" for title in found["indexing"] for unit in RATES)]]
    for name in next(iter(found["indexing"].values()))["GB/s"]:
        cells = [case[unit][name]["median"] for case in found["indexing"].values() for unit in RATES]
        rows.append([name, *map(number, cells)])
    yield table(rows)
    titles = list(found["reading"])
    rows = [["reading, records/s, median", *titles]]
    for name in found["reading"][titles[0]]["records/s"]:
        rows.append(
            [name, *(number(found["reading"][title]["records/s"][name]["median"]) for title in titles)]
        )
    yield table(rows)
    one = found["examples"]
    yield per_second("Examples/s", one["examples/s"], one["ratio to"], "batchplant : it")
    yield machine(found)


RATES = ("records/s", "GB/s")


def tables(found: dict[str, Any]) -> Iterator[str]:
    for part in ("sequential", "lists", "shuffled", "csv"):
        for case in found.get(part, {}).values():
            yield per_second(f"{case['title']}, rows/s", case["rows/s"], case["ratio to"], "batchplant : it")
    yield machine(found)


def arrays(found: dict[str, Any]) -> Iterator[str]:
    one = found["copies"]
    yield per_second("rows of 12 KB/s", one["rows/s"], one["ratio to memcpy"], "times memcpy")
    for format, case in found["chunks"].items():
        ratio = {"batchplant": case["ratio"]}
        yield per_second(f"{format} chunks, rows/s", case["rows/s"], ratio, "batchplant : row by row")
    yield machine(found)


def codecs(found: dict[str, Any]) -> Iterator[str]:
    for title, case in found.get("images", {}).get("cases", {}).items():
        head = f"{title}, {found['side']} px, {case['bytes'] / 1000:.0f} kB: images/s"
        yield per_second(head, case["images/s"], case["ratio to"], "batchplant : it")
    for part, title, unit in (
        ("sound", "1 s of 60-s FLAC", "windows/s"),
        ("video", "16 frames of 60-s H.264", "clips/s"),
    ):
        if one := found.get(part):
            yield per_second(f"{title}, {unit}", one[unit], one["ratio to"], "batchplant : it")
    yield machine(found)


def augment(found: dict[str, Any]) -> Iterator[str]:
    for part in found["parts"].values():
        speeds = part["images/s"]
        ours = speeds["batchplant"]
        ratios = {
            side: {which: ours[which] / speed[which] for which in ("median", "best")}
            for side, speed in speeds.items()
            if side != "batchplant"
        }
        yield per_second(f"{part['title']}, images/s", speeds, ratios, "batchplant : it")
    yield machine(found)


def sound(found: dict[str, Any]) -> Iterator[str]:
    for part, unit in (("mel", "sounds/s"), ("clips", "clips/s")):
        for title, case in found.get(part, {}).items():
            yield per_second(f"{title}, {unit}", case[unit], case["ratio to"], "batchplant : it")
    yield machine(found)


def remote(found: dict[str, Any]) -> Iterator[str]:
    cases = found["cases"]
    sides = list(dict.fromkeys(side for case in cases.values() for side in case["first batch, s"]))
    epochs = [(delay, which) for delay in cases for which in ("first", "second")]

    def rows(key: str) -> Iterator[list[str]]:
        for side in sides:
            yield [
                side,
                *(number(cases[delay][f"{which} epoch, {key}"].get(side)) for delay, which in epochs),
            ]

    def speeds() -> Iterator[list[str]]:
        for side in [side for side in sides if side != "obstore"]:
            result = (cases[delay][f"{which} epoch, images/s"].get(side) for delay, which in epochs)
            yield [
                side,
                *(
                    "–" if row is None else f"{number(row['median'])} ({number(row['best'])})"
                    for row in result
                ),
            ]

    heads = [f"{delay} ms, {which}" for delay, which in epochs]
    yield table([["epoch, images/s, median (best)", *heads], *speeds()])
    yield table([["epoch, requests", *heads], *rows("requests")])
    yield table([["epoch, MB fetched", *heads], *rows("MB")])
    keys = [(delay, key) for key in ("first batch, s", "peak memory, MB") for delay in cases]
    yield table([
        ["first batch, peak memory", *(f"{delay} ms: {key}" for delay, key in keys)],
        *([side, *(number(cases[delay][key].get(side)) for delay, key in keys)] for side in sides),
    ])  # fmt: skip
    yield table([
        ["`ds[i]`", "ms", "requests", "requests to open"],
        *([f"{name}, {delay} ms", *(number(value[key]) for key in ("ms", "requests", "open"))]
          for delay, both in found["ds[i]"].items() for name, value in both.items()),
    ])  # fmt: skip
    yield table([
        ["target", "", "median", "best", "met"],
        *([row["what"], f"{row['is']} {number(row['target'])}",
           *(number(row.get(key)) for key in ("median", "best")), "yes" if row["met"] else "**no**"]
          for row in found["targets"]),
    ])  # fmt: skip
    yield machine(found)


def _both(speed: dict[str, float]) -> str:
    return f"{speed['median']:,.0f} ({speed['best']:,.0f})"


def gpu(found: dict[str, Any]) -> Iterator[str]:
    titles = {"jpeg256": "JPEG 256 px", "jpeg500": "JPEG 500 px", "raw256": "raw 256×256"}
    for name, title in titles.items():
        if one := found.get(name):
            sizes, speeds = list(one["by batch"]), one["by batch"]
            rows = [[f"{title}, images/s (best), batches of", *sizes]]
            rows += [
                [f'`decode="{mode}"`', *(_both(speeds[size][mode]) for size in sizes)]
                for mode in speeds[sizes[0]]
            ]
            if against := one.get("auto"):
                shown = (f"{against[size]['ratio']:.2f} ({against[size]['mode']})" for size in sizes)
                rows.append(["`auto` : the best of the others, round by round", *shown])
            rows += [[side, *[""] * (len(sizes) - 1), _both(speed)] for side, speed in one["alone"].items()]
            yield table(rows)
    if one := found.get("step"):
        shown = [[f"{one[key][which]:.1%}" for which in ("median", "best")] for key in ("waited", "longer")]
        yield table([
            ["training step", "median", "best"],
            ["waited for data", *shown[0]],
            ["takes longer by", *shown[1]],
        ])  # fmt: skip
    ways = found.get("detection", {}).get("ways", {})
    if ways:
        sides = ("classification", "detection")
        shown = [[title, *(f"{row['images/s'][side]['median']:,.0f}" for side in sides),
                  *(f"{row['ratio'][key]:.2f}" for key in ("median", "best"))]
                 for title, row in ways.items()]  # fmt: skip
        yield table([["640 px, images/s", "pixels alone", "with boxes", "ratio", "(best)"], *shown])
    for mode, one in found.get("processes", {}).items():
        yield table([
            [f"processes on one GPU, {mode}", "images/s", "(best)", "threads", "MB", "MB of the GPU"],
            *([title, f"{speed['median']:,.0f}", f"{speed['best']:,.0f}",
               *(f"{one['held'][title][key]:,.0f}" for key in ("threads", "MB", "device MB, with contexts"))]
              for title, speed in one["images/s"].items()),
        ])  # fmt: skip
    yield f"On an {found['gpu']}, PyTorch {found['torch']}. "
    yield machine(found)


def access(found: dict[str, Any]) -> Iterator[str]:
    for title, value in found.get("filter", {}).items():
        rows = [
            [
                f"{value['kept']:,} of {value['rows']:,} rows, {title}",
                "s, median",
                "best",
                "batchplant : it",
                "(best)",
                "MB sent",
            ]
        ]
        for side, seconds in value["seconds"].items():
            ratio = value["ratio to"].get(side, {})
            shown = [f"{ratio[key]:.1f}" if key in ratio else "–" for key in ("median", "best")]
            sent = value["bytes"].get(side)
            rows.append(
                [
                    side,
                    f"{seconds['median']:.3f}",
                    f"{seconds['best']:.3f}",
                    *shown,
                    number(sent and sent / 1e6),
                ]
            )
        yield table(rows)
    parts = [("patches/s", "patches of 64³, per second", found.get("patches", {}))]
    parts += [
        ("images/s", f"decoded cache, {title}, images/s", value)
        for title, value in found.get("decoded", {}).items()
    ]
    for key, title, part in parts:
        if key in part:
            rows = [[title, "median", "best"]]
            rows += [
                [side, number(speed["median"]), number(speed["best"])] for side, speed in part[key].items()
            ]
            yield table(rows)
    yield machine(found)


def chunks(found: dict[str, Any]) -> Iterator[str]:
    head = [
        "patches/s by processor time, best", "cache for", "batchplant", "tensorstore", "ratio", "(median)",
        "by wall time", "(median)",
    ]  # fmt: skip
    for mine, peer in {"Loader": "tensorstore, batches", "array[...]": "tensorstore, one by one"}.items():
        rows = [[f"{mine}: {head[0]}", *head[1:]]]
        for value in found["cases"].values():
            rates, ratio = value["patches/s"], value["ratio to tensorstore"][mine]
            shown = [f"{ratio[clock][kind]:.2f}" for clock in ("cpu", "wall") for kind in ("best", "median")]
            speeds = [number(rates[side]["cpu"]["best"]) for side in (mine, peer)]
            rows.append([value["title"], value["part"], *speeds, *shown])
        yield table(rows)
    yield machine(found)


def advise(found: dict[str, Any]) -> Iterator[str]:
    rows = [
        ["dataset", "goal", "pick", "best", "pick behind the best", "prediction off, median", "answer, s"]
    ]
    for name, value in found["datasets"].items():
        pick = f"{value['pick']}{', as it is' if value['stays'] else ''}"
        behind = "–" if value["behind the best"] is None else f"{value['behind the best']:.0%}"
        off = f"{value['median error']:.0%} ({len(value['errors'])} formats)"
        rows.append([name, value["goal"], pick, value["best"], behind, off, f"{value['seconds']:.1f}"])
    yield table(rows)
    picks = f"{found['good']} of {len(found['datasets'])} picks are within 10 % of the best"
    yield f"{picks}; the predictions are {found['median error']:.0%} off in the median.\n"
    yield machine(found)


def cold(found: dict[str, Any]) -> Iterator[str]:
    def shown(one: dict[str, Any], side: str) -> str:
        speed, ratio = one["images/s"].get(side), one["of the limit"].get(side)
        output = number(speed and speed["median"])
        return f"{output} ({ratio['median']:.2f}; {ratio['best']:.2f})" if ratio else output

    for case in found["kinds"].values():
        orders = case["orders"]
        sides = dict.fromkeys(side for order in orders.values() for side in order["images/s"])
        head = f"{case['title']}: images/s (part of the limit; best)"
        rows = [[side, *(shown(order, side) for order in orders.values())] for side in sides]
        yield table([[head, *orders], *rows])
    yield machine(found)


def text(found: dict[str, Any]) -> Iterator[str]:
    if one := found.get("reads"):
        yield per_second("random reads, sequences/s", one["sequences/s"], one["ratio to"], "batchplant : it")
    titles = {"packing": "packing", "samples": "rows of 2,048 with labels", "blocks": "rows of a flat file"}
    for part, title in titles.items():
        if one := found.get(part):
            yield per_second(f"{title}, tokens/s", one["tokens/s"], one["ratio to"], "batchplant : it")
    if one := found.get("stream"):
        yield per_second("packed stream, tokens/s", one["tokens/s"], one["ratio to memcpy"], "times memcpy")
    if one := found.get("blend"):
        rows = [[f"{one['files']:,} files, {one['documents']:,} documents", "median", "best"]]
        for key in ("open, s", "mix, s", "in all, s", "MB", "a position, µs"):
            rows.append([key, number(one[key]["median"]), number(one[key]["best"])])
        yield table(rows)
    if one := found.get("fill"):
        rows = [["rows of 8,192, log-normal lengths", "full", "planned, tokens/s"]]
        rows += [[name, f"{case['fill']:.2%}", number(case["tokens/s"])] for name, case in one.items()]
        yield table(rows)
    yield machine(found)


SECTIONS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "loader": loader,
    # benchmarks/loader.py on another machine, its loader.json renamed.
    "loader-x86-64": loader,
    "loader-threads": loader_threads,
    "records": records,
    "text": text,
    "tables": tables,
    "access": access,
    "chunks": chunks,
    "arrays": arrays,
    "codecs": codecs,
    "augment": augment,
    "sound": sound,
    "video": video,
    "remote": remote,
    "cold": cold,
    "gpu": gpu,
    "convert": convert,
    "open": opening,
    "peers": peers,
    "service": service,
    "node": node,
    "formats2": formats2,
    "advise": advise,
}


def filled(text: str, name: str, made: str, page: Path) -> str:
    """The page's text with what was made between the two lines of that name."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    place = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not place.search(text):
        raise SystemExit(f"{page} needs the lines {start} and {end}")
    return place.sub(lambda _: f"{start}\n{made}{end}", text)


def main(folder: Path) -> None:
    text = PAGE.read_text("utf-8")
    for name, section in SECTIONS.items():
        if not (folder / f"{name}.json").exists():
            print(f"{folder / name}.json is not there: its table stays")
            continue
        result = "\n".join(section(json.loads((folder / f"{name}.json").read_text())))
        text = filled(text, name, result, PAGE)
        if f"figures/{name}.svg" in text and (folder / f"{name}.svg").exists():
            FIGURES.mkdir(exist_ok=True)
            shutil.copyfile(folder / f"{name}.svg", FIGURES / f"{name}.svg")
    PAGE.write_text(text, "utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results")
