"""Steps of a pipeline: decoders, augmentation, changes to values, any function. Public.

``base`` says what an op is. ``decode``, ``colour``, ``levels``, ``policies`` and ``erasing`` are for
images (``changes`` is what some of them are made of), ``audio`` and ``video`` decode those,
``sound`` and ``spectrogram`` are for decoded sounds, ``volumes`` for those, ``values`` and ``categories``
for numbers and labels, ``tokens`` for text, ``function`` for those of users (in threads: ``each``, in
``processes``). An op has its CPU form and, where it can, its device form. Pipelines name ops and
``loading`` runs them; an op knows no file, no reader and no framework.
"""

from __future__ import annotations

from .audio import DecodeAudio
from .base import CellErrors, CellOp, Draws, Op, Spec
from .blending import CutMix, MixUp
from .categories import Categories
from .colour import (
    ColorJitter,
    GaussianBlur,
    RandomBrightness,
    RandomContrast,
    RandomGrayscale,
    RandomHue,
    RandomSaturation,
    RandomSolarization,
)
from .decode import (
    CenterCrop,
    ChannelsFirst,
    Decode,
    HorizontalFlip,
    ImageDecoder,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    VerticalFlip,
)
from .erasing import RandomErasing
from .filling import Fill
from .framing import Collate, ImagePad, Letterbox, RandomCrop, RandomTranslate
from .function import Function
from .joint import JointOp, Map, Stack
from .levels import AutoContrast, Equalize, GaussianNoise, Invert, JpegArtifacts, Posterize, Sharpness
from .mixing import CopyPaste, Mosaic
from .moving import MoveBoxes, MoveKeypoints, MoveMask, MovePolygons, MoveRle
from .policies import AugMix, RandAugment, TrivialAugment
from .sound import AddNoise, CropOrPad, RandomGain, TimeShift
from .spectrogram import MelSpectrogram, SpecAugment, Spectrogram
from .tokens import Tokenize
from .values import Convert, Pad, Present
from .video import DecodeVideo
from .volumes import CenterCrop3d, RandomCrop3d, RandomFlip3d, RandomIntensity, RandomRotate90
from .warping import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AddNoise",
    "AugMix",
    "AutoContrast",
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
    "Sharpness",
    "Spec",
    "SpecAugment",
    "Spectrogram",
    "Stack",
    "TimeShift",
    "Tokenize",
    "TrivialAugment",
    "VerticalFlip",
]
