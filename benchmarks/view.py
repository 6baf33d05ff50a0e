"""The viewer on a .beton of ten million samples: the first image, thumbnails, the end of the list, memory.

The file has a true table of that many samples; their images are a few hundred JPEGs of 500 pixels, again
and again. ``batchplant view`` runs in a process of its own, as a user starts it. Parts:

    start     from the command to the first image: the link, the page's data, the first sheet of thumbnails
    sheet     100 thumbnails of 160 pixels, and what the page is told of those samples
    browser   the same in Chromium, with the time until the thumbnails are on the screen; and from the top of
              the list to its end (playwright, and Chromium on this machine)
    dashboard epochs of a Loader with and without a dashboard that somebody looks at, in turns

Goals: first image 0.5 s, sheet 0.15 s on 2 cores, end of the list 0.3 s, memory 300 MB; a loader with a
dashboard loses 1 %.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from _common import others, part_arguments, photos, save, workplace

from batchplant import Loader
from batchplant.formats.beton import ALLOCATION, DESCRIPTOR, HEADER, INT, RGB, table_dtype
from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

SAMPLES, IMAGES, SIDE = 10_000_000, 300, 500
PAGE = 1 << 23
# Rows of the tables that are written at a time.
ROWS = 1 << 20
GOALS = {"first image": 0.5, "sheet": 0.15, "end of the list": 0.3, "memory": 300e6, "dashboard": 0.01}


def make(path: Path, samples: int, images: list[bytes]) -> None:
    """Image and label; the images stand in the file once."""
    dtype = table_dtype([RGB, INT])
    table = HEADER.itemsize + 2 * DESCRIPTOR.itemsize
    first = -(-(table + samples * dtype.itemsize) // PAGE) * PAGE
    places, at = [], first
    for image in images:
        if at // PAGE != (at + len(image) - 1) // PAGE:
            at = -(-at // PAGE) * PAGE
        places.append(at)
        at += len(image)
    end = -(-at // PAGE) * PAGE
    descriptors = np.zeros(2, dtype=DESCRIPTOR)
    descriptors["type"], descriptors["name"] = [RGB, INT], [b"image", b"label"]
    starts, sizes = np.array(places, dtype="<u8"), np.array([len(image) for image in images], dtype="<u8")
    with open(path, "wb") as file:
        file.write(np.array([(2, 2, PAGE, samples, end)], dtype=HEADER).tobytes() + descriptors.tobytes())
        for number in range(0, samples, ROWS):
            ids = np.arange(number, min(number + ROWS, samples))
            rows = np.zeros(len(ids), dtype=dtype)
            rows["f0"]["width"] = rows["f0"]["height"] = SIDE
            rows["f0"]["ptr"] = starts[ids % len(images)]
            rows["f1"] = ids % 1000
            file.write(rows.tobytes())
        for place, item in zip(places, images, strict=True):
            file.seek(place)
            file.write(item)
        file.seek(end)
        for number in range(0, samples, ROWS):
            ids = np.arange(number, min(number + ROWS, samples))
            result = np.zeros(len(ids), dtype=ALLOCATION)
            result["sample"] = ids
            result["ptr"], result["size"] = starts[ids % len(images)], sizes[ids % len(images)]
            file.write(result.tobytes())


@contextmanager
def viewer(path: Path) -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    """The command, its link, and when it was started."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "batchplant", "view", str(path), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip(), began
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


class Client:
    """One connection, kept open as a browser's is."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._base = parts.path
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def get(self, path: str) -> bytes:
        self._connection.request("GET", self._base + path)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (path, answer.status, body[:200])
        return body


def resident(process: subprocess.Popen[str]) -> dict[str, int]:
    """Bytes that are its own, and all that are mapped, pages of the file too."""
    result = {}
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "VmRSS", "VmHWM"):
            result[name] = int(rest.split()[0]) * 1024
    return result


def start(path: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"link": [], "first image": []}
    for _ in range(rounds):
        with viewer(path) as (_, url, began):
            seconds["link"].append(time.perf_counter() - began)
            client = Client(url)
            client.get("api/dataset")
            client.get("api/sheet?field=image&start=0&count=50&size=192")
            seconds["first image"].append(time.perf_counter() - began)
    return {name: _spread(second) for name, second in seconds.items()}


def sheet(path: Path, rounds: int) -> dict[str, Any]:
    with viewer(path) as (process, url, _):
        client = Client(url)
        count = json.loads(client.get("api/dataset"))["samples"]
        result: dict[str, list[float]] = {"sheet": [], "samples": []}
        for number in range(4 * rounds):
            at = count * number // (4 * rounds)
            for name, asked in (("sheet", "sheet?field=image&size=160&"), ("samples", "samples?")):
                began = time.perf_counter()
                client.get(f"api/{asked}start={at}&count=100")
                result[name].append(time.perf_counter() - began)
        return {**{name: _spread(value) for name, value in result.items()}, "memory": resident(process)}


def in_browser(path: Path, rounds: int) -> dict[str, Any] | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("playwright is not installed: the browser's part is left out")
        return None
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("there is no Chromium: the browser's part is left out")
        return None
    painted = "() => document.querySelector('.tile .image') !== null"
    ended = """(last) => { const tile = document.getElementById(`row-${last}`);
        return tile !== null && tile.querySelector('.image') !== null; }"""
    result: dict[str, list[float]] = {"first image on the screen": [], "end of the list": []}
    with sync_playwright() as driver, viewer(path) as (process, url, _):
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            began = time.perf_counter()
            page.goto(url)
            page.wait_for_function(painted, polling="raf")
            result["first image on the screen"].append(time.perf_counter() - began)
            last = page.evaluate("async () => (await (await fetch('api/dataset')).json()).samples - 1")
            began = time.perf_counter()
            page.keyboard.press("End")
            page.wait_for_function(ended, arg=last, polling="raf")
            result["end of the list"].append(time.perf_counter() - began)
            page.close()
        browser.close()
        return {**{name: _spread(value) for name, value in result.items()}, "memory": resident(process)}


# Asks as an open page does, until its input ends. Browsers are processes of their own, too.
LOOKER = """
import json, select, sys, urllib.request
url, since = sys.argv[1], 0
while True:
    with urllib.request.urlopen(f"{url}api/live?since={since}") as answer:
        since = json.load(answer)["next"]
    print("looked", flush=True)
    if select.select([sys.stdin], [], [], 1.0)[0]:
        break
"""


@contextmanager
def _looked_at(loader: Loader) -> Iterator[None]:
    url = loader.dashboard().url.partition("#")[0]
    looker = subprocess.Popen(
        [sys.executable, "-c", LOOKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        # What it costs to start Python is no cost of the dashboard.
        assert looker.stdout is not None
        looker.stdout.readline()
        yield
    finally:
        looker.communicate()


def dashboard(path: Path, rounds: int) -> dict[str, Any]:
    """Seconds of an epoch by the clock and by the processors, as pairs: noise is the same for both."""
    options = {
        "indices": np.arange(4000),
        "pipelines": {"image": [RandomResizedCrop(224), RandomHorizontalFlip()]},
    }
    result: dict[str, list[float]] = {"without": [], "with": [], "cpu without": [], "cpu with": []}
    for turn in range(2 * rounds + 2):
        # Without, with, with, without: what drifts meets both.
        name = "with" if turn % 4 in (1, 2) else "without"
        look = _looked_at if name == "with" else nullcontext
        with closing(Loader(path, 64, **options)) as loader, look(loader):
            spent, began = time.process_time(), time.perf_counter()
            for _ in loader:
                pass
            if turn > 1:
                result[name].append(time.perf_counter() - began)
                result[f"cpu {name}"].append(time.process_time() - spent)
    middle = {name: statistics.median(value) for name, value in result.items()}
    lost = {what: middle[f"{what}with"] / middle[f"{what}without"] - 1 for what in ("", "cpu ")}
    print(f"  dashboard: {lost['']:+.2%} by the clock, {lost['cpu ']:+.2%} of processor time")
    return {name: _spread(value) for name, value in result.items()} | {
        "lost": lost[""],
        "lost cpu": lost["cpu "],
    }


def _spread(found: list[float]) -> dict[str, float]:
    return {"best": min(found), "median": statistics.median(found), "worst": max(found)}


PARTS = {"start": start, "sheet": sheet, "browser": in_browser, "dashboard": dashboard}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    samples = 100_000 if args.quick else SAMPLES
    results: dict[str, Any] = {"samples": samples, "goals": GOALS}
    with workplace() as folder, others(results):
        made = folder / "photos"
        photos().make_folder(made, 30 if args.quick else IMAGES, size=SIDE)
        images = [one.read_bytes() for one in sorted(made.rglob("*.jpg"))]
        path = folder / "large.beton"
        make(path, samples, images)
        print(f"{samples:,} samples, {path.stat().st_size / 1e9:.1f} GB")
        for name in args.parts:
            found = PARTS[name](path, args.rounds)
            if found is None:
                continue
            results[name] = found
            for what, one in found.items():
                if what == "memory":
                    own, whole = one["RssAnon"] / 1e6, one["VmHWM"] / 1e6
                    print(f"  memory: {own:.0f} MB its own, {whole:.0f} MB with what is mapped")
                elif isinstance(one, dict):
                    print(f"  {what}: median {one['median'] * 1e3:.0f} ms, worst {one['worst'] * 1e3:.0f} ms")
    save(args.out, "view", results)


if __name__ == "__main__":
    main()
