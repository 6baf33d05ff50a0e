"""What every writer understands, whatever its format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from ..codecs.media.image_rules import ImageOptions, Images
from ..errors import OptionError
from ..schema import Image, Schema
from .reader import Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What every writer understands, whatever its format.

    length: how many samples will come, where known. workers: threads that encode (default: all cores).
    on_error: ``raise``, or ``skip`` to leave out what cannot be encoded and list it in ``skipped``.
    images: ImageOptions for all fields, or by field; fields that are not named get the usual ones, or those
    of ``other_images``. checksums: also write a side-car with the CRC of every cell. resume: go on from the
    checkpoint of a writer that was suspended. append: more is
    to be appended, now or later. base: the dataset at the target, where samples are added to it.
    first: where other writers write other samples of the dataset, the number of the first one here. piece:
    what is written is a piece, for ``Writer.add_pieces``; aligned, if ``first`` is where its rows begin, or
    loose, if samples before it may be missing.
    """

    overwrite: bool = False
    length: int | None = None
    workers: int | None = None
    on_error: str = "raise"
    images: Images = dataclasses.field(default_factory=ImageOptions)
    other_images: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    checksums: bool = False
    resume: bool = False
    append: bool = False
    base: Reader | None = None
    first: int = 0
    piece: Literal["aligned", "loose"] | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise OptionError(f"on_error is raise or skip, not {self.on_error!r}")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be at least 1, not {self.workers}")
        named = self.images.values() if isinstance(self.images, Mapping) else [self.images]
        if not all(isinstance(one, ImageOptions) for one in named):
            raise OptionError("images is an ImageOptions, or maps fields to ImageOptions")

    def images_of(self, field: str) -> ImageOptions:
        """How the images of a field are stored."""
        return self.images.get(field, self.other_images) if isinstance(self.images, Mapping) else self.images

    def check_images(self, schema: Schema) -> None:
        """OptionError where there are options for images of a field that holds none."""
        for name, field in schema.select(self.images if isinstance(self.images, Mapping) else ()).items():
            if not isinstance(field, Image):
                raise OptionError(f"images has options for {name!r}, which is {field} and no image")
