"""LeRobot: the suite, what LeRobot itself wrote, episodes, videos, and metadata that is hostile."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.data.keys import same_cells
from batchplant.testing import FormatSuite

pa = pytest.importorskip("pyarrow")
av = pytest.importorskip("av")

GOLDEN = repository.GOLDEN / "lerobot"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = (7, 4, 9)


class TestSuite(FormatSuite):
    format = "lerobot"
    suffix = ".lerobot"
    in_place = False
    # The statistics are not needed to read samples.
    notices_cuts = False

    def files(self, path: str) -> list[Path]:
        return [file for file in super().files(path) if file.name not in ("stats.json", "tasks.parquet")]


def same(left: Any, right: Any) -> bool:
    return bool(same_cells(left, right).all())


def copy(folder: Path, name: str = "v3") -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / name))


def edit(path: Path, **values: Any) -> None:
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, **values}))


def edit_episodes(path: Path, name: str, values: list[Any]) -> None:
    import pyarrow.parquet as pq

    file = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    number = table.schema.get_field_index(name)
    pq.write_table(table.set_column(number, name, pa.array(values)), file)


@pytest.mark.parametrize("name", ["v3", "v21"])
def test_a_dataset_of_lerobot(name: str) -> None:
    with bp.open(GOLDEN / name) as reader:
        assert reader.format == "lerobot"
        assert reader.boundaries().tolist() == [7, 11]
        assert reader.schema["grid"] == bp.Tensor("int64", (2, 2))
        assert reader.schema[TOP] == bp.Tensor("uint8", (48, 64, 3))
        sample = reader[8]
        assert sample["task"] == "pull"
        assert sample["observation.state"].tolist() == [1, 1, 8]
        assert sample["grid"].tolist() == [[8, 9], [10, 11]]
        assert sample["next.done"] is False
        assert (sample[WRIST] == 80).all()
        assert (reader[9]["episode_index"], reader[9]["frame_index"]) == (1, 2)
        assert reader.attributes["action"]["names"] == ["a", "b"]
        assert np.allclose(reader.attributes["action"]["mean"], [1.1875, -1.1])
        assert reader.metadata == {"fps": "10", "robot_type": "made"}
        assert not list(reader.verify())
        assert pickle.loads(pickle.dumps(reader))[8]["task"] == "pull"


def test_frames_and_windows_are_those_that_lerobot_gives() -> None:
    expected = np.load(GOLDEN / "expected.npz")
    with bp.open(GOLDEN / "v3") as reader:
        assert (reader.read(expected["rows"], [TOP])[TOP] == expected["top"]).all()
        windows = bp.DeltaWindows(reader, {"action": [-0.1, 0, 0.1], TOP: [-0.1, 0]}, fps=10)
        columns = windows.read(range(20), ["action", "action_is_pad", f"{TOP}_is_pad"])
        assert (columns["action"] == expected["action"]).all()
        assert (columns["action_is_pad"] == expected["pad"]).all()
        # Frame 7 begins an episode in the middle of the file.
        before, now = windows.read([7], [TOP])[TOP][0]
        assert (before == now).all()


def test_frames_of_old_videos_are_those_of_the_files() -> None:
    frames = []
    for episode in range(len(LENGTHS)):
        file = GOLDEN / f"v21/videos/chunk-000/{TOP}/episode_{episode:06d}.mp4"
        with av.open(str(file)) as container:
            frames += [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with bp.open(GOLDEN / "v21") as reader:
        rows = np.random.default_rng(1).permutation(20)
        assert (reader.read(rows, [TOP])[TOP] == np.stack(frames)[rows]).all()
        small = bp.open(GOLDEN / "v21", size=(12, 16))
        assert small[3][TOP].shape == (12, 16, 3)


@pytest.mark.parametrize("name", ["v3", "v21"])
def test_some_episodes(name: str) -> None:
    every = bp.open(GOLDEN / name)
    some = bp.open(GOLDEN / name, episodes=[2, 0])
    assert (len(some), some.boundaries().tolist()) == (16, [7])
    rows = [*range(7), *range(11, 20)]
    ours, theirs = some.read(range(16)), every.read(rows)
    assert all(same(ours[field], theirs[field]) for field in every.schema)
    assert len(bp.open(GOLDEN / name, split="train")) == 20
    assert len(bp.open(GOLDEN / name, split="train", episodes=[1])) == 4
    with pytest.raises(bp.OptionError, match="no split 'test'; there are: train"):
        bp.open(GOLDEN / name, split="test")
    for options in ({"episodes": [1.5]}, {"episodes": [-1]}, {"size": 0}, {"size": (1, 2, 3)}):
        with pytest.raises(bp.OptionError):
            bp.open(GOLDEN / name, **options)
    with pytest.raises(bp.OptionError, match="no episode 3"):
        bp.open(GOLDEN / name, episodes=[1, 3])


def test_only_what_frames_need_is_read() -> None:
    reader = bp.open(GOLDEN / "v3")
    one, every = (reader.ranges([TOP], rows) for rows in ([3], range(20)))
    assert 0 < one.bytes < every.bytes / 3
    assert {Path(file).suffix for file in reader.ranges(["action", TOP], [3]).files} == {".parquet", ".mp4"}
    assert TOP not in bp.open(GOLDEN / "v3", videos=False).schema


def test_tasks_are_filtered_and_loaded_by_their_texts() -> None:
    reader = bp.open(GOLDEN / "v3")
    assert reader.filter("task == 'pull'").read(range(4), ["index"])["index"].tolist() == [7, 8, 9, 10]
    loader = bp.Loader(reader.select(["action", TOP]), 5, order="random", seed=3)
    batches = list(loader)
    assert [batch[TOP].shape for batch in batches] == [(5, 48, 64, 3)] * 4


def test_a_dataset_is_written_with_videos_and_counted_anew(tmp_path: Path) -> None:
    reader, path = bp.open(GOLDEN / "v3"), tmp_path / "new.lerobot"
    bp.convert(
        reader.subset(range(3, 14)), path, target_options={"videos": TOP, "quality": 95, "robot_type": "arm"}
    )
    written = bp.open(path)
    assert written.schema == reader.schema
    assert written.boundaries().tolist() == [4, 8]
    columns, source = written.read(range(11)), reader.read(range(3, 14))
    assert columns["episode_index"].tolist() == [0] * 4 + [1] * 4 + [2] * 3
    assert columns["frame_index"].tolist() == [0, 1, 2, 3] * 2 + [0, 1, 2]
    assert columns["index"].tolist() == list(range(11))
    for name in ("action", "grid", "task", WRIST):
        assert same(columns[name], source[name])
    assert np.abs(columns[TOP].astype(int) - source[TOP]).mean() < 8
    files = [file.relative_to(path).as_posix() for file in path.rglob("*.mp4")]
    assert files == [f"videos/{TOP}/chunk-000/file-000.mp4"]
    info = json.loads((path / "meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"], info["robot_type"]) == (3, 11, "arm")
    assert info["features"][WRIST]["shape"] == [16, 24, 3]
    stats = json.loads((path / "meta/stats.json").read_text())
    assert np.allclose(stats["action"]["mean"], source["action"].mean(axis=0))
    assert np.allclose(stats["action"]["std"], source["action"].std(axis=0))
    assert np.array(stats[TOP]["mean"]).shape == (3, 1, 1)


def test_an_old_dataset_becomes_a_new_one_without_encoding(tmp_path: Path) -> None:
    path = tmp_path / "new.lerobot"
    bp.convert(
        GOLDEN / "v21", path,
        source_options={"videos": False}, target_options={"videos_from": str(GOLDEN / "v21")},
    )  # fmt: skip
    old = sorted((GOLDEN / "v21/videos").rglob("*.mp4"))
    new = sorted((path / "videos").rglob("*.mp4"))
    assert [file.read_bytes() for file in new] == [file.read_bytes() for file in old]
    reader, source = bp.open(path), bp.open(GOLDEN / "v21")
    assert set(reader.schema) == set(source.schema)
    ours, theirs = reader.read(range(20)), source.read(range(20))
    assert all(same(ours[name], theirs[name]) for name in source.schema)
    with pytest.raises(bp.OptionError, match="other episodes"):
        bp.convert(
            bp.open(GOLDEN / "v21", videos=False, episodes=[0]), tmp_path / "b.lerobot",
            target_options={"videos_from": str(GOLDEN / "v21")},
        )  # fmt: skip


def test_segments_of_a_long_episode_are_one_video(tmp_path: Path) -> None:
    schema = {"n": bp.Int(), "top": bp.Tensor("uint8", (512, 1024, 3))}
    frame = np.zeros((512, 1024, 3), np.uint8)
    with bp.create(tmp_path / "a.lerobot", schema, fps=25, episode="n", videos=["top"]) as out:
        for n in range(50):
            frame[:] = 4 * n
            out.append({"n": n // 46, "top": frame})
    reader = bp.open(tmp_path / "a.lerobot")
    assert reader.boundaries().tolist() == [46]
    rows = [0, 41, 43, 45, 46, 49]
    assert np.allclose(reader.read(rows, ["top"])["top"].mean(axis=(1, 2, 3)), np.array(rows) * 4, atol=2.5)


class Array2D(pa.ExtensionType):
    """The type that datasets registers when it is imported."""

    def __init__(self, kind: Any = None) -> None:
        kind = kind or pa.list_(pa.list_(pa.int64()))
        super().__init__(kind, "datasets.features.features.Array2DExtensionType")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, _: bytes) -> Array2D:
        return cls(storage)


def test_arrays_are_written_beside_datasets(tmp_path: Path) -> None:
    pa.register_extension_type(Array2D())
    try:
        grids = np.arange(200).reshape(50, 2, 2)
        source = bp.open({"grid": grids, "episode_index": np.arange(50) // 20})
        bp.convert(source, tmp_path / "a.lerobot")
        assert (bp.open(tmp_path / "a.lerobot").read(range(50))["grid"] == grids).all()

        def interrupt(now: int, _: int) -> None:
            if now > 20:
                raise KeyboardInterrupt

        path = tmp_path / "a.parquet"
        every = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0))
        with pytest.raises(KeyboardInterrupt):
            bp.convert(source, path, progress=interrupt, options=every)
        assert bp.convert(source, path, resume=True).resumed_at
        assert (bp.open(path).read(range(50))["grid"] == grids).all()
    finally:
        pa.unregister_extension_type("datasets.features.features.Array2DExtensionType")


@pytest.mark.parametrize(
    "values",
    [
        {"data_path": "../v3/data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"},
        {"data_path": "/etc/passwd"},
        {"data_path": "data/{chunk_index.__class__}"},
        {"data_path": "data/{chunk_index:0999999999d}"},
        {"data_path": "data/{unknown}"},
        {"video_path": "../{video_key}.mp4"},
        {"video_path": None},
        {"video_path": "a" * 300 + ".mp4"},
        {"fps": 0},
        {"fps": "x"},
        {"fps": float("nan")},
        {"features": []},
        {"features": {"a": {"dtype": "float32"}}},
        {"features": {"a": {"dtype": "object", "shape": [1]}}},
        {"features": {"a": {"dtype": "float32", "shape": [2**31]}}},
        {"features": {"a": {"dtype": "9" * 5000 + "i4,", "shape": [1]}}},
        {"features": {"a": {"dtype": "video", "shape": [2**40, 2**40, 3]}}},
        {"features": {"../a": {"dtype": "video", "shape": [4, 4, 3]}}},
        {"codebase_version": "v9.0"},
        {"batchplant": {"a": 1}},
        {"batchplant": [{"name": "action", "kind": "tensor", "dtype": "float32", "shape": [10**9, 10**9]}]},
    ],
)
def test_hostile_metadata(values: dict[str, Any], tmp_path: Path) -> None:
    path = copy(tmp_path)
    edit(path, **values)
    with pytest.raises(bp.BatchplantError):
        bp.open(path).read(range(20))


def test_hostile_chunks_of_an_old_dataset(tmp_path: Path) -> None:
    path = copy(tmp_path, "v21")
    for size in (0, -1, "x", None):
        edit(path, chunks_size=size)
        with pytest.raises(bp.DamagedError):
            bp.open(path)
    edit(path, chunks_size=10**30)
    assert len(bp.open(path)) == 20


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("length", [7, 4, 10]),
        ("length", [7, -4, 9]),
        ("length", [7, 4, 2**62]),
        ("length", ["a", "b", "c"]),
        ("dataset_from_index", [0, 8, 11]),
        ("episode_index", [0, 0, 2]),
        ("data/file_index", [0, 1, 0]),
        ("data/chunk_index", [-1, -1, -1]),
        ("data/file_index", [None, 0, 0]),
        (f"videos/{TOP}/from_timestamp", [0.0, float("nan"), 1.1]),
        (f"videos/{TOP}/from_timestamp", [0.0, -1.0, 1.1]),
        (f"videos/{TOP}/from_timestamp", [0.0, 0.7, 5.0]),
        (f"videos/{TOP}/file_index", [0, 0, 1]),
    ],
)
def test_lying_episodes(name: str, values: list[Any], tmp_path: Path) -> None:
    path = copy(tmp_path)
    edit_episodes(path, name, values)
    with pytest.raises(bp.DataError):
        bp.open(path).read(range(20))


def test_damaged_tables_of_episodes(tmp_path: Path) -> None:
    path = copy(tmp_path)
    file = path / "meta/episodes/chunk-000/file-000.parquet"
    data = file.read_bytes()
    for position in range(4, len(data) // 2, 900):
        file.write_bytes(data[:position] + bytes(40) + data[position + 40 :])
        with contextlib.suppress(bp.BatchplantError):
            bp.open(path).read([0, 19])


def test_a_missing_file_costs_only_its_own_frames(tmp_path: Path) -> None:
    path = copy(tmp_path, "v21")
    (path / "data/chunk-000/episode_000001.parquet").unlink()
    (path / f"videos/chunk-000/{TOP}/episode_000002.mp4").unlink()
    reader = bp.open(path)
    assert reader.read(range(7))[TOP].shape == (7, 48, 64, 3)
    with pytest.raises(bp.DamagedError, match=r"episode_000001\.parquet"):
        reader.read([8], ["action"])
    with pytest.raises(bp.DamagedError, match=r"episode_000002\.mp4"):
        reader.read([12], [TOP])
    assert reader.read([12], ["action"])["action"].tolist() == [[1.5, -2]]
    assert {problem.sample for problem in reader.verify()} == set(range(7, 20))
