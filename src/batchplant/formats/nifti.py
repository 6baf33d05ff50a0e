"""NIfTI-1 and NIfTI-2: medical volumes, one per file, and raw folders of nnU-Net.

A header of 348 or 540 bytes in either byte order, extensions, then the values, first axis fastest, at
``vox_offset``: in the same file (``.nii``, ``.nii.gz``), or in ``NAME.img`` beside ``NAME.hdr``. Values are
``slope * stored + intercept`` where the header has a slope. The affine is that of ``sform``, else of
``qform``, else of the spacing alone.

A file is a dataset of one sample, a folder one of all its volumes, by name. In a folder of nnU-Net, and of
the Medical Segmentation Decathlon, images are in ``imagesTr``, each channel in a file ``NAME_0000.nii.gz`` of
its own, and labels in ``labelsTr``. In a root of BIDS, ``suffix`` chooses among the images below ``sub-*``.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import io
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import (
    DamagedError,
    DataError,
    EncodeError,
    NotFoundError,
    OptionError,
    Problem,
    SchemaError,
    exceptions_as,
    located,
    on_error,
)
from ..schema import Field, Float, Int, Json, Tensor, Text
from ..schema.columns import AnyArray, AnyDType
from ..storage import NOTE_ERRORS, Source, index, join, limits, open_source, parse_object, tree
from ..storage.cache import ChunkCache
from ..storage.compressed import CHECKED, GzipSource, UnpackedSource, check_gzip, inflate, kind_of, limited
from ..storage.index.progress import in_parallel
from ..storage.opening import read_text
from .base.format import Capabilities, Format, Probe
from .base.volumes import COPIED_BYTES, IMAGE, LABEL, SLAB_BYTES, Slabs, Stacked, Volume, VolumeReader

# -- BIDS ---------------------------------------------------------------------------------------------
# The images of a root as a table, with entities of their names, participants and side-cars.
#
# ``sub-01/ses-2/anat/sub-01_ses-2_T1w.nii.gz``: ``sub`` and ``ses`` are entities, ``anat`` is the datatype,
# ``T1w`` the suffix. A side-car of JSON holds for all files of its folder and below that have its suffix and
# its entities; of several the one nearest to the file decides.

DESCRIPTION, PARTICIPANTS = "dataset_description.json", "participants.tsv"
MISSING = "n/a"
SUFFIX, DATATYPE, SIDECAR = "suffix", "datatype", "sidecar"


class Name(NamedTuple):
    """Entities and suffix of a file name."""

    entities: dict[str, str]
    suffix: str


def parse_name(stem: str) -> Name:
    """Return the parts of a file name without its extension."""
    *pairs, suffix = stem.split("_")
    parts = (pair.partition("-") for pair in pairs)
    return Name({key: value for key, dash, value in parts if dash}, suffix)


BidsColumns = dict[str, tuple[Field, list[Any]]]


def images_of(root: str, suffix: str | None) -> tuple[dict[str, str], BidsColumns]:
    """Return the files of a root by name, and columns about them."""
    files: dict[str, tuple[str, Name, str]] = {}
    sidecars: list[tuple[str, str, Name]] = []
    for path, _ in tree.walk(root):
        folder, base = os.path.split(path)
        if base.endswith(".json"):
            sidecars.append((folder, path, parse_name(base.removesuffix(".json"))))
        elif path.startswith("sub-") and base.lower().endswith((".nii", ".nii.gz")):
            files[stem_of(base)] = path, parse_name(stem_of(base)), os.path.basename(folder)
    suffixes = sorted({name.suffix for _, name, _ in files.values()})
    if not files:
        raise NotFoundError("there are no images of subjects in the BIDS root")
    if (suffix is None and len(suffixes) > 1) or suffix not in (None, *suffixes):
        raise OptionError(f"suffix is one of {', '.join(suffixes)}, not {suffix!r}")
    files = {stem: files[stem] for stem in sorted(files) if suffix in (None, files[stem][1].suffix)}
    keys = dict.fromkeys(key for _, name, _ in files.values() for key in name.entities)
    columns: BidsColumns = {
        key: _texts(name.entities.get(key) for _, name, _ in files.values()) for key in keys
    }
    columns[DATATYPE] = _texts(datatype for _, _, datatype in files.values())
    columns[SUFFIX] = _texts(name.suffix for _, name, _ in files.values())
    cache: dict[str, Mapping[str, Any]] = {}
    columns[SIDECAR] = (
        Json(),
        [_sidecar(root, path, name, sidecars, cache) for path, name, _ in files.values()],
    )
    subjects = [f"sub-{name.entities.get('sub')}" for _, name, _ in files.values()]
    for key, column in _participants(join(root, PARTICIPANTS), subjects).items():
        columns.setdefault(key, column)
    return {stem: join(root, path) for stem, (path, _, _) in files.items()}, columns


def _sidecar(
    root: str, path: str, name: Name, sidecars: Sequence[tuple[str, str, Name]],
    cache: dict[str, Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the side-cars of a file, merged."""
    above = [
        (folder.count("/") if folder else -1, len(about.entities), place)
        for folder, place, about in sidecars
        if (not folder or path.startswith(f"{folder}/"))
        and about.suffix == name.suffix
        and about.entities.items() <= name.entities.items()
    ]
    merged: dict[str, Any] = {}
    for _, _, place in sorted(above):
        if place not in cache:
            where = join(root, place)
            with exceptions_as(DamagedError, "not an object of JSON", *NOTE_ERRORS, path=where):
                cache[place] = parse_object(read_text(where))
        merged |= cache[place]
    return merged


def _participants(path: str, subjects: Sequence[str]) -> BidsColumns:
    """Return the columns of participants for each of these subjects."""
    if not tree.is_file(path):
        return {}
    with exceptions_as(DamagedError, "not a table", csv.Error, path=path):
        rows = list(csv.DictReader(io.StringIO(read_text(path)), delimiter="\t", strict=True))
    by_subject = {row.get("participant_id"): row for row in rows}
    names = [name for name in (rows[0] if rows else ()) if name and name != "participant_id"]
    return {name: _typed([by_subject.get(subject, {}).get(name) for subject in subjects]) for name in names}


def _typed(values: Sequence[str | None]) -> tuple[Field, list[Any]]:
    """Return numbers where all values are numbers as they would be written, else texts."""
    cells = [None if value in (None, "", MISSING) else value for value in values]
    present = [value for value in cells if value is not None]
    whole = r"-?(0|[1-9]\d{0,17})"
    kinds = ((Int, int, whole), (Float, float, rf"{whole}(\.\d*)?([eE][+-]?\d{{1,2}})?"))
    for kind, convert, pattern in kinds:
        if present and all(re.fullmatch(pattern, value, re.ASCII) for value in present):
            numbers = [None if value is None else convert(value) for value in cells]
            return kind(optional=None in cells), numbers
    return _texts(cells)


def _texts(values: Iterable[str | None]) -> tuple[Field, list[Any]]:
    cells = list(values)
    return Text(optional=None in cells), cells


def is_bids_root(names: Iterable[str]) -> bool:
    """Return whether a folder with these names is a root of BIDS."""
    present = list(names)
    return DESCRIPTION in present and any(name.startswith("sub-") for name in present)


def description_of(root: str) -> dict[str, str]:
    """Return what the description of a root says."""
    path = join(root, DESCRIPTION)
    with exceptions_as(DamagedError, "not an object of JSON", *NOTE_ERRORS, path=path):
        content = parse_object(read_text(path))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in content.items()}


# -- NIfTI --------------------------------------------------------------------------------------------

__all__ = ["save"]

# Bytes of the header, and of what is read of a file to find it.
SIZES, HEAD_BYTES = (348, 540), 1024
MAGICS = (b"n+1\0", b"ni1\0", b"n+2\0\r\n\x1a\n", b"ni2\0\r\n\x1a\n")
DTYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 32: "c8", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8",
    1280: "u8", 1792: "c16",
}  # fmt: skip
NAMES = {1: "bits", 128: "RGB", 1536: "float128", 2048: "complex256", 2304: "RGBA"}
SUFFIXES = (".nii", ".nii.gz")
# Compressed volumes of fewer bytes are unpacked as a whole; of larger ones, the slabs that are needed.
WHOLE_BYTES = 32 << 20
# Of an opened file in the cache: a mapping, or seek points, which have a fraction of the unpacked bytes.
SOURCE_BYTES, POINTS_SHARE = 1 << 16, 32
POINTS_VERSION = 1
METADATA = ("channel_names", "modality", "labels")
_CHANNEL = re.compile(r"(.+)_(\d{4})")


def _layout(size: int) -> AnyDType:
    """Return the fields of a header that are read here."""
    # NumPy evaluates the counts of strings such as "8i2", which can fail in threads of CPython 3.11.
    if size == SIZES[0]:
        offsets = (344, 40, 70, 76, 108, 112, 116, 252, 254, 256, 268, 280)
        magic, dim, code, start, number = "S4", "i2", "i2", "f4", "f4"
    else:
        offsets = (4, 16, 12, 104, 168, 176, 184, 344, 348, 352, 376, 400)
        magic, dim, code, start, number = "S8", "i8", "i4", "i8", "f8"
    counted = [(number, 3), (number, 3), (number, (3, 4))]
    formats = [magic, (dim, 8), "i2", (number, 8), start, number, number, code, code, *counted]
    names = (
        "magic", "dim", "datatype", "pixdim", "vox_offset", "scl_slope", "scl_inter", "qform_code",
        "sform_code", "quatern", "qoffset", "srow",
    )  # fmt: skip
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


class Header(NamedTuple):
    """Facts of a header about the values."""

    shape: tuple[int, ...]
    dtype: AnyDType
    start: int
    scale: tuple[float, float] | None
    affine: AnyArray
    # True if the values are in a file of their own.
    paired: bool

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def is_header(head: bytes) -> bool:
    """Return whether a file that begins like this is one of NIfTI."""
    size = _size(head)
    return size is not None and (head[344:348] if size == SIZES[0] else head[4:12]) in MAGICS


def _size(head: bytes) -> int | None:
    sizes = [struct.unpack(order + "i", head[:4])[0] for order in "<>"] if len(head) >= SIZES[0] else []
    return next((size for size in sizes if size in SIZES), None)


def parse(head: bytes) -> Header:
    """Return the facts of a header; DamagedError for what none can be."""
    size = _size(head)
    if size is None or not is_header(head) or len(head) < size:
        raise DamagedError(f"not NIfTI: no header of {SIZES[0]} or {SIZES[1]} bytes with its magic", offset=0)
    order: Literal["<", ">"] = "<" if struct.unpack("<i", head[:4])[0] == size else ">"
    raw = np.frombuffer(head, dtype=_layout(size).newbyteorder(order), count=1)[0]
    axes, code = int(raw["dim"][0]), int(raw["datatype"])
    shape = tuple(raw["dim"][1 : axes + 1].tolist())
    if not 1 <= axes <= 7 or min(shape) < 1:
        raise DamagedError(f"the header has {axes} axes of sizes {shape}", offset=40 if size == 348 else 16)
    if code not in DTYPES:
        raise SchemaError(f"values of type {NAMES.get(code, code)} are not read")
    paired = bytes(raw["magic"])[:2] == b"ni"
    start = float(raw["vox_offset"])
    # Writers leave out the offset that there must be.
    start = start or (0 if paired else size + 4)
    if not (start >= (0 if paired else size) and start < 1 << 62):
        raise DamagedError(
            f"the header says that values begin at {start}", offset=108 if size == 348 else 168
        )
    slope, intercept = float(raw["scl_slope"]), float(raw["scl_inter"])
    scaled = slope != 0 and math.isfinite(slope) and (slope, intercept) != (1, 0)
    if scaled and not math.isfinite(intercept):
        raise DamagedError(f"the slope of values is {slope}, and their intercept {intercept}")
    dtype = np.dtype(order + DTYPES[code])
    return Header(
        shape, dtype, int(start), (slope, intercept) if scaled else None, _affine(raw, shape), paired
    )


def _affine(raw: np.void, shape: tuple[int, ...]) -> AnyArray:
    affine = np.eye(4)
    spacing = raw["pixdim"][1:4].astype(np.float64)
    if raw["sform_code"] > 0:
        affine[:3] = raw["srow"]
        return affine
    if raw["qform_code"] > 0:
        b, c, d = raw["quatern"].astype(np.float64).tolist()
        squared = 1 - (b * b + c * c + d * d)
        # A rotation by 180 degrees may come out slightly longer than 1.
        if not squared > -3 * np.finfo(raw["quatern"].dtype).eps:
            raise DamagedError(f"the quaternion {b}, {c}, {d} of the header is no rotation")
        a = math.sqrt(max(0.0, squared))
        rotation = np.array([
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ])  # fmt: skip
        affine[:3, :3] = rotation * spacing * (1, 1, -1 if raw["pixdim"][0] < 0 else 1)
        affine[:3, 3] = raw["qoffset"]
        return affine
    # Nothing is known but distances: the middle is the origin, and the first axis leads to the left.
    sides = np.array((*shape, 1, 1)[:3], dtype=np.float64)
    affine[:3, :3] = np.diag(spacing * (-1, 1, 1))
    affine[:3, 3] = -affine[:3, :3] @ ((sides - 1) / 2)
    return affine


def read_header(path: str) -> tuple[Header, int, bool]:
    """Return the header of a file, the bytes of the file, and whether it is compressed."""
    with contextlib.closing(open_source(path, HEAD_BYTES)) as source, located(path=path):
        head = source.only(0, min(source.size, HEAD_BYTES)).tobytes()
        packed = kind_of(head) == "gzip"
        return parse(_unpacked(head) if packed else head), source.size, packed


def _unpacked(head: bytes) -> bytes:
    with exceptions_as(DamagedError, "not sound gzip", zlib.error):
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES)


class Files:
    """Opened files of volumes, in the cache of their reader."""

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache

    def volume(self, path: str, field: str, dtype: str | None) -> Volume:
        """Return the volume of a file; only its header is read."""
        header, size, packed = read_header(path)
        data = path
        if header.paired:
            data = next((name for name in _images(path) if tree.is_file(name)), path)
            if data == path:
                raise NotFoundError("the values are in a file .img beside it, which is not there", path=path)
            with contextlib.closing(open_source(data, HEAD_BYTES)) as source:
                size, packed = source.size, kind_of(source.only(0, min(16, source.size)).tobytes()) == "gzip"
        with located(path=data):
            if packed:
                limits.check("the volume", header.nbytes + header.start, size)
            elif header.start + header.nbytes > size:
                raise DamagedError(
                    f"values of shape {header.shape} take {header.nbytes} bytes, but the file ends at {size}",
                    offset=header.start,
                )
            values = np.dtype(np.float32) if header.scale and header.dtype.kind in "iu" else header.dtype
            values = values.newbyteorder("=") if dtype is None else np.dtype(dtype)
        # Of a volume that takes much of the cache, slabs are kept.
        slabs = packed and header.nbytes > min(WHOLE_BYTES, self._cache.max_bytes // 4)
        slab_bytes = min(SLAB_BYTES, self._cache.max_bytes // 16) if slabs else COPIED_BYTES
        open_data = functools.partial(self._source, data, header.start + header.nbytes, packed, slabs)
        array = Slabs(
            data, field, header.shape, header.dtype, values, header.start, open_data, self._cache,
            packed=size if packed else 0, scale=header.scale, slab_bytes=slab_bytes,
        )  # fmt: skip
        run = (data, 0, size) if packed else (data, header.start, header.nbytes)
        return Volume(array, header.affine, (run,))

    def _source(self, path: str, end: int, packed: bool, slabs: bool) -> Source:
        if not packed:
            return self._cache.get((path, "source"), lambda: open_source(path), lambda _: SOURCE_BYTES)
        if slabs:
            points = lambda: _with_points(path, end)  # noqa: E731
            return self._cache.get((path, "source"), points, lambda _: end // POINTS_SHARE)
        return self._cache.get((path, "source"), lambda: _first_bytes(path, end), lambda _: end)


def _images(path: str) -> Iterator[str]:
    stem = path[: -len(".hdr.gz")] if path.lower().endswith(".hdr.gz") else os.path.splitext(path)[0]
    yield from (type(path)(f"{stem}{suffix}") for suffix in (".img", ".img.gz", ".IMG"))


def _first_bytes(path: str, end: int) -> Source:
    """Return the first bytes of a compressed file, unpacked."""
    with contextlib.closing(open_source(path)) as source:
        out, size = np.empty(end, dtype=np.uint8), 0
        for piece in limited(inflate(source), path, source.size):
            piece = piece[: end - size]
            out[size : size + len(piece)] = piece
            size += len(piece)
            if size == end:
                return UnpackedSource(path, out)
        raise DamagedError(
            f"{end} bytes are needed, but {size} are packed here", path=path, offset=source.size
        )


def _with_points(path: str, end: int) -> GzipSource:
    """Open a compressed file for random access; its seek points are remembered where that pays."""
    source = open_source(path)

    def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        # Not closed, for that would close the source too.
        return {"points": GzipSource(source, end).points()}, {}

    with on_error(source.close, path=path):
        points = index.load(
            source, "nifti", build, version=POINTS_VERSION, check=lambda stored: stored.has(points="u1")
        )
        return GzipSource(source, end, points.arrays["points"])


class NiftiReader(VolumeReader):
    """Reads volumes of NIfTI: a file, a folder of files, a folder of nnU-Net, or a root of BIDS.

    ``orientation``: letters of the sides to which axes are to lead, as ``"RAS"``; ``spacing``: distance of
    voxels in millimetres, one number or three: images are interpolated, of labels the nearest is taken.
    ``dtype``: of the values (default: as stored, float32 for whole numbers that have a slope). ``split``: of
    nnU-Net, train or test. ``suffix``: of BIDS, which images, as ``"T1w"``. ``cache``: bytes of unpacked
    volumes in memory.
    """

    def __init__(
        self,
        path: str,
        *,
        orientation: str | None = None,
        spacing: float | Sequence[float] | None = None,
        dtype: str | None = None,
        split: str = "train",
        suffix: str | None = None,
        cache: int | None = None,
    ) -> None:
        self.path = path
        self._cache = ChunkCache(cache)
        self._metadata: dict[str, str] = {}
        self._about: BidsColumns = {}
        if dtype is not None:
            with exceptions_as(OptionError, "dtype", TypeError):
                dtype = np.dtype(dtype).name
        with located(path=path):
            names, files = self._files(split, suffix)
            open_volume = Files(self._cache).volume
            paths = [
                (file, field) for field, channels in files.items() for channel in channels for file in channel
            ]
            with tree.keeping():
                opened = in_parallel(lambda item: open_volume(item[0], item[1], dtype), paths, threads=8)
            for field in files:
                arrays = [volume.array for volume in opened if volume.array.field == field]
                for array in arrays:
                    array.dtype = np.result_type(*{array.dtype for array in arrays})
            in_order = iter(opened)
            volumes = {
                field: [_stacked([next(in_order) for _ in channel]) for channel in channels]
                for field, channels in files.items()
            }
            self._set_volumes(names, volumes, orientation=orientation, spacing=spacing, about=self._about)

    def _files(self, split: str, suffix: str | None) -> tuple[list[str], dict[str, list[list[str]]]]:
        """Return the names of samples, and the files of each field: one for each channel."""
        if not tree.is_folder(self.path):
            return [stem_of(self.path)], {IMAGE: [[self.path]]}
        if is_bids_root(tree.names(self.path)):
            self._metadata = description_of(self.path)
            files, self._about = images_of(self.path, suffix)
            return list(files), {IMAGE: [[file] for file in files.values()]}
        folders = {"train": ("imagesTr", "labelsTr"), "test": ("imagesTs", "labelsTs")}
        if split not in folders:
            raise OptionError(f"split is train or test, not {split!r}")
        images, labels = (join(self.path, name) for name in folders[split])
        if not tree.is_folder(images):
            files = volumes_in(self.path)
            if not files:
                raise NotFoundError("there are no volumes in the folder")
            return list(files), {IMAGE: [[file] for file in files.values()]}
        self._metadata = _dataset(join(self.path, "dataset.json"))
        channels: dict[str, dict[str, str]] = {}
        truth = volumes_in(labels)
        for stem, file in volumes_in(images).items():
            match = None if stem in truth else _CHANNEL.fullmatch(stem)
            case, channel = match.groups() if match else (stem, "")
            channels.setdefault(case, {})[channel] = file
        if not channels:
            raise NotFoundError("there are no volumes in the folder", path=images)
        names = sorted(channels)
        for sample, name in enumerate(names):
            if channels[name].keys() != channels[names[0]].keys():
                here, first = (", ".join(sorted(channels[case])) for case in (name, names[0]))
                message = f"{name} has the channels {here}, and {names[0]} has {first}"
                raise DamagedError(message, path=images, sample=sample)
            if truth and name not in truth:
                raise DamagedError(f"there is no label of {name}", path=labels, sample=sample)
        fields = {IMAGE: [[file for _, file in sorted(channels[name].items())] for name in names]}
        return names, fields | ({LABEL: [[truth[name]] for name in names]} if truth else {})

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._metadata

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,) if any(self._compressed()) else ()

    def _compressed(self) -> Iterator[tuple[int, str]]:
        for volumes in self.volumes.values():
            for sample, volume in enumerate(volumes):
                yield from ((sample, path) for path, _, _ in volume.runs if path.lower().endswith(".gz"))

    def _verify(self) -> Iterator[Problem]:
        for sample, path in self._compressed():
            try:
                check_gzip(path)
            except DataError as error:
                yield Problem.of(error.at(path=path, sample=sample))

    def close(self) -> None:
        self._cache.clear()


def _stacked(volumes: Sequence[Volume]) -> Volume:
    """Return the channels of a sample as one volume."""
    if len(volumes) == 1:
        return volumes[0]
    runs = tuple(run for volume in volumes for run in volume.runs)
    return Volume(Stacked([volume.array for volume in volumes]), volumes[0].affine, runs)


def stem_of(path: str) -> str:
    """Return the name of a file without the suffix of NIfTI."""
    return re.sub(r"\.(nii|hdr|img)(\.gz)?$", "", os.path.basename(path.rstrip("/")), flags=re.IGNORECASE)


def volumes_in(folder: str) -> dict[str, str]:
    """Return the files of volumes in a folder by their names without suffix, sorted."""
    names = [name for name in tree.names(folder) if not name.startswith(".")]
    present = set(names)
    files: dict[str, str] = {}
    for name in sorted(names):
        stem = stem_of(name)
        pair = name.endswith((".hdr", ".hdr.gz")) and not present.isdisjoint(
            (f"{stem}.img", f"{stem}.img.gz")
        )
        if name.lower().endswith(SUFFIXES) or pair:
            if stem in files:
                raise DamagedError(f"{name} and {os.path.basename(files[stem])} have one name", path=folder)
            files[stem] = join(folder, name)
    return files


def _dataset(path: str) -> dict[str, str]:
    """Return what dataset.json says about channels and labels."""
    if not tree.is_file(path):
        return {}
    with exceptions_as(DamagedError, "not JSON", ValueError, RecursionError, path=path):
        content = json.loads(read_text(path))
    return {
        name: json.dumps(content[name]) for name in METADATA if isinstance(content, dict) and name in content
    }


def save(path: str | os.PathLike[str], values: npt.ArrayLike, affine: npt.ArrayLike | None = None) -> None:
    """Write an array as NIfTI-1; a name with .gz at its end is compressed. ``affine``: default the identity.

    Raises: EncodeError for a dtype or a shape that NIfTI-1 does not have.
    """
    array: AnyArray = np.asarray(values)
    array = array.astype(np.uint8) if array.dtype == np.bool_ else array
    codes = {dtype: code for code, dtype in DTYPES.items()}
    code = codes.get(array.dtype.str[1:])
    if code is None or not 1 <= array.ndim <= 7 or not 0 < min(array.shape) <= max(array.shape) < 1 << 15:
        raise EncodeError(f"NIfTI-1 cannot hold {array.dtype} {array.shape}", path=os.fspath(path))
    matrix = np.eye(4) if affine is None else np.asarray(affine, dtype=np.float64)
    head = np.zeros((), dtype=_layout(SIZES[0]).newbyteorder("<"))
    head["magic"], head["datatype"], head["vox_offset"], head["sform_code"] = MAGICS[0], code, 352, 1
    head["dim"] = [array.ndim, *array.shape, *(1,) * (7 - array.ndim)]
    head["pixdim"][:4] = [1, *np.sqrt((matrix[:3, :3] ** 2).sum(axis=0))]
    head["scl_slope"], head["srow"] = 1, matrix[:3]
    data = bytearray(head.tobytes())
    # Size of the header; bits of a value; millimetres.
    struct.pack_into("<i", data, 0, SIZES[0])
    struct.pack_into("<h", data, 72, 8 * array.dtype.itemsize)
    data[123] = 2
    content = bytes(data) + bytes(4) + array.astype(array.dtype.newbyteorder("<")).tobytes(order="F")
    with open(path, "wb") as out:
        out.write(gzip.compress(content, 6, mtime=0) if os.fspath(path).endswith(".gz") else content)


def sniff(probe: Probe) -> bool:
    """True for a header of NIfTI, also a compressed one, and for a folder with such files."""
    if probe.folder:
        names = probe.names
        names = [name.rstrip("/") for name in names]
        return (
            "imagesTr" in names
            or is_bids_root(names)
            or any(name.lower().endswith(SUFFIXES) for name in names)
        )
    head = probe.head
    if kind_of(head) == "gzip":
        try:
            head = _unpacked(head[:HEAD_BYTES])
        except DamagedError:
            return False
    return is_header(head)


FORMAT = Format(
    name="nifti",
    title="NIfTI",
    suffixes=SUFFIXES,
    spec="https://nifti.nimh.nih.gov/",
    reader=NiftiReader,
    sniff=sniff,
    kinds=(Tensor, Text, Int, Float, Json),
    optional=True,
    folder=None,
    notes="affine, spacing; raw folders of nnU-Net; roots of BIDS; "
    "`batchplant.formats.nifti.save` writes a volume",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        compression=("gzip",),
        compressed="file",
        remote_ranges=True,
        splittable=True,
        ecosystem=("nibabel", "MONAI", "nnU-Net", "ITK"),
    ),
)
