"""LeRobot: recordings of robots as Parquet files and videos, versions 2.0, 2.1 and 3.0.

A sample is a frame; its episode is a sequence of its own, which no window crosses. ``meta/info.json`` names
the features and the files, ``meta/episodes`` the rows and the videos of each episode.
"""

from __future__ import annotations

from ...schema import Bool, Float, Image, Int, Tensor, Text
from ...storage import join, tree
from ..base.format import Capabilities, Format, Probe
from .metadata import INFO
from .reader import LeRobotReader
from .writer import LeRobotWriter


def sniff(probe: Probe) -> bool:
    return "meta/" in probe.names and tree.is_file(join(probe.path, INFO))


FORMAT = Format(
    name="lerobot",
    title="LeRobot",
    suffixes=(".lerobot",),
    spec="https://huggingface.co/docs/lerobot/lerobot-dataset-v3",
    reader=LeRobotReader,
    writer=LeRobotWriter,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor, Text, Image),
    folder=True,
    extra="lerobot",
    notes="a sample is a frame; episodes; frames of videos in place",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("LeRobot", "Hugging Face"),
    ),
)
