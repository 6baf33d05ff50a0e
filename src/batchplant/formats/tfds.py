"""Folders of TensorFlow Datasets, and RLDS, which are such folders of episodes; read without TensorFlow.

``dataset_info.json`` lists splits and shards (TFRecord or ArrayRecord), ``features.json`` the features. A
record is a tf.train.Example; nested features have names with dots. Of RLDS a record is an episode, with a
sequence of ``steps``: then a sample is a step, and an episode a sequence of its own, which no window crosses.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..codecs import example
from ..codecs.example import BYTES, FLOAT, INT64, Feature, RecordError
from ..data.reader import Reader, open_reader
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as, located
from ..schema import Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text
from ..schema.columns import I64, U8, Columns, Ragged, starts_of
from ..storage import (
    NOTE_ERRORS,
    MappedSource,
    index,
    is_plain,
    join,
    parse_object,
    read_beside,
    read_whole,
    tree,
)
from ..storage.spans import Spans
from .base.capabilities import Capabilities
from .base.format import Format, Probe

INFO, FEATURES = "dataset_info.json", "features.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
DATA = "data"
# Fields of a step that no feature has: the episode, and the step's number in it.
EPISODE, STEP = "episode_index", "frame_index"
STEPS = "steps"
MAX_SHARDS = 1_000_000
MAX_DEPTH = 32
# Records that are read at a time to count their steps.
COUNTED_RECORDS = 64
VERSION = 1

_INSTRUCTION = re.compile(r"([\w.-]+)(?:\[(?:(-?\d{1,15})(%?))?:(?:(-?\d{1,15})(%?))?\])?")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A feature that holds values: how a record has it, and whether each step has its own."""

    feature: Feature
    in_steps: bool

    @property
    def per_step(self) -> int:
        """Number of values that a step has in the record."""
        field = self.feature.field
        shape = field.shape if isinstance(field, Tensor) and self.feature.kind != BYTES else ()
        return int(np.prod([size or 0 for size in shape], dtype=np.int64))


class TfdsReader(Reader):
    """Reads folders of TensorFlow Datasets.

    ``split``: such as ``"train"``, ``"train[:10%]"``, ``"train[100:]+test"``; needed where there are several.
    ``steps``: of RLDS, ``"flat"`` (default: a sample is a step) or ``"episodes"`` (a sample is an episode).
    """

    def __init__(self, path: str, *, split: str | None = None, steps: str = "flat") -> None:
        if steps not in ("flat", "episodes"):
            raise OptionError(f"steps is flat or episodes, not {steps!r}", path=path)
        self.path = path
        where = join(path, INFO)
        with exceptions_as(DamagedError, "it does not describe a dataset", *NOTE_ERRORS, path=where):
            self._info = parse_object(read_whole(where))
            splits = {str(entry["name"]): entry for entry in self._info.get("splits", [])}
        chosen = split or (next(iter(splits)) if len(splits) == 1 else None)
        if chosen is None:
            raise OptionError(f"there are several splits; split=… is one of {', '.join(splits)}", path=path)
        self._split = chosen
        with located(path=path):
            self._records, self._rows = self._open(splits, chosen)
        where = join(path, FEATURES)
        with exceptions_as(DamagedError, "its features are damaged", *NOTE_ERRORS, path=where):
            self._leaves = dict(self._find(parse_object(read_whole(where)), (), 0, False))
        self._flat = steps == "flat" and any(leaf.in_steps for leaf in self._leaves.values())
        if not self._leaves:
            raise SchemaError("there is no feature that can be read", path=where)
        fields: dict[str, Field] = {}
        for name, leaf in self._leaves.items():
            fields[name] = leaf.feature.field if self._flat or not leaf.in_steps else _listed(leaf).field
        # The step that each record begins with.
        self._begins = np.arange(len(self._rows) + 1)
        if self._flat:
            fields |= {EPISODE: Int(), STEP: Int()}
            self._begins = starts_of(self._steps()[self._rows])
        self.schema = Schema(fields)
        self.length = int(self._begins[-1])

    # -- metadata --------------------------------------------------------------------------------------

    def _open(self, splits: Mapping[str, Any], instruction: str) -> tuple[Reader, I64]:
        """Return the records of the splits, and those of them that are asked for."""
        parts = [_INSTRUCTION.fullmatch(part.strip()) for part in instruction.split("+")]
        files: list[str] = []
        firsts: dict[str, tuple[int, int]] = {}
        rows: list[I64] = []
        total = 0
        for part in parts:
            if part is None or part[1] not in splits:
                raise OptionError(f"split is such as {', '.join(splits)}, train[:10%], not {instruction!r}")
            name = part[1]
            if name not in firsts:
                shards, count = self._shards(splits[name])
                firsts[name] = total, count
                files, total = files + shards, total + count
            first, count = firsts[name]
            start, end = (_bound(part[n], bool(part[n + 1]), count) for n in (2, 4))
            rows.append(first + np.arange(count)[slice(start, end)])
        kind = str(self._info.get("fileFormat") or "tfrecord").lower()
        # Whatever a schema beside a shard says, records are bytes here.
        options: dict[str, Any] = {"format": "tfrecord", "records": "raw", "schema": {DATA: Bytes()}}
        if kind in ("array_record", "arrayrecord"):
            options = {"format": "arrayrecord", "schema": {DATA: Bytes()}}
        elif kind != "tfrecord":
            raise OptionError(f"shards of the format {kind!r} are not read")
        records = open_reader(files, **options)
        if len(records) != total:
            records.close()
            raise DamagedError(f"the shards have {len(records)} records, and {INFO} says {total}")
        return records, np.concatenate(rows)

    def _shards(self, split: Mapping[str, Any]) -> tuple[list[str], int]:
        """Return the files of a split, and how many records they have."""
        with exceptions_as(DamagedError, "a split is damaged", *NOTE_ERRORS):
            lengths = [int(length) for length in split["shardLengths"]]
            if not 0 < len(lengths) <= MAX_SHARDS or min(lengths) < 0:
                raise ValueError(f"{len(lengths)} shards")
            template = str(split.get("filepathTemplate") or TEMPLATE).replace("${", "{")
            values = {
                "DATASET": str(self._info["name"]),
                "SPLIT": str(split["name"]),
                "FILEFORMAT": str(self._info.get("fileFormat") or "tfrecord"),
                "NUM_SHARDS": f"{len(lengths):05d}",
            }
            names = []
            for number in range(len(lengths)):
                of_shard = {"SHARD_INDEX": f"{number:05d}"}
                of_shard["SHARD_X_OF_Y"] = f"{number:05d}-of-{len(lengths):05d}"
                names.append(re.sub(r"\{(\w+)\}", lambda m: {**values, **of_shard}[m[1]], template))  # noqa: B023
            if not all(map(is_plain, names)):
                raise ValueError(f"{names[0]!r} is no name of a file")
        return [join(self.path, name) for name in names], sum(lengths)

    def _find(
        self,
        spec: Mapping[str, Any],
        names: tuple[str, ...],
        depth: int,
        in_steps: bool,
        listed: bool = False,
    ) -> Iterator[tuple[str, Leaf]]:
        """Yield the features that hold values; those that no field can hold are left out."""
        if depth > MAX_DEPTH:
            raise ValueError("its features are nested too deeply")
        if "featuresDict" in spec:
            for name, inner in spec["featuresDict"]["features"].items():
                yield from self._find(inner, (*names, name), depth + 1, in_steps, listed)
            return
        if "sequence" in spec:
            inner = spec["sequence"]["feature"]
            steps = names == (STEPS,) and not in_steps
            # A sequence inside of another one has other keys.
            if not (in_steps or listed):
                yield from self._find(inner, names, depth + 1, steps, not steps)
            return
        field, kind = self._field(spec, names)
        if field is None:
            return
        shown = ".".join(names[1:] if in_steps and len(names) > 1 else names)
        leaf = Leaf(Feature(field, "/".join(names), kind), in_steps)
        yield shown, leaf if not listed else Leaf(_listed(leaf), False)

    def _field(self, spec: Mapping[str, Any], names: Sequence[str]) -> tuple[Field | None, int]:
        """Return the field that a feature is, and the kind of its values in an Example."""
        if "classLabel" in spec:
            text = read_beside(join(self.path, f"{'-'.join(names)}.labels.txt")) or b""
            return Int(names=tuple(text.decode().split("\n")[:-1]) or None), INT64
        if "text" in spec:
            return Text(), BYTES
        if "image" in spec or "labeledImage" in spec:
            details = spec.get("image") or spec["labeledImage"]
            encoding = str(details.get("encodingFormat") or "") or None
            return Image({"jpg": "jpeg"}.get(str(encoding), encoding) if encoding else None), BYTES
        details = next((spec[key] for key in ("tensor", "boundingBox", "audio") if key in spec), None)
        if details is None and spec.get("pythonClassName", "").endswith(("BBoxFeature", "Scalar")):
            details = {}
        if details is None:
            return None, 0
        sizes = [int(size) for size in details.get("shape", {}).get("dimensions", [])]
        if spec.get("pythonClassName", "").endswith("BBoxFeature"):
            sizes, details = [4], {"dtype": "float32"}
        dtype = str(details.get("dtype") or "int64")
        if dtype in ("string", "object", "str"):
            return (Bytes(), BYTES) if not sizes else (None, 0)
        numbers = np.dtype(dtype)
        if numbers.kind not in "biuf" or any(size == 0 or size < -1 for size in sizes):
            return None, 0
        packed = str(details.get("encoding") or "none").lower()
        if packed not in ("none", "bytes") or sizes.count(-1) > int(sizes[:1] == [-1]):
            return None, 0
        kind = FLOAT if numbers.kind == "f" else INT64
        if packed == "bytes":
            kind = BYTES
        if not sizes and kind != BYTES:
            if numbers.kind == "b":
                return Bool(), INT64
            return (Float(dtype) if numbers.kind == "f" else Int(dtype)), kind
        return Tensor(dtype, tuple(None if size < 0 else size for size in sizes)), kind

    # -- steps -----------------------------------------------------------------------------------------

    def _steps(self) -> I64:
        """Return the number of steps of every record; an index stores them."""
        leaf = next(leaf for leaf in self._leaves.values() if leaf.in_steps and leaf.per_step)

        def build(reader: Reader) -> tuple[index.Arrays, index.Facts]:
            counts = np.zeros(len(reader), dtype=np.int64)
            for first in range(0, len(reader), COUNTED_RECORDS):
                rows = np.arange(first, min(first + COUNTED_RECORDS, len(reader)))
                for places, data, starts, sizes, _ in _places(reader, rows):
                    [values] = _values([leaf], data, starts, sizes)
                    if (values.counts < 0).any():
                        row = int(rows[places[np.argmin(values.counts)]])
                        message = f"there is no feature {leaf.feature.key!r}"
                        raise DamagedError(message, path=self.path, sample=row)
                    counts[rows[places]] = values.counts // leaf.per_step
            return {"steps": counts}, {}

        def check(content: index.Index) -> bool:
            steps = content.arrays["steps"]
            return bool(
                steps.dtype == np.int64 and steps.shape == (len(self._records),) and (steps >= 0).all()
            )

        args = (DATA,), "tfds-steps", leaf.feature.key, build
        stored = self._records._indexed(*args, version=VERSION, check=check)
        return np.array((build(self._records)[0] if stored is None else stored.arrays)["steps"])

    # -- reading ---------------------------------------------------------------------------------------

    def _locate(self, indices: I64) -> tuple[I64, I64]:
        """Return the record of each sample, by its position, and its step in that."""
        records = np.searchsorted(self._begins, indices, side="right") - 1
        return records, indices - self._begins[records]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        records, steps = self._locate(indices)
        used, back = np.unique(records, return_inverse=True)
        columns = Columns({EPISODE: records, STEP: steps}) if self._flat else Columns()
        leaves = {name: self._leaves[name] for name in fields if name in self._leaves}
        if leaves and len(indices):
            cells = self._records._read(self._rows[used], (DATA,))[DATA]
            assert isinstance(cells, Ragged)
            data, starts, sizes = cells.data, cells.starts, cells.sizes
            whole = {
                name: leaf.feature if not leaf.in_steps else _listed(leaf)
                for name, leaf in leaves.items()
                if not (leaf.in_steps and self._flat)
            }
            try:
                columns.update(example.read(whole, data, starts, sizes).take(back) if whole else {})
                stepped = {name: leaf for name, leaf in leaves.items() if name not in whole}
                for (name, leaf), values in zip(
                    stepped.items(), _values(list(stepped.values()), data, starts, sizes), strict=True
                ):
                    with located(field=name):
                        columns[name] = self._cells(leaf, values, data, used, back, steps)
            except (BatchplantError, RecordError) as failure:
                error = _damage(failure)
                row, error.sample = error.sample, None
                if row is not None and row < len(used):
                    error.sample = int(indices[np.argmax(back == row)])
                raise error.at(path=self.path) from None
        elif leaves:
            columns.update((name, _empty(self.schema[name])) for name in leaves)
        return Columns((name, columns[name]) for name in fields)

    def _numbers(self, leaf: Leaf, values: example.Values, used: I64, back: I64, steps: I64) -> I64:
        """Return which of the values of these records each step has; first of them where it has several."""
        needed = np.diff(self._begins)[used] * leaf.per_step
        counts = np.maximum(values.counts, 0)
        wrong = (counts != needed) | ((values.kinds != leaf.feature.kind) & (counts > 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"{counts[row]} values of {leaf.feature.key!r} where {needed[row]} are needed"
            raise DamagedError(message, sample=row)
        return starts_of(counts)[:-1][back] + steps * leaf.per_step

    def _cells(self, leaf: Leaf, values: example.Values, data: U8, used: I64, back: I64, steps: I64) -> Any:
        numbers = self._numbers(leaf, values, used, back, steps)
        if leaf.feature.kind == BYTES:
            chosen = np.ascontiguousarray(values.values[numbers])
            counts = np.ones(len(steps), dtype=np.int64)
            kinds = np.full(len(steps), BYTES, dtype=np.int8)
            return example.bytes_column(leaf.feature, example.Values(kinds, counts, counts, chosen), data)
        every = numbers[:, None] + np.arange(leaf.per_step)
        counts = np.full(len(steps), leaf.per_step, dtype=np.int64)
        kinds = np.full(len(steps), leaf.feature.kind, dtype=np.int8)
        chosen = values.values[every.reshape(-1)]
        return example.number_column(leaf.feature, example.Values(kinds, counts, counts, chosen))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        leaf = self._leaves.get(field)
        if leaf is None or not example.in_place(leaf.feature) or (leaf.in_steps and not self._flat):
            return None
        records, steps = self._locate(indices)
        used, back = np.unique(records, return_inverse=True)
        sources: list[MappedSource] = []
        files = np.zeros(len(indices), dtype=np.int32)
        cell_starts, cell_sizes = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for places, data, starts, sizes, source in _places(self._records, self._rows[used]):
            # Of a file that is not mapped, the records would have to be fetched to be looked into.
            if source is None:
                return None
            samples = np.flatnonzero(np.isin(back, places))
            inside = np.searchsorted(places, back[samples])
            try:
                if leaf.in_steps:
                    [values] = _values([leaf], data, starts, sizes)
                    runs = values.values[self._numbers(leaf, values, used[places], inside, steps[samples])]
                else:
                    runs = np.stack(example.runs(leaf.feature, data, starts, sizes), axis=1)[inside]
            except (BatchplantError, RecordError):
                # Reading the samples reports the damage, and its place.
                return None
            cell_starts[samples], cell_sizes[samples] = runs[:, 0], runs[:, 1]
            files[samples] = len(sources)
            sources.append(source)
        return Spans(sources, cell_starts, cell_sizes, files) if sources else None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if not any(name in self._leaves for name in fields):
            return self._records._ranges((DATA,), indices[:0])
        return self._records._ranges((DATA,), self._rows[np.unique(self._locate(indices)[0])])

    def boundaries(self) -> I64:
        """Return the first steps of episodes."""
        firsts = np.unique(self._begins) if self._flat else self._begins[:0]
        return firsts[(firsts > 0) & (firsts < self.length)]

    def blocks(self) -> I64 | None:
        """Return the record that each step lies in."""
        if self._flat:
            return np.repeat(np.arange(len(self._rows)), np.diff(self._begins))
        blocks = self._records.blocks()
        return None if blocks is None else blocks[self._rows]

    def where(self, sample: int) -> str:
        return self._records.where(int(self._rows[self._locate(np.array([sample]))[0][0]]))

    def _verify(self) -> Iterator[Problem]:
        return self._records._verify()

    def own_checks(self) -> tuple[str, ...]:
        return self._records.own_checks()

    def facts(self) -> dict[str, object]:
        episodes: dict[str, object] = {"episodes": len(self._rows)} if self._flat else {}
        version = {"version": str(self._info["version"])} if "version" in self._info else {}
        return {"split": self._split, **version, **episodes, **self._records.facts()}

    def close(self) -> None:
        self._records.close()


def _bound(text: str | None, percent: bool, count: int) -> int | None:
    """Return the record that a slice begins or ends with; a part of a per cent is rounded to the closest."""
    if text is None:
        return None
    return round(int(text) * count / 100) if percent else int(text)


def _listed(leaf: Leaf) -> Feature:
    """Return a feature that a record has any number of times."""
    feature = leaf.feature
    field = feature.field
    if feature.kind == BYTES:
        return dataclasses.replace(feature, field=Json(), listed=True)
    if isinstance(field, Tensor) and None in field.shape:
        return dataclasses.replace(feature, field=Tensor(field.dtype, (None,)))
    shape = field.shape if isinstance(field, Tensor) else ()
    dtype = getattr(field, "dtype", "bool")
    return dataclasses.replace(feature, field=Tensor(dtype, (None, *shape)))


def _values(leaves: Sequence[Leaf], data: U8, starts: I64, sizes: I64) -> list[example.Values]:
    try:
        return example.values_of(data, starts, sizes, [leaf.feature.request for leaf in leaves])
    except RecordError as error:
        raise _damage(error) from None


def _damage(error: BatchplantError | RecordError) -> BatchplantError:
    return DamagedError(str(error), sample=error.row) if isinstance(error, RecordError) else error


def _places(records: Reader, rows: I64) -> Iterator[tuple[I64, U8, I64, I64, MappedSource | None]]:
    """Yield places among ``rows``, and data, starts, sizes of these records; the file if it is mapped."""
    spans = records._spans(DATA, rows)
    if spans is not None and all(isinstance(source, MappedSource) for source in spans.sources):
        for source, places, starts, sizes in spans.by_source():
            assert isinstance(source, MappedSource)
            source.view(0, 0)
            yield places, source.data, starts, sizes, source
        return
    cells = records._read(rows, (DATA,))[DATA]
    assert isinstance(cells, Ragged)
    yield np.arange(len(rows)), cells.data, cells.starts, cells.sizes, None


def _empty(field: Field) -> Any:
    if field.cell is None:
        return Ragged(np.empty(0, np.uint8), np.zeros(1, np.int64))
    return np.empty((0, *field.cell[1]), field.cell[0])


def sniff(probe: Probe) -> bool:
    return {INFO, FEATURES} <= set(probe.names) and tree.is_file(join(probe.path, INFO))


FORMAT = Format(
    name="tfds",
    title="TensorFlow Datasets",
    suffixes=(),
    spec="https://www.tensorflow.org/datasets/external_tfrecord",
    reader=TfdsReader,
    writer=None,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor, Text, Bytes, Image, Json),
    folder=True,
    notes="without TensorFlow; splits and slices; RLDS as steps or episodes",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        checksums="CRC of every record of TFRecord",
        ecosystem=("TensorFlow Datasets", "RLDS", "Grain"),
    ),
)
