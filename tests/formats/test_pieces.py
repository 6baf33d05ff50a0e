"""Zarr and N5 by many writers: each writes its own chunks, and the dataset is the one that threads make."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.registry import get_format
from batchplant.jobs import engines
from batchplant.jobs.conversion import run, task
from batchplant.storage import Partial
from batchplant.testing.cases import jpeg
from processes import PATIENCE, start
from variants import exhaustive

pytest.importorskip("numcodecs")

# A 64th of them is a chunk of the options below; the last chunk is not full.
SAMPLES = 131
SCHEMA = {
    "x": bp.Tensor("float32", (4, 6)),
    "n": bp.Int(),
    "maybe": bp.Int(optional=True),
    "none": bp.Tensor("int16", (0, 3)),
    "text": bp.Text(),
    "image": bp.Image(optional=True),
}
FIXED = ("x", "n", "maybe", "none")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of one size, missing ones, empty ones, and such of differing length."""
    path = tmp_path_factory.mktemp("source") / "source.msgpack"
    rng = np.random.default_rng(1)
    with bp.create(path, SCHEMA) as out:
        for n in range(SAMPLES):
            out.append(
                {
                    "x": rng.random((4, 6), np.float32),
                    "n": n,
                    "maybe": None if n % 7 == 3 else n * n,
                    "none": np.zeros((0, 3), np.int16),
                    "text": "é" * (n % 11),
                    "image": jpeg(8 + n % 5, 8) if n % 13 else None,
                }
            )
    return path


def files(top: Path) -> dict[str, bytes]:
    result = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    assert not [name for name in result if ".partial" in name]
    return result


def tuned(**sizes: Any) -> bp.ConvertOptions:
    """Few parts of few samples."""
    return bp.ConvertOptions(checksums=True, tuning=bp.ConvertTuning(**{"min_parts": 12, **sizes}))


def by_ranks(source: Path, target: Path, world_size: int = 3, **how: Any) -> bp.Conversion:
    for rank in range(world_size):
        assert not target.exists()
        by = engines.make("ranks", rank=rank, world_size=world_size)
        converted = bp.convert(source, target, engine=by, **{"options": tuned(), **how})
    return converted


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of chunks that are taken out of pieces as they are, as names in the dataset."""
    names: list[str] = []
    adopt = Partial.adopt

    def spy(self: Partial, files: Any) -> None:
        names.extend(name.partition("/")[2] for _, name, _ in files)
        adopt(self, files)

    monkeypatch.setattr(Partial, "adopt", spy)
    return names


def count_below(names: list[str], array: str) -> int:
    return sum(name.startswith(f"{array}/") for name in names)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "v3": (".zarr", {"chunk_samples": 2}),
    "v2": (".zarr", {"chunk_samples": 2, "zarr_format": 2}),
    "shards": (".zarr", {"chunk_samples": 1, "chunks_per_shard": 2}),
    "plain": (".zarr", {"chunk_samples": 2, "compression": "none"}),
    "tiles": (".zarr", {"chunks": {"x": [2, 2, 3], "n": [7]}, "attributes": {"": {"by": "us"}}}),
    "n5": (".n5", {"chunk_samples": 2}),
}


@pytest.mark.parametrize("case", ["shards", "tiles", *exhaustive("n5", "v3", "v2", "plain")])
def test_the_same_bytes_as_by_threads(case: str, source: Path, tmp_path: Path, adopted: list[str]) -> None:
    suffix, options = OPTIONS[case]
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    how: dict[str, Any] = {"shuffle": True, "target_options": options, "options": tuned()}
    bp.convert(source, tmp_path / "one" / f"a{suffix}", **how)
    done = by_ranks(source, tmp_path / "many" / f"a{suffix}", **how)
    assert done.samples == SAMPLES
    assert files(tmp_path / "many") == files(tmp_path / "one")
    # All of the widest array but for its last chunk, which is not full, and none whose place is not known.
    # A chunk of 2 samples is 4 tiles.
    assert count_below(adopted, "x") == SAMPLES // 2 * (4 if case == "tiles" else 1)
    assert not any(count_below(adopted, name) for name in ("text/values", "text/offsets", "image/values"))


def test_ranges_begin_where_chunks_do() -> None:
    def unit(samples: int, fields: tuple[str, ...], **options: Any) -> int | None:
        schema = bp.Schema({name: SCHEMA[name] for name in fields})
        return get_format("zarr").writer.piece_samples(schema, samples, options)

    assert unit(1000, ("x", "n"), chunk_samples=6) == 6
    assert unit(1000, ("x", "n"), chunk_samples=6, chunks_per_shard=4) == 24
    # Rather than too few pieces for many workers: only the widest array in whole files, or none.
    assert unit(1000, ("x", "n"), chunks={"x": [10], "n": [7]}) == 10
    assert unit(10_000, ("x", "n"), chunks={"x": [10], "n": [7]}) == 70
    assert unit(1000, ("x", "n"), chunks={"x": [126], "n": [7]}) == 7
    assert unit(1000, ("x", "text"), chunk_samples=100) == 1
    assert get_format("hdf5").writer.piece_samples(bp.Schema({"n": bp.Int()}), 100, {}) is None


def test_cells_of_one_size_alone(source: Path, tmp_path: Path, adopted: list[str]) -> None:
    """Nothing but the ends of arrays is left for whoever puts them together."""
    how: dict[str, Any] = {"fields": FIXED, "target_options": {"chunk_samples": 2}, "options": tuned()}
    bp.convert(source, tmp_path / "a.zarr", **how)
    by_ranks(source, tmp_path / "b.zarr", **how)
    assert files(tmp_path / "a.zarr") == files(tmp_path / "b.zarr")
    for name in ("x", "n", "maybe/values", "maybe/valid"):
        assert count_below(adopted, name) == SAMPLES // 2
    assert len(adopted) == 4 * (SAMPLES // 2)


@pytest.mark.parametrize("target", ["a.zarr.zip", "a.zarr"])
def test_samples_that_are_left_out_move_others_up(target: str, tmp_path: Path) -> None:
    with bp.create(tmp_path / "in.npz", {"n": bp.Int(), "image": bp.Image()}) as out:
        for n in range(90):
            out.append({"n": n, "image": b"broken" if n in (13, 50) else jpeg()})
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    images = bp.ImageOptions(image_format="png")
    how: dict[str, Any] = {"on_error": "skip", "images": images, "target_options": {"chunk_samples": 1}}
    how["options"] = tuned()
    bp.convert(tmp_path / "in.npz", tmp_path / "one" / target, **how)
    done = by_ranks(tmp_path / "in.npz", tmp_path / "many" / target, **how)
    assert (done.samples, [item.sample for item in done.skipped]) == (88, [13, 50])
    assert files(tmp_path / "many") == files(tmp_path / "one")


def test_random_choices_are_those_of_the_whole(tmp_path: Path) -> None:
    with bp.create(tmp_path / "in.npz", {"image": bp.Image()}) as out:
        for _ in range(70):
            out.append({"image": np.zeros((8, 8, 3), np.uint8)})
    images = bp.ImageOptions(write_mode="proportion", seed=4)
    for suffix in (".zarr", ".beton"):
        bp.convert(tmp_path / "in.npz", tmp_path / f"one{suffix}", images=images, options=tuned())
        by_ranks(tmp_path / "in.npz", tmp_path / f"many{suffix}", images=images)
    assert files(tmp_path / "many.zarr") == files(tmp_path / "one.zarr")
    assert (tmp_path / "many.beton").read_bytes() == (tmp_path / "one.beton").read_bytes()


def test_an_empty_dataset(tmp_path: Path) -> None:
    with bp.create(tmp_path / "in.npz", {"n": bp.Int(), "text": bp.Text()}):
        pass
    bp.convert(tmp_path / "in.npz", tmp_path / "one.zarr")
    bp.convert(
        tmp_path / "in.npz", tmp_path / "many.zarr", engine=engines.make("ranks", rank=0, world_size=2)
    )
    assert files(tmp_path / "many.zarr") == files(tmp_path / "one.zarr")


def test_a_stopped_piece_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another engine, from its last checkpoint, within a chunk."""

    class Stop(BaseException):
        pass

    how: dict[str, Any] = {"target_options": {"chunk_samples": 2}}
    options = tuned(checkpoint_seconds=0, min_parts=2)
    real, count = task.Feed._read, 0

    def stopping(self: Any, start: int, end: int) -> Any:
        nonlocal count
        count += 1
        if count == 9:
            raise Stop
        return real(self, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(task.Feed, "_read", stopping)
        single = tuned(checkpoint_seconds=0, min_parts=2, batch_bytes=1)
        with pytest.raises(Stop):
            by_ranks(source, tmp_path / "b.zarr", options=single, **how)
    assert not (tmp_path / "b.zarr").exists()
    done = by_ranks(source, tmp_path / "b.zarr", world_size=2, resume=True, options=options, **how)
    assert done.samples == SAMPLES
    bp.convert(source, tmp_path / "a.zarr", options=options, **how)
    assert files(tmp_path / "b.zarr") == files(tmp_path / "a.zarr")
    assert (tmp_path / "b.zarr.crc").read_bytes() == (tmp_path / "a.zarr.crc").read_bytes()


def test_killed_while_pieces_are_put_together(source: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys, batchplant as bp\n"
        "from batchplant.storage import Partial\n"
        "real, calls = Partial.adopt, []\n"
        "def adopt(self, files):\n"
        "    real(self, files)\n"
        "    calls.append(1)\n"
        "    if len(calls) == 5: os.kill(os.getpid(), 9)\n"
        "Partial.adopt = adopt\n"
        "options = bp.ConvertOptions(tuning=bp.ConvertTuning(min_parts=12))\n"
        "for rank in range(2):\n"
        "    by = bp.engines.make('ranks', rank=rank, world_size=2)\n"
        "    chunks = {'chunk_samples': 2}\n"
        "    bp.convert(sys.argv[1], sys.argv[2], engine=by, target_options=chunks, options=options)\n"
    )
    with start([sys.executable, "-c", script, str(source), str(tmp_path / "b.zarr")]) as child:
        assert child.wait(PATIENCE) == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == [".b.zarr.partial", ".b.zarr.shards.partial"]
    how: dict[str, Any] = {"target_options": {"chunk_samples": 2}}
    how["options"] = bp.ConvertOptions(tuning=bp.ConvertTuning(min_parts=12))
    done = bp.convert(
        source, tmp_path / "b.zarr", engine=engines.make("ranks", rank=1, world_size=2), resume=True, **how
    )
    assert done.resumed_at == SAMPLES
    bp.convert(source, tmp_path / "a.zarr", **how)
    assert files(tmp_path / "b.zarr") == files(tmp_path / "a.zarr")
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr"]


def test_a_damaged_piece_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(job: Any, parts: list[str], *, resume: bool) -> list[str]:
        (Path(parts[1]) / ".piece.json").write_text('{"samples": 3, "log": [[99, 1, 0]]}')
        return real(job, parts, resume=resume)

    real = run._join_parts
    monkeypatch.setattr(run, "_join_parts", damaged)
    with pytest.raises(bp.DamagedError, match=r"note of a piece.*cannot be") as caught:
        by_ranks(source, tmp_path / "b.zarr")
    assert "b-00001.zarr" in str(caught.value.path)
    assert not (tmp_path / "b.zarr").exists()
