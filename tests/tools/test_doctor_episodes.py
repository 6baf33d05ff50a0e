"""Checks of episodes: each finding names the episode and the frame."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.codecs.media import image
from batchplant.tools import doctor

pytest.importorskip("pyarrow")

TOP = "observation.images.top"
CHECKS = (
    "episode-times", "frozen-cameras", "resting-episodes", "wrong-statistics", "orphan-rows", "leftovers",
)  # fmt: skip


def make(path: Path, kinds: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Three episodes of ten frames; changes: functions of a frame's number that give a field's value."""
    schema = {
        "camera": bp.Tensor("uint8", (8, 8, 3)),
        "action": bp.Tensor("float32", (2,)),
        "timestamp": bp.Float("float32"),
        "episode_index": bp.Int(),
        **(kinds or {}),
    }
    values: dict[str, Any] = {
        "camera": lambda n: np.full((8, 8, 3), 50 + n, np.uint8),
        "action": lambda n: np.array([n, -n], np.float32),
        "timestamp": lambda n: n % 10 / 10,
        "episode_index": lambda n: n // 10,
    }
    values |= changes
    with bp.create(path, schema, fps=10) as out:
        for n in range(30):
            out.append({name: values[name](n) for name in schema})
    return path


def findings(path: Path) -> dict[str, doctor.Finding]:
    report = doctor.examine(path, only=CHECKS)
    return {finding.check: finding for finding in report.findings}


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert findings(make(tmp_path / "a.lerobot")) == {}


def test_times_that_jump_or_run_backwards(tmp_path: Path) -> None:
    late = {13: 0.9, 25: 0.3}
    path = make(tmp_path / "a.lerobot", timestamp=lambda n: late.get(n, n % 10 / 10))
    finding = findings(path)["episode-times"]
    assert finding.count == 4
    assert [example.said.partition(":")[0] for example in finding.examples] == [
        "episode 1, frame 3", "episode 1, frame 4", "episode 2, frame 5", "episode 2, frame 6",
    ]  # fmt: skip


@pytest.mark.parametrize("encoded", [False, True])
def test_a_camera_that_freezes_and_one_that_is_black(encoded: bool, tmp_path: Path) -> None:
    def frame(level: int) -> Any:
        pixels = np.full((8, 8, 3), level, np.uint8)
        return image.encode(pixels, "png") if encoded else pixels

    kinds = {"camera": bp.Image("png")} if encoded else {}
    # In the second of three episodes alone, from its frame 4 on.
    stuck = make(tmp_path / "a.lerobot", kinds, camera=lambda n: frame(50 + (13 if 13 <= n < 20 else n)))
    finding = findings(stuck)["frozen-cameras"]
    assert (finding.field, finding.count, finding.of) == ("camera", 1, 3)
    assert finding.examples[0].said == "from episode 1, frame 4 on"
    black = make(tmp_path / "b.lerobot", kinds, camera=lambda n: frame(2 * (n % 2) if n >= 20 else 50 + n))
    [example] = findings(black)["frozen-cameras"].examples
    assert example.said == "from episode 2, frame 0 on"


def test_episodes_in_which_nothing_moves(tmp_path: Path) -> None:
    path = make(tmp_path / "a.lerobot", action=lambda n: np.array([0 if n // 10 == 1 else n, 1], np.float32))
    finding = findings(path)["resting-episodes"]
    assert (finding.count, finding.of, finding.examples[0].said) == (1, 3, "episode 1")


def test_statistics_of_other_data(tmp_path: Path) -> None:
    path = make(tmp_path / "a.lerobot")
    stats = json.loads((path / "meta/stats.json").read_text())
    stats["action"]["max"][0] = 27.5
    (path / "meta/stats.json").write_text(json.dumps(stats))
    finding = findings(path)["wrong-statistics"]
    assert (finding.field, finding.count) == ("action", 2)
    assert finding.examples[0].said == "episode 2, frame 8: number 0 is 28"
    # Of degrees, where these are radians: no value lies outside.
    stats["action"] = {key: [57.3 * x for x in values] for key, values in stats["action"].items()}
    (path / "meta/stats.json").write_text(json.dumps(stats))
    finding = findings(path)["wrong-statistics"]
    assert "number 0 are 14.5 and 8.655, and stored as 830.8 and 496" in finding.message
    # Some episodes may have other means than all.
    for reader in (bp.open(path, episodes=[0, 1]), bp.open(path).subset(range(20))):
        assert not doctor.examine(reader, only=["wrong-statistics"]).findings
    (path / "meta/stats.json").write_text("{")
    assert "wrong-statistics" not in findings(path)


def test_rows_of_another_episode() -> None:
    golden = repository.GOLDEN / "lerobot/v3"
    assert not doctor.examine(golden, only=["orphan-rows", "leftovers"]).findings


def test_lengths_that_move_rows_to_another_episode(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = shutil.copytree(repository.GOLDEN / "lerobot/v3", tmp_path / "a")
    file = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    # The episodes have 7, 4 and 9 rows.
    for name, values in (
        ("length", [6, 5, 9]),
        ("dataset_from_index", [0, 6, 11]),
        ("dataset_to_index", [6, 11, 20]),
    ):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table, file)
    report = doctor.examine(path, only=["orphan-rows"])
    finding = {finding.field: finding for finding in report.findings}
    assert finding["frame_index"].examples[0].said == "episode 1, frame 0: frame_index is 6"
    assert finding["episode_index"].examples[0].said == "episode 1, frame 1: episode_index is 1"


def test_frames_and_files_that_no_episode_has(tmp_path: Path) -> None:
    path = shutil.copytree(repository.GOLDEN / "lerobot/v21", tmp_path / "a")
    videos = path / "videos/chunk-000/observation.images.top"
    shutil.copy(videos / "episode_000002.mp4", videos / "episode_000001.mp4")
    (videos / "episode_000003.mp4").write_bytes(b"")
    [finding] = doctor.examine(path, only=["leftovers"]).findings
    assert [example.said.partition("top/")[2] for example in finding.examples] == [
        "episode_000003.mp4: no episode is in this file",
        "episode_000001.mp4: the video has 9 frames, and episode 1 ends at frame 4",
    ]
    shutil.copy(videos / "episode_000001.mp4", videos / "episode_000000.mp4")
    shutil.copy(
        repository.GOLDEN / f"lerobot/v21/videos/chunk-000/{TOP}/episode_000001.mp4",
        videos / "episode_000002.mp4",
    )
    [finding] = doctor.examine(path, only=["leftovers"]).findings
    assert finding.examples[-1].said.endswith("has 4 frames, and ends at episode 2, frame 4")


def test_a_missing_video_costs_frames_of_its_episode(tmp_path: Path) -> None:
    path = shutil.copytree(repository.GOLDEN / "lerobot/v21", tmp_path / "a")
    (path / f"videos/chunk-000/{TOP}/episode_000001.mp4").unlink()
    [finding] = doctor.examine(path, only=["corrupt-samples"]).findings
    assert (finding.count, finding.of) == (4, 20)
    assert [(e.sample, e.field, e.said) for e in finding.examples[:2]] == [
        (7 + n, TOP, f"episode 1, frame {n}: the dataset lists this video, but it is not there")
        for n in range(2)
    ]


def test_a_table_without_episodes_is_left_alone() -> None:
    reader = bp.open({"timestamp": np.zeros(9), "action": np.zeros(9)})
    assert not doctor.examine(reader, only=CHECKS).findings
