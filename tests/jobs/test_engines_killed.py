"""Workers and schedulers of Dask and Ray are killed in a conversion: nothing half, nothing lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchplant as bp
import repository
import slow_source
from processes import PATIENCE, start

SAMPLES = 60


def need(engine: str) -> None:
    library = {"dask": "distributed", "ray": "ray"}.get(engine, "batchplant")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


class Conversion:
    """A conversion of a slow dataset, of which one part is done after another."""

    def __init__(self, folder: Path) -> None:
        self.source, self.to = folder / "source.npz", folder / "to"
        self._hold = folder / slow_source.HOLD
        self.to.mkdir()
        with bp.create(self.source, {"n": bp.Int(), "blob": bp.Bytes()}) as out:
            for n in range(SAMPLES):
                out.append({"n": n, "blob": bytes([n]) * (400 + 7 * n)})
        bp.convert(self.source, folder / "wanted" / "out.tfrecord", **slow_source.HOW)
        self._wanted = self._files(folder / "wanted")

    def free(self, samples: int | None) -> None:
        """So many samples come now; all of them."""
        if samples is None:
            self._hold.unlink(missing_ok=True)
            return
        new = self._hold.with_name("hold.new")
        new.write_text(str(samples))
        new.rename(self._hold)

    @contextlib.contextmanager
    def led_by(self, engine: str, scheduler: str = "", delay: float = 0) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, slow_source.__file__, str(self.source), str(self.to / "out.tfrecord")]
        environment = {**ENVIRONMENT, slow_source.DELAY: str(delay)}
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
        with start([*command, engine, scheduler], **how) as leader:
            try:
                yield leader
            finally:
                # What it started may be in groups of its own, which end with it.
                leader.kill()

    def done(self) -> int:
        return len(list(self.to.glob(".*/*.done")))

    def await_more(self, than: int, leader: subprocess.Popen[str]) -> None:
        while self.done() <= than:
            if leader.poll() is not None:
                pytest.fail(f"it has ended: {leader.communicate()[0]}")
            time.sleep(0.02)

    def check(self, complete: bool) -> None:
        if complete:
            assert self._files(self.to) == self._wanted
        else:
            assert not [name for name in os.listdir(self.to) if not name.startswith(".")]

    def finish(self) -> bp.Conversion:
        """By threads of this process."""
        self.free(None)
        converted = bp.convert(self.source, self.to / "out.tfrecord", **slow_source.HOW)
        self.check(complete=True)
        return converted

    def clear(self) -> None:
        for path in self.to.iterdir():
            path.unlink()

    @staticmethod
    def _files(folder: Path) -> dict[str, bytes]:
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Where workers find the dataset. Ray takes whole seconds.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(repository.SUPPORT),
    "RAY_raylet_start_wait_time_s": "60",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{PATIENCE:.0f}s",
}


@pytest.fixture
def conversion(tmp_path: Path) -> Conversion:
    (tmp_path / "wanted").mkdir()
    return Conversion(tmp_path)


class Dask:
    """A scheduler and two workers."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack, self._number = folder, stack, 0
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def heal(self) -> None:
        """Start what is not running."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            for worker in self.workers:
                worker.kill()
            self._number += 1
            self._file = self._folder / f"scheduler-{self._number}.json"
            self.scheduler = self._start("scheduler", "--port", "0", "--host", "127.0.0.1")
            self.address = self._address(self.scheduler)
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 2:
            self.workers.append(self._start("worker", "--nthreads", "1", "--no-nanny"))

    def _start(self, kind: str, *how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self._file)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        everything = [*command, "--no-dashboard", *how]
        return self._stack.enter_context(start(everything, env=ENVIRONMENT, cwd=self._folder, **quiet))

    def _address(self, scheduler: subprocess.Popen[bytes]) -> str:
        while True:
            assert scheduler.poll() is None
            with contextlib.suppress(OSError, ValueError, LookupError):
                return str(json.loads(self._file.read_text())["address"])
            time.sleep(0.02)


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    need("dask")
    with contextlib.ExitStack() as stack:
        yield Dask(tmp_path, stack)


def below(process: int) -> dict[int, str]:
    """What a process has started, and what those have: number → command."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(name))
    result: dict[int, str] = {}
    todo = [process]
    while todo:
        for child in parents.get(todo.pop(), []):
            todo.append(child)
            with contextlib.suppress(OSError):
                result[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return result


def ray_processes(leader: subprocess.Popen[str], kind: str) -> list[int]:
    """Those of a cluster that a conversion has started: worker, raylet or head."""
    marks = {"worker": "ray::_do", "raylet": "/raylet/raylet ", "head": "/gcs_server "}
    return [number for number, command in below(leader.pid).items() if marks[kind] in command]


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_dask_workers_and_their_scheduler(conversion: Conversion, dask: Dask) -> None:
    dask.heal()
    conversion.free(20)
    with conversion.led_by("dask", dask.address) as leader:
        conversion.await_more(0, leader)
        # All of them, and with them all that they know of the job.
        for worker in dask.workers:
            worker.kill()
            worker.wait()
        dask.heal()
        before = conversion.done()
        conversion.free(40)
        conversion.await_more(before, leader)
        assert dask.scheduler is not None
        dask.scheduler.kill()
        output = leader.communicate(timeout=PATIENCE)[0]
    assert leader.returncode == 1
    assert output.startswith("AccessError: the Dask scheduler is gone; what is done is kept")
    assert len(output.splitlines()) == 1
    conversion.check(complete=False)
    assert conversion.finish().resumed_at >= 5


@pytest.mark.exhaustive
def test_ray_workers_and_the_raylet(conversion: Conversion) -> None:
    need("ray")
    conversion.free(20)
    with conversion.led_by("ray") as leader:
        while conversion.done() == 0 and leader.poll() is None:
            time.sleep(0.02)
        if leader.poll() is not None:
            output = leader.communicate()[0]
            # Ray gives its own processes some seconds, and no more.
            assert "Ray cannot be reached or started" in output, output
            pytest.skip("the machine is too busy for Ray to start")
        while not (workers := ray_processes(leader, "worker")):
            time.sleep(0.02)
        kill(workers[0])
        before = conversion.done()
        conversion.free(40)
        conversion.await_more(before, leader)
        kill(ray_processes(leader, "raylet")[0])
        output = leader.communicate(timeout=PATIENCE)[0]
    assert leader.returncode == 1
    assert output.startswith("AccessError: the Ray cluster is gone; what is done is kept")
    assert len(output.splitlines()) == 1
    conversion.check(complete=False)
    assert conversion.finish().resumed_at >= 5


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_killed_at_random(conversion: Conversion, dask: Dask) -> None:
    """50 times, what is chosen by chance, at any moment; the next engine goes on."""
    need("ray")
    rng = random.Random(18)
    kills = ended = 0
    while kills < 50:
        engine = rng.choice(["dask", "ray"])
        if engine == "dask":
            dask.heal()
        with conversion.led_by(engine, dask.address if engine == "dask" else "", delay=0.3) as leader:
            began = conversion.done()
            while leader.poll() is None and conversion.done() == began and rng.random() < 0.99:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 1))
            kills += _kill_one(rng, engine, leader, dask)
            output = leader.communicate(timeout=PATIENCE)[0]
        if leader.returncode == 0:
            conversion.check(complete=True)
            conversion.clear()
            ended += 1
        else:
            assert leader.returncode == -signal.SIGKILL or "Error: " in output, output
            conversion.check(complete=False)
    assert ended
    conversion.finish()


def _kill_one(rng: random.Random, engine: str, leader: subprocess.Popen[str], dask: Dask) -> bool:
    """A worker, the scheduler or the conversion itself, if it is there."""
    kind = rng.choice(["worker", "worker", "raylet", "head", "leader"])
    if kind == "leader":
        victims = [leader.pid]
    elif engine == "ray":
        victims = ray_processes(leader, kind)
    else:
        assert dask.scheduler is not None
        victims = [worker.pid for worker in (dask.workers if kind == "worker" else [dask.scheduler])]
    if victims and leader.poll() is None:
        kill(rng.choice(victims))
        return True
    return False
