"""Make tests/golden/lerobot: a small dataset by LeRobot itself, of both versions of its format.

``python make_lerobot.py v3 FOLDER`` with lerobot 0.4.4 (and datasets 4.4, av 15, numpy 2.2), which also gives
expected.npz; ``python make_lerobot.py v21 FOLDER`` with lerobot 0.3.3. Reading back takes a decoder: the
``torchvision.io.VideoReader`` that LeRobot asks for was one made with PyAV.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

AXES = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "grid": {"dtype": "int64", "shape": (2, 2), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (48, 64, 3), "names": AXES},
    "observation.images.wrist": {"dtype": "image", "shape": (16, 24, 3), "names": AXES},
}
LENGTHS = (7, 4, 9)


def main(version: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    codec = {"vcodec": "h264"} if version == "v3" else {}
    data = LeRobotDataset.create("made/tiny", 10, FEATURES, root=folder, robot_type="made", **codec)
    blocks = np.random.default_rng(3).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    base = np.kron(blocks, np.ones((6, 6, 1), np.uint8))
    number = 0
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            values = {
                "observation.state": np.array([episode, frame, number], np.float32),
                "action": np.array([number / 8, -episode], np.float32),
                "next.reward": np.array([frame / 4], np.float32),
                "next.done": np.array([frame == length - 1]),
                "grid": np.arange(4).reshape(2, 2) + number,
                "observation.images.top": np.ascontiguousarray(
                    base[number : number + 48, number : number + 64]
                ),
                "observation.images.wrist": np.full((16, 24, 3), 10 * number % 256, np.uint8),
            }
            task = "pull" if episode == 1 else "push"
            data.add_frame({**values, "task": task}) if version == "v3" else data.add_frame(values, task)
            number += 1
        data.save_episode()
    shutil.rmtree(folder / "images", ignore_errors=True)
    if version == "v3":
        data.finalize()
        deltas = {"action": [-0.1, 0, 0.1]}
        data = LeRobotDataset("made/tiny", folder, delta_timestamps=deltas, video_backend="pyav")
        rows = np.array([0, 6, 7, 13, 19])
        items = [data[row] for row in range(len(data))]
        frames = np.stack([items[row]["observation.images.top"].numpy() for row in rows])
        np.savez_compressed(
            folder.parent / "expected.npz",
            rows=rows,
            top=np.rint(frames * 255).astype(np.uint8).transpose(0, 2, 3, 1),
            pad=np.stack([item["action_is_pad"].numpy() for item in items]),
            action=np.stack([item["action"].numpy() for item in items]),
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
