"""What ``Loader(bucket_by="aspect")`` goes by: how wide images are for their height."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.mix import Mix
from ..data.reader import Reader
from ..errors import DataError, OptionError
from ..schema import Image
from ..schema.columns import I64
from .locate import Locator, sizes_of, turns_of
from .plan import Plan

F32 = npt.NDArray[np.float32]


def find_aspects(reader: Reader, plan: Plan) -> Callable[[I64], Any]:
    """Width by height of the images of samples, by their numbers."""
    for output in plan.images:
        field = reader.schema[output.field]
        if output.image is not None and not (isinstance(field, Image) and field.mask):
            orient = output.image.decoder.op.orient
            if isinstance(reader, Mix):
                # Its numbers go on from pass to pass.
                of_source = _Aspects(reader.base, output.field, orient)
                return lambda samples: of_source(reader._rows(samples))
            return _Aspects(reader, output.field, orient)
    raise OptionError('bucket_by="aspect" is for images, and the batches have none')


class _Aspects:
    """As headers tell them, each read once."""

    def __init__(self, reader: Reader, field: str, orient: bool) -> None:
        self._field, self._orient, self._locator = field, orient, Locator(reader)
        self._lock = threading.Lock()
        self._known: F32 = np.zeros(len(reader), dtype=np.float32)

    def __call__(self, samples: I64) -> F32:
        with self._lock:
            new = np.unique(samples[self._known[samples] == 0])
            if len(new):
                try:
                    self._known[new] = self._read(new)
                except DataError:
                    for one in new:
                        self._known[one] = self._alone(one)
            return self._known[samples]

    def _alone(self, sample: int) -> Any:
        try:
            return self._read(np.array([sample]))[0]
        except DataError:
            # It is said when the sample is read.
            return 1.0

    def _read(self, samples: I64) -> Any:
        cells = self._locator.find(self._field, samples)
        sizes = sizes_of(cells)
        if self._orient:
            turned = turns_of(cells) >= 5
            sizes[turned] = sizes[turned, ::-1]
        # Where the header tells nothing, a square.
        sizes[~sizes.all(axis=1)] = 1
        return sizes[:, 1] / sizes[:, 0]
