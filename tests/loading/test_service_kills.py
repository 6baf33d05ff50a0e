"""Loaders of servers that are killed and stopped at random: the batches of a local loader, nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.loading.service import plans
from batchplant.loading.service.channel import Security, listen
from batchplant.loading.service.server import Server
from loaders import write_jpeg
from processes import PATIENCE
from variants import exhaustive

SAMPLES, SERVERS = 240, 3
PLAN = {"pipelines": {"image": [{"op": "RandomResizedCrop", "size": 40}, "RandomHorizontalFlip"]}}
ORDERS = ["sequential", "random", bp.order.QuasiRandom(window=4), "shards"]
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["batchplant.loading.service.server", "batchplant.formats.beton"])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_jpeg(tmp_path_factory.mktemp("kills") / "photos.beton", SAMPLES)


def serve(path: str, port: int) -> None:
    Server(bp.open(path), listen(f"127.0.0.1:{port}", Security()), plan=PLAN, workers=1).run()


def free_ports(count: int) -> list[int]:
    """Ports that the system gives to no client, so that a server can have its own again."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(15_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


class Cluster:
    """Servers in processes of their own."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.ports = path, free_ports(count)
        self.processes = [self._start(port) for port in self.ports]
        self.kills = 0

    def _start(self, port: int) -> Any:
        process = SPAWN.Process(target=serve, args=(self.path, port), daemon=True)
        process.start()
        return process

    @property
    def url(self) -> str:
        return "batchplant://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def kill(self, number: int) -> None:
        """Kill a server, and start another in its place."""
        self.processes[number].kill()
        self.processes[number].join()
        self.processes[number] = self._start(self.ports[number])
        self.kills += 1

    def wait(self, number: int) -> None:
        """Wait until a server listens."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[number])):
                return
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def cluster(photos):
    cluster = Cluster(photos, SERVERS)
    yield cluster
    cluster.close()


def same_batches(service: bp.Loader, local: bp.Loader, count: int | None = None) -> list[int]:
    """Compare the rest of an epoch, or so many batches; return the samples."""
    ids: list[int] = []
    first, second = iter(service), iter(local)
    while count is None or count > 0:
        batch, other = next(first, None), next(second, None)
        assert (batch is None) == (other is None)
        if batch is None:
            break
        assert batch.keys() == other.keys()
        for name in batch:
            assert batch[name].dtype == other[name].dtype
            np.testing.assert_array_equal(batch[name], other[name])
        assert service.state_dict() == local.state_dict()
        ids += batch["ids"].tolist()
        count = None if count is None else count - 1
    first.close()
    second.close()
    return ids


def run(reader: bp.Reader, photos: str, rng: random.Random) -> None:
    """Run a part of an epoch on some ranks, and the rest on others: as a local loader, each sample once."""
    options: dict[str, Any] = {"order": rng.choice(ORDERS), "seed": rng.randrange(100), "ids": True}
    pipelines = plans.build(PLAN)[0]

    def loaders(world_size: int, batch_size: int) -> list[tuple[bp.Loader, bp.Loader]]:
        ranks = [{**options, "rank": rank, "world_size": world_size} for rank in range(world_size)]
        return [
            (
                bp.Loader(reader, batch_size, **rank),
                bp.Loader(photos, batch_size, pipelines=pipelines, **rank),
            )
            for rank in ranks
        ]

    before = loaders(rng.randint(1, 3), rng.randint(1, 40))
    steps = rng.randrange(len(before[0][0]) + 1)
    ids = [number for pair in before for number in same_batches(*pair, count=steps)]
    state = before[0][0].state_dict() if steps else None
    for pair in loaders(rng.randint(1, 3), rng.randint(1, 40)):
        for loader in pair if state else ():
            loader.load_state_dict(state)
        ids += same_batches(*pair)
    # A state at the end of an epoch is the beginning of the next.
    assert sorted(ids) in (list(range(SAMPLES)), sorted(2 * list(range(SAMPLES))))


@pytest.mark.parametrize("kills", [4, *exhaustive(60)])
def test_every_sample_comes_once_while_servers_are_killed(photos, cluster, kills):
    rng, ended = random.Random(kills), threading.Event()

    def hurt() -> None:
        number = 0
        while not ended.wait(0.5):
            # The others work meanwhile.
            cluster.kill(number % SERVERS)
            cluster.wait(number % SERVERS)
            number += 1

    with bp.open(cluster.url) as reader:
        thread = threading.Thread(target=hurt)
        thread.start()
        try:
            while cluster.kills < kills:
                run(reader, photos, rng)
        finally:
            ended.set()
            thread.join()
        assert sum(server.answers for server in reader.pool.servers.values()) > 0


def test_a_server_that_works_is_enough_where_others_are_stopped(photos, cluster):
    with bp.open(cluster.url) as reader:
        for process in cluster.processes[1:]:
            os.kill(process.pid, signal.SIGSTOP)
        run(reader, photos, random.Random(1))
        for process in cluster.processes[1:]:
            os.kill(process.pid, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        others = list(reader.pool.servers.values())[1:]
        while not all(server.answers for server in others) and time.monotonic() < deadline:
            run(reader, photos, random.Random(1))
        assert all(server.answers for server in others)
