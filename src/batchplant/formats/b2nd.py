"""Arrays of Blosc2 (``.b2nd``), and folders that nnU-Net has preprocessed, through blosc2.

A file is a dataset of one sample, a folder one of all its files, by name; ``NAME_seg.b2nd`` has the labels of
``NAME.b2nd``. Of an array of four axes the first, the channels, becomes the last, or is left out where it has
one. The other axes are as they are stored: those of the plans of nnU-Net, from the slowest to the fastest.
Pickles beside the arrays are not looked at. Spacing is that of the plans in the folder above.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data.arrays import Array, Picks
from ..errors import DamagedError, NotFoundError, SchemaError, exceptions_as, located, needs, on_error
from ..schema import Tensor, Text
from ..schema.columns import AnyArray, AnyDType
from ..storage import Source, join, limits, open_source, tree
from ..storage.cache import ChunkCache
from ..storage.index.progress import in_parallel
from ..storage.opening import read_text
from .base.format import Capabilities, Format, Probe
from .base.volumes import IMAGE, LABEL, Turned, Volume, VolumeReader

SUFFIX, LABELS = ".b2nd", "_seg"
# What nnU-Net keeps of an earlier step of its cascade.
LEFT_OUT = "_seg_from_prev_stage"
MAGIC, KIND, HEAD_BYTES = b"b2frame\0", b"\xa4b2nd\xd2", 1024
# Of an opened file in the cache: a mapping, and the places of its chunks.
OPENED_BYTES = 1 << 16
MAX_AXES, MAX_VALUES = 8, 1 << 58


class Shape(NamedTuple):
    """Shape, chunks and dtype of an array, and the size of its file."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: AnyDType
    size: int


class Blocks(Array):
    """An array of Blosc2, opened when it is sliced.

    The library unpacks the blocks that a slice touches, on its own threads. Whole chunks in a cache took
    longer: a random patch touches parts of many.
    """

    def __init__(self, path: str, field: str, stated: Shape, cache: ChunkCache) -> None:
        super().__init__(path, field, stated.shape, stated.dtype.newbyteorder("="), stated.chunks)
        self._stated, self._cache = stated, cache

    def _take(self, picks: Picks) -> AnyArray:
        if not all(picks):
            return np.empty(tuple(map(len, picks)), dtype=self.dtype)
        sides = [pick[-1] + 1 - pick[0] for pick in picks]
        limits.check("the slice", math.prod(sides) * self.dtype.itemsize, self._stated.size)
        _, array = self._cache.get((self.path, "array"), self._open, lambda _: OPENED_BYTES)
        # The library raises many kinds on damaged bytes.
        with exceptions_as(DamagedError, "a chunk does not unpack", Exception, path=self.path):
            box = array[tuple(slice(pick[0], pick[-1] + 1) for pick in picks)]
        return np.asarray(box, self.dtype)[tuple(slice(None, None, pick.step) for pick in picks)]

    def _open(self) -> tuple[Source, Any]:
        """Return the source of the file, and the array of the library in its bytes."""
        source = open_source(self.path)
        with on_error(source.close), located(path=self.path):
            # Not blosc2.open: it follows references to other files and servers, and evaluates expressions.
            with exceptions_as(DamagedError, "not an array of Blosc2", Exception):
                array = _blosc2().ndarray_from_cframe(source.view(0, source.size))
            stored = Shape(array.shape, array.chunks, array.dtype, source.size)
            if stored != self._stated or array.schunk.nchunks != math.prod(
                -(-size // side) for size, side in zip(self.shape, self.chunks, strict=True)
            ):
                raise DamagedError("it is not the array that its header describes")
            return source, array

    def _stored(self) -> int | None:
        return self._stated.size


class Channel(Array):
    """The only channel of an array: its first axis is left out."""

    def __init__(self, array: Array) -> None:
        super().__init__(array.path, array.field, array.shape[1:], array.dtype, array.chunks[1:])
        self._array = array

    def _take(self, picks: Picks) -> AnyArray:
        return self._array._take((range(1), *picks))[0]

    def _stored(self) -> int | None:
        return self._array._stored()


def _blosc2() -> Any:
    with needs("arrays of Blosc2 need blosc2", "blosc2"):
        import blosc2
    return blosc2


def read_shape(path: str) -> Shape:
    """Return what the header of a file says."""
    with contextlib.closing(open_source(path, HEAD_BYTES)) as source, located(path=path):
        head = source.only(0, min(source.size, HEAD_BYTES)).tobytes()
        name = head.find(KIND)
        if head[2:10] != MAGIC or name < 0:
            raise DamagedError("not an array of Blosc2", offset=0)
        with exceptions_as(
            DamagedError, "its header is damaged", struct.error, LookupError, TypeError, ValueError
        ):
            # MessagePack: a binary of seven entries; where it begins stands behind its name.
            (start,) = struct.unpack_from(">i", head, name + len(KIND))
            axes = head[start + 7]
            shape = struct.unpack_from(">" + "xq" * axes, head, start + 9)
            chunks = struct.unpack_from(">" + "xi" * axes, head, start + 10 + 9 * axes)
            text = start + 12 + 19 * axes
            (length,) = struct.unpack_from(">xi", head, text)
            dtype = np.dtype(head[text + 5 : text + 5 + length].decode())
        if dtype.kind not in "biufc" or not 1 <= axes <= MAX_AXES:
            raise SchemaError(f"values of {dtype} on {axes} axes are not read")
        if min(shape) < 0 or min(chunks) < 1 or math.prod(max(1, side) for side in shape) > MAX_VALUES:
            raise DamagedError(f"the header says {shape} in chunks of {chunks}")
        limits.check("a chunk", dtype.itemsize * math.prod(map(min, chunks, shape)), source.size)
        return Shape(shape, chunks, dtype, source.size)


class B2ndReader(VolumeReader):
    """Reads arrays of Blosc2: a file, or a folder of them, such as one that nnU-Net has preprocessed.

    ``spacing``: distance of voxels in millimetres, one number or three, to which images are interpolated; of
    labels the nearest is taken. ``cache``: bytes that what is known of opened files may take.
    """

    def __init__(
        self, path: str, *, spacing: float | Sequence[float] | None = None, cache: int | None = None
    ) -> None:
        self.path = path
        self._cache = ChunkCache(cache)
        with located(path=path):
            files = self._files()
            names = list(files[IMAGE])
            _blosc2()
            steps = _spacing(path if tree.is_folder(path) else os.path.dirname(path))
            volumes = {
                field: in_parallel(
                    functools.partial(self._volume, field=field, steps=steps), [*paths.values()]
                )
                for field, paths in files.items()
            }
            self._set_volumes(names, volumes, spacing=spacing)

    def _files(self) -> dict[str, dict[str, str]]:
        """Return the files of each field by the names of samples."""
        if not tree.is_folder(self.path):
            return {IMAGE: {os.path.basename(self.path).removesuffix(SUFFIX): self.path}}
        stems = sorted(name.removesuffix(SUFFIX) for name in tree.names(self.path) if name.endswith(SUFFIX))
        images = [name for name in stems if not name.endswith((LABELS, LEFT_OUT))]
        if not images:
            raise NotFoundError("there are no arrays of Blosc2 in the folder")
        files = {IMAGE: {name: join(self.path, name + SUFFIX) for name in images}}
        labelled = set(stems).intersection(name + LABELS for name in images)
        if not labelled:
            return files
        for sample, name in enumerate(images):
            if name + LABELS not in labelled:
                raise DamagedError(f"there is no label of {name}", sample=sample)
        return files | {LABEL: {name: join(self.path, name + LABELS + SUFFIX) for name in images}}

    def _volume(self, path: str, field: str, steps: Sequence[float]) -> Volume:
        stated = read_shape(path)
        array: Array = Blocks(path, field, stated, self._cache)
        if array.ndim == 4:
            array = Channel(array) if array.shape[0] == 1 else Turned(array, (1, 2, 3, 0), (False,) * 4)
        return Volume(array, np.diag([*steps, 1.0]), ((path, 0, stated.size),))

    def close(self) -> None:
        self._cache.clear()


def _spacing(folder: str) -> Sequence[float]:
    """Return the spacing that the plans of nnU-Net beside a folder name for it, else 1."""
    above, name = os.path.split(folder.rstrip("/"))
    for stem in itertools.accumulate(name.split("_")[:-1], lambda a, b: f"{a}_{b}"):
        plans = join(above or ".", f"{stem}.json")
        if not tree.is_file(plans):
            continue
        with exceptions_as(DamagedError, "not JSON", ValueError, RecursionError, path=plans):
            content = json.loads(read_text(plans))
        for owner in ("configurations", name[len(stem) + 1 :], "spacing"):
            content = content.get(owner) if isinstance(content, Mapping) else None
        if isinstance(content, list) and len(content) in (2, 3):
            sides = [float(side) for side in content if isinstance(side, int | float) and 0 < side < math.inf]
            if len(sides) == len(content):
                return [1.0] * (3 - len(sides)) + sides
    return (1.0, 1.0, 1.0)


def sniff(probe: Probe) -> bool:
    """True for a frame of Blosc2 that is an array, and for a folder of such."""
    if probe.folder:
        return any(name.endswith(SUFFIX) for name in probe.names)
    return probe.head[2:10] == MAGIC and KIND in probe.head[:HEAD_BYTES]


FORMAT = Format(
    name="b2nd",
    title="Blosc2 arrays",
    suffixes=(SUFFIX,),
    spec="https://github.com/Blosc/c-blosc2/blob/main/README_B2ND_METALAYER.rst",
    reader=B2ndReader,
    sniff=sniff,
    kinds=(Tensor, Text),
    folder=None,
    extra="blosc2",
    notes="a sample for each file, with its labels; folders that nnU-Net has preprocessed",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        compression=("blosc2",),
        compressed="chunk",
        remote_ranges=True,
        splittable=True,
        ecosystem=("nnU-Net", "blosc2"),
    ),
)
