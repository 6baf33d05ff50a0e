"""TensorFlow SavedModel, and checkpoints of TensorFlow: their variables as named tensors. Read only.

A SavedModel is a folder with ``saved_model.pb``, the graph, and ``variables/variables.index`` beside
``variables/variables.data-00000-of-00001`` and so on, a checkpoint. The ``.index`` of any other checkpoint of
that kind opens as well. TensorFlow is not needed.

Names are the keys of the checkpoint, without the ``/.ATTRIBUTES/VARIABLE_VALUE`` at their end.
Values are used where they lie. Tensors of text, such as the object graph of the checkpoint, are listed in the
facts and are no samples. `verify` compares the checksum of every tensor.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _native
from ...codecs.protobuf import BYTES, VARINT, messages, parts, read_varint, text, texts
from ...data.tensors import TENSORS
from ...errors import BatchplantError, DamagedError, NotFoundError, Problem, located
from ...schema.columns import U8
from ...storage import Source, join, like, open_source, parent, tree
from ..base.format import Capabilities, Format, Probe
from ..base.tensors import BITS, Entry, TensorReader, size_of
from .bundle import DTYPES, FOOTER, MAGIC, OTHER_DTYPES, STRING, Bundle, Stored, masked, open_shape

# -- graph --------------------------------------------------------------------------------------------
# saved_model.pb: the signatures, operators and functions of a SavedModel, for `batchplant info`.

# Signatures that are TensorFlow's own business.
INTERNAL = "__saved_model"


def read_graphs(data: memoryview) -> dict[str, Any]:
    """Facts about a saved_model.pb for info."""
    result: dict[str, Any] = {"tags": [], "signatures": {}}
    operators: Counter[str] = Counter()
    functions: list[str] = []
    graphs = 0
    for part in parts(data, 0, len(data)):
        if part[:2] == (1, VARINT):
            result["schema version"] = part.value
        elif part[:2] == (2, BYTES):
            graphs += 1
            _meta_graph(data, part.start, part.end, result, operators, functions)
    if not graphs:
        raise DamagedError("there is no graph in saved_model.pb")
    result["graphs"] = graphs
    result["operators"] = dict(operators.most_common())
    result["functions"] = len(functions)
    return result


def _meta_graph(
    data: memoryview,
    start: int,
    end: int,
    facts: dict[str, Any],
    operators: Counter[str],
    functions: list[str],
) -> None:
    for part in parts(data, start, end):
        match part.number, part.kind:
            case 1, 2:
                fields = list(parts(data, part.start, part.end))
                facts["tags"] += [text(data, field) for field in fields if field[:2] == (4, BYTES)]
                [version] = texts(data, part.start, part.end, 5)
                facts |= {"tensorflow": version} if version else {}
            case 2, 2:
                _graph(data, part.start, part.end, operators, functions)
            case 5, 2:
                key, value = _pair(data, part.start, part.end)
                if value is not None and not key.startswith(INTERNAL):
                    facts["signatures"][key] = _signature(data, *value)
            case 6, 2:
                facts["assets"] = facts.get("assets", 0) + 1


def _graph(data: memoryview, start: int, end: int, operators: Counter[str], functions: list[str]) -> None:
    """Nodes of the graph itself, and those of its functions, where most are today."""
    libraries = messages(data, start, end, 2)
    bodies = [function for library in libraries for function in messages(data, *library, 1)]
    functions += [texts(data, *title, 1)[0] for body in bodies for title in messages(data, *body, 1)]
    for nodes in (messages(data, start, end, 1), *(messages(data, *body, 3) for body in bodies)):
        operators.update(texts(data, *node, 2)[0] for node in nodes)


def _pair(data: memoryview, start: int, end: int) -> tuple[str, tuple[int, int] | None]:
    [key] = texts(data, start, end, 1)
    values = list(messages(data, start, end, 2))
    return key, values[-1] if values else None


def _signature(data: memoryview, start: int, end: int) -> dict[str, dict[str, str]]:
    tensors_by_side: dict[str, dict[str, str]] = {"inputs": {}, "outputs": {}}
    for part in parts(data, start, end):
        side = {1: "inputs", 2: "outputs"}.get(part.number)
        if side is not None and part.kind == BYTES:
            key, value = _pair(data, part.start, part.end)
            if value is not None:
                tensors_by_side[side][key] = _tensor(data, *value)
    return {side: dict(sorted(tensors.items())) for side, tensors in tensors_by_side.items()}


def _tensor(data: memoryview, start: int, end: int) -> str:
    """A TensorInfo as text: ``float32 (?, 4)``."""
    dtype, shape = "", "unknown shape"
    for part in parts(data, start, end):
        if part[:2] == (2, VARINT):
            dtype = DTYPES.get(part.value) or OTHER_DTYPES.get(part.value, f"type {part.value}")
        elif part[:2] == (3, BYTES):
            sizes = open_shape(data, part.start, part.end)
            if sizes is not None:
                shown = ", ".join("?" if size is None else str(size) for size in sizes)
                shape = f"({shown})"
    return f"{dtype} {shape}"


# -- format -------------------------------------------------------------------------------------------

GRAPH = "saved_model.pb"
VARIABLES = "variables/variables"
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class SavedModelReader(TensorReader):
    """Reads the variables of a SavedModel or a checkpoint."""

    def __init__(self, path: str) -> None:
        plain_path = like(path, path.rstrip("/"))
        self._folder: str | None = None
        if os.path.basename(plain_path) == GRAPH:
            self._folder = parent(plain_path) or "."
        elif tree.is_folder(plain_path):
            self._folder = plain_path
        index = plain_path if self._folder is None else join(self._folder, f"{VARIABLES}.index")
        self._prefix = like(index, index.removesuffix(".index"))
        self._bundle: Bundle | None = None
        self.path = path
        self._sources = {}
        with located(path=path):
            if self._folder is None or tree.exists(index):
                self._bundle = self._open(open_source(index))
            else:
                # A model without variables has no checkpoint; one without a graph is no model.
                open_source(join(self._folder, GRAPH)).close()
            numeric = [stored for stored in self._stored_tensors() if stored.code in DTYPES]
            self._numeric = numeric
            names = _names_of(numeric)
            entries = [self._entry(stored, name) for stored, name in zip(numeric, names, strict=True)]
            self._accept(path, entries, self._sources.values())

    def _open(self, index: Source) -> Bundle:
        try:
            return Bundle(index.view(0, index.size).data)
        except BatchplantError as error:
            raise error.at(path=index.path) from None
        finally:
            index.close()

    def _stored_tensors(self) -> list[Stored]:
        return [] if self._bundle is None else self._bundle.tensors

    def _shard(self, number: int) -> Source:
        assert self._bundle is not None
        path = like(self._prefix, f"{self._prefix}.data-{number:05}-of-{self._bundle.shards:05}")
        try:
            return self._file(path)
        except NotFoundError:
            raise DamagedError("a file of the checkpoint is missing", path=path) from None

    def _entry(self, tensor: Stored, name: str) -> Entry:
        dtype = DTYPES[tensor.code]
        size, stored = self._bounds(tensor), self._stored_size(tensor)
        in_place = size == size_of(dtype, tensor.shape) and (size != stored or BITS[dtype] >= 8)
        if not in_place and size != stored:
            raise DamagedError(
                f"{size} bytes are not {dtype} {tensor.shape}",
                path=self._shard(tensor.shard).path,
                offset=tensor.start,
            )
        if in_place:
            return Entry(name, dtype, tensor.shape, (self._shard(tensor.shard).path, tensor.start, size))
        return Entry(name, dtype, tensor.shape, functools.partial(self._load, tensor))

    @staticmethod
    def _stored_size(stored: Stored) -> int:
        """TensorFlow gives a value of less than a byte a byte."""
        dtype = DTYPES[stored.code]
        return size_of("uint8" if BITS[dtype] < 8 else dtype, stored.shape)

    def _bounds(self, stored: Stored) -> int:
        """The size of a tensor's bytes, which are all there."""
        source = self._shard(stored.shard)
        source.view(stored.start, 0)
        if stored.size < 0 or stored.start + stored.size > source.size:
            raise DamagedError(
                f"{stored.key!r} has {stored.size} bytes here, but the file ends at {source.size}",
                path=source.path,
                offset=stored.start,
            )
        return stored.size

    def _load(self, stored: Stored) -> U8:
        data = self._shard(stored.shard).view(stored.start, stored.size)
        return _pack(DTYPES[stored.code], data) if len(data) == self._stored_size(stored) else data

    def facts(self) -> dict[str, object]:
        facts = super().facts()
        not_numeric = [stored for stored in self._stored_tensors() if stored.code not in DTYPES]
        if not_numeric:
            facts["no numbers"] = {
                stored.key: f"{OTHER_DTYPES.get(stored.code, f'type {stored.code}')} {list(stored.shape)}"
                for stored in not_numeric
            }
        if self._bundle is not None:
            facts["data files"] = self._bundle.shards
        if self._folder is not None:
            source = open_source(join(self._folder, GRAPH))
            try:
                facts |= read_graphs(source.view(0, source.size).data)
            except BatchplantError as error:
                raise error.at(path=source.path) from None
            finally:
                source.close()
        return facts

    def own_checks(self) -> tuple[str, ...]:
        return ("CRC of every tensor",) if self._bundle is not None else ()

    def _verify(self) -> Iterator[Problem]:
        try:
            self.facts()
        except BatchplantError as error:
            yield Problem.of(error)
        numbers = {id(kept_tensor): number for number, kept_tensor in enumerate(self._numeric)}
        for tensor in self._stored_tensors():
            number = numbers.get(id(tensor))
            try:
                if self._sum(tensor) != tensor.crc:
                    path = self._shard(tensor.shard).path
                    message = f"the checksum of {tensor.key!r} is wrong"
                    yield Problem(message, path, number, None if number is None else "data", tensor.start)
            except BatchplantError as error:
                yield Problem.of(error.at(path=self.path, sample=number))

    def _sum(self, stored: Stored) -> int:
        self._bounds(stored)
        data = self._shard(stored.shard).view(stored.start, stored.size).data
        return masked(_text_sum(data, stored.shape) if stored.code == STRING else _native.crc32c(data))


def _names_of(tensors: list[Stored]) -> list[str]:
    short = [tensor.key.removesuffix(SUFFIX) for tensor in tensors]
    often = Counter(short)
    return [name if often[name] == 1 else tensor.key for name, tensor in zip(short, tensors, strict=True)]


def _pack(dtype: str, data: U8) -> U8:
    """Values of less than a byte, one in each, as many in a byte as fit; the first one lowest."""
    bits = BITS[dtype]
    if bits >= 8:
        return data
    values_per_byte = 8 // bits
    padded = np.pad(data, (0, -len(data) % values_per_byte)) & np.uint8((1 << bits) - 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(padded.reshape(-1, values_per_byte) << shifts, axis=1)


def _text_sum(data: memoryview, shape: tuple[int, ...]) -> int:
    """The CRC-32C of text: of all lengths as numbers of 4 or 8 bytes, their checksum, and the text."""
    count = 1
    for size in shape:
        count *= size
    if count > len(data):
        raise DamagedError(f"{len(data)} bytes are not {count} texts")
    offset, lengths = 0, []
    for _ in range(count):
        size, offset = read_varint(data, offset, len(data))
        lengths.append(size.to_bytes(4 if size < 1 << 32 else 8, "little"))
    crc = _native.crc32c(b"".join(lengths))
    return int(_native.crc32c(data[offset:], crc))


def sniff(probe: Probe) -> bool:
    """A folder with a graph, or a table whose first entry is the header of a checkpoint."""
    if probe.folder:
        return GRAPH in probe.names
    if os.path.basename(probe.path) == GRAPH:
        return probe.head[:1] == b"\x08"
    # Other tables end alike, but only a checkpoint begins with an empty key and a number of files.
    if probe.size < FOOTER or probe.head[:2] != b"\0\0" or probe.head[3:4] != b"\x08":
        return False
    return probe.source.view(probe.size - len(MAGIC), len(MAGIC)).tobytes() == MAGIC


FORMAT = Format(
    name="savedmodel",
    title="TensorFlow SavedModel",
    suffixes=(".index",),
    spec="https://www.tensorflow.org/guide/saved_model",
    reader=SavedModelReader,
    sniff=sniff,
    folder=None,
    only=TENSORS,
    notes="read only: variables, used in place, without TensorFlow; also checkpoints by their .index",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="tensor",
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("TensorFlow", "Keras", "TensorFlow Serving"),
    ),
)
