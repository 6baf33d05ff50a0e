"""Contents of a file and their locations, from the library; reading then needs no library.

Only this module, attribute_texts and the writer import h5py: the package imports without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import h5py
import numpy as np

from ...errors import BatchplantError, DamagedError, OptionError, SchemaError, needs
from ...schema import MOST_BYTES
from ...schema.columns import I64, AnyDType
from ...storage import Source, is_remote, limits
from ...storage.cache import ChunkCache
from ...storage.patterns import natural
from ...storage.urls import options_at
from . import attribute_texts, stored
from .attribute_texts import AXES, plain
from .stored import DESCRIPTOR, Part

# -- types --------------------------------------------------------------------------------------------
# HDF5 types: where in the stored bytes of an element its parts lie, and what they are.


def parts_of(kind: Any, name: str = "", offset: int = 0) -> tuple[list[Part], int]:
    """The parts of a type and the bytes that an element takes in the file; SchemaError for strange types."""
    if isinstance(kind, h5py.h5t.TypeCompoundID) and not _is_complex(kind):
        result: list[Part] = []
        # Parts of varying length are larger in the file, and move what lies behind them.
        moved = 0
        numbers = sorted(range(kind.get_nmembers()), key=kind.get_member_offset)
        for number in numbers:
            inner = kind.get_member_type(number)
            label = kind.get_member_name(number).decode()
            start = offset + kind.get_member_offset(number) + moved
            full = f"{name}.{label}" if name else label
            try:
                parts, size = parts_of(inner, full, start)
            except SchemaError as error:
                # A reference may be larger in the file, and move what lies behind it.
                if not isinstance(inner, h5py.h5t.TypeOpaqueID | h5py.h5t.TypeArrayID | h5py.h5t.TypeTimeID):
                    raise
                size = inner.get_size()
                parts = [Part(full, "number", start, size, np.dtype("u1"), refused=error.message)]
            result += parts
            moved += size - inner.get_size()
        return result, kind.get_size() + moved
    part = _simple(kind, name, offset)
    return [part], part.width


def _is_complex(kind: Any) -> bool:
    return bool(kind.dtype.kind == "c")


def _simple(kind: Any, name: str, offset: int) -> Part:
    if isinstance(kind, h5py.h5t.TypeStringID):
        utf8 = kind.get_cset() == h5py.h5t.CSET_UTF8
        vlen, size = kind.is_variable_str(), kind.get_size()
        width = DESCRIPTOR.itemsize if vlen else size
        label = "vlen" if vlen else "string"
        return Part(name, label, offset, width, np.dtype("u1"), (), True, utf8, kind.get_strpad())
    if isinstance(kind, h5py.h5t.TypeVlenID):
        dtype, _ = _number(kind.get_super())
        return Part(name, "vlen", offset, DESCRIPTOR.itemsize, dtype)
    shape: tuple[int, ...] = ()
    if isinstance(kind, h5py.h5t.TypeArrayID):
        shape = tuple(int(size) for size in kind.get_array_dims())
        kind = kind.get_super()
        if isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str():
            element = _simple(kind, name, offset)
            width = element.width * int(np.prod(shape, dtype=object))
            return dataclasses.replace(element, width=width, shape=shape)
    dtype, names = _number(kind)
    width = dtype.itemsize * int(np.prod(shape, dtype=object))
    return Part(name, "number", offset, width, dtype, shape, names=names)


def _number(kind: Any) -> tuple[AnyDType, tuple[str, ...] | None]:
    numeric = h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID | h5py.h5t.TypeEnumID | h5py.h5t.TypeBitfieldID
    complexes = kind.get_class() not in (h5py.h5t.OPAQUE, h5py.h5t.REFERENCE) and _is_complex(kind)
    if not isinstance(kind, numeric) and not complexes:
        classes = ("REFERENCE", "OPAQUE", "TIME", "COMPOUND", "ARRAY", "VLEN", "STRING")
        title = next(
            (name.lower() for name in classes if kind.get_class() == getattr(h5py.h5t, name)), "such"
        )
        raise SchemaError(f"{title} values have no field kind")
    dtype = np.dtype(kind.dtype)
    strange = dtype.itemsize != kind.get_size() or dtype.kind not in "biufc"
    if isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        plain = h5py.h5t.py_create(dtype)
        if dtype.itemsize == 1 and not strange:
            # Single bytes of netCDF may have an order.
            plain = plain.copy()
            plain.set_order(kind.get_order())
        strange = strange or not kind.equal(plain)
    if strange:
        raise SchemaError(f"numbers of {kind.get_size()} bytes with a layout of their own are not read")
    names = h5py.check_enum_dtype(dtype) if dtype.kind in "iu" else None
    labels = None
    if names is not None and sorted(names.values()) == list(range(len(names))):
        labels = tuple(sorted(names, key=names.__getitem__))
    # Without what h5py notes in its dtypes.
    return np.dtype(dtype.str), labels


def walk(group: Any, left_out: dict[str, str], limit: int = 100_000) -> Iterator[tuple[str, Any]]:
    """(dotted name, dataset) of everything below a group that lies in this file, each object once."""
    seen = {_address(group)}
    stack = [("", group)]
    while stack:
        prefix, inside = stack.pop()
        inner = []
        for label in inside:
            name = prefix + label
            link = inside.get(label, getlink=True)
            if not isinstance(link, h5py.HardLink):
                outside = isinstance(link, h5py.ExternalLink)
                left_out[name] = "a link to another file" if outside else "a soft link"
                continue
            child = inside[label]
            if _address(child) in seen:
                left_out[name] = "another name of an object that was met before"
                continue
            seen.add(_address(child))
            if len(seen) > limit:
                raise SchemaError(f"there are more than {limit} objects in it; choose a group")
            # PyTables keeps there what finds rows quickly.
            if isinstance(child, h5py.Group) and _has_attribute(child, "CLASS", b"TINDEX"):
                left_out[name] = "an index of PyTables"
            elif isinstance(child, h5py.Group):
                inner.append((f"{name}.", child))
            elif isinstance(child, h5py.Dataset):
                yield name, child
        stack += reversed(inner)


def _has_attribute(thing: Any, name: str, start: bytes) -> bool:
    """True if it has an attribute of bytes that begin so. Attributes of strangers may be anything."""
    with contextlib.suppress(Exception):
        value = thing.attrs.get(name)
        return isinstance(value, bytes) and value.startswith(start)
    return False


def _address(thing: Any) -> int:
    return int(h5py.h5o.get_info(thing.id).addr)


# -- layout -------------------------------------------------------------------------------------------

T = TypeVar("T")

NOTE = "batchplant"
# Groups that are joined, at most.
MAX_GROUPS = 100_000
# What the library, and that of NetCDF, keep about axes; the first two lead to their names.
LINKS = ("DIMENSION_LIST", "DIMENSION_LABELS")
INTERNAL = ("REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties")
BARE_AXIS = b"This is a netCDF dimension but not a netCDF"
MAX_ATTRIBUTE_BYTES = 64 << 10
TEXTS_SECONDS = 20
# Those that can be undone here, by us or by the library.
FILTERS = {
    1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 307: "bzip2",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2",
}  # fmt: skip
BITSHUFFLE = 32008


@dataclasses.dataclass
class Table:
    """One dataset: what it holds, and how it is stored."""

    path: str
    dims: tuple[int, ...]
    item: int
    parts: list[Part]
    fill: bytes
    # One of these says where the data is; none: it was never written.
    start: int | None = None
    data: Any = None
    chunk: tuple[int, ...] | None = None
    filters: tuple[tuple[int, tuple[int, ...]], ...] = ()
    # For the library, where it has to unpack: the flags of the filters, and the type as it writes it down.
    flags: tuple[int, ...] = ()
    kind: bytes = b""
    chunks: I64 | None = None
    # Without axes.
    single: bool = False

    @property
    def described(self) -> str:
        """For `info`."""
        if self.chunk is None:
            return "contiguous" if self.data is None else "compact"
        size = self.item * math.prod(self.chunk)
        storage = (
            "" if self.chunks is None or not self.filters else f", {int(self.chunks[2].sum())} bytes stored"
        )
        filters = "+".join(FILTERS.get(code, f"filter {code}") for code, _ in self.filters) or "no filter"
        shape = "×".join(map(str, self.chunk))
        return f"chunks of {shape} ({size} bytes), {filters}{storage}"

    def stored(self, source: Source, cache: ChunkCache) -> stored.Stored:
        width = self.item * math.prod(self.dims[1:])
        if self.data is not None:
            return stored.InMemory(source, self.data.reshape(self.dims[0], width))
        if self.start is not None:
            return stored.Run(source, self.dims[0], width, self.start)
        if self.chunk is None or not width:
            if self.dims[0] > stored.MAX_EMPTY_CHUNKS:
                raise DamagedError(f"{self.dims[0]} samples are said to be there, and no bytes")
            limits.check("a row", width)
            row = np.frombuffer(self.fill * math.prod(self.dims[1:]), dtype=np.uint8)
            return stored.InMemory(source, np.broadcast_to(row, (self.dims[0], width)))
        chunk_options: dict[str, Any] = {
            "dims": self.dims, "shape": self.chunk, "item": self.item, "fill": self.fill,
            "filters": list(self.filters), "table": self.chunks,
        }  # fmt: skip
        if {code for code, _ in self.filters} <= stored.OURS:
            return stored.Chunks(source, cache, self.path, **chunk_options)
        check_filters(code for code, _ in self.filters)
        return stored.Library(source, cache, self.path, kind=self.kind, flags=self.flags, **chunk_options)


@dataclasses.dataclass
class File:
    """All that is known of a file."""

    tables: dict[str, Table]
    # Name of a dataset that is no field → why.
    left_out: dict[str, str]
    # "" → attributes of the group, name → those of a dataset.
    attributes: dict[str, dict[str, Any]]
    # The same name → path of the object, attributes of varying length, which are read when they are wanted.
    texts: dict[str, tuple[str, list[str]]]
    note: bytes | None
    base: int
    superblock: int

    def read_attributes(self, name: str, thing: Any) -> None:
        texts: list[str] = []
        self.attributes[name] = _attributes(thing, texts)
        if texts:
            self.texts[name] = thing.name, texts


def open_file(path: str, source: Source, *, swmr: bool = False) -> Any:
    """An h5py.File; local files by their path, others through the source."""
    local = not is_remote(path)
    if swmr and not local:
        raise OptionError("swmr works with local files", path=path)
    if not local:
        return h5py.File(source.file(), "r")
    if swmr:
        return h5py.File(path, "r", libver="latest", swmr=True)
    # No lock: files on read-only disks have none to give, and a finished file does not change.
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        # The caller's process has it open itself, with locks.
        if "locking" not in str(error):
            raise
        return h5py.File(path, "r")


def check_filters(filters: Iterable[int]) -> None:
    """MissingLibraryError where there is nothing that undoes one of them."""
    for code in filters:
        if code not in FILTERS:
            raise SchemaError(f"it is compressed with filter {code}, which is not read")
        if h5py.h5z.filter_avail(code):
            continue
        with needs(f"{FILTERS[code]} needs hdf5plugin", "hdf5-filters"):
            import hdf5plugin  # noqa: F401


def load(path: str, source: Source, *, group: str, swmr: bool) -> File:
    """Everything about a file."""
    return _asked(path, source, lambda file: _load(file, source, group), swmr=swmr)


def load_groups(path: str, source: Source, pattern: str) -> dict[str, File]:
    """The same of every group that a pattern such as ``data/*`` matches, by name, in natural order."""

    def load_all(file: Any) -> dict[str, File]:
        names = sorted(_matching(file, pattern), key=natural)
        if not names:
            groups = [*_matching(file, "*"), *_matching(file, "*/*")]
            some = ", ".join(groups[:5]) + (" …" if len(groups) > 5 else "")
            raise OptionError(f"no group matches {pattern!r}; there are {some or 'none'}")
        return {name: _load(file, source, name) for name in names}

    return _asked(path, source, load_all)


def _matching(file: Any, pattern: str) -> list[str]:
    groups = {"": file}
    for part in pattern.strip("/").split("/"):
        groups = {
            f"{path}/{name}": group[name]
            for path, group in groups.items()
            for name in group
            if fnmatch.fnmatchcase(name, part)
            and isinstance(group.get(name, getlink=True), h5py.HardLink)
            and group.get(name, getclass=True) is h5py.Group
        }
        if len(groups) > MAX_GROUPS:
            raise SchemaError(f"more than {MAX_GROUPS:,} groups match {pattern!r}")
    return [name.lstrip("/") for name in groups]


def _asked(path: str, source: Source, ask: Callable[[Any], T], *, swmr: bool = False) -> T:
    """Call a function on a file; the library raises all sorts of exceptions at damaged ones."""
    try:
        with open_file(path, source, swmr=swmr) as file:
            return ask(file)
    except BatchplantError as error:
        raise error.at(path=path) from None
    except OSError as error:
        failed = source.failure()
        if failed is not None:
            raise failed from None
        if swmr and "SWMR" in str(error).upper():
            raise OptionError(f"it cannot be read while it is written: {error}", path=path) from None
        if source.size >= 4 and source.view(0, 3).tobytes() == b"CDF":
            message = "this is NetCDF 3, and NetCDF 4 is needed: nccopy -k nc4 OLD NEW writes it"
            raise SchemaError(message, path=path) from None
        raise DamagedError(f"not an HDF5 file that can be read: {error}", path=path) from None
    except Exception as error:
        raise DamagedError(
            f"the library cannot read it: {type(error).__name__}: {error}", path=path
        ) from None


def _load(file: Any, source: Source, group: str) -> File:
    top = file if group in ("", "/") else file.get(group)
    if not isinstance(top, h5py.Group):
        raise OptionError(f"there is no group {group!r}")
    plist = file.id.get_create_plist()
    base = int(plist.get_userblock())
    if plist.get_sizes() != (8, 8):
        raise SchemaError(f"addresses of {plist.get_sizes()} bytes are not read")
    result = File({}, {}, {}, {}, None, base, int(plist.get_version()[0]))
    # Of varying length it is not ours.
    if NOTE in top.attrs and not h5py.h5a.open(top.id, NOTE.encode()).dtype.hasobject:
        note = top.attrs[NOTE]
        result.note = bytes(note) if isinstance(note, bytes) else None
    result.read_attributes("", top)
    for name, dataset in walk(top, result.left_out):
        if name in result.tables:
            result.left_out[name] = "two datasets have this name"
            continue
        try:
            result.tables[name] = _table(dataset, source, base)
        except SchemaError as error:
            result.left_out[name] = error.message
            continue
        # NetCDF keeps it as a dataset because HDF5 has no other place for its length.
        if "_Netcdf4Dimid" in dataset.attrs and _has_attribute(dataset, "NAME", BARE_AXIS):
            del result.tables[name]
            result.left_out[name] = "an axis of NetCDF without values"
            continue
        result.read_attributes(name, dataset)
    return result


def _table(dataset: Any, source: Source, base: int) -> Table:
    if dataset.shape is None:
        raise SchemaError("there is nothing in it")
    plist, space = dataset.id.get_create_plist(), dataset.id
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise SchemaError(
            "it is a virtual dataset, made of others that may lie in other files; these are not opened"
        )
    if plist.get_external_count():
        raise SchemaError("its data lies in other files, which are not opened")
    parts, item = parts_of(dataset.id.get_type())
    # A single value is one sample, where there is nothing else.
    dims = tuple(int(size) for size in dataset.shape) or (1,)
    if item * math.prod(dims) > MOST_BYTES or item < 1:
        raise DamagedError(f"{dataset.name} claims the shape {dims}")
    fill = bytes(item)
    if len(parts) == 1 and parts[0].kind == "number" and not parts[0].shape:
        fill = np.asarray(dataset.fillvalue).astype(parts[0].dtype).tobytes()
    table = Table(dataset.name, dims, item, parts, fill, single=not dataset.shape)
    empty = math.prod(dims) == 0
    if layout == h5py.h5d.CHUNKED:
        table.chunk = tuple(int(size) for size in plist.get_chunk())
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        # Bitshuffle puts three numbers before those it is given, and would do so again.
        table.filters = tuple(
            (int(code), tuple(map(int, values[3:] if code == BITSHUFFLE else values)))
            for code, _, values, _ in filters
        )
        table.flags = tuple(int(flags) for _, flags, _, _ in filters)
        varying = any(part.kind == "vlen" for part in parts)
        # What stands in place of cells of varying length is just bytes here, and not to be followed.
        kind = h5py.h5t.create(h5py.h5t.OPAQUE, item) if varying else dataset.id.get_type()
        table.kind = kind.encode()
        table.chunks = _chunks(dataset, table, source, base)
    elif layout == h5py.h5d.COMPACT and not empty:
        if any(part.kind == "vlen" for part in parts):
            raise SchemaError("cells of varying length inside of a header are not read")
        table.data = np.empty(item * math.prod(dims), dtype=np.uint8)
        space.read(h5py.h5s.ALL, h5py.h5s.ALL, table.data, dataset.id.get_type())
    elif not empty:
        # Behind a block of the user's, what was never written has an offset all the same.
        offset = dataset.id.get_offset() if dataset.id.get_storage_size() else None
        if offset is not None and dataset.id.get_storage_size() != item * math.prod(dims):
            raise DamagedError(f"{dataset.name} has {dataset.id.get_storage_size()} bytes for {dims}")
        table.start = None if offset is None else int(offset)
    return table


def _chunks(dataset: Any, table: Table, source: Source, base: int) -> I64:
    """Number, place, size and filter mask of every chunk that there is, by number."""
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    shape, dims = table.chunk or (), table.dims
    grid = [-(-size // part) for size, part in zip(dims, shape, strict=True)]
    if math.prod(grid) > MOST_BYTES:
        raise DamagedError(f"{dataset.name} claims {math.prod(grid)} chunks")
    if not infos:
        return np.empty((4, 0), dtype=np.int64)
    offset = np.array([info.chunk_offset for info in infos], dtype=np.int64) // np.array(
        shape, dtype=np.int64
    )
    places = np.array([info.byte_offset or 0 for info in infos], dtype=np.uint64)
    bad = (offset >= np.array(grid)).any(axis=1) | (places > np.uint64(MOST_BYTES))
    if bad.any():
        raise DamagedError(f"a chunk of {dataset.name} lies nowhere")
    columns = np.empty((4, len(infos)), dtype=np.int64)
    columns[0] = np.ravel_multi_index(tuple(offset.T), grid) if len(grid) > 1 else offset[:, 0]
    columns[1] = places
    columns[2] = [info.size for info in infos]
    columns[3] = [info.filter_mask for info in infos]
    if base:
        # Old versions of the library count from behind the user block.
        _, data = dataset.id.read_direct_chunk(infos[0].chunk_offset)
        if source.view(int(infos[0].byte_offset), len(data)).tobytes() != bytes(data):
            columns[1] += base
    return columns[:, np.argsort(columns[0], kind="stable")]


def _attributes(thing: Any, texts: list[str]) -> dict[str, Any]:
    """The small ones that are numbers or text, as Python has them; ``texts`` gets those of varying length."""
    attributes: dict[str, Any] = {}
    for name in thing.attrs:
        try:
            opened = h5py.h5a.open(thing.id, name.encode())
            if name in LINKS:
                texts += [AXES] if AXES not in (*texts, *thing.attrs) else []
                continue
            if name in INTERNAL:
                continue
            if opened.dtype.hasobject:
                texts += [name] if h5py.check_ref_dtype(opened.dtype) is None else []
            elif opened.get_storage_size() <= MAX_ATTRIBUTE_BYTES and name != NOTE:
                attributes[name] = plain(thing.attrs[name])
        # An attribute that cannot be read takes nothing away from the samples.
        except Exception:
            continue
    if attributes.get("CLASS") == "DIMENSION_SCALE":
        # It is an axis itself.
        attributes = {name: value for name, value in attributes.items() if name not in ("CLASS", "NAME")}
        if AXES not in thing.attrs and len(thing.shape or ()) == 1:
            texts[:] = [name for name in texts if name not in (AXES, "NAME")]
            attributes[AXES] = [thing.name.rpartition("/")[2]]
    return attributes


def read_texts(
    path: str, names: dict[str, list[str]], *, timeout_seconds: float = TEXTS_SECONDS
) -> dict[str, dict[str, Any]]:
    """Attributes of varying length, by the path of their object; what cannot be read is left out.

    In a process of its own: they lie in heaps, and a damaged heap can hold up the library for ever.
    """
    options = dataclasses.asdict(options_at(path)) if is_remote(path) else None
    request = json.dumps([path, options, names])
    with contextlib.suppress(subprocess.SubprocessError, ValueError, OSError):
        done = subprocess.run(
            [sys.executable, "-P", attribute_texts.__file__],
            input=request.encode(), capture_output=True, timeout=timeout_seconds, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)
    return {}
