"""LeRobot itself, where it is installed: it reads what we write, and we read what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import image

pytestmark = pytest.mark.reference

lerobot = pytest.importorskip("lerobot.datasets.lerobot_dataset", exc_type=ImportError)

TOP, WRIST = "observation.images.top", "observation.images.wrist"
KINDS: dict[str, Any] = {
    TOP: bp.Tensor("uint8", (48, 64, 3)),
    WRIST: bp.Image("png"),
    "observation.state": bp.Tensor("float32", (3,)),
    "action": bp.Tensor("float32", (2,)),
    "grid": bp.Tensor("int64", (2, 2)),
    "next.reward": bp.Float("float32"),
    "next.done": bp.Bool(),
    "task": bp.Text(),
    "episode_index": bp.Int(),
}
FPS, LENGTHS = 10, (7, 4, 9)


def frames() -> list[dict[str, Any]]:
    """The samples of three episodes; a smooth image moves, so that videos lose little."""
    ramp, rng = 3 * np.arange(64, dtype=np.uint8), np.random.default_rng(0)
    samples: list[dict[str, Any]] = []
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            number = len(samples)
            top = np.broadcast_to(np.roll(ramp, 2 * number)[None, :, None], (48, 64, 3))
            samples.append({
                TOP: np.ascontiguousarray(top),
                WRIST: rng.integers(0, 256, (16, 24, 3), dtype=np.uint8),
                "observation.state": np.array([episode, frame, number], np.float32),
                "action": np.array([number / 8, -episode], np.float32),
                "grid": np.arange(4).reshape(2, 2) + number,
                "next.reward": np.float32(frame / 4),
                "next.done": frame == length - 1,
                "task": "pull" if episode == 1 else "push",
                "episode_index": episode,
            })  # fmt: skip
    return samples


def compare(path: Path, deltas: dict[str, list[float]]) -> None:
    """Compare all samples, and windows around them, as LeRobot and as we read them."""
    theirs = lerobot.LeRobotDataset("made/tiny", path, delta_timestamps=deltas)
    cameras = {name: name in theirs.meta.video_keys for name in theirs.meta.camera_keys}
    with bp.open(path) as reader:
        windows = bp.DeltaWindows(reader, deltas, fps=FPS)
        assert len(theirs) == len(windows) == sum(LENGTHS)
        for number in range(len(theirs)):
            sample, expected = windows[number], theirs[number]
            for name, value in sample.items():
                if isinstance(value, str):
                    assert value == expected[name]
                    continue
                tensor = expected[name].numpy()
                if name in cameras:
                    tensor = np.moveaxis(np.rint(255 * tensor), -3, -1)
                difference = np.abs(tensor.reshape(-1).astype(float) - np.asarray(value, float).reshape(-1))
                # Conversions of video to RGB differ by a level or two.
                assert difference.max(initial=0) <= (3 if cameras.get(name) else 0), (number, name)
        for name in ("action", "observation.state"):
            for key in ("mean", "std", "min", "max"):
                assert np.allclose(theirs.meta.stats[name][key], reader.attributes[name][key], rtol=1e-5)
    part = lerobot.LeRobotDataset("made/tiny", path, episodes=[1])
    assert [part[n]["task"] for n in range(len(part))] == ["pull"] * LENGTHS[1]


@pytest.mark.parametrize("videos", [[TOP], []])
def test_lerobot_reads_what_we_write(videos: list[str], tmp_path: Path) -> None:
    kinds = KINDS if videos else {name: kind for name, kind in KINDS.items() if name != TOP}
    with bp.create(tmp_path / "a.lerobot", kinds, fps=FPS, robot_type="arm", videos=videos) as out:
        for sample in frames():
            sample[WRIST] = image.encode(sample[WRIST], "png")
            out.append({name: sample[name] for name in kinds})
    compare(tmp_path / "a.lerobot", {"action": [-0.1, 0, 0.1], **{name: [-0.1, 0] for name in videos}})


def test_we_read_what_lerobot_writes(tmp_path: Path) -> None:
    axes = ["height", "width", "channels"]
    features = {
        TOP: {"dtype": "video", "shape": (48, 64, 3), "names": axes},
        WRIST: {"dtype": "image", "shape": (16, 24, 3), "names": axes},
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "grid": {"dtype": "int64", "shape": (2, 2), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    data = lerobot.LeRobotDataset.create("made/tiny", FPS, features, root=tmp_path / "a", vcodec="h264")
    previous = 0
    for sample in frames():
        if sample["episode_index"] != previous:
            data.save_episode()
            previous = sample["episode_index"]
        scalars = {name: np.array([sample[name]]) for name in ("next.reward", "next.done")}
        data.add_frame({name: sample[name] for name in (*features, "task")} | scalars)
    data.save_episode()
    data.finalize()
    compare(tmp_path / "a", {"action": [-0.1, 0, 0.1], TOP: [-0.1, 0]})
    # Converted by us, LeRobot reads it as before.
    bp.convert(tmp_path / "a", tmp_path / "b.lerobot", target_options={"videos": TOP})
    compare(tmp_path / "b.lerobot", {"action": [0, 0.2]})
    assert bp.verify(tmp_path / "b.lerobot").ok
