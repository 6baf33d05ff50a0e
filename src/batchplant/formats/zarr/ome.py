"""OME-Zarr 0.4 and 0.5: one level of an image and of its labels as fields, wells of a plate as samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import BatchplantError, DamagedError, OptionError, SchemaError
from ...order.keyed import whole
from ..base.arrays import ChunkLocation, Grid, Grids, Index

IMAGE, LABELS = "image", "labels"
# Groups with numbers are images, and nothing says that they are alike.
SERIES = "bioformats2raw.layout"
MAX_WELLS = 100_000

Attributes = Callable[[str], Mapping[str, Any]]


def is_ome(attributes: Mapping[str, Any]) -> bool:
    """True for the attributes of an image or of a plate."""
    return bool({"multiscales", "plate", SERIES} & _ome(attributes).keys())


def choose(grids: Grids, attributes_of: Attributes, level: int, channels: Sequence[int] | None) -> Grids:
    """Return the fields of an image or a plate. ``attributes_of`` the path of a group returns its own."""
    try:
        ome = _ome(attributes_of(""))
        if "plate" in ome:
            return {IMAGE: _stacked(_plate(ome["plate"], grids, attributes_of, level, channels))}
        if SERIES in ome:
            images = sorted({path.split("/")[0] for path in grids if "/" in path})
            raise SchemaError(f"it holds the images {', '.join(images[:20])}: open one of them, as PATH/0")
        image, axes = _level(ome, "", grids, level, channels), _axes(ome["multiscales"][0])
        fields = {IMAGE: image}
        for name in sorted({path.split("/")[1] for path in grids if path.startswith(f"{LABELS}/")}):
            inner = _ome(attributes_of(f"{LABELS}/{name}"))
            if "multiscales" in inner:
                labels = _level(inner, f"{LABELS}/{name}/", grids, level, None)
                own = _axes(inner["multiscales"][0])
                fields[f"{LABELS}/{name}"] = _aligned(labels, own, image, axes)
        return fields
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DamagedError(f"its metadata of OME is damaged: {error!r}") from None


def pyramid(
    grids: Grids, attributes_of: Attributes, channels: Sequence[int] | None
) -> tuple[str, list[Grid]]:
    """Return the levels of an image, and a letter for each axis."""
    ome = _ome(attributes_of(""))
    first = ome["multiscales"][0]
    levels = [_level(ome, "", grids, level, channels) for level in range(len(first["datasets"]))]
    return "".join(name[:1].upper() for name in _axes(first)), levels


def _axes(multiscale: Mapping[str, Any]) -> list[str]:
    """Return the names of the axes; none in versions that had no names."""
    return [axis["name"] if isinstance(axis, dict) else axis for axis in multiscale.get("axes") or ()]


def _ome(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = attributes.get("ome")
    return inner if isinstance(inner, dict) else attributes


def _level(
    ome: Mapping[str, Any], prefix: str, grids: Grids, level: int, channels: Sequence[int] | None
) -> Grid:
    first = ome["multiscales"][0]
    paths = [str(entry["path"]) for entry in first["datasets"]]
    if not 0 <= whole("level", level, 0) < len(paths):
        raise OptionError(f"there is no level {level}; there are {len(paths)}")
    grid = grids.get(prefix + paths[level])
    if not isinstance(grid, Grid):
        raise grid if isinstance(grid, BatchplantError) else DamagedError(f"there is no array {paths[level]}")
    if channels is None:
        return grid
    names = _axes(first)
    if "c" not in names:
        raise OptionError(f"there are no channels to choose; the axes are {', '.join(names)}")
    return _of_channels(grid, names.index("c"), channels)


def _of_channels(grid: Grid, axis: int, channels: Sequence[int]) -> Grid:
    numbers, locate = [whole("channels", channel, 0) for channel in channels], grid.locate
    if not numbers or max(numbers) >= grid.shape[axis]:
        raise OptionError(f"channels are some of {grid.shape[axis]}, from 0 on, not {list(channels)}")
    count = len(numbers)
    if grid.chunks[axis] >= grid.shape[axis]:
        # A chunk has all channels.
        shape, chunks = ((*sizes[:axis], count, *sizes[axis + 1 :]) for sizes in (grid.shape, grid.chunks))
        return dataclasses.replace(
            grid, shape=shape, chunks=chunks, plain=False, coding=None, header=None,
            decode=lambda data: grid.decode(data).take(numbers, axis),
        )  # fmt: skip
    if grid.chunks[axis] != 1:
        raise OptionError(
            f"its chunks hold {grid.chunks[axis]} of {grid.shape[axis]} channels: choose among what is read"
        )

    def located(index: Index) -> ChunkLocation | None:
        return locate((*index[:axis], numbers[index[axis]], *index[axis + 1 :]))

    shape = (*grid.shape[:axis], count, *grid.shape[axis + 1 :])
    return dataclasses.replace(grid, shape=shape, locate=located)


def _aligned(labels: Grid, axes: Sequence[str], image: Grid, image_axes: Sequence[str]) -> Grid:
    """Return labels with all axes of the image, repeated along those that they lack, as channels."""
    common = [axis for axis in image_axes if axis in axes]
    if list(axes) != common or len(axes) != len(labels.shape) or len(image_axes) != len(image.shape):
        return labels
    # For each axis of the image that of the labels, and where it is among those of the image.
    own: list[int | None] = []
    places: list[int | None] = [None] * len(axes)
    for number, (axis, size) in enumerate(zip(image_axes, image.shape, strict=True)):
        own_axis = axes.index(axis) if axis in axes else None
        # One of length 1 is repeated, too.
        if own_axis is not None and (
            labels.shape[own_axis] != 1 or labels.chunks[own_axis] != 1 or size == 1
        ):
            places[own_axis] = number
        else:
            own_axis = None
        own.append(own_axis)
    if None not in own:
        return labels
    shape = tuple(size if n is None else labels.shape[n] for n, size in zip(own, image.shape, strict=True))
    chunks = tuple(1 if n is None else labels.chunks[n] for n in own)

    def locate(index: Index) -> ChunkLocation | None:
        return labels.locate(tuple(0 if place is None else index[place] for place in places))

    return dataclasses.replace(
        labels, shape=shape, chunks=chunks, locate=locate, per_file=1,
        decode=lambda data: labels.decode(data).reshape(chunks),
    )  # fmt: skip


def wells(plate: Mapping[str, Any], attributes_of: Attributes) -> list[str]:
    """Return the paths of the images of a plate, well by well."""
    entries = plate["wells"]
    if len(entries) > MAX_WELLS:
        raise DamagedError(f"a plate claims {len(entries)} wells")
    return [
        f"{entry['path']}/{image['path']}"
        for entry in entries
        for image in _ome(attributes_of(str(entry["path"]))).get("well", {}).get("images", ())
    ]


def _plate(
    plate: Mapping[str, Any], grids: Grids, attributes_of: Attributes, level: int, channels: Any
) -> list[Grid]:
    paths = wells(plate, attributes_of)
    if not paths:
        raise SchemaError("the plate has no images")
    return [_level(_ome(attributes_of(path)), f"{path}/", grids, level, channels) for path in paths]


def _stacked(images: Sequence[Grid]) -> Grid:
    """Return the images as one array, each a row of it."""
    first = images[0]
    for image in images:
        if any(
            getattr(image, name) != getattr(first, name) for name in ("shape", "chunks", "dtype", "packing")
        ):
            raise SchemaError(
                f"the images of a plate differ: {image.name} has {image.dtype} {image.shape}, and "
                f"{first.name} {first.dtype} {first.shape}"
            )

    def locate(index: Index) -> ChunkLocation | None:
        return images[index[0]].locate(index[1:])

    return dataclasses.replace(
        first, name="", shape=(len(images), *first.shape), chunks=(1, *first.chunks), locate=locate,
        decode=lambda data: first.decode(data)[None], per_file=1,
    )  # fmt: skip
