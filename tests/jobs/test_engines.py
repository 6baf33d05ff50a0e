"""Engines: whoever does the tasks of a conversion, the same bytes come out, and nothing is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant import order as orders
from batchplant.cli import main
from batchplant.data.reader import Reader
from batchplant.errors import DamagedError, OptionError, WorkerError
from batchplant.jobs import engines, lake
from batchplant.jobs.conversion import plan as planning
from batchplant.jobs.conversion import run
from batchplant.jobs.conversion.job import Job
from batchplant.jobs.conversion.plan import fill_files
from batchplant.jobs.conversion.task import Spills
from batchplant.jobs.engines.base import MAX_ATTEMPTS
from batchplant.schema.columns import I64
from batchplant.storage import Partial
from batchplant.storage.spans import Spans
from batchplant.testing.cases import jpeg
from processes import PATIENCE, run_together, start
from trouble import Trouble
from variants import exhaustive


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples, of which every one has another size."""
    path = tmp_path_factory.mktemp("source") / "source.npz"
    with bp.create(path, {"n": bp.Int(), "blob": bp.Bytes()}) as out:
        for n in range(60):
            out.append({"n": n, "blob": bytes([n]) * (400 + 7 * n)})
    return path


@pytest.fixture(autouse=True)
def patient_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long to start one."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "60")
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", f"{PATIENCE:.0f}s")
    if "dask" in sys.modules:
        sys.modules["dask"].config.refresh()


def made(folder: Path) -> dict[str, bytes]:
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What threads make."""
    folder = tmp_path_factory.mktemp("wanted")
    bp.convert(source, folder / "out.tfrecord", **HOW)
    result = made(folder)
    assert len([name for name in result if name.endswith(".tfrecord")]) > 6
    return result


HOW: dict[str, Any] = {
    "shard_size": 5000,
    "shuffle": True,
    "options": bp.ConvertOptions(checksums=True, seed=3),
}


# That of Dask is compared where its workers are killed.
@pytest.mark.parametrize("engine", ["processes", *exhaustive("dask")])
def test_every_engine_makes_the_same_bytes(
    engine: str, source: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    if engine == "dask":
        pytest.importorskip("distributed")
    seen: list[int] = []
    result = bp.convert(
        source, tmp_path / "out.tfrecord", engine=engines.make(engine, workers=1 if engine == "dask" else 2),
        progress=lambda now, total: seen.append(now), **HOW,
    )  # fmt: skip
    assert made(tmp_path) == wanted
    assert (result.samples, result.skipped, result.resumed_at) == (60, [], 0)
    assert seen[-1] == 60


def test_ray_makes_the_same_bytes(source: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    """In a process of its own, in which no other test has been."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    command = [
        sys.executable, "-m", "batchplant", "convert", str(source), str(tmp_path / "out.tfrecord"), "--json",
        "--shard-size", "5000", "--checksums", "--shuffle", "--seed", "3", "--engine", "ray",
        "--processes", "1",
    ]  # fmt: skip
    done = processes.run(command, capture_output=True)
    if b"Ray cannot be reached or started" in done.stderr:
        # Ray gives its own processes some seconds, and no more.
        pytest.skip("the machine is too busy for Ray to start")
    assert json.loads(done.stdout)["samples"] == 60, done.stderr
    assert made(tmp_path) == wanted


def test_ranks_share_the_work_and_the_last_one_finishes(
    source: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    result = []
    for rank in (2, 0, 1):
        assert not [name for name in os.listdir(tmp_path) if not name.startswith(".")]
        by = engines.make("ranks", rank=rank, world_size=3)
        result.append(bp.convert(source, tmp_path / "out.tfrecord", engine=by, **HOW))
    assert [bool(item.files) for item in result] == [False, False, True]
    assert result[-1].samples == 60
    assert "last rank" in result[0].remarks[-1]
    assert made(tmp_path) == wanted


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2"},
        {"RANK": "{rank}", "WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2"},
        {"DATA_OPTIMIZER_NODE_RANK": "{rank}", "DATA_OPTIMIZER_NUM_NODES": "2"},
    ],
    ids=["slurm", "torchrun", "mpi", "litdata"],
)
def test_launchers_say_who_this_is(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("SLURM_", "OMPI_", "PMI_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for rank in range(2):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(rank=rank))
        result = engines.make("ranks")
        assert (result.rank, result.world_size) == (rank, 2)


def test_ranks_at_the_same_time(source: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "batchplant", "convert", str(source), str(tmp_path / "out.tfrecord"), "--quiet",
        "--shard-size", "5000", "--checksums", "--shuffle", "--seed", "3", "--world-size", "2", "--rank",
    ]  # fmt: skip
    done = run_together(
        *([*command, str(rank)] for rank in range(2)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert [item.returncode for item in done] == [0, 0], done
    assert made(tmp_path) == wanted


@pytest.mark.parametrize("second", ["threads", "processes", "ranks"])
def test_another_engine_goes_on(second: str, source: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    tuning = bp.ConvertTuning(checkpoint_seconds=0)
    often = dataclasses.replace(HOW["options"], tuning=tuning)

    class Stop(BaseException):
        pass

    def stop(now: int, _: int) -> None:
        if now > 20:
            raise Stop

    with pytest.raises(Stop):
        bp.convert(source, tmp_path / "out.tfrecord", progress=stop, **{**HOW, "options": often})
    by = engines.make(second, workers=1 if second == "processes" else None)
    result = bp.convert(source, tmp_path / "out.tfrecord", engine=by, resume=True, **HOW)
    assert result.resumed_at >= 10
    assert made(tmp_path) == wanted


def test_what_another_conversion_left_is_not_used(source: Path, tmp_path: Path) -> None:
    """Ranks cannot clear the folder, in which others work already."""
    first = engines.make("ranks", rank=0, world_size=2)
    bp.convert(source, tmp_path / "out.tfrecord", engine=first, shard_samples=10)
    for rank in range(2):
        by = engines.make("ranks", rank=rank, world_size=2)
        bp.convert(source, tmp_path / "out.tfrecord", engine=by, shard_samples=20, shuffle=True)
    actual = [sample["n"] for sample in bp.open(str(tmp_path / "out-*.tfrecord"))]
    assert sorted(actual) == list(range(60))
    assert actual != sorted(actual)
    assert [item for item in made(tmp_path) if item.endswith(".tfrecord")] == [
        f"out-0000{n}.tfrecord" for n in range(3)
    ]


@pytest.mark.parametrize("engine", ["processes", *exhaustive("dask")])
def test_a_sample_that_cannot_be_stored_is_named(engine: str, tmp_path: Path) -> None:
    if engine == "dask":
        pytest.importorskip("distributed")
    (tmp_path / "to").mkdir()
    with bp.create(tmp_path / "a.npz", {"image": bp.Image()}) as out:
        for n in range(20):
            out.append({"image": b"broken" if n == 13 else jpeg()})
    by = engines.make(engine, workers=1)
    how = {"shard_samples": 4, "engine": by}
    with pytest.raises(bp.DataError) as caught:
        bp.convert(tmp_path / "a.npz", tmp_path / "to" / "out.beton", **how)
    assert (caught.value.sample, caught.value.path) == (13, str(tmp_path / "a.npz"))
    assert not [name for name in os.listdir(tmp_path / "to") if not name.startswith(".")]
    result = bp.convert(tmp_path / "a.npz", tmp_path / "to" / "out.beton", on_error="skip", **how)
    assert [item.sample for item in result.skipped] == [13]
    assert len(bp.open(str(tmp_path / "to" / "out-*.beton"))) == 19


# -- one file ----------------------------------------------------------------------------------------------


def ranks(source: Path, target: Path, world_size: int = 3, **how: Any) -> bp.Conversion:
    """All ranks, one after another."""
    for rank in range(world_size):
        by = engines.make("ranks", rank=rank, world_size=world_size)
        assert not target.exists() or how.get("append")
        converted = bp.convert(source, target, engine=by, **how)
    return converted


@pytest.mark.parametrize(
    "suffix",
    [
        ".beton",
        ".tar",
        ".parquet",
        ".zarr",
        ".mds",
        *exhaustive(".h5", ".csv", ".npz", ".litdata", ".joblib"),
    ],
)
def test_one_file_by_many_processes(suffix: str, source: Path, tmp_path: Path) -> None:
    for folder in ("one", "many"):
        (tmp_path / folder).mkdir()
    bp.convert(
        source, tmp_path / "one" / f"a{suffix}", shuffle=True, options=bp.ConvertOptions(checksums=True)
    )
    result = ranks(
        source, tmp_path / "many" / f"a{suffix}", shuffle=True, options=bp.ConvertOptions(checksums=True)
    )
    assert result.files == [str(tmp_path / "many" / f"a{suffix}")]
    assert result.samples == 60
    wanted, actual = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (tmp_path / "one", tmp_path / "many")
    )
    assert actual == wanted


def test_one_file_by_worker_processes(source: Path, tmp_path: Path) -> None:
    result = bp.convert(source, tmp_path / "a.beton", engine=engines.make("processes", workers=1))
    bp.convert(source, tmp_path / "b.beton")
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "b.beton").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.beton", "b.beton"]
    assert result.samples == 60
    with pytest.raises(bp.ExistsError):
        bp.convert(source, tmp_path / "a.beton", engine="processes")


@pytest.mark.parametrize("kind", ["delta", *exhaustive("iceberg")])
def test_tables_get_all_rows_in_one_transaction(kind: str, source: Path, tmp_path: Path) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    target = tmp_path / f"a.{kind}"
    ranks(source, target, target_options={"format": kind})
    before = len(lake.history(target))
    ranks(source, target, target_options={"format": kind}, append=True)
    assert len(lake.history(target)) == before + 1
    assert [sample["n"] for sample in bp.open(target)] == list(range(60)) * 2


def test_killed_while_parts_are_put_together(source: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys, batchplant as bp\n"
        "from batchplant.jobs.conversion.job import Job\n"
        "Job.joining = lambda self, paths: os.kill(os.getpid(), 9)\n"
        "bp.convert(sys.argv[1], sys.argv[2], engine=bp.engines.make('processes', workers=1))\n"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "a.tar")]
    with start(command) as child:
        assert child.wait(PATIENCE) == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".a.tar.shards.partial"]
    by = engines.make("processes", workers=1)
    result = bp.convert(source, tmp_path / "a.tar", engine=by, resume=True)
    assert (result.samples, result.resumed_at) == (60, 60)
    assert os.listdir(tmp_path) == ["a.tar"]


# -- running tasks ---------------------------------------------------------------------------------------


def tasks(engine: engines.Engine, work: Trouble) -> dict[int, int]:
    result: dict[int, int] = {}
    engines.run(engine, work, range(5), result.__setitem__, name=lambda number: f"shard {number}")
    return result


@pytest.mark.parametrize("how", ["die", *exhaustive("disk")])
def test_what_fails_is_tried_on_another_worker(how: str, tmp_path: Path) -> None:
    actual = tasks(engines.make("processes", workers=1), Trouble(tmp_path, how, 2))
    assert actual == {number: number**2 for number in range(5)}
    assert len(list(tmp_path.glob("2-*"))) == 3


@pytest.mark.parametrize(("how", "kind"), [("disk", OSError), *exhaustive(("die", WorkerError))])
def test_what_fails_everywhere_is_named(how: str, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        tasks(engines.make("processes", workers=1), Trouble(tmp_path, how, 99))
    assert f"shard 2 failed {MAX_ATTEMPTS} times" in str(caught.value) + "".join(
        getattr(caught.value, "__notes__", [])
    )


def test_damaged_data_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(DamagedError) as caught:
        tasks(engines.make("processes", workers=1), Trouble(tmp_path, "data", 99))
    assert (caught.value.path, caught.value.sample) == ("x", 4)
    assert len(list(tmp_path.glob("2-*"))) == 1


def test_wrong_arguments(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean dask"):
        engines.make("dusk")
    with pytest.raises(OptionError, match="at least 1"):
        engines.make("processes", workers=0)
    with pytest.raises(OptionError, match="for the engines processes, dask and ray"):
        engines.make("threads", workers=2)
    with pytest.raises(OptionError, match="for the engine ranks"):
        engines.make("threads", rank=0, world_size=2)
    with pytest.raises(OptionError, match="rank must be from 0 to 1"):
        engines.make("ranks", rank=2, world_size=2)
    assert main(["convert", str(source), str(tmp_path / "a.tar"), "--processes", "0"]) == 2
    assert os.listdir(tmp_path) == []
    with pytest.raises(OptionError, match="memory"):
        bp.convert({"n": [1, 2]}, tmp_path / "a.tar", engine="processes", shard_samples=1)


# -- plans -------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=4), st.integers(1, 30), st.integers(1, 9))
def test_files_are_filled_one_after_another(parts: list[list[int]], size: int, most: int) -> None:
    sizes = [item for part in parts for item in part]
    bounds = fill_files((np.array(part, dtype=np.int64) for part in parts), size, most).tolist()
    assert bounds == filled(sizes, size, most)


def filled(sizes: list[int], size: int, most: int) -> list[int]:
    wanted, held, count = [0], 0, 0
    for at, siz in enumerate(sizes):
        if count == most or (count and held + siz > size):
            wanted.append(at)
            held = count = 0
        held, count = held + siz, count + 1
    return [*wanted, len(sizes)] if sizes else [0, 0]


def test_the_sizes_of_many_samples_are_added_up_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; where every sample has the same, none is asked."""
    count = planning.PROBED_SAMPLES + 300
    sizes = np.random.default_rng(1).integers(0, 50, count)

    class Sizes(Reader):
        path, schema, length = "sizes", bp.Schema({"blob": bp.Bytes(), "label": bp.Int()}), count

        def _spans(self, field: str, indices: I64) -> Spans:
            return Spans(["sizes"], indices, sizes[indices])

    def bounds(fields: list[str], **how: int) -> list[int]:
        order = orders.random(count, seed=1, epoch=0)
        result = planning.plan(Sizes(), fields, order, lookup_samples=97, **how)
        return [0, *(result.span(number).stop for number in range(len(result)))]

    taken = sizes[orders.random(count, seed=1, epoch=0)[:]]
    assert bounds(["blob", "label"], size=1000) == filled((taken + 8).tolist(), 1000, count)
    assert bounds(["blob"], size=1000, samples=30) == filled(taken.tolist(), 1000, 30)
    monkeypatch.setattr(Sizes, "_spans", None)
    for size, most in ((1000, count), (3, count), (1000, 30)):
        assert bounds(["label"], size=size, samples=most) == filled([8] * count, size, most)


# -- shuffling in two passes -------------------------------------------------------------------------------


def small_runs(**options: Any) -> bp.ConvertOptions:
    tuning = bp.ConvertTuning(spill_run_bytes=5000, spill_read_bytes=1500, poll_seconds=0.01)
    return bp.ConvertOptions(tuning=tuning, **options)


@pytest.mark.parametrize("limit", [None, 23])
@pytest.mark.parametrize("how", [{}, {"shard_size": 5000}], ids=["file", "shards"])
def test_two_passes_make_the_same_bytes(
    how: dict[str, Any], limit: int | None, source: Path, tmp_path: Path
) -> None:
    for name, passes in (("one", False), ("two", True)):
        (tmp_path / name).mkdir()
        result = bp.convert(
            source,
            tmp_path / name / "a.tfrecord",
            shuffle=True,
            rename={"n": "m"},
            **how,
            options=small_runs(seed=5, limit=limit, two_passes=passes),
        )
        assert result.samples == (limit or 60)
    assert made(tmp_path / "one") == made(tmp_path / "two")
    actual = [sample["m"] for sample in bp.open(str(tmp_path / "two" / "*.tfrecord"))]
    assert len(set(actual)) == len(actual) == (limit or 60)
    assert actual != sorted(actual)


@pytest.mark.parametrize("how", [{}, {"shard_samples": 20}], ids=["file", "shards"])
def test_progress_covers_both_passes(how: dict[str, Any], source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    bp.convert(
        source,
        tmp_path / "a.tfrecord",
        shuffle=True,
        progress=lambda *item: seen.append(item),
        **how,
        options=small_runs(two_passes=True),
    )
    now = [item for item, _ in seen]
    assert now == sorted(now)
    assert {total for _, total in seen} == {60}
    assert 30 in now
    # Several times in each pass.
    assert len({item for item in now if 0 < item < 30}) > 2
    assert len({item for item in now if 30 < item < 60}) > 1
    assert now[-1] == 60


def test_two_passes_by_ranks(
    source: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for what the others spill."""

    def rank(number: int) -> int:
        by = engines.make("ranks", rank=number, world_size=3)
        return len(
            bp.convert(
                source,
                tmp_path / "out.tfrecord",
                engine=by,
                **{**HOW, "options": small_runs(checksums=True, seed=3, two_passes=True)},
            ).files
        )

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(rank, range(3)))[:2] == [0, 0]
    assert made(tmp_path) == wanted


def test_a_rank_comes_while_others_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Partial(str(tmp_path / "a"), resume=True, crew=True)
    first.checkpoint({"mark": 1})
    result = first.folder / "run"
    result.mkdir()
    scandir = os.scandir

    @contextlib.contextmanager
    def moving(path: Any) -> Iterator[Any]:
        with scandir(path) as entries:
            answer = list(entries)
        if result.exists():
            result.rename(first.folder / "renamed")
        yield iter(answer)

    monkeypatch.setattr(os, "scandir", moving)
    second = Partial(str(tmp_path / "a"), resume=True, crew=True)
    assert not result.exists()
    assert second.state is not None
    assert second.state["mark"] == 1
    for item in (first, second):
        item.suspend()


def test_two_passes_read_the_source_once_and_in_order(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    reader = bp.open(source)
    read = type(reader)._read

    def spy(self: Any, indices: Any, fields: Any) -> Any:
        asked.extend(indices.tolist())
        return read(self, indices, fields)

    job = Job(
        reader, str(tmp_path / "a.tfrecord"), shuffle=True, options=small_runs(two_passes=True, workers=1)
    )
    assert job.digest
    assert job.mean_size
    monkeypatch.setattr(type(reader), "_read", spy)
    run.convert_to_file(job, resume=False, progress=None)
    assert asked == list(range(60))


def test_what_cannot_be_read_is_skipped_in_two_passes(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(30):
        (folder / f"{n:02}.jpg").write_bytes(jpeg())
    reader = bp.open(folder)
    for n in (3, 17):
        (folder / f"{n:02}.jpg").unlink()
    how = {"shuffle": True, "on_error": "skip", "shard_samples": 7}
    result = [
        bp.convert(reader, tmp_path / f"{name}.beton", **how, options=small_runs(two_passes=passes))
        for name, passes in (("one", False), ("two", True))
    ]
    assert [sorted(item.sample for item in each.skipped) for each in result] == [[3, 17], [3, 17]]
    for number in range(5):
        one, two = (tmp_path / f"{name}-0000{number}.beton" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_a_stopped_first_pass_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(BaseException):
        pass

    made_runs: list[int] = []
    real = Spills.__call__

    def stopping(self: Any, number: int) -> int:
        if len(made_runs) == 3:
            raise Stop
        made_runs.append(number)
        return real(self, number)

    how: dict[str, Any] = {"shuffle": True, "options": small_runs(two_passes=True)}
    with monkeypatch.context() as patch:
        patch.setattr(Spills, "__call__", stopping)
        with pytest.raises(Stop):
            bp.convert(source, tmp_path / "a.tfrecord", **how)
    made_runs.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Spills, "__call__", lambda *given: made_runs.append(given[1]) or real(*given))
        bp.convert(source, tmp_path / "a.tfrecord", resume=True, **how)
    assert made_runs[0] == 3
    bp.convert(source, tmp_path / "b.tfrecord", shuffle=True)
    assert (tmp_path / "a.tfrecord").read_bytes() == (tmp_path / "b.tfrecord").read_bytes()


# -- kills -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_killed_again_and_again(kills: int, source: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    """Workers and the process that leads them, at any moment: nothing half, nothing lost."""
    rng = random.Random(kills)
    command = [
        sys.executable, "-m", "batchplant", "convert", str(source), str(tmp_path / "out.tfrecord"), "--quiet",
        "--shard-size", "5000", "--checksums", "--shuffle", "--seed", "3", "--processes", "2", "--resume",
    ]  # fmt: skip
    done = 0
    while done < kills:
        with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as leader:
            timer = threading.Timer(rng.uniform(0.05, 1.2), _kill, (leader.pid, rng.random() < 0.5))
            timer.start()
            leader.communicate(timeout=PATIENCE)
            timer.cancel()
            timer.join()
        done += 1
        if leader.returncode == 0:
            assert made(tmp_path) == wanted
        elif not [name for name in os.listdir(tmp_path) if not name.startswith(".")]:
            continue
        else:
            # It was decided: whoever opens it next finishes it, but for what lies hidden.
            bp.open(str(tmp_path / "out-*.tfrecord")).close()
            assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")} == wanted
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as leader:
        output = leader.communicate(timeout=PATIENCE)[0]
    assert leader.returncode == 0, output
    assert made(tmp_path) == wanted


def _kill(leader: int, worker: bool) -> None:
    """One of its workers, or itself."""
    try:
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        os.kill(int(random.choice(children)) if worker and children else leader, signal.SIGKILL)
    except (OSError, ValueError):
        pass
