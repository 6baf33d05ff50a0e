"""The checks, each a small class. A new one is listed below and has a section of its name in the guide."""

from .damage import CorruptSamples, Empty, Names, Pickles
from .duplicates import Duplicates, SimilarImages
from .episodes import EpisodeTimes, FrozenCameras, Leftovers, OrphanRows, RestingEpisodes, WrongStatistics
from .images import ExifRotation, LargeImages, MixedModes, PngPhotographs
from .labels import ClassImbalance, SortedLabels, TextLabels
from .storage import CompressedFiles, FewShards, LargeBlocks, TinyFiles, UnequalShards
from .values import Float64, MissingValues, NaiveTimes, NotFinite, OddValues, Padding

CHECKS = (
    Empty,
    CorruptSamples,
    Pickles,
    Names,
    MissingValues,
    NotFinite,
    OddValues,
    SortedLabels,
    ClassImbalance,
    TextLabels,
    Duplicates,
    SimilarImages,
    MixedModes,
    ExifRotation,
    LargeImages,
    PngPhotographs,
    NaiveTimes,
    Float64,
    Padding,
    EpisodeTimes,
    FrozenCameras,
    RestingEpisodes,
    WrongStatistics,
    OrphanRows,
    Leftovers,
    TinyFiles,
    FewShards,
    UnequalShards,
    LargeBlocks,
    CompressedFiles,
)
