"""Batches from servers on some cores to a client on others, beside a local loader and a plain socket.

Parts: decoded, JPEG crops of 224 px through one server and through several, beside a local loader that has
the servers' cores; tf.data service too, where TensorFlow is installed. raw: batches of raw pixels, in GB/s,
beside bytes through plain sockets (recv_into into memory that is there). sizes: the same for several batch
sizes. transports: raw pixels by our messages and by Arrow Flight, with a request for each batch; Flight's
batches stay in its buffers, or are copied into the memory of the batch, where ours are received. recovery:
one of the servers is killed (kill -9) and started again, time after time; how long until the others are as
fast as they can be, and whether any sample was lost or repeated.

Sides take turns, several rounds; ratios are of the same run. The machine needs a free core for each thread.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import interleaved, others, part_arguments, photos, save, timed, workplace
from _process import Process

import batchplant

Facts = dict[str, Any]

CROP, BATCH, RECOVERY_BATCH = 224, 256, 32
SIZES = (16, 64, 1024)
STREAMS = 3
# Throughput is counted in bins of so many seconds; it has recovered where it is high enough for a window.
BIN, WINDOW, ENOUGH = 0.1, 0.5, 0.9
PLANS = {
    "decoded": '[pipelines]\nimage = [{ op = "RandomResizedCrop", size = 224 }, "RandomHorizontalFlip"]\n',
    "raw": "[pipelines]\n",
}


@contextlib.contextmanager
def pinned(cores: list[int]) -> Iterator[None]:
    """Start processes on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# -- processes ---------------------------------------------------------------------------------------------


def client(job: Facts) -> None:
    """A loader: an epoch for each empty line of input, or as many epochs as fit into so many seconds."""
    image = [batchplant.ops.RandomResizedCrop(CROP), batchplant.ops.RandomHorizontalFlip()]
    local = {} if job["path"].startswith("batchplant://") or job["raw"] else {"pipelines": {"image": image}}
    loader = batchplant.Loader(
        job["path"], job["batch"], order="random", ids=True, workers=job["workers"], **local
    )
    samples = len(loader.reader)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        end = time.monotonic() + float(line.strip() or 0)
        taken: list[tuple[float, int]] = []
        wrong = 0
        while True:
            ids = []
            for batch in loader:
                taken.append((time.monotonic(), len(batch["ids"])))
                ids += batch["ids"].tolist()
            wrong += sorted(ids) != list(range(samples))
            if time.monotonic() >= end:
                break
        print(json.dumps({"taken": taken if line.strip() else [], "wrong epochs": wrong}), flush=True)


def receiver(job: Facts) -> None:
    """Plain sockets: as many bytes as an epoch has, for each line of input; a connection for each thread."""
    connections = [socket.create_connection(("127.0.0.1", job["port"])) for _ in range(job["streams"])]
    memory = [memoryview(bytearray(job["bytes"])) for _ in connections]
    each = job["total"] // len(connections)
    print(json.dumps({"ready": True}), flush=True)

    def receive(number: int) -> None:
        left = each
        connections[number].sendall(left.to_bytes(8, "little"))
        while left:
            at = (each - left) % job["bytes"]
            left -= connections[number].recv_into(memory[number][at:], min(left, job["bytes"] - at))

    for _ in sys.stdin:
        threads = [threading.Thread(target=receive, args=(number,)) for number in range(len(connections))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("{}", flush=True)


def sender(job: Facts) -> None:
    """The other side of ``receiver``: sends a mapped file, part after part."""
    listener = socket.create_server(("127.0.0.1", 0))
    with open(job["path"], "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    size = job["bytes"]
    starts = itertools.cycle(range(0, len(memory) - size + 1, size))

    def send(connection: socket.socket) -> None:
        while count := connection.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(count, "little")
            while left:
                start, part = next(starts), min(size, left)
                connection.sendall(memory[start : start + part])
                left -= part

    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    while True:
        threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


def flight_server(job: Facts) -> None:
    """Arrow Flight: record batches of one binary value each, in the mapped file; a ticket is its number."""
    import pyarrow
    import pyarrow.flight

    size = job["bytes"]
    with open(job["path"], "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    starts = range(0, len(memory) - size + 1, size)
    kind = pyarrow.binary(size)
    schema = pyarrow.schema([("batch", kind)])

    class Server(pyarrow.flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: Any) -> Any:
            start = starts[int(ticket.ticket) % len(starts)]
            buffers = [None, pyarrow.py_buffer(memory[start : start + size])]
            batch = pyarrow.record_batch([pyarrow.Array.from_buffers(kind, 1, buffers)], schema=schema)
            return pyarrow.flight.RecordBatchStream(pyarrow.RecordBatchReader.from_batches(schema, [batch]))

    server = Server("grpc://127.0.0.1:0")
    print(json.dumps({"port": server.port}), flush=True)
    server.serve()


def flight_client(job: Facts) -> None:
    """As ``receiver``, by Arrow Flight: a client for each thread; ``copy``: into memory that is there."""
    import numpy as np
    import pyarrow.flight

    size, count = job["bytes"], job["total"] // job["bytes"]
    clients = [pyarrow.flight.connect(f"grpc://127.0.0.1:{job['port']}") for _ in range(job["streams"])]
    memory = [np.empty(size, np.uint8) for _ in clients]
    print(json.dumps({"ready": True}), flush=True)

    def receive(number: int) -> None:
        for batch in range(number, count, len(clients)):
            reader = clients[number].do_get(pyarrow.flight.Ticket(str(batch).encode()))
            data = np.frombuffer(reader.read_chunk().data.column(0).buffers()[1], np.uint8)
            if job["copy"]:
                np.copyto(memory[number], data)

    for _ in sys.stdin:
        threads = [threading.Thread(target=receive, args=(number,)) for number in range(len(clients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("{}", flush=True)


ROLES = {
    "client": client, "receiver": receiver, "sender": sender, "flight server": flight_server,
    "flight client": flight_client,
}  # fmt: skip


class Machine:
    """Starts processes on the cores of the servers and of the client; ends them with ``stack``."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, args: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))
        servers = args.server_cores or max(1, len(cores) // 2)
        rest = cores[servers:] or cores
        self.servers, self.client = cores[:servers], rest[: args.client_cores or len(rest)]
        self._stack, self._folder, self._count = stack, folder, 0

    def start(self, name: str, command: list[object], cores: list[int]) -> Process:
        self._count += 1
        with pinned(cores):
            process = Process(name, command, self._folder / f"{self._count}.log")
        self._stack.callback(process.close)
        self._stack.callback(process.process.terminate)
        return process

    def role(self, role: str, job: Facts, cores: list[int]) -> tuple[Process, Facts]:
        process = self.start(role, [sys.executable, __file__, "--role", role, json.dumps(job)], cores)
        return process, process.answer()

    def serve(self, path: Path, kind: str, cores: list[int], port: str = "0") -> tuple[Process, str]:
        """Start a server; return it and host:port."""
        plan = self._folder / f"{kind}.toml"
        plan.write_text(PLANS[kind])
        command = [sys.executable, "-m", "batchplant", "serve", path, "--plan", plan]
        process = self.start("server", [*command, "--listen", f"127.0.0.1:{port}"], cores)
        assert process.process.stdout is not None
        for line in process.process.stdout:
            if line.startswith(b"batchplant://"):
                return process, line.split()[0].decode().removeprefix("batchplant://")
        raise RuntimeError(f"the server does not start: {process.log.read_text()}")

    def serve_all(self, path: Path, kind: str, count: int) -> tuple[list[Process], list[str]]:
        """Start several servers, with equal parts of the servers' cores."""
        parts = [self.servers[number::count] or self.servers for number in range(count)]
        started = [self.serve(path, kind, part) for part in parts]
        return [process for process, _ in started], [address for _, address in started]

    def loader(self, path: object, batch: int, *, raw: bool = False, local: bool = False) -> Process:
        cores = self.servers if local else self.client
        job = {"path": str(path), "batch": batch, "raw": raw, "workers": len(cores)}
        return self.role("client", job, cores)[0]


def epoch(process: Process, question: str = "") -> Facts:
    process.ask(question)
    return process.answer()


def in_turn(sides: dict[str, Process], rounds: int, count: float, unit: str) -> Facts:
    """Run epochs of all sides in turn; the rates of each, and of all to the first."""
    for process in sides.values():
        epoch(process)
    tasks = {name: functools.partial(timed, functools.partial(epoch, side)) for name, side in sides.items()}
    seconds = interleaved(tasks, rounds)
    rates = {name: {key: count / entry[key] for key in ("best", "median")} for name, entry in seconds.items()}
    first = next(iter(rates.values()))
    ratios = {name: {key: rate[key] / first[key] for key in rate} for name, rate in rates.items()}
    for name, rate in rates.items():
        print(f"  {name:<34} {rate['best']:10,.1f} {unit} best {rate['median']:10,.1f} median"
              f"   ratio {ratios[name]['best']:.2f} {ratios[name]['median']:.2f}", flush=True)  # fmt: skip
    return {unit: rates, "ratios": ratios}


# -- parts -------------------------------------------------------------------------------------------------


def decoded(machine: Machine, folder: Path, args: argparse.Namespace) -> Facts:
    path = jpegs(folder, args)
    sides = {"local": machine.loader(path, BATCH, local=True)}
    for count in dict.fromkeys((1, args.servers)):
        _, addresses = machine.serve_all(path, "decoded", count)
        sides[f"{count} servers"] = machine.loader(f"batchplant://{','.join(addresses)}", BATCH)
    if (side := tensorflow_side(machine, folder)) is not None:
        sides["tf.data service"] = side
    return in_turn(sides, args.rounds, args.images, "images/s")


def raw(machine: Machine, folder: Path, args: argparse.Namespace) -> Facts:
    return raw_sides(machine, folder, args, BATCH, (1, args.servers), (1, STREAMS))


def sizes(machine: Machine, folder: Path, args: argparse.Namespace) -> Facts:
    return {
        f"batches of {batch}": raw_sides(machine, folder, args, batch, (1,), (STREAMS,)) for batch in SIZES
    }


def raw_sides(
    machine: Machine,
    folder: Path,
    args: argparse.Namespace,
    batch: int,
    servers: Sequence[int],
    streams: Sequence[int],
    *,
    flight: bool = False,
) -> Facts:
    path, count = pixels(folder, args)
    batch = min(batch, count)
    total = count * CROP * CROP * 3
    job = {"path": str(path), "bytes": batch * CROP * CROP * 3, "total": total}
    sides: dict[str, Process] = {}
    _, facts = machine.role("sender", job, machine.servers)
    # The last one first: ratios are to as many streams as the loader has.
    for number in reversed(streams):
        process, _ = machine.role("receiver", {**job, **facts, "streams": number}, machine.client)
        sides[f"sockets: {number} streams"] = process
    for number in dict.fromkeys(servers):
        _, addresses = machine.serve_all(path, "raw", number)
        url = f"batchplant://{','.join(addresses)}?streams={STREAMS}"
        sides[f"{number} servers"] = machine.loader(url, batch, raw=True)
    if flight and has_flight():
        _, facts = machine.role("flight server", job, machine.servers)
        for name, copy in (("Arrow Flight", False), ("Arrow Flight, copied", True)):
            client = {**job, **facts, "streams": STREAMS, "copy": copy}
            sides[name] = machine.role("flight client", client, machine.client)[0]
    if len(streams) > 1:
        sides["local"] = machine.loader(path, batch, raw=True, local=True)
    print(f"batches of {batch}, {job['bytes'] / 1e6:.1f} MB")
    return in_turn(sides, args.rounds, total / 1e9, "GB/s")


def transports(machine: Machine, folder: Path, args: argparse.Namespace) -> Facts:
    return raw_sides(machine, folder, args, BATCH, (1,), (STREAMS,), flight=True)


def recovery(machine: Machine, folder: Path, args: argparse.Namespace) -> Facts:
    path, count = jpegs(folder, args), args.servers
    processes, addresses = machine.serve_all(path, "decoded", count)
    side = machine.loader(f"batchplant://{','.join(addresses)}", RECOVERY_BATCH)
    pause, kills, starts = args.kill_seconds, [], []
    epoch(side)
    side.ask(str(pause * (2 * args.rounds + 1)))
    for number in range(args.rounds):
        time.sleep(pause)
        victim = number % count
        kills.append(time.monotonic())
        processes[victim].process.kill()
        time.sleep(pause)
        cores = machine.servers[victim::count] or machine.servers
        processes[victim], _ = machine.serve(path, "decoded", cores, addresses[victim].rpartition(":")[2])
        starts.append(time.monotonic())
    answer = side.answer()
    taken = answer["taken"]
    return recovered(taken, kills, starts, pause, count) | {"wrong epochs": answer["wrong epochs"]}


def recovered(
    taken: list[tuple[float, int]], kills: list[float], starts: list[float], pause: float, servers: int
) -> Facts:
    """Return how fast throughput came back after each kill, and after each start of another server."""

    def rate(begin: float, end: float) -> float:
        return sum(samples for when, samples in taken if begin <= when < end) / (end - begin)

    def until(begin: float, enough: float) -> float:
        bins = (begin + BIN * number for number in range(int(pause / BIN)))
        return next((start - begin for start in bins if rate(start, start + WINDOW) >= enough), pause)

    times = [when for when, _ in taken]
    result: Facts = {"kills": [], "bin": BIN}
    for kill, start in zip(kills, starts, strict=True):
        before = rate(kill - pause / 2, kill)
        near = [when for when in times if kill - 1 < when < kill + pause]
        part = ENOUGH * before * (servers - 1) / servers
        entry = {
            "images/s before": before,
            "seconds to the rest's throughput": until(kill, part),
            "longest wait for a batch": max((b - a for a, b in itertools.pairwise(near)), default=pause),
            "seconds to full throughput after the start": until(start, ENOUGH * before),
            "images/s by bin": [
                rate(kill + BIN * n, kill + BIN * (n + 1)) for n in range(-10, int(pause / BIN))
            ],
        }
        result["kills"].append(entry)
        print("  killed: " + ", ".join(f"{name} {value:,.2f}" for name, value in entry.items()
                                       if isinstance(value, float)), flush=True)  # fmt: skip
    worst = max(entry["seconds to the rest's throughput"] for entry in result["kills"])
    print(f"  recovery: at most {worst:.2f} s")
    return result | {"worst recovery, seconds": worst}


def has_flight() -> bool:
    try:
        import pyarrow.flight  # noqa: F401
    except ImportError:
        print("pyarrow with Flight is not installed: Arrow Flight is skipped")
        return False
    return True


# -- data --------------------------------------------------------------------------------------------------


def jpegs(folder: Path, args: argparse.Namespace) -> Path:
    path = folder / "photos.beton"
    if not path.exists():
        photos().make_folder(folder / "photos", args.images, size=args.size)
        batchplant.convert(folder / "photos", path)
    return path


def pixels(folder: Path, args: argparse.Namespace) -> tuple[Path, int]:
    """Raw images of the size of crops, and their number."""
    import numpy as np

    path, count = folder / "raw.beton", max(BATCH, int(args.raw_megabytes * 1e6) // (CROP * CROP * 3))
    if not path.exists():
        rng = np.random.default_rng(0)
        block = rng.integers(0, 256, (64, CROP, CROP, 3), np.uint8)
        with batchplant.create(str(path), {"image": batchplant.Image(), "label": batchplant.Int()}) as out:
            for number in range(count):
                out.append({"image": block[number % 64], "label": number})
    # In the page cache.
    for _ in batchplant.Loader(str(path), BATCH):
        pass
    return path, count


# -- tf.data service ---------------------------------------------------------------------------------------


TENSORFLOW_SERVER = """
import json, sys, tensorflow as tf
service = tf.data.experimental.service
dispatcher = service.DispatchServer()
worker = service.WorkerServer(service.WorkerConfig(dispatcher.target.split("//")[1]))
print(json.dumps({"target": dispatcher.target}), flush=True)
dispatcher.join()
"""
TENSORFLOW_CLIENT = """
import glob, json, sys, tensorflow as tf
job = json.loads(sys.argv[1])
def crop(path):
    data = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True)
    image = tf.image.decode_and_crop_jpeg(data, tf.concat([begin[:2], size[:2]], 0), channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [job["crop"]] * 2))
    return tf.cast(image, tf.uint8)
files = sorted(glob.glob(job["folder"] + "/*/*"))
data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).map(crop, tf.data.AUTOTUNE)
distribute = tf.data.experimental.service.distribute("distributed_epoch", job["target"])
data = data.batch(job["batch"]).apply(distribute).prefetch(tf.data.AUTOTUNE)
print("{}", flush=True)
for _ in sys.stdin:
    print(json.dumps({"images": sum(len(batch) for batch in data)}), flush=True)
"""


def tensorflow_side(machine: Machine, folder: Path) -> Process | None:
    """tf.data service on the servers' cores; BATCHPLANT_PEERS_PYTHON may name a Python with it."""
    for python in (sys.executable, *filter(None, os.environ.get("BATCHPLANT_PEERS_PYTHON", "").split(":"))):
        if not subprocess.run([python, "-c", "import tensorflow"], capture_output=True).returncode:
            break
    else:
        print("TensorFlow is not installed: tf.data service is skipped")
        return None
    server = machine.start("tf.data", [python, "-c", TENSORFLOW_SERVER], machine.servers)
    job = {**server.answer(), "folder": str(folder / "photos"), "crop": CROP, "batch": BATCH}
    side = machine.start("tf.data", [python, "-c", TENSORFLOW_CLIENT, json.dumps(job)], machine.client)
    side.answer()
    return side


PARTS = {"decoded": decoded, "raw": raw, "sizes": sizes, "transports": transports, "recovery": recovery}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server-cores", type=int, metavar="N", help="cores of the servers (default: half)")
    parser.add_argument(
        "--client-cores", type=int, metavar="N", help="cores of the client (default: the rest)"
    )
    parser.add_argument(
        "--servers", type=int, default=3, metavar="N", help="several servers are so many, default 3"
    )
    parser.add_argument("--images", type=int, default=8192, metavar="N", help="JPEG images, default 8192")
    parser.add_argument("--size", type=int, default=500, metavar="PX", help="their longer side, default 500")
    parser.add_argument(
        "--raw-megabytes", type=float, default=4000, metavar="MB", help="raw pixels, default 4000"
    )
    parser.add_argument(
        "--kill-seconds", type=float, default=10, metavar="S", help="between kills, default 10"
    )


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS, add=options)
    if args.quick:
        args.images, args.size, args.raw_megabytes, args.kill_seconds = 512, 256, 200, 2
    results: Facts = {"batch": BATCH, "rounds": args.rounds, "streams": STREAMS}
    with workplace() as folder, others(results):
        for part in args.parts:
            with contextlib.ExitStack() as stack:
                machine = Machine(stack, folder, args)
                results |= {"server cores": machine.servers, "client cores": machine.client}
                print(f"{part}: servers on {machine.servers}, client on {machine.client}", flush=True)
                results[part] = PARTS[part](machine, folder, args)
    save(args.out, "service", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            ROLES[sys.argv[2]](json.loads(sys.argv[3]))
    else:
        main()
