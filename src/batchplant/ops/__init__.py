"""Steps of a pipeline: decoders, augmentation, changes to values, any function. Public.

``base`` says what an op is. ``decode``, ``colour`` and ``augment`` are for pictures, ``audio`` and
``video`` decode those, ``sound`` and ``spectrogram`` are for decoded sounds, ``volumes`` for those,
``values`` and ``categories`` for numbers and labels, ``tokens`` for text, ``function`` for those of users (in
threads: ``each``, in ``processes``). An op has its CPU form and, where it can, its device form. Pipelines
name ops and ``loading`` runs them; an op knows no file, no reader and no framework.
"""

from __future__ import annotations

from .audio import DecodeAudio
from .augment import Cutout, ImageMixup, Poison, RandomCrop, RandomTranslate
from .base import CellErrors, CellOp, Draws, Op, Spec
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
    ImageDecoder,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from .function import Function
from .sound import AddNoise, CropOrPad, RandomGain, TimeShift
from .spectrogram import MelSpectrogram, SpecAugment, Spectrogram
from .tokens import Tokenize
from .values import Convert, LabelMixup, MixupToOneHot, Pad, Present, ReplaceLabel, Squeeze, View
from .video import DecodeVideo
from .volumes import CenterCrop3d, RandomCrop3d, RandomFlip3d, RandomIntensity, RandomRotate90

__all__ = [
    "AddNoise",
    "Categories",
    "CellErrors",
    "CellOp",
    "CenterCrop",
    "CenterCrop3d",
    "ChannelsFirst",
    "ColorJitter",
    "Convert",
    "CropOrPad",
    "Cutout",
    "Decode",
    "DecodeAudio",
    "DecodeVideo",
    "Draws",
    "Function",
    "GaussianBlur",
    "ImageDecoder",
    "ImageMixup",
    "LabelMixup",
    "MelSpectrogram",
    "MixupToOneHot",
    "Normalize",
    "Op",
    "Pad",
    "Poison",
    "Present",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomCrop3d",
    "RandomFlip3d",
    "RandomGain",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomHue",
    "RandomIntensity",
    "RandomResizedCrop",
    "RandomRotate90",
    "RandomSaturation",
    "RandomSolarization",
    "RandomTranslate",
    "ReplaceLabel",
    "Resize",
    "Spec",
    "SpecAugment",
    "Spectrogram",
    "Squeeze",
    "TimeShift",
    "Tokenize",
    "View",
]
