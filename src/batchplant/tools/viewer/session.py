"""What one viewer has open, and what it is computing."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...data.reader import Reader
from ...data.tensors import is_tensors
from ...errors import NotFoundError, OptionError
from ...loading.locate import Locator
from .cells import shows
from .jobs import Jobs
from .media.recent import Recent
from .media.sound import Window
from .media.tokens import Tokenizer
from .media.video import Movie
from .pixels import Images

if TYPE_CHECKING:
    from .loaders import Loaders

# Digits of a number in a request: 64-bit numbers have fewer.
MAX_DIGITS = 20
NUMBER = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")
# Bytes of decoded sounds, and of videos, that are kept.
KEPT = 64 << 20
# The thumbnails that the page asks for first, and how large those are on most screens.
FIRST_ROWS, FIRST_SIZE = 50, 192


@dataclasses.dataclass(frozen=True)
class Side:
    """One dataset: ``a``, or ``b`` that it is compared with."""

    name: str
    reader: Reader
    title: str
    # What token numbers stand for, where it was named.
    tokenizer: Tokenizer | None = None

    @functools.cached_property
    def locator(self) -> Locator:
        """Finds cells where they lie in files."""
        return Locator(self.reader)

    @functools.cached_property
    def shows(self) -> dict[str, str]:
        """How each field is shown."""
        found = {name: shows(name, kind) for name, kind in self.reader.schema.items()}
        # The bytes of a tensor are an array.
        return found | ({"data": "array"} if is_tensors(self.reader.schema) else {})

    @property
    def image(self) -> str | None:
        """The field whose images are shown in the grid."""
        return self.first("image") or self.first("mask")

    def first(self, how: str) -> str | None:
        """The first field that is shown like this."""
        return next((name for name, one in self.shows.items() if one == how), None)


class Session:
    def __init__(
        self, reader: Reader, other: Reader | None = None, *, pipeline: Any = None, live: Any = None,
        title: str = "", tokenizer: Tokenizer | None = None,
    ) -> None:  # fmt: skip
        self.sides = {"a": Side("a", reader, title or str(reader.path), tokenizer)}
        if other is not None:
            self.sides["b"] = Side("b", other, str(other.path), tokenizer)
        # A Loader's keyword arguments by name, or None: see augment.py.
        self.pipeline = pipeline
        # The loaders that run in this process and are watched, or None: see dashboard.py.
        self.live = live
        self.jobs = Jobs()
        self.images = Images()
        # Sounds and videos that are being looked at.
        self.windows: Recent[Window] = Recent(KEPT, lambda one: one.samples.nbytes)
        self.clips: Recent[Movie] = Recent(KEPT, lambda one: one.data.nbytes)

    @functools.cached_property
    def loaders(self) -> Loaders:
        """What makes samples as a pipeline says; imported when one is asked for, for that takes long."""
        from .loaders import Loaders

        return Loaders()

    def warm(self) -> None:
        """Begin with the thumbnails that the page asks for first; the server takes as long to start."""
        side = self.sides["a"]
        if side.image is not None:
            self.images.begin(side, side.image, np.arange(min(FIRST_ROWS, len(side.reader))), FIRST_SIZE)

    def side(self, params: Mapping[str, str]) -> Side:
        name = params.get("side", "a")
        if name not in self.sides:
            raise NotFoundError(f"there is no dataset {name!r} here")
        return self.sides[name]

    def sample(self, side: Side, text: str) -> int:
        """The number of a sample that is there."""
        number = digits(text)
        if number is None or not 0 <= number < len(side.reader):
            raise NotFoundError(f"there is no sample {text[:20]}; there are {len(side.reader):,}")
        return number

    def field(self, side: Side, name: str) -> str:
        if name not in side.reader.schema:
            raise NotFoundError(f"there is no field {name[:100]!r}")
        return name

    def close(self) -> None:
        self.jobs.close()
        if "loaders" in vars(self):
            self.loaders.close()
        self.images.close()
        self.windows.clear()
        self.clips.clear()


def digits(text: str) -> int | None:
    """A whole number in ASCII digits; None for other texts. int() refuses texts of thousands of digits."""
    return int(text) if NUMBER.fullmatch(text) else None


def whole(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number out of a request, within bounds."""
    text = params.get(name)
    if text is None:
        return default
    number = digits(text)
    if number is None:
        raise OptionError(f"{name} has to be a whole number of at most {MAX_DIGITS} digits")
    return min(max(number, low), high)
