"""A running viewer: the dataset that it has open, its jobs and caches."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.reader import Reader
from ...errors import NotFoundError, OptionError
from .cells import Dataset, Tokenizer
from .jobs import Jobs, RecentCache
from .media.recordings import Movie, Window
from .pixels import Images
from .slides import Slide

if TYPE_CHECKING:
    from .pipelines import PipelineLoaders

# Digits of an integer in a request: 64-bit integers have fewer.
MAX_DIGITS = 20
INTEGER = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")
# Bytes of decoded sounds, and of videos, that are cached.
MAX_CACHED_BYTES = 64 << 20
# Slides whose directories are kept.
MAX_SLIDES = 8
# The first request of the page for thumbnails: how many, and their size in pixels on most screens.
FIRST_THUMBNAILS, FIRST_THUMBNAIL_PIXELS = 50, 192


class Session:
    """State of one viewer, shared by all requests."""

    def __init__(
        self, reader: Reader, *, pipeline: Any = None, live: Any = None, title: str = "",
        tokenizer: Tokenizer | None = None,
    ) -> None:  # fmt: skip
        self.dataset = Dataset(reader, title or str(reader.path), tokenizer)
        # Keyword arguments of a Loader, or None: see augment.py.
        self.pipeline = pipeline
        # The Dashboard of the loaders of this process, or None.
        self.live = live
        self.jobs = Jobs()
        self.images = Images()
        self.sounds: RecentCache[Window] = RecentCache(MAX_CACHED_BYTES, lambda window: window.samples.nbytes)
        self.slides: RecentCache[Slide] = RecentCache(MAX_SLIDES, lambda slide: 1)
        self.videos: RecentCache[Movie] = RecentCache(MAX_CACHED_BYTES, lambda movie: movie.data.nbytes)

    @functools.cached_property
    def loaders(self) -> PipelineLoaders:
        """Loaders that augment single samples; imported on first use because that takes long."""
        from .pipelines import PipelineLoaders

        return PipelineLoaders()

    def warm(self) -> None:
        """Prepare the thumbnails that the page asks for first, while the server starts."""
        dataset = self.dataset
        if dataset.image is not None:
            self.images.prepare(
                dataset,
                dataset.image,
                np.arange(min(FIRST_THUMBNAILS, len(dataset.reader))),
                FIRST_THUMBNAIL_PIXELS,
            )

    def sample(self, dataset: Dataset, text: str) -> int:
        """Return the number of an existing sample."""
        number = parse_integer(text)
        if number is None or not 0 <= number < len(dataset.reader):
            raise NotFoundError(f"there is no sample {text[:20]}; there are {len(dataset.reader):,}")
        return number

    def field(self, dataset: Dataset, name: str) -> str:
        """Return the name of an existing field."""
        if name not in dataset.reader.schema:
            raise NotFoundError(f"there is no field {name[:100]!r}")
        return name

    def close(self) -> None:
        self.jobs.close()
        if "loaders" in vars(self):
            self.loaders.close()
        self.images.close()
        self.sounds.clear()
        self.videos.clear()
        self.slides.clear()


def parse_integer(text: str) -> int | None:
    """Return an integer of a few ASCII digits; None for other texts, such as those that int() refuses."""
    return int(text) if INTEGER.fullmatch(text) else None


def integer_param(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return an integer of a request, clipped to bounds."""
    text = params.get(name)
    if text is None:
        return default
    number = parse_integer(text)
    if number is None:
        raise OptionError(f"{name} has to be a whole number of at most {MAX_DIGITS} digits")
    return min(max(number, low), high)
