"""DICOM: series of slices as volumes, through pydicom.

A folder, searched with all folders below it, has a sample for each series: its slices, sorted by their
position along the normal of their planes. A file of several frames is a volume of its own. Values are
rescaled by slope and intercept: whole numbers where both are whole, else float32. Axes are column, row and
slice; the affine maps them to millimetres to the right, the front and the top, as in NIfTI.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..data.arrays import ChunkedArray, Index
from ..errors import (
    BatchplantError,
    DamagedError,
    MissingLibraryError,
    NotFoundError,
    Problem,
    SchemaError,
    located,
    needs,
)
from ..schema import Tensor, Text
from ..schema.columns import AnyArray
from ..storage import Source, join, limits, open_source, tree
from ..storage.cache import ChunkCache
from ..storage.index.progress import in_parallel
from .base.format import Capabilities, Format, Probe
from .base.volumes import IMAGE, Volume, VolumeReader

MAGIC, MAGIC_OFFSET = b"DICM", 128
# Its data set is compressed as a whole, and unpacks to any size before anything is known of it.
DEFLATED = b"1.2.840.10008.1.2.1.99"
HEAD_BYTES = 1024
# Tag of pixels, in both byte orders.
PIXELS = (b"\xe0\x7f\x10\0", b"\x7f\xe0\0\x10")
SUFFIXES = (".dcm", ".dicom", ".ima")
TAGS = (
    "SeriesInstanceUID", "SOPInstanceUID", "InstanceNumber", "Rows", "Columns", "SamplesPerPixel",
    "NumberOfFrames", "BitsStored", "BitsAllocated", "PixelRepresentation", "RescaleSlope",
    "RescaleIntercept", "PixelSpacing",
    "SliceThickness", "SpacingBetweenSlices", "ImagePositionPatient", "ImageOrientationPatient",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
# From the axes of DICOM, to the left and to the back, to those of the affine.
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Plane:
    """A slice: a frame of a file, and its place in space."""

    path: str
    file_bytes: int
    frame: int | None
    series: str
    number: int
    # Columns, rows, and samples of a pixel.
    shape: tuple[int, int, int]
    limits: tuple[int, int]
    scale: tuple[float, float]
    position: tuple[float, ...] | None
    directions: tuple[float, ...]
    # Between columns, rows and slices.
    spacing: tuple[float, ...]

    @property
    def depth(self) -> float:
        """Return the place along the normal of the plane."""
        normal = np.cross(self.directions[:3], self.directions[3:])
        return float(self.number if self.position is None else normal @ np.array(self.position))


def planes_of(path: str) -> list[Plane]:
    """Return the slices of a file; none if it holds no pixels, or is no DICOM."""
    source = open_source(path, HEAD_BYTES)
    try:
        head = source.only(0, min(source.size, HEAD_BYTES)).tobytes()
        if head[MAGIC_OFFSET : MAGIC_OFFSET + 4] != MAGIC:
            return []
        if DEFLATED in head:
            raise SchemaError("its data set is deflated, which is not read", path=path)
        header = _header(source)
        return list(_planes(header, path, source.size)) if "Rows" in header else []
    except BatchplantError as error:
        raise error.at(path=path) from None
    # The library raises many kinds on damaged bytes.
    except Exception as error:
        raise source.failure() or _unreadable(error, path) from None
    finally:
        source.close()


def _header(source: Source) -> Any:
    """Return what lies before the pixels, of which as little as possible is read."""
    size = HEAD_BYTES // 4
    while True:
        size = min(4 * size, source.size)
        stream = io.BytesIO(source.only(0, size).tobytes())
        try:
            header = _pydicom().dcmread(stream, stop_before_pixels=True, specific_tags=list(TAGS))
        # The library raises many kinds where the bytes end.
        except Exception:
            if size == source.size:
                raise
            continue
        if size == source.size or stream.read(4) in PIXELS:
            return header


def _file(source: Source) -> io.BufferedReader:
    """Return a file object that has a name, which pydicom looks at."""
    file = source.file()
    setattr(file.raw, "name", source.path)  # noqa: B010
    return file


def _planes(header: Any, path: str, file_bytes: int) -> Iterator[Plane]:
    frames = int(header.get("NumberOfFrames") or 1)
    per_frame = header.get("PerFrameFunctionalGroupsSequence") or []
    shared = (header.get("SharedFunctionalGroupsSequence") or [None])[0]
    bits, signed = int(header.get("BitsStored") or 16), bool(header.get("PixelRepresentation"))
    shape = (int(header.Columns), int(header.Rows), int(header.get("SamplesPerPixel") or 1))
    if min(shape) < 1 or not 1 <= bits <= 32 or not 1 <= frames <= max(1, 8 * file_bytes):
        raise DamagedError(f"{frames} frames of shape {shape} and {bits} bits")
    limits.check(
        "a slice", shape[0] * shape[1] * shape[2] * int(header.get("BitsAllocated") or 16) // 8, file_bytes
    )
    low = -(1 << bits - 1) if signed else 0
    for frame in range(frames):
        groups = [per_frame[frame]] if frame < len(per_frame) else []

        def value(name: str, group: str, groups: Sequence[Any] = groups) -> Any:
            """Return an attribute of the frame, else of all frames, else of the file."""
            for owner in (*groups, shared):
                inner = None if owner is None else owner.get(group)
                if inner and inner[0].get(name) is not None:
                    return inner[0].get(name)
            return header.get(name)

        slope = value("RescaleSlope", "PixelValueTransformationSequence")
        intercept = value("RescaleIntercept", "PixelValueTransformationSequence")
        rows, columns = value("PixelSpacing", "PixelMeasuresSequence") or (1.0, 1.0)
        between = value("SpacingBetweenSlices", "PixelMeasuresSequence")
        thickness = between or value("SliceThickness", "PixelMeasuresSequence") or 1.0
        position = value("ImagePositionPatient", "PlanePositionSequence")
        directions = value("ImageOrientationPatient", "PlaneOrientationSequence") or AXIAL
        yield Plane(
            path=path,
            file_bytes=file_bytes,
            frame=frame if frames > 1 else None,
            series=str(header.get("SOPInstanceUID" if frames > 1 else "SeriesInstanceUID") or path),
            number=frame if frames > 1 else int(header.get("InstanceNumber") or 0),
            shape=shape,
            limits=(low, low + (1 << bits) - 1),
            scale=(1.0 if slope is None else float(slope), float(intercept or 0)),
            position=None if position is None or len(position) != 3 else _finite(position),
            directions=_finite(directions) if len(directions) == 6 else AXIAL,
            spacing=_finite((columns, rows, thickness)),
        )


def _finite(values: Iterable[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not np.isfinite(numbers).all():
        raise DamagedError(f"{numbers} are no coordinates")
    return numbers


class Slices(ChunkedArray):
    """The slices of a series, each a chunk."""

    def __init__(self, planes: Sequence[Plane], cache: ChunkCache) -> None:
        columns, rows, samples = planes[0].shape
        inner = () if samples == 1 else (samples,)
        ends = [limit * plane.scale[0] + plane.scale[1] for plane in planes for limit in plane.limits]
        whole = all(float(number).is_integer() for plane in planes for number in plane.scale)
        fitting = (kind for kind in ("u1", "i2", "u2", "i4") if self._holds(kind, min(ends), max(ends)))
        dtype = np.dtype(next(fitting, "f4") if whole else "f4")
        path = planes[0].path
        super().__init__(path, IMAGE, (columns, rows, len(planes), *inner), dtype, (columns, rows, 1, *inner))
        self._planes, self._cache = planes, cache

    @staticmethod
    def _holds(kind: str, low: float, high: float) -> bool:
        return np.iinfo(kind).min <= low and high <= np.iinfo(kind).max

    def _chunk(self, index: Index) -> AnyArray:
        plane = self._planes[index[2]]
        return self._cache.get(
            (plane.path, plane.frame), lambda: self._load(plane), lambda array: array.nbytes
        )

    def _load(self, plane: Plane) -> AnyArray:
        pixels = self._pixels(plane)
        columns, rows, samples = plane.shape
        if pixels.shape != ((rows, columns) if samples == 1 else (rows, columns, samples)):
            raise DamagedError(f"its pixels have the shape {pixels.shape}", path=plane.path)
        values: AnyArray = pixels.swapaxes(0, 1)[:, :, None]
        if plane.scale != (1.0, 0.0):
            values = values * np.float64(plane.scale[0]) + np.float64(plane.scale[1])
        return values.astype(self.dtype)

    def _pixels(self, plane: Plane) -> AnyArray:
        source = open_source(plane.path)
        try:
            return _pydicom().pixels.pixel_array(_file(source), index=plane.frame)
        # The library raises many kinds on damaged bytes.
        except Exception as error:
            raise source.failure() or _unreadable(error, plane.path) from None
        finally:
            source.close()

    def _stored(self) -> int | None:
        return sum({plane.path: plane.file_bytes for plane in self._planes}.values())


def _unreadable(error: Exception, path: str) -> BatchplantError:
    """Return our own error for what pydicom raises, which is of many kinds on damaged bytes."""
    text = " ".join(str(error).split())[:200]
    if "missing dependencies" in text or "plugins" in text:
        return MissingLibraryError(
            "its compression needs plug-ins of pydicom: pip install pylibjpeg pylibjpeg-libjpeg "
            f"pylibjpeg-openjpeg ({text})",
            path=path,
        )
    message = f"not DICOM that can be read: {type(error).__name__}: {text}"
    return DamagedError(message, path=path)


class DicomReader(VolumeReader):
    """Reads DICOM: a file, or a folder of series, each a volume.

    ``orientation``: letters of the sides to which axes are to lead, as ``"RAS"``; ``spacing``: distance of
    voxels in millimetres, one number or three, to which they are interpolated. ``cache``: bytes of decoded
    slices in memory.
    """

    def __init__(
        self,
        path: str,
        *,
        orientation: str | None = None,
        spacing: float | Sequence[float] | None = None,
        cache: int | None = None,
    ) -> None:
        self.path = path
        self._cache = ChunkCache(cache)
        _pydicom()
        with located(path=path):
            tree.foresee(path)
            files = [path] if not tree.is_folder(path) else [join(path, name) for name, _ in tree.walk(path)]
            series: dict[tuple[Any, ...], list[Plane]] = {}
            for plane in (plane for planes in in_parallel(planes_of, files) for plane in planes):
                directions = tuple(round(number, 3) for number in plane.directions)
                series.setdefault((plane.series, plane.shape, directions), []).append(plane)
            if not series:
                raise NotFoundError("there are no slices of DICOM")
            self._series = [
                sorted(planes, key=lambda plane: (plane.depth, plane.number, plane.path))
                for _, planes in sorted(series.items())
            ]
            names: list[str] = []
            for planes in self._series:
                name, count = (
                    planes[0].series,
                    sum(other[0].series == planes[0].series for other in self._series),
                )
                names.append(name if count == 1 else f"{name}-{sum(n.startswith(name) for n in names) + 1}")
            self._set_volumes(
                names,
                {IMAGE: [self._volume_of(planes) for planes in self._series]},
                orientation=orientation,
                spacing=spacing,
            )

    def _volume_of(self, planes: list[Plane]) -> Volume:
        first, last = planes[0], planes[-1]
        affine = np.eye(4)
        across, down = np.array(first.directions[:3]), np.array(first.directions[3:])
        affine[:3, 0], affine[:3, 1] = across * first.spacing[0], down * first.spacing[1]
        affine[:3, 2] = np.cross(across, down) * first.spacing[2]
        if first.position is not None:
            affine[:3, 3] = first.position
            if last.position is not None and last.depth > first.depth:
                affine[:3, 2] = np.subtract(last.position, first.position) / (len(planes) - 1)
        files = {plane.path: plane.file_bytes for plane in planes}
        runs = tuple((path, 0, size) for path, size in files.items())
        return Volume(Slices(planes, self._cache), TO_RAS @ affine, runs)

    def _verify(self) -> Iterator[Problem]:
        for sample, planes in enumerate(self._series):
            steps = np.diff([plane.depth for plane in planes])
            if len(steps) and steps.max() - steps.min() > 0.05 * abs(steps).max():
                message = f"its slices are from {steps.min():.3g} to {steps.max():.3g} mm apart"
                yield Problem(message, planes[0].path, sample=sample)

    def close(self) -> None:
        self._cache.clear()


def _pydicom() -> Any:
    with needs("DICOM needs pydicom", "dicom"):
        import pydicom
        import pydicom.pixels
    return pydicom


def sniff(probe: Probe) -> bool:
    """True for a file with its magic, and for a folder with a DICOMDIR or files of its suffixes."""
    if not probe.folder:
        return probe.head[MAGIC_OFFSET : MAGIC_OFFSET + 4] == MAGIC
    return any(name == "DICOMDIR" or name.lower().endswith(SUFFIXES) for name in probe.names)


FORMAT = Format(
    name="dicom",
    title="DICOM",
    suffixes=SUFFIXES,
    spec="https://www.dicomstandard.org/current",
    reader=DicomReader,
    sniff=sniff,
    kinds=(Tensor, Text),
    folder=None,
    extra="dicom",
    notes="series as volumes, sorted by position and rescaled; files of several frames",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("pydicom", "ITK", "3D Slicer", "MONAI"),
    ),
)
