"""COCO: annotations in one JSON file, images in a folder beside it.

``annotations/instances_val2017.json`` beside ``val2017/``; a sample is an image with its annotations. The
file names images (``images``), classes (``categories``) and what lies in the images (``annotations``):
boxes, outlines, keypoints, captions, panoptic segments. A class is its place among the categories here, from
0 on; the ids that it has in the file are ``ids`` of the field ``labels``. Keys that COCO does not know are
``image_extra`` and ``object_extra``.
"""

from __future__ import annotations

from ...schema import Boxes, Image, Int, Json, Keypoints, Labels, List, Polygons, Tensor, Text
from ..base.detection import FIELDS, left_out
from ..base.folders.media import COCO, annotated, is_coco
from ..base.format import Capabilities, Format, Probe
from .reader import CocoReader
from .writer import CocoWriter

HELD = (
    "image", "file_name", "image_id", "boxes", "labels", "area", "iscrowd", "ids", "polygons", "rle",
    "keypoints", "captions", "panoptic", "image_extra", "object_extra",
)  # fmt: skip


def sniff(probe: Probe) -> bool:
    """Lists of images and of annotations in JSON, or a folder with such a file."""
    return probe.ask(annotated) == COCO if probe.folder else is_coco(probe.head)


FORMAT = Format(
    name="coco",
    title="COCO",
    suffixes=(".coco",),
    spec="https://cocodataset.org/#format-data",
    reader=CocoReader,
    writer=CocoWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Polygons, Keypoints, Tensor, Int, Text, List, Json),
    optional=True,
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=None,
    notes="instances, keypoints, captions, panoptic; polygons and run-length masks, painted with masks=",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        metadata=True,
        streaming_write=True,
        splittable=True,
        remote_ranges=True,
        ecosystem=("pycocotools", "torchvision", "Detectron2", "MMDetection", "FiftyOne"),
    ),
)
