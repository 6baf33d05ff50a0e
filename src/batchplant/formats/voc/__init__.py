"""Pascal VOC: an XML file for each image.

``JPEGImages/2007_000027.jpg``, ``Annotations/2007_000027.xml``, and lists of images in ``ImageSets/Main/``;
some have masks in ``SegmentationClass/`` (``mask``) and ``SegmentationObject/`` (``instances``). Its boxes
count pixels from 1 on, and the last one is inside; ours count from 0, to the edge behind the last one. XML is
read by a parser that refuses document types: there are no entities to expand and no other files to fetch.
"""

from __future__ import annotations

from ...schema import Boxes, Image, Int, Json, Labels, List, Tensor, Text
from ..base.capabilities import Capabilities
from ..base.detection import FIELDS, VOC, annotated, left_out
from ..base.format import Format, Probe
from .reader import VocReader
from .writer import VocWriter

HELD = (
    "image", "file_name", "split", "boxes", "labels", "difficult", "truncated", "occluded", "pose", "mask",
    "instances", "sets", "image_extra", "object_extra",
)  # fmt: skip


def sniff(probe: Probe) -> bool:
    """A folder with Annotations/ and JPEGImages/."""
    return probe.ask(annotated) == VOC


FORMAT = Format(
    name="voc",
    title="Pascal VOC",
    suffixes=(".voc",),
    spec="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/index.html",
    reader=VocReader,
    writer=VocWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Tensor, Int, Text, List, Json),
    optional=True,
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=True,
    notes="boxes, flags and masks; lists of ImageSets with split=",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("torchvision", "MMDetection", "FiftyOne", "LabelImg"),
    ),
)
