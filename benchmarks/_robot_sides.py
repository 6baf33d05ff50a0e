"""Load robot recordings by one library, in a process of its own: `python _robot_sides.py NAME JOB`.

Random samples with actions ahead, as policies are trained. See _sides.py for the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import _sides

Job = dict[str, Any]


def batchplant_steps(job: Job) -> _sides.Build:
    import batchplant as bp

    def build() -> _sides.Epoch:
        reader = bp.open(job["path"])
        windows = bp.DeltaWindows(
            reader, {"action": [n / job["fps"] for n in range(job["ahead"])]}, fps=job["fps"]
        )
        loader = bp.Loader(windows, job["batch"], order="random", seed=1, workers=job["workers"])

        def epoch() -> Iterator[int]:
            for batch in loader:
                yield len(batch["action"])

        return epoch

    return build


def lerobot_steps(job: Job) -> _sides.Build:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    deltas = {"action": [n / job["fps"] for n in range(job["ahead"])]}
    dataset = LeRobotDataset("made/robot", job["path"], delta_timestamps=deltas)

    def build() -> _sides.Epoch:
        loader = torch.utils.data.DataLoader(
            dataset, job["batch"], shuffle=True, num_workers=job["workers"], persistent_workers=True
        )

        def epoch() -> Iterator[int]:
            for batch in loader:
                yield len(batch["action"])

        return epoch

    return build


if __name__ == "__main__":
    import sys

    _sides.SIDES = {"batchplant": batchplant_steps, "LeRobot": lerobot_steps}
    _sides.main(*sys.argv[1:])
