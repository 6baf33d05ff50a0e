"""Base classes of detection formats: image files with annotations beside them.

A sample is an image with its objects. Fields that have a row for each object stand in one order:

- ``image``, ``file_name``: the image, and its path below the folder of images;
- ``boxes``, ``labels``: where the objects are, and their classes;
- ``polygons``, ``rle``, ``keypoints``: their outlines, masks in COCO's run-length text, keypoints;
- what else a format knows: ``area``, ``iscrowd``, ``difficult`` …
- ``image_extra``, ``object_extra``: what a file says of the image and of each object besides, as JSON.
"""

from ..folders.annotated import COCO, VOC, YOLO, annotated, coco_files, is_coco, is_yaml, zipped_coco
from .boxes import FIELDS, boxes_as, boxes_field, left_out, narrowed, outside
from .reader import DetectionReader, ragged, spread, with_boxes
from .writer import DetectionWriter

__all__ = [
    "COCO", "FIELDS", "VOC", "YOLO", "DetectionReader", "DetectionWriter", "annotated", "boxes_as",
    "boxes_field", "coco_files", "is_coco", "is_yaml", "left_out", "narrowed", "outside", "ragged", "spread",
    "with_boxes", "zipped_coco",
]  # fmt: skip
