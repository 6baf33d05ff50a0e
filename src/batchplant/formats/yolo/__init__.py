"""YOLO: a text file of labels for each image.

``images/train/001.jpg`` and ``labels/train/001.txt``, a line for each object, its numbers in parts of the
image's width and height:

- detection: ``class cx cy w h``;
- segmentation: ``class x1 y1 x2 y2 x3 y3 …``;
- pose: ``class cx cy w h x1 y1 [visible] …``, with ``kpt_shape`` in the YAML.

``data.yaml`` names the classes (``names``) and the folders, or lists, of the splits (``train``, ``val``,
``test``). Without one, ``images/`` beside ``labels/`` is enough. An image without labels has no objects.
"""

from __future__ import annotations

from ...schema import Boxes, Image, Int, Keypoints, Labels, Polygons, Tensor, Text
from ..base.capabilities import Capabilities
from ..base.detection import FIELDS, YOLO, annotated, is_yaml, left_out
from ..base.format import Format, Probe
from .reader import YoloReader
from .writer import YoloWriter

HELD = ("image", "file_name", "split", "boxes", "labels", "polygons", "keypoints")


def sniff(probe: Probe) -> bool:
    """A YAML file of classes and splits, or labels beside images."""
    if probe.folder:
        return probe.ask(annotated) == YOLO
    return probe.path.endswith((".yaml", ".yml")) and is_yaml(probe.head)


FORMAT = Format(
    name="yolo",
    title="YOLO",
    suffixes=(".yolo",),
    spec="https://docs.ultralytics.com/datasets/detect/",
    reader=YoloReader,
    writer=YoloWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Polygons, Keypoints, Tensor, Int, Text),
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=None,
    extra="yaml",
    notes="detection, segmentation, pose; data.yaml, or images/ beside labels/",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("Ultralytics", "FiftyOne", "Roboflow"),
    ),
)
