"""Loading JPEGs from a bucket, beside the local loader and libraries that are made for it.

The same images (500 px, 1 GB) lie on an S3 server on this machine: as .tar shards, .beton and single files
as they are, and converted to what others need. The server answers at once, and 30 ms later: see _servers.py.
Every run is a new process with empty caches that opens the data and loads two epochs; libraries with a cache
read the second one from there. All decode, crop to 224 px and flip, with as many threads or worker processes
as there are cores, which they share with the server; with --server-cores 4 it has four of them for itself.
They take turns, several rounds.

A library that is not installed is left out. BATCHPLANT_PEERS_PYTHON may name a Python that has them, or
several, with colons in between: not all of them fit together.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _common import HERE, arguments, others, photos, save, workplace
from _process import Process, last_line
from _remote_sides import CONVERTED
from _remote_targets import CACHE, LOCAL, targets
from _servers import KEY, SECRET, Servers, serving

import batchplant

BATCH, CROP = 256, 224
COUNT, SIZE, SHARDS = 12288, 500, 16
BUCKET = "bucket"
TAR, BETON = "tar/photos-*.tar", "photos.beton"
# Folders of shards that we write; their own libraries read folders that they wrote.
MDS, LITDATA = "shards.mds", "shards.litdata"
DELAYS = (0, 30)
ITEMS = 50
# How many GETs of obstore alone are under way; more bring no more bytes here.
IN_FLIGHT = 16
# Between two looks at the memory of a side.
LOOK = 0.05


class Ours(NamedTuple):
    path: str
    order: str
    cache: bool = False


OURS = {
    "batchplant .tar shards": Ours(TAR, "shards"),
    "batchplant .tar quasi_random": Ours(TAR, "quasi_random"),
    "batchplant .tar quasi_random, cache": Ours(TAR, "quasi_random", cache=True),
    "batchplant .beton sequential": Ours(BETON, "sequential"),
    "batchplant .beton quasi_random": Ours(BETON, "quasi_random"),
    "batchplant .beton random": Ours(BETON, "random"),
    "batchplant .tar random": Ours(TAR, "random"),
    "batchplant MDS quasi_random": Ours(MDS, "quasi_random"),
    "batchplant MDS random": Ours(MDS, "random"),
    "batchplant LitData quasi_random": Ours(LITDATA, "quasi_random"),
    "batchplant LitData random": Ours(LITDATA, "random"),
}
# What they import, which may be called otherwise than they.
PEERS = {
    "litdata": "litdata", "mosaicml-streaming": "streaming", "webdataset": "webdataset",
    "webdataset, cache": "webdataset", "datasets": "datasets,s3fs", "s3fs + torch": "s3fs",
}  # fmt: skip


def make(data: Path, pythons: dict[str, str], args: argparse.Namespace) -> None:
    """Write the data sets, unless they are there already: the bucket, and the same files to read locally."""
    count, size = (256, 96) if args.quick else (args.count, args.size)
    folder, local = data / BUCKET, data / "local"
    images, tar = folder / "photos", folder / "tar"
    if not local.exists():
        print(f"making {count} images of {size} px", flush=True)
        photos().make_folder(images, count, size=size)
        tar.mkdir(exist_ok=True)
        batchplant.convert(images, tar / "photos.tar", shard_samples=count // SHARDS, overwrite=True)
        for name in (BETON, MDS, LITDATA):
            batchplant.convert(images, folder / name, overwrite=True)
        # An index of objects has their ETags in it, and one of files has their times.
        with serving(data, writable=True) as servers, environment(servers, data):
            index(f"s3://{BUCKET}/{TAR}")
        part = data / "local.part"
        (part / "tar").mkdir(parents=True, exist_ok=True)
        for path in [
            folder / BETON,
            *tar.glob("*.tar"),
            *(folder / MDS).iterdir(),
            *(folder / LITDATA).iterdir(),
        ]:
            target = part / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            os.link(path, target)
        index(str(part / TAR))
        part.rename(local)
    for name in [item for item in CONVERTED if item in pythons]:
        target = folder / CONVERTED[name][0]
        if target.exists():
            continue
        print(f"converting for {name}", flush=True)
        part = target.with_name(f"{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        job = {"photos": str(images), "target": str(part), "files": SHARDS}
        command = [pythons[name], str(HERE / "_remote_sides.py"), "--convert", name, json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: left out: {last_line(done.stderr)}")
            del pythons[name]
            continue
        part.rename(target)


def index(path: str) -> None:
    subprocess.run([sys.executable, "-m", "batchplant", "index", path], check=True, stdout=subprocess.DEVNULL)


class Side(Process):
    """A side in its own process; see _remote_sides.py."""

    def __init__(self, name: str, kind: str, python: str, job: dict[str, Any], scratch: Path) -> None:
        self.folder, self.peak = scratch / "cache", 0
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        job = {**job, "folder": str(self.folder)}
        super().__init__(name, [python, HERE / "_remote_sides.py", kind, json.dumps(job)], scratch / "log")
        self.answer()

    def _wait(self) -> None:
        while not select.select([self.process.stdout], [], [], LOOK)[0]:
            self.peak = max(self.peak, own_memory(self.process.pid))

    def epoch(self) -> dict[str, Any]:
        self.ask()
        return self.answer()

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def own_memory(pid: int) -> int:
    """What a process and its children hold, without pages of files."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        below = [int(part) for path in Path(f"/proc/{pid}/task").glob("*/children")
                 for part in path.read_text().split()]  # fmt: skip
    except OSError:
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
    return own + sum(own_memory(item) for item in below)


def own_cpu(pid: int) -> float:
    """Seconds of CPU that a process and its children took."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = [int(part) for path in Path(f"/proc/{pid}/task").glob("*/children")
                 for part in path.read_text().split()]  # fmt: skip
    except OSError:
        return 0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(own_cpu(item) for item in below)


@contextmanager
def environment(servers: Servers, scratch: Path) -> Iterator[None]:
    """What all sides find the server by; nothing that earlier runs remembered."""
    before = dict(os.environ)
    os.environ.update(
        AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=servers.endpoint, AWS_EC2_METADATA_DISABLED="true",
        AWS_ALLOW_HTTP="true", XDG_CACHE_HOME=str(scratch / "cache"), HF_HUB_OFFLINE="1",
        NO_PROXY="127.0.0.1", no_proxy="127.0.0.1", PYTHONWARNINGS="ignore",
    )  # fmt: skip
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def peers(wanted: list[str]) -> dict[str, str]:
    """The interpreter of every library that can run here."""
    result = {}
    for name in wanted:
        others = filter(None, os.environ.get("BATCHPLANT_PEERS_PYTHON", "").split(os.pathsep))
        for python in dict.fromkeys((sys.executable, *others)):
            ready = [python, str(HERE / "_remote_sides.py"), "--import", PEERS[name]]
            if not subprocess.run(ready, capture_output=True).returncode:
                result[name] = python
                break
        else:
            print(f"{name}: `import torch, {PEERS[name]}` fails, this side is skipped")
    return result


class Sides:
    """Starts every side, and keeps what it measures."""

    def __init__(self, data: Path, scratch: Path, servers: Servers) -> None:
        self.data, self.scratch, self.servers = data, scratch, servers
        self.cores = len(os.sched_getaffinity(0))
        self.runs: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self.images = len(batchplant.open(data / "local" / BETON))
        self.left_out: set[str] = set()

    def start(self, name: str, python: str) -> Side:
        kind = name.partition(",")[0]
        job: dict[str, Any] = {
            "bucket": BUCKET, "crop": CROP, "batch": BATCH, "workers": self.cores, "files": SHARDS,
            "cache": name.endswith(CACHE), "in flight": IN_FLIGHT,
            "shards": [f"tar/{path.name}" for path in sorted((self.data / BUCKET).glob(TAR))],
        }  # fmt: skip
        if name.startswith("batchplant"):
            ours = OURS[name.removesuffix(LOCAL)]
            root = str(self.data / "local") if name.endswith(LOCAL) else f"s3://{BUCKET}"
            job |= {"path": f"{root}/{ours.path}", "order": ours.order}
            kind = "batchplant"
        return Side(name, kind, python, job, self.scratch)

    def run(self, name: str, python: str, delay: int) -> None:
        """Two epochs in a new process."""
        if name in self.left_out:
            return
        try:
            with closing(self.start(name, python)) as side:
                answer = self._epochs(side, delay)
                self.runs.setdefault((delay, name), []).append(answer)
        except RuntimeError as error:
            print(f"  left out: {error}", flush=True)
            self.left_out.add(name)

    def _epochs(self, side: Side, delay: int) -> dict[str, Any]:
        self.servers.begin(delay / 1000)
        actual: dict[str, Any] = {}
        for which in ("first", "second"):
            before, own = self.servers.cpu(), own_cpu(side.process.pid)
            output = side.epoch()
            counted = self.servers.counted(delay / 1000)
            actual[which] = {**output, **counted, "cpu": self.servers.cpu() - before}
            actual[which]["own cpu"] = own_cpu(side.process.pid) - own
        actual["peak memory"] = side.peak
        first, second = actual["first"], actual["second"]
        if side.name != "obstore" and {first["images"], second["images"]} != {self.images}:
            raise RuntimeError(f"{side.name} gave {first['images']} and {second['images']} images")
        print(f"  {delay:>2} ms  {side.name:<36} {first['seconds']:7.2f} s, {second['seconds']:7.2f} s"
              f"  {first['requests']:>6,} + {second['requests']:,} requests"
              f"  {first['bytes'] / 1e6:,.0f} + {second['bytes'] / 1e6:,.0f} MB"
              f"  {first['own cpu']:.2f} + {second['own cpu']:.2f} s of CPU", flush=True)  # fmt: skip
        return actual

    def summary(self, delay: int) -> dict[str, Any]:
        """Best and median of what was measured with this delay."""
        found = {name: runs for (late, name), runs in self.runs.items() if late == delay or LOCAL in name}

        def each(which: str, value: Any) -> dict[str, Any]:
            return {name: value([run[which] for run in runs]) for name, runs in found.items()}

        def speeds(runs: list[dict[str, Any]]) -> dict[str, float]:
            seconds = [run["seconds"] for run in runs]
            return {"best": self.images / min(seconds), "median": self.images / median(seconds)}

        def middle(key: str, scale: float = 1) -> Any:
            return lambda runs: median(run[key] for run in runs) * scale

        result: dict[str, Any] = {}
        for which in ("first", "second"):
            result[f"{which} epoch, images/s"] = each(which, speeds)
            result[f"{which} epoch, CPU s"] = each(which, middle("own cpu"))
            result[f"{which} epoch, requests"] = each(which, middle("requests"))
            result[f"{which} epoch, MB"] = each(which, middle("bytes", 1e-6))
            result[f"{which} epoch, server's share"] = each(
                which, lambda runs: median(run["cpu"] / run["seconds"] / self.cores for run in runs)
            )
        result["first batch, s"] = each("first", middle("first batch"))
        result["peak memory, MB"] = {
            name: median(run["peak memory"] for run in runs) / 1e6 for name, runs in found.items()
        }
        return result


def items(sides: Sides, delay: int) -> dict[str, Any]:
    """`ds[i]`: requests and milliseconds, and requests to open."""
    result = {}
    for title, path in ((".tar", TAR), (".beton", BETON)):
        job = {"path": f"s3://{BUCKET}/{path}", "items": ITEMS}
        with closing(Side(title, "items", sys.executable, job, sides.scratch)) as side:
            sides.servers.begin(delay / 1000)
            side.epoch()
            opened = sides.servers.counted(delay / 1000)["requests"]
            output = side.epoch()
            asked = sides.servers.counted(delay / 1000)["requests"]
            result[title] = {"open": opened, "requests": asked / ITEMS, "ms": output["seconds"] / ITEMS * 1e3}
            print(f"  {delay:>2} ms  ds[i] of {title}: {result[title]['ms']:.1f} ms, "
                  f"{result[title]['requests']:.2f} requests; {opened} to open", flush=True)  # fmt: skip
    return result


def measure(data: Path, scratch: Path, args: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    own = set(cores[-args.server_cores :]) if args.server_cores else None
    with serving(data, cores=own) as servers, environment(servers, scratch):
        if own:
            os.sched_setaffinity(0, set(cores) - own)
        sides = Sides(data, scratch, servers)
        warm(servers)
        print(f"{sides.images} images, {args.rounds} rounds, seconds of both epochs", flush=True)
        single = {str(delay): items(sides, delay) for delay in args.delays}
        here = dict.fromkeys([*args.sides, "obstore"], sys.executable)
        for number in range(args.rounds):
            print(f"round {number + 1}/{args.rounds}", flush=True)
            for name in [name for name in args.sides if not OURS[name].cache]:
                sides.run(name + LOCAL, sys.executable, 0)
            for delay in args.delays:
                for name, python in (here | pythons).items():
                    sides.run(name, python, delay)
        cases = {str(delay): sides.summary(delay) for delay in args.delays}
        size = (data / "local" / BETON).stat().st_size
    return {"images": sides.images, "MB": size / 1e6, "cases": cases, "ds[i]": single}


def warm(servers: Servers) -> None:
    """The server computes an ETag when it is first asked for one, and reads the file for it."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=servers.endpoint, client_options={"allow_http": True})
    for _ in obstore.list(store):
        pass


def main() -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--delays", nargs="+", type=int, default=DELAYS, metavar="MS", help="default 0 30")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the data here, or use that there")
    parser.add_argument("--server-cores", type=int, default=0, metavar="N", help="cores for the server alone")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help=f"images, default {COUNT}")
    parser.add_argument("--size", type=int, default=SIZE, metavar="PX", help=f"longer side, default {SIZE}")
    parser.add_argument("--fetch-bytes", metavar="SIZE", help="what ours may hold in memory, such as 200MB")
    parser.add_argument("--sides", nargs="+", choices=OURS, default=list(OURS), help="ours, default: all")
    parser.add_argument("--quick", action="store_true", help="few images, one round: does it run at all?")
    args = parser.parse_args()
    args.rounds = 1 if args.quick else args.rounds
    results: dict[str, Any] = {
        "workers": len(os.sched_getaffinity(0)), "batch": BATCH, "rounds": args.rounds,
        "server cores": args.server_cores,
    }  # fmt: skip
    if args.fetch_bytes:
        os.environ["BATCHPLANT_FETCH_BYTES"] = results["fetch bytes"] = args.fetch_bytes
    with workplace() as scratch, others(results):
        data = args.data or scratch / "data"
        (data / BUCKET).mkdir(parents=True, exist_ok=True)
        pythons = peers(args.peers)
        make(data, pythons, args)
        results |= measure(data, scratch, args, pythons)
    results["targets"] = targets(results)
    save(args.out, "remote", results)


if __name__ == "__main__":
    main()
