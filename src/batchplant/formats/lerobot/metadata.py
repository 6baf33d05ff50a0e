"""Metadata of a LeRobot dataset: ``meta/info.json``, episodes, tasks and statistics of versions 2 and 3.

Nothing in it is trusted: paths stay below the folder, and the lengths of episodes are those of the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...codecs.arrow import column_of, pyarrow
from ...errors import DamagedError, OptionError, exceptions_as, located
from ...order.keyed import whole
from ...schema import Bool, Field, Float, Image, Int, Schema, Tensor, Text
from ...schema.columns import I64, starts_of
from ...storage import NOTE_ERRORS, is_below, join, parse_object, read_beside, read_text, read_whole, tree
from ..base.tables import ParquetFile

INFO, STATS = "meta/info.json", "meta/stats.json"
EPISODES, TASKS = "meta/episodes", "meta/tasks.parquet"
OLD_EPISODES, OLD_TASKS, OLD_STATS = "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"
# Fields that every dataset has, and the text that ``task_index`` stands for.
EPISODE, FRAME, INDEX, TIME, TASK_INDEX = "episode_index", "frame_index", "index", "timestamp", "task_index"
TASK = "task"
# Entry of info.json with the schema of a dataset that batchplant wrote.
KEY = "batchplant"
# More rows than any dataset has; sums of lengths never overflow.
MAX_ROWS = 2**48
# Sides of the frames of a camera.
MAX_SIDE_PIXELS = 1 << 16

_PLACE = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")


class Camera(NamedTuple):
    """Videos of a camera: the file of each episode, and the second at which the episode begins in it."""

    files: Sequence[str]
    starts: npt.NDArray[np.float64]


class Metadata:
    """Metadata of the dataset in a folder; rows and files of its episodes, which are in order of number."""

    def __init__(self, path: str) -> None:
        self.path = path
        where = join(path, INFO)
        with exceptions_as(DamagedError, "it does not describe a dataset", *NOTE_ERRORS, path=where):
            self.info = parse_object(read_whole(where), finite=False)
            self.version = str(self.info["codebase_version"])
            if not re.match(r"v[23]\.\d", self.version):
                raise OptionError(f"version {self.version} of LeRobot's format is not read", path=where)
            self.fps = float(self.info["fps"])
            if not 0 < self.fps < 1e6:
                raise ValueError(f"{self.fps} frames a second")
            self.features: dict[str, Mapping[str, Any]] = dict(self.info["features"])
            self.schema = Schema({name: _field(feature) for name, feature in self.features.items()})
            if not self.features:
                raise ValueError("there are no features")
            self.noted = Schema.from_json(self.info.get(KEY, []))
            self.cameras = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        with exceptions_as(DamagedError, "its episodes are damaged", *NOTE_ERRORS, path=path):
            self._read_episodes() if self.is_old else self._read_tables()
            self._check()
        self._tasks: dict[int, str] | None = None

    @property
    def is_old(self) -> bool:
        return self.version.startswith("v2")

    # -- episodes --------------------------------------------------------------------------------------

    def _read_episodes(self) -> None:
        """Read the episodes of version 2, each of which has files of its own."""
        lines = _lines(join(self.path, OLD_EPISODES))
        lines.sort(key=lambda line: int(line[EPISODE]))
        self.numbers: I64 = np.array([int(line[EPISODE]) for line in lines], dtype=np.int64)
        self.lengths: I64 = np.array([int(line["length"]) for line in lines], dtype=np.int64)
        chunk_size = int(self.info["chunks_size"])
        if chunk_size < 1:
            raise ValueError(f"{chunk_size} files of a chunk")
        self.files: Sequence[str] = [self._old_path("data_path", number) for number in self.numbers.tolist()]
        starts = np.zeros(len(lines))
        self.videos = {
            name: Camera([self._old_path("video_path", n, name) for n in self.numbers.tolist()], starts)
            for name in self.cameras
        }

    def _old_path(self, key: str, number: int, camera: str = "") -> str:
        chunk = number // int(self.info["chunks_size"])
        return self._path(key, episode_chunk=chunk, episode_index=number, video_key=camera)

    def _read_tables(self) -> None:
        """Read the episodes of version 3, of which many share a file."""
        parts = ["chunk_index", "file_index"]
        of_cameras = [f"videos/{name}/{part}" for name in self.cameras for part in (*parts, "from_timestamp")]
        names = [EPISODE, "length", "dataset_from_index", *(f"data/{part}" for part in parts), *of_cameras]
        columns = _columns(self.path, names)
        order = np.argsort(columns["dataset_from_index"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        self.numbers, self.lengths = columns[EPISODE], columns["length"]
        firsts = starts_of(np.maximum(self.lengths, 0))[:-1]
        gaps = np.flatnonzero(columns["dataset_from_index"] != firsts)
        if len(gaps):
            raise ValueError(
                f"episode {self.numbers[gaps[0]]} begins at row {columns['dataset_from_index'][gaps[0]]}, and"
                f" those before it end at row {firsts[gaps[0]]}"
            )
        self.files = self._paths("data_path", columns, "data")
        self.videos = {
            name: Camera(
                self._paths("video_path", columns, f"videos/{name}", video_key=name),
                np.asarray(columns[f"videos/{name}/from_timestamp"], dtype=np.float64),
            )
            for name in self.cameras
        }

    def _paths(self, key: str, columns: Mapping[str, Any], prefix: str, **values: str) -> list[str]:
        pairs = zip(*(columns[f"{prefix}/{part}_index"].tolist() for part in ("chunk", "file")), strict=True)
        paths: dict[tuple[int, int], str] = {}
        return [
            paths.get(pair)
            or paths.setdefault(pair, self._path(key, chunk_index=pair[0], file_index=pair[1], **values))
            for pair in pairs
        ]

    def _path(self, key: str, **values: int | str) -> str:
        """Return the path that a template of info.json gives; str.format would follow any attribute."""
        template = str(self.info[key])

        def put(match: re.Match[str]) -> str:
            value = values[match[1]]
            return str(value) if match[2] is None else f"{int(value):0{int(match[2])}d}"

        name = _PLACE.sub(put, template)
        if not is_below(name) or (set(name) & set("{}") and key in self.info):
            raise DamagedError(f"{key} names {name!r}, which is no file below the dataset", path=self.path)
        return join(self.path, name)

    def _check(self) -> None:
        lengths = self.lengths.tolist()
        wrong = [n for n, length in zip(self.numbers.tolist(), lengths, strict=True) if length < 0]
        if wrong or sum(lengths) > MAX_ROWS:
            raise ValueError(f"episode {wrong[0] if wrong else 0} has a length that no episode has")
        if len(np.unique(self.numbers)) < len(self.numbers):
            raise ValueError("two episodes have one number")
        # Files of a dataset are its rows in order: none is met again behind another.
        changes = [
            file for file, before in zip(self.files, ["", *self.files], strict=False) if file != before
        ]
        if len(set(changes)) < len(changes):
            raise ValueError("the episodes of a file are not in order")
        for camera in self.videos.values():
            if not ((camera.starts >= 0) & (camera.starts < 1e9)).all():
                raise ValueError("an episode begins before its video")

    def chosen(self, episodes: Iterable[int] | None, split: str | None) -> I64:
        """Return the positions of episodes that are asked for by number, by split, or both."""
        rows = np.arange(len(self.numbers))
        if split is not None:
            splits = self.info.get("splits")
            text = splits.get(split) if isinstance(splits, dict) else None
            if text is None:
                listed = ", ".join(map(str, splits or ())) or "none"
                raise OptionError(f"there is no split {split!r}; there are: {listed}", path=self.path)
            bounds = re.fullmatch(r"(\d{1,18}):(\d{1,18})", str(text))
            if bounds is None:
                raise DamagedError(f"the split {split!r} is {text!r}, not FIRST:END", path=self.path)
            first, end = map(int, bounds.groups())
            rows = rows[(self.numbers >= first) & (self.numbers < end)]
        if episodes is not None:
            requested = np.unique([whole("an episode", episode, 0) for episode in episodes]).astype(np.int64)
            missing = np.setdiff1d(requested, self.numbers[rows])
            if len(missing):
                raise OptionError(f"there is no episode {missing[0]}", path=self.path)
            rows = rows[np.isin(self.numbers[rows], requested)]
        return rows

    # -- tasks and statistics --------------------------------------------------------------------------

    def tasks(self) -> dict[int, str]:
        """Return the text of each task by its number; empty where there are none."""
        if self._tasks is None:
            where = join(self.path, OLD_TASKS if self.is_old else TASKS)
            self._tasks = {}
            with exceptions_as(DamagedError, "its tasks are damaged", *NOTE_ERRORS, path=where):
                if self.is_old:
                    self._tasks = {int(line[TASK_INDEX]): str(line[TASK]) for line in _lines(where)}
                elif tree.is_file(where):
                    self._tasks = _task_table(where)
        return self._tasks

    def stats(self) -> dict[str, Mapping[str, Any]]:
        """Return the statistics of all episodes by feature: lists ``mean``, ``std``, ``min``, ``max``, …"""
        where = join(self.path, STATS)
        with exceptions_as(DamagedError, "its statistics are damaged", *NOTE_ERRORS, path=where):
            content = read_beside(where)
            if content is not None:
                return dict(parse_object(content, finite=False))
            where = join(self.path, OLD_STATS)
            lines = _lines(where) if self.is_old and tree.is_file(where) else []
            return merged([line["stats"] for line in lines])


def merged(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """Return the statistics of episodes together; quantiles are means, weighted as LeRobot does."""
    result: dict[str, Mapping[str, Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        of_name = [{k: np.asarray(v, np.float64) for k, v in p[name].items()} for p in parts if name in p]
        keys = set.intersection(*(set(part) for part in of_name))
        stacked = {key: np.stack([part[key] for part in of_name]) for key in keys}
        shape = (-1,) + (1,) * (stacked["mean"].ndim - 1)
        weights = stacked["count"].reshape(shape) / stacked["count"].sum()
        # Sums of large numbers overflow, and those of NaN are NaN.
        with np.errstate(all="ignore"):
            joined: dict[str, Any] = {"min": stacked["min"].min(axis=0), "max": stacked["max"].max(axis=0)}
            joined["mean"] = mean = (stacked["mean"] * weights).sum(axis=0)
            spread = stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2
            joined["std"] = np.sqrt((spread * weights).sum(axis=0))
            quantiles = [key for key in sorted(keys) if re.fullmatch(r"q\d\d", key)]
            joined |= {key: (stacked[key] * weights).sum(axis=0) for key in quantiles}
        result[name] = {key: values.tolist() for key, values in joined.items()}
        result[name] = {**result[name], "count": [int(stacked["count"].sum())]}
    return result


def _lines(path: str) -> list[dict[str, Any]]:
    return [parse_object(line, finite=False) for line in read_text(path).splitlines() if line.strip()]


def _columns(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of the tables of episodes as arrays."""
    folder = join(path, EPISODES)
    # Episodes that were not written yet have no table.
    files = (
        sorted(name for name, _ in tree.walk(folder) if name.endswith(".parquet"))
        if tree.is_folder(folder)
        else []
    )
    parts: dict[str, list[Any]] = {name: [np.empty(0, np.int64)] for name in names}
    for file in files:
        for name, column in _table(join(folder, file), names).items():
            kind = Float() if name.endswith("timestamp") else Int()
            # Not to_numpy(), which imports pandas.
            with located(path=join(folder, file), field=name):
                parts[name].append(column_of(kind, column))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _table(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of a Parquet file."""
    with located(path=path):
        file = ParquetFile(path)
        try:
            missing = [name for name in names if name not in file.schema.names]
            if missing:
                raise DamagedError(f"there is no column {missing[0]}")
            with exceptions_as(DamagedError, "it cannot be read", Exception):
                groups = [file.load(group, names) for group in range(len(file.rows))]
                table = pyarrow().concat_tables(groups) if groups else file.schema.empty_table()
                table.validate(full=True)
            return {name: table.column(name) for name in names}
        finally:
            file.close()


def _task_table(path: str) -> dict[int, str]:
    """Return the tasks of version 3, whose texts are the index of a data frame."""
    with located(path=path):
        file = ParquetFile(path)
        names = [name for name in file.schema.names if name != TASK_INDEX]
        file.close()
        if not names:
            raise DamagedError("there is no column of texts")
    text = TASK if TASK in names else names[-1]
    table = _table(path, [TASK_INDEX, text])
    return dict(zip(map(int, table[TASK_INDEX].to_pylist()), map(str, table[text].to_pylist()), strict=True))


def _field(feature: Mapping[str, Any]) -> Field:
    """Return the kind of field that a feature is."""
    dtype, shape = str(feature["dtype"]), tuple(int(size) for size in feature["shape"])
    if dtype == "image":
        return Image()
    if dtype == "string":
        return Text()
    if dtype == "video":
        return Tensor("uint8", (*camera_size(feature, shape), 3))
    # NumPy reads a list of types from other texts, and evaluates their numbers.
    numbers = np.dtype(dtype if dtype.isidentifier() else "V1")
    if numbers.kind not in "biuf":
        raise ValueError(f"features of dtype {dtype[:40]} are not read")
    if shape != (1,):
        return Tensor(numbers.name, shape)
    if numbers.kind == "b":
        return Bool()
    return Int(numbers.name) if numbers.kind in "iu" else Float(numbers.name)


def camera_size(feature: Mapping[str, Any], shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width of the frames of a camera; their axes have names."""
    names = [str(name) for name in feature.get("names") or ()]
    sides = dict(zip(names, shape, strict=False))
    first = 1 if names[:1] in (["channel"], ["channels"]) else 0
    height, width = sides.get("height", shape[first]), sides.get("width", shape[first + 1])
    if not (0 < height <= MAX_SIDE_PIXELS and 0 < width <= MAX_SIDE_PIXELS):
        raise ValueError(f"frames of {width}×{height}")
    return height, width
