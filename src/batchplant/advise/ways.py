"""A way to store a dataset: a format with the options that the settings mean for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..codecs.media.image_rules import ImageOptions
from ..format import Format
from ..options import own_options
from ..schema import Image, Schema

# Best first, of those that a format knows: the smallest, or what every reader of the format has.
PACKERS = {"small": ("zstd", "brotli", "gzip", "lz4", "lzf"), "known": ("gzip", "zstd", "lz4", "lzf")}
LEVEL = 9
# Names that writers have for the same thing: bytes in a block, samples in a chunk.
UNIT_NAMES = ("row_group_size", "batch_size")
CHUNK_NAMES = ("chunk_samples", "chunk")
PICTURES = ("max_resolution", "image_format", "quality")


@dataclasses.dataclass(frozen=True)
class Way:
    """A format, the options of its writer, how pictures are stored. ``stays``: the dataset as it lies."""

    format: str
    suffix: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stays: bool = False

    @property
    def label(self) -> str:
        told = {**self.options, **self.images}
        said = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in told.items())
        return f"{self.format}{' as it is' if self.stays else ''}{f' ({said})' if said else ''}"

    @property
    def image_options(self) -> ImageOptions:
        return ImageOptions(**self.images)


def _shown(value: Any) -> str:
    return f"{value >> 20} MiB" if isinstance(value, int) and value >= 1 << 20 else str(value)


def way_of(found: Format, settings: Mapping[str, Any], schema: Schema) -> Way:
    """How these settings are written in a format, as far as it knows them."""
    own = own_options(found.writer) if found.writer else {}
    options: dict[str, Any] = {}
    suffix = "".join(found.suffixes[:1])
    if "compress" in settings:
        options, suffix = _compressed(found, own, suffix, PACKERS[settings["compress"]])
    if "unit_bytes" in settings:
        options |= {name: settings["unit_bytes"] for name in UNIT_NAMES if name in own}
    if "chunk_samples" in settings:
        options |= {name: settings["chunk_samples"] for name in CHUNK_NAMES if name in own}
    # What the writer does by itself need not be said.
    options = {name: value for name, value in options.items() if own[name].default != value}
    pictures = any(isinstance(field, Image) for field in schema.values())
    images = {name: settings[name] for name in PICTURES if name in settings} if pictures else {}
    return Way(found.name, suffix, options, images)


def raw_of(way: Way) -> Way:
    """The same with pictures as raw pixels: nothing to decode, for a multiple of the space."""
    kept = {name: value for name, value in way.images.items() if name == "max_resolution"}
    return dataclasses.replace(way, images={**kept, "image_format": "raw"})


def _compressed(
    found: Format, own: Mapping[str, Any], suffix: str, packers: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    packer = next((one for one in packers if one in found.can.compression), None)
    if packer is None:
        return {}, suffix
    if "compression" in own:
        # 9 is hard for each of them, and quick enough.
        return {"compression": packer, **({"level": LEVEL} if "level" in own else {})}, suffix
    ending = {"zstd": ".zst", "gzip": ".gz"}.get(packer, "")
    return {}, next((one for one in found.suffixes if ending and one.endswith(ending)), suffix)
