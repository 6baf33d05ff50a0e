"""Steps of a pipeline: decoders, augmentation, changes to values, functions of users. Public.

``base`` defines ops. For images: ``cutting`` and ``crops`` decode, crop, resize, flip and pad; ``warping``
rotates; ``colour`` and ``policies`` change pixels by the ``changes`` of the native core; ``mixing`` blends
samples; ``annotations`` moves boxes, masks and keypoints along (by the ``geometry`` of each step). ``audio``,
``spectrogram``, ``video`` and ``volumes`` are for those, ``values`` and ``normalize`` for numbers, labels and
text, ``sparse`` for rows of sparse matrices,
``function`` and ``joint`` for functions of users (in the threads and processes of ``parallel``).
An op has a CPU form and, where it can, a device form. Pipelines name ops and ``loading`` runs them; an op
knows no file, no reader and no framework.

Parameters that mean the same for every op that has them. p: probability that a sample is changed. share: ops
of this name draw the same numbers for a sample, in whatever fields they run. fill: value of pixels that come
from outside the image, or one for each channel. filter: how pixels are resampled, such as bilinear or
nearest; None: area, and nearest for masks, whose values must not be blended. orient: turn images upright
first, as their EXIF orientation says. workers: threads (default: all cores, divided by LOCAL_WORLD_SIZE).
"""

from __future__ import annotations

from .annotations import MoveBoxes, MoveKeypoints, MoveMask, MovePolygons, MoveRle
from .audio import AddNoise, CropOrPad, DecodeAudio, RandomGain, TimeShift
from .base import CellErrors, CellOp, Draws, Op, Spec
from .colour import (
    AutoContrast,
    ColorJitter,
    Equalize,
    GaussianBlur,
    GaussianNoise,
    Invert,
    JpegArtifacts,
    Posterize,
    RandomBrightness,
    RandomContrast,
    RandomErasing,
    RandomGrayscale,
    RandomHue,
    RandomSaturation,
    RandomSolarization,
    Sharpness,
)
from .crops import (
    CenterCrop,
    Collate,
    Decode,
    HorizontalFlip,
    ImageDecoder,
    ImagePad,
    Letterbox,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
    VerticalFlip,
)
from .function import Function
from .joint import JointOp, Map, Stack
from .mixing import CopyPaste, CutMix, MixUp, Mosaic
from .normalize import ChannelsFirst, Normalize
from .policies import AugMix, RandAugment, TrivialAugment
from .sparse import Binarize, Log1p, NormalizeTotal, SelectColumns, ToDense
from .spectrogram import MelSpectrogram, SpecAugment, Spectrogram
from .values import Categories, Convert, Fill, Pad, Present, Tokenize
from .video import DecodeVideo
from .volumes import CenterCrop3d, RandomCrop3d, RandomFlip3d, RandomIntensity, RandomRotate90
from .warping import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AddNoise",
    "AugMix",
    "AutoContrast",
    "Binarize",
    "Categories",
    "CellErrors",
    "CellOp",
    "CenterCrop",
    "CenterCrop3d",
    "ChannelsFirst",
    "Collate",
    "ColorJitter",
    "Convert",
    "CopyPaste",
    "CropOrPad",
    "CutMix",
    "Decode",
    "DecodeAudio",
    "DecodeVideo",
    "Draws",
    "Equalize",
    "Fill",
    "Function",
    "GaussianBlur",
    "GaussianNoise",
    "HorizontalFlip",
    "ImageDecoder",
    "ImagePad",
    "Invert",
    "JointOp",
    "JpegArtifacts",
    "Letterbox",
    "Log1p",
    "Map",
    "MelSpectrogram",
    "MixUp",
    "Mosaic",
    "MoveBoxes",
    "MoveKeypoints",
    "MoveMask",
    "MovePolygons",
    "MoveRle",
    "Normalize",
    "NormalizeTotal",
    "Op",
    "Pad",
    "Posterize",
    "Present",
    "RandAugment",
    "RandomAffine",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomCrop3d",
    "RandomErasing",
    "RandomFlip3d",
    "RandomGain",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomHue",
    "RandomIntensity",
    "RandomPerspective",
    "RandomResizedCrop",
    "RandomRotate90",
    "RandomRotation",
    "RandomSaturation",
    "RandomSolarization",
    "RandomTranslate",
    "RandomVerticalFlip",
    "Resize",
    "SelectColumns",
    "Sharpness",
    "Spec",
    "SpecAugment",
    "Spectrogram",
    "Stack",
    "TimeShift",
    "ToDense",
    "Tokenize",
    "TrivialAugment",
    "VerticalFlip",
]
