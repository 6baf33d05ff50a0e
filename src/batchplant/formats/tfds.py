"""Folders of TensorFlow Datasets, and RLDS, which are such folders of episodes; read without TensorFlow.

``dataset_info.json`` lists splits and shards (TFRecord or ArrayRecord), ``features.json`` the features. A
record is a tf.train.Example; nested features have names with dots. Of RLDS a record is an episode, with a
sequence of ``steps``: then a sample is a step, and an episode a sequence of its own, which no window crosses.

What we write has ``batchplant.json`` beside them with the schema, so that kinds and their order come back.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import _native
from ..codecs import example
from ..codecs.cells import cell_bytes
from ..codecs.example import BYTES, FLOAT, INT64, Feature, RecordError
from ..codecs.media.image_rules import ImageTarget
from ..data.keys import same_cells
from ..data.layout import Layout, inner_starts
from ..data.reader import Reader, open_reader
from ..data.writer import WriteOptions, Writer
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as, located
from ..schema import Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text
from ..schema.columns import I64, U8, Columns, Ragged, as_bytes, starts_of, take_cells
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
from .base.format import Capabilities, Format, Probe
from .base.records import Note, note_of

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
# File with the schema of a dataset that batchplant wrote.
NOTE = "batchplant.json"
SHARD_BYTES = 256 << 20
# Arrays of more bytes are stored as they are, not as a list of numbers.
MAX_LISTED_BYTES = 64
CLASSES = "tensorflow_datasets.core.features"

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

    ``split``: such as ``"train"``, ``"train[:10%]"``, ``"train[100:]+test"``, ``"all"``; needed where there
    are several.
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
        noted = read_beside(join(path, NOTE)) if steps == "flat" else None
        with located(path=join(path, NOTE)):
            kinds = Note.from_bytes(noted).schema if noted is not None else Schema({})
        for name in self._leaves.keys() & kinds.keys():
            self._leaves[name] = _as_noted(self._leaves[name], kinds[name])
        if not self._leaves:
            raise SchemaError("there is no feature that can be read", path=where)
        fields: dict[str, Field] = {}
        for name, leaf in self._leaves.items():
            fields[name] = leaf.feature.field if self._flat or not leaf.in_steps else _listed(leaf).field
        # The step that each record begins with.
        self._begins = np.arange(len(self._rows) + 1)
        if self._flat:
            # Those that were written, as far as that is known.
            fields |= {name: Int() for name in (EPISODE, STEP) if name in kinds or not kinds}
            self._begins = starts_of(self._steps()[self._rows])
        self.schema = Schema({**{name: fields[name] for name in kinds if name in fields}, **fields})
        self.length = int(self._begins[-1])

    # -- metadata --------------------------------------------------------------------------------------

    def _open(self, splits: Mapping[str, Any], instruction: str) -> tuple[Reader, I64]:
        """Return the records of the splits, and those of them that are asked for."""
        names = [part.strip() for part in instruction.split("+")]
        # TensorFlow Datasets calls the sum of its splits so.
        names = [*splits] if names == ["all"] and "all" not in splits else names
        parts = [_INSTRUCTION.fullmatch(name) for name in names]
        files: list[str] = []
        firsts: dict[str, tuple[int, int]] = {}
        chosen: list[tuple[str, slice]] = []
        total = 0
        for part in parts:
            if part is None or part[1] not in splits:
                raise OptionError(f"split is such as {', '.join(splits)}, train[:10%], not {instruction!r}")
            name = part[1]
            if name not in firsts:
                shards, count = self._shards(splits[name])
                firsts[name] = total, count
                files, total = files + shards, total + count
            bounds = (_bound(part[n], bool(part[n + 1]), firsts[name][1]) for n in (2, 4))
            chosen.append((name, slice(*bounds)))
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
        # The counts are those of the files.
        runs = [firsts[name][0] + np.arange(firsts[name][1])[bounds] for name, bounds in chosen]
        return records, np.concatenate(runs)

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
        # NumPy reads a list of types from other texts, and evaluates their numbers.
        if not dtype.isidentifier():
            raise ValueError(f"{dtype[:40]!r} is no dtype")
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
        columns = Columns({EPISODE: records, STEP: steps} if self._flat else {})
        leaves = {name: self._leaves[name] for name in fields if name in self._leaves}
        if not fields:
            # The checksums of the records are compared.
            self._records._read(self._rows[used], (DATA,))
        if leaves and len(indices):
            cells = self._records._read(self._rows[used], (DATA,)).ragged(DATA)
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

    def _layout(self) -> Layout:
        """Return the records as blocks of steps, or the layout of the records."""
        if not self._flat:
            return dataclasses.replace(self._records._layout().take(self._rows), boundaries=None, sizes=None)
        return Layout(
            block_sizes=np.diff(self._begins), boundaries=lambda: inner_starts(self._begins, self.length)
        )

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


class TfdsWriter(Writer):
    """Writes a split of a folder of TensorFlow Datasets, as TFRecord shards; RLDS where there are episodes.

    ``episode``: the field that has another value in each episode (default: ``episode_index``); without it, a
    record is a sample, and with it an episode with its ``steps``. ``split``: its name. ``name``: that of the
    dataset (default: that of the folder). ``version``: three numbers. ``shard_size``: bytes of a shard.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        episode: str = EPISODE,
        split: str = "train",
        name: str | None = None,
        version: str = "1.0.0",
        shard_size: int = SHARD_BYTES,
    ) -> None:
        self._key = episode if episode in schema else None
        if episode != EPISODE and self._key is None:
            raise OptionError(f"there is no field {episode!r} to tell episodes by", path=path)
        self._name = name or re.sub(r"\W", "_", Path(path).stem.partition(".")[0]) or "dataset"
        if not re.fullmatch(r"\w+", self._name, re.ASCII) or not re.fullmatch(r"[\w-]+", split, re.ASCII):
            raise OptionError("name and split are letters, digits and _", path=path)
        if not re.fullmatch(r"\d+\.\d+\.\d+", version) or shard_size < 1:
            raise OptionError("version is such as 1.0.0, and shard_size from 1 on", path=path)
        self._split, self._version, self._shard_size = split, version, shard_size
        # Readers count episodes and steps.
        counted = (EPISODE, STEP) if self._key is not None else ()
        for field_name in counted:
            if field_name in schema and schema[field_name] != Int():
                raise SchemaError("it is int64 in RLDS, and counts from 0", field=field_name)
        prefix = f"{STEPS}/" if self._key is not None else ""
        self._features = {
            field_name: _written(prefix + field_name.replace(".", "/"), field)
            for field_name, field in schema.items()
            if field_name not in counted
        }
        parts = [feature.key.split("/") for feature in self._features.values()]
        names = {tuple(part[:n]) for part in parts for n in range(1, len(part))}
        for field_name, part in zip(self._features, parts, strict=True):
            if "" in part or "/" in field_name or "\0" in field_name or tuple(part) in names:
                raise SchemaError("a feature of TensorFlow Datasets cannot be called so", field=field_name)
        if not parts:
            raise SchemaError("there is no field besides the counters", path=path)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and (field.cell is None or 0 in field.shape):
            return "tfds holds arrays of one shape"
        if isinstance(field, Tensor) and np.dtype(field.dtype).kind not in "biuf":
            return "tfds holds arrays of numbers"
        return None

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget()

    # -- samples wait in a spool, as Examples of their own ---------------------------------------------

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._samples = self.partial.spool("samples")
        # Of each sample: bytes, and whether it begins a record.
        self._entries = self.partial.spool("entries")
        self._last = bytes.fromhex(state["last"]) if state and state["last"] is not None else None

    def _state(self) -> dict[str, Any]:
        return {"last": None if self._last is None else self._last.hex()}

    def _write(self, columns: Columns) -> None:
        begins = np.ones(columns.rows, dtype=np.bool_)
        if self._key is not None and columns.rows:
            keys = columns[self._key]
            begins[1:] = ~same_cells(take_cells(keys, slice(0, -1)), take_cells(keys, slice(1, None)))
            begins[0] = cell_bytes(keys, 0) != self._last
            self._last = cell_bytes(keys, columns.rows - 1)
        examples = example.write(self._features, columns)
        self._samples.write(examples.data)
        self._entries.write(np.stack([examples.sizes, begins], axis=1).astype("<i8"))

    # -- files -----------------------------------------------------------------------------------------

    def _finish(self) -> str:
        folder = self.partial.folder / "dataset"
        # Of a writer that was killed here.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        counts, size = self._write_shards(folder)
        for number in range(len(counts)):
            shard = f"{self._name}-{self._split}.tfrecord-{number:05d}-of-{len(counts):05d}"
            (folder / str(number)).rename(folder / shard)
        split = {
            "name": self._split,
            "shardLengths": [str(count) for count in counts],
            "numBytes": str(size),
            "filepathTemplate": TEMPLATE,
        }
        info = {"name": self._name, "version": self._version, "fileFormat": "tfrecord", "splits": [split]}
        (folder / INFO).write_text(json.dumps(info, indent=2), encoding="utf-8")
        (folder / FEATURES).write_text(json.dumps(self._described(folder), indent=2), encoding="utf-8")
        (folder / NOTE).write_bytes(note_of(self.schema, self.written))
        return folder.name

    def _write_shards(self, folder: Path) -> tuple[list[int], int]:
        """Write all records; return how many each shard has, and their bytes."""
        entries = np.frombuffer(self._entries.read_at(self._entries.size, 0), "<i8").reshape(-1, 2)
        sizes = np.ascontiguousarray(entries[:, 0])
        ends = np.cumsum(sizes)
        firsts = np.flatnonzero(entries[:, 1])
        counts, total = [0], 0
        shard: IO[bytes] = open(folder / "0", "wb")  # noqa: SIM115
        try:
            for first, end in itertools.pairwise([*firsts.tolist(), len(entries)]):
                record = self._record(int(ends[first] - sizes[first]), sizes[first:end])
                if counts[-1] and shard.tell() + len(record) > self._shard_size:
                    shard.close()
                    shard = open(folder / str(len(counts)), "wb")  # noqa: SIM115
                    counts.append(0)
                shard.write(record.data)
                counts[-1] += 1
                total += len(record)
        finally:
            shard.close()
        return counts, total

    def _record(self, start: int, sizes: I64) -> U8:
        """Return the record of these samples, framed."""
        data = np.frombuffer(self._samples.read_at(int(sizes.sum()), start), np.uint8)
        if self._key is not None:
            requests = [feature.request for feature in self._features.values()]
            sources: list[tuple[bytes, int, U8, I64, I64, I64 | None]] = []
            starts = starts_of(sizes)[:-1]
            for feature, values in zip(
                self._features.values(), example.values_of(data, starts, sizes, requests), strict=True
            ):
                name = feature.key.encode()
                if feature.kind == BYTES:
                    runs = values.values.astype(np.int64)
                    columns = np.ascontiguousarray(runs[:, 0]), np.ascontiguousarray(runs[:, 1])
                    sources.append((name, BYTES, data, *columns, np.array([len(runs)])))
                else:
                    numbers = as_bytes(np.ascontiguousarray(values.values))
                    sources.append(
                        (name, feature.kind, numbers, np.zeros(1, np.int64), np.array([len(numbers)]), None)
                    )
            data, _ = _native.example_write(1, sources)
        return _native.tfrecord_frame(data, np.zeros(1, np.int64), np.array([len(data)]))

    def _described(self, folder: Path) -> dict[str, Any]:
        """Return the features, nested by their names; names of classes become files."""
        root: dict[str, Any] = {}
        for name, feature in self._features.items():
            *parents, last = feature.key.split("/")
            inside = root
            for parent in parents:
                inside = inside.setdefault(parent, {})
            spec = _spec(feature)
            inside[last] = spec
            if "classLabel" in spec:
                names = "".join(f"{label}\n" for label in getattr(self.schema[name], "names", ()))
                (folder / f"{feature.key.replace('/', '-')}.labels.txt").write_text(names, encoding="utf-8")
        described = _nested(root)
        if self._key is not None:
            features = described["featuresDict"]["features"]
            sequence = {"feature": features[STEPS], "length": "-1"}
            features[STEPS] = {"pythonClassName": f"{CLASSES}.dataset_feature.Dataset", "sequence": sequence}
        return described


def _written(key: str, field: Field) -> Feature:
    """Plan how a field is stored: as Examples usually have it, but large arrays of bytes as their bytes."""
    feature = example.feature_of(key, field)
    large = isinstance(field, Tensor) and field.cell is not None and np.dtype(field.dtype).itemsize == 1
    if large and np.prod(field.cell[1] if field.cell else ()) > MAX_LISTED_BYTES:
        return dataclasses.replace(feature, kind=BYTES)
    return feature


def _as_noted(leaf: Leaf, field: Field) -> Leaf:
    """Return a feature with the field that it was written as, if the values can be of that."""
    if field.optional or _written(leaf.feature.key, field).kind != leaf.feature.kind:
        return leaf
    if isinstance(field, Tensor) and field.cell is None:
        return leaf
    return dataclasses.replace(leaf, feature=dataclasses.replace(leaf.feature, field=field))


def _nested(features: dict[str, Any]) -> dict[str, Any]:
    inner = {key: spec if "pythonClassName" in spec else _nested(spec) for key, spec in features.items()}
    return {"pythonClassName": f"{CLASSES}.features_dict.FeaturesDict", "featuresDict": {"features": inner}}


def _spec(feature: Feature) -> dict[str, Any]:
    """Return the description of a feature."""
    field = feature.field
    names = getattr(field, "names", None) or ()
    if isinstance(field, Int) and names and not any("\n" in name for name in names):
        label = {"numClasses": str(len(names))}
        return {"pythonClassName": f"{CLASSES}.class_label_feature.ClassLabel", "classLabel": label}
    if isinstance(field, Image):
        channels = {"L": "1", "RGBA": "4"}.get(field.mode or "", "3")
        details = {"shape": {"dimensions": ["-1", "-1", channels]}, "dtype": "uint8"}
        if field.encoding in ("jpeg", "png"):
            details["encodingFormat"] = field.encoding
        return {"pythonClassName": f"{CLASSES}.image_feature.Image", "image": details}
    if isinstance(field, Text | Json):
        return {"pythonClassName": f"{CLASSES}.text_feature.Text", "text": {}}
    dtype = "bool" if isinstance(field, Bool) else str(getattr(field, "dtype", "string"))
    sizes = [str(size) for size in field.cell[1]] if isinstance(field, Tensor) and field.cell else []
    encoding = "bytes" if feature.kind == BYTES and dtype != "string" else "none"
    shape = {"dimensions": sizes} if sizes else {}
    tensor = {
        "shape": shape,
        "dtype": str(np.dtype(dtype)) if dtype != "string" else dtype,
        "encoding": encoding,
    }
    return {"pythonClassName": f"{CLASSES}.tensor_feature.Tensor", "tensor": tensor}


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
    cells = records._read(rows, (DATA,)).ragged(DATA)
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
    suffixes=(".tfds", ".rlds"),
    spec="https://www.tensorflow.org/datasets/external_tfrecord",
    reader=TfdsReader,
    writer=TfdsWriter,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor, Text, Bytes, Image, Json),
    folder=True,
    notes="without TensorFlow; splits and slices; RLDS as steps or episodes, written from `episode_index`",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        checksums="CRC of every record of TFRecord",
        keeps_schema=True,
        streaming_write=True,
        ecosystem=("TensorFlow Datasets", "RLDS", "Grain"),
    ),
)
