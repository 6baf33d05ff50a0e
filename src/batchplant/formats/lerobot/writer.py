"""Writing LeRobot 3.0: rows wait in a spool, frames become segments of video, all files follow at the end."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codecs.arrow import column_of, featured_schema, plain_batch, pyarrow, refuses, to_arrow, unfit
from ...codecs.cells import cell_bytes, decode_cell
from ...codecs.media import video
from ...data.keys import same_cells
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, DataError, OptionError, SchemaError, check_choice
from ...schema import Bool, Field, Float, Image, Int, Schema, Tensor, Text
from ...schema.columns import I64, Columns, take_cells
from ...storage import open_source
from ..base.tables.buffered import RowBuffer, SavedRows
from .metadata import EPISODE, FRAME, INDEX, KEY, TASK, TASK_INDEX, TIME, Metadata, merged

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_FPS = 30.0
# Raw pixels that are encoded at a time, of all cameras; a segment of a video.
SEGMENT_BYTES = 64 << 20
DATA_FILE_MIB, VIDEO_FILE_MIB, FILES_OF_CHUNK = 100, 200, 1000
ROW_GROUP_BYTES, PAGE_BYTES = 4 << 20, 128 << 10
# Of the frames and pixels of cameras, every so many count for statistics.
SAMPLED_FRAMES, SAMPLED_PIXELS = 10, 4
QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA, VIDEOS = f"data/{FILE}.parquet", f"videos/{{video_key}}/{FILE}.mp4"
COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
# Arrays of more values, such as images that are stored as numbers, have no statistics.
MAX_STATS_VALUES = 128
# Fields that LeRobot counts itself.
COUNTED: dict[str, Field] = {
    TIME: Float("float32"), FRAME: Int(), EPISODE: Int(), INDEX: Int(), TASK_INDEX: Int(),
}  # fmt: skip


class LeRobotWriter(Writer):
    """Writes LeRobot datasets of version 3.0.

    ``fps``: rows a second (default: those of the source, else 30). ``robot_type``: a name. ``episode``: the
    field that has another value in each episode (default: ``episode_index``; without it, all rows are one).
    ``videos``: the fields of uint8 (height, width, 3) that become videos, which loses a little; others are
    stored as they are. ``codec``, ``quality``, ``gop``: of these videos. ``videos_from``: a LeRobot dataset
    with the same episodes, whose videos are copied byte for byte. ``compression``: zstd, snappy, gzip,
    brotli, lz4 or none; images are never packed again. ``row_group_size``: bytes of cells in a row group.
    ``metadata``: that of the source.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        fps: float | None = None,
        robot_type: str | None = None,
        episode: str = EPISODE,
        videos: str | Iterable[str] = (),
        videos_from: str | None = None,
        codec: str = "libx264",
        quality: int | None = None,
        gop: int = 2,
        compression: str = "zstd",
        row_group_size: int = ROW_GROUP_BYTES,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        check_choice("compression", compression, COMPRESSIONS, path=path)
        if row_group_size < 1:
            raise OptionError(f"row_group_size must be at least 1 byte, not {row_group_size}", path=path)
        self._compression, self._row_group_size = compression, row_group_size
        noted = metadata or {}
        self._fps = float(noted.get("fps") or DEFAULT_FPS) if fps is None else float(fps)
        if not 0 < self._fps < 1e6:
            raise OptionError(f"fps is a number above 0, not {fps}", path=path)
        self._robot = robot_type or noted.get("robot_type")
        self._key = episode if episode in schema else None
        if episode != EPISODE and self._key is None:
            raise OptionError(f"there is no field {episode!r} to tell episodes by", path=path)
        names = videos.split(",") if isinstance(videos, str) else videos
        self._cameras = [name for name in dict.fromkeys(names) if name]
        self._copied = None if videos_from is None else Metadata(videos_from)
        self._encoding: dict[str, Any] = {"codec": codec, "quality": quality, "gop": gop}
        for name in self._cameras:
            field = schema.select([name])[name]
            if not isinstance(field, Tensor) or field.dtype != "uint8" or not _is_frame(field.shape):
                raise SchemaError(f"videos have frames of uint8 (height, width, 3), not {field}", field=name)
        for name, field in {**COUNTED, TASK: Text()}.items():
            if name in schema and not isinstance(schema[name], type(field)):
                raise SchemaError(f"it is {field.kind} in LeRobot, not {schema[name]}", field=name)
        left_out = {*self._cameras, TASK}
        given = {name: field for name, field in schema.items() if name not in left_out}
        self._rows_schema = Schema({**given, **{k: v for k, v in COUNTED.items() if k not in given}})
        pyarrow()
        self._arrow = featured_schema(self._rows_schema)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and (None in field.shape or not field.shape or 0 in field.shape):
            return "lerobot holds arrays of one shape"
        if isinstance(field, Tensor) and np.dtype(field.dtype).kind not in "biuf":
            return "lerobot holds arrays of numbers"
        return refuses(field)

    # -- rows ------------------------------------------------------------------------------------------

    def _begin(self, state: dict[str, Any] | None) -> None:
        for name in self.schema:
            if "/" in name or name.startswith(".") or not name:
                raise SchemaError("a feature of LeRobot cannot be called so", path=self.path, field=name)
        self._rows = self.partial.spool("rows.arrow")
        if not self._rows.size:
            self._rows.write(self._arrow.serialize())
        pixels = pyarrow().schema([(name, pyarrow().binary()) for name in self._cameras])
        self._pending, self._saved = RowBuffer(pixels), SavedRows(self.partial.folder, pixels)
        self._segments = self.partial.spool("segments")
        self._streams = [self.partial.spool(f"camera-{number}") for number in range(len(self._cameras))]
        self._levels_spool = self.partial.spool("levels")
        images = [name for name, field in self.schema.items() if isinstance(field, Image)]
        self._watched = [*self._cameras, *images]
        state = state or {"episode": -1, "frame": 0, "last": None, "tasks": [], "shapes": {}, "levels": None}
        self._episode, self._frame = int(state["episode"]), int(state["frame"])
        self._last = None if state["last"] is None else bytes.fromhex(state["last"])
        self._task_texts = {text: number for number, text in enumerate(state["tasks"])}
        self._shapes: dict[str, list[int]] = dict(state["shapes"])
        self._levels: I64 = np.zeros((len(self._watched), 3, 256), dtype=np.int64)
        if state["levels"] is not None:
            self._levels[:] = np.array(state["levels"], dtype=np.int64).reshape(self._levels.shape)
            self._saved.restore(state["pending"], [self._pending])

    def _state(self) -> dict[str, Any]:
        return {
            "episode": self._episode,
            "frame": self._frame,
            "last": None if self._last is None else self._last.hex(),
            "tasks": list(self._task_texts),
            "shapes": self._shapes,
            "levels": self._levels.reshape(-1).tolist(),
            "pending": self._saved.save([self._pending]),
        }

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return unfit(self.schema, columns)

    def _write(self, columns: Columns) -> None:
        count = columns.rows
        begins = np.zeros(count, dtype=np.bool_)
        if self._key is not None:
            keys = columns[self._key]
            begins[1:] = ~same_cells(take_cells(keys, slice(0, -1)), take_cells(keys, slice(1, None)))
            begins[0] = cell_bytes(keys, 0) != self._last
            self._last = cell_bytes(keys, count - 1)
        begins[0] |= self._episode < 0
        rows = np.arange(count)
        firsts = np.maximum.accumulate(np.where(begins, rows, -1 - self._frame))
        frames, episodes = np.where(firsts >= 0, rows - firsts, rows + self._frame), np.cumsum(begins)
        counted: dict[str, Any] = {
            FRAME: frames, EPISODE: self._episode + episodes, INDEX: self.written + rows,
            TIME: frames / self._fps, TASK_INDEX: self._task_numbers(columns),
        }  # fmt: skip
        stored = Columns()
        for name, field in self._rows_schema.items():
            given = name not in counted or (name == TIME and TIME in self.schema)
            given |= name == TASK_INDEX and TASK_INDEX in self.schema and TASK not in self.schema
            stored[name] = columns[name] if given else counted[name].astype(getattr(field, "dtype", "int64"))
        self._rows.write(to_arrow(self._rows_schema, stored, self._arrow).serialize())
        edges = [0, *np.flatnonzero(begins[1:] | False) + 1, count]
        for start, end in itertools.pairwise(map(int, edges)):
            if begins[start]:
                self._end_episode()
                self._episode += 1
            self._frame = int(frames[end - 1]) + 1
            if self._watched:
                self._watch(columns.take(slice(start, end)), frames[start:end])

    def _task_numbers(self, columns: Columns) -> I64:
        if TASK not in self.schema:
            return np.zeros(columns.rows, dtype=np.int64)
        texts = columns.ragged(TASK)
        tasks = self._task_texts
        cells = [(cell_bytes(texts, row) or b"").decode() for row in range(columns.rows)]
        return np.array([tasks.setdefault(text, len(tasks)) for text in cells], dtype=np.int64)

    def _watch(self, columns: Columns, frames: I64) -> None:
        """Count levels of cameras for statistics, and encode the frames of those that become videos."""
        for number, name in enumerate(self._watched):
            column, field = columns[name], self.schema[name]
            rows = np.flatnonzero((frames % SAMPLED_FRAMES == 0) | (name not in self._shapes))
            for row in rows.tolist():
                pixels = None
                # Bytes that are no image are stored as they are.
                try:
                    pixels = np.asarray(decode_cell(field, column, row))
                except DataError:
                    continue
                image = pixels if pixels.ndim == 3 else pixels[:, :, None]
                self._shapes.setdefault(name, list(image.shape))
                if image.dtype == np.uint8 and frames[row] % SAMPLED_FRAMES == 0:
                    few = image[::SAMPLED_PIXELS, ::SAMPLED_PIXELS]
                    for channel in range(3):
                        levels = few[:, :, min(channel, few.shape[2] - 1)]
                        self._levels[number, channel] += np.bincount(levels.reshape(-1), minlength=256)
        if not self._cameras:
            return
        pa = pyarrow()
        arrays = [
            pa.array([frame.tobytes() for frame in np.asarray(columns[name])], pa.binary())
            for name in self._cameras
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._cameras)
        sizes = np.full(columns.rows, sum(len(array[0].as_py()) for array in arrays), dtype=np.int64)
        for table in self._pending.fill(batch, sizes, SEGMENT_BYTES):
            self._encode_segment(table)

    def _encode_segment(self, table: pa.Table) -> None:
        for number, name in enumerate(self._cameras):
            field = self.schema[name]
            assert isinstance(field, Tensor)
            shape = [size or 0 for size in field.shape]
            frames = [np.frombuffer(cell.as_buffer(), np.uint8).reshape(shape) for cell in table.column(name)]
            data = video.encode(np.stack(frames), self._fps, "mp4", **self._encoding)
            stream = self._streams[number]
            segment = [self._episode, number, len(frames), stream.size, len(data)]
            stream.write(data)
            self._segments.write(np.array(segment, dtype="<i8"))

    def _end_episode(self) -> None:
        if self._pending.batches:
            self._encode_segment(self._pending.take())
        if self._episode >= 0:
            self._levels_spool.write(self._levels.astype("<i8"))
        self._levels[:] = 0

    # -- files -----------------------------------------------------------------------------------------

    def _finish(self) -> str:
        self._end_episode()
        folder = self.partial.folder / "dataset"
        # Of a writer that was killed here.
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        entries, stats = self._write_rows(folder)
        lengths = [entry["length"] for entry in entries]
        parts = self._copy_videos(folder, lengths) if self._copied else self._write_videos(folder, lengths)
        for entry, part in zip(entries, parts, strict=False):
            entry.update(part)
        self._write_metadata(folder, entries, stats)
        return folder.name

    def _each_episode(self) -> Iterator[pa.Table]:
        """Yield the rows of each episode."""
        pa = pyarrow()
        waiting: list[Any] = []
        with pa.memory_map(str(self._rows.path)) as file, pa.ipc.open_stream(file) as stream:
            number = 0
            for stored in stream:
                batch = plain_batch(stored, self._arrow)
                episodes = np.asarray(column_of(self._rows_schema[EPISODE], batch.column(EPISODE)))
                edges = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(episodes)]
                for start, end in itertools.pairwise(edges):
                    if waiting and episodes[start] != number:
                        yield pa.Table.from_batches(waiting)
                        waiting = []
                    number = int(episodes[start])
                    waiting.append(batch.slice(start, end - start))
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _write_rows(self, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Write the rows; return an entry and the statistics of each episode."""
        import pyarrow.parquet as pq

        images = [name for name, field in self._rows_schema.items() if isinstance(field, Image)]
        how = {
            "compression": {
                name: "none" if name.split(".bytes")[0] in images else self._compression
                for name in _leaves(self._arrow)
            },
            "use_dictionary": [k for k, field in self._rows_schema.items() if isinstance(field, Int | Text)],
            # So that filters and random samples read pages, not row groups.
            "write_page_index": True,
            "data_page_size": PAGE_BYTES,
        }
        entries: list[dict[str, Any]] = []
        stats: list[dict[str, Any]] = []
        out, size, files, done = None, 0, -1, 0
        try:
            for number, table in enumerate(self._each_episode()):
                if out is None or size + table.nbytes > DATA_FILE_MIB << 20:
                    if out is not None:
                        out.close()
                    files, size = files + 1, 0
                    path = folder / _file(DATA, files)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    out = pq.ParquetWriter(path, self._arrow, **how)
                size += table.nbytes
                for batch in _chunked(table, self._row_group_size):
                    # The library ends a page only at the end of an array, or after 1024 values.
                    part = pyarrow().Table.from_batches([batch])
                    pages = pyarrow().Table.from_batches(_chunked(part, PAGE_BYTES))
                    out.write_table(pages, row_group_size=len(pages))
                numbers = column_of(self._rows_schema[TASK_INDEX], table.column(TASK_INDEX))
                tasks = np.unique(np.asarray(numbers)).tolist()
                entry = {EPISODE: number, "tasks": [self._task(task) for task in tasks], "length": len(table)}
                chunk, file = divmod(files, FILES_OF_CHUNK)
                entry |= {"data/chunk_index": chunk, "data/file_index": file}
                entry |= {"dataset_from_index": done, "dataset_to_index": done + len(table)}
                done += len(table)
                entries.append(entry)
                stats.append(self._stats(number, table))
        finally:
            if out is not None:
                out.close()
        return entries, stats

    def _task(self, number: int) -> str:
        return next(itertools.islice(self._task_texts, number, None), f"task {number}" if number else "")

    def _stats(self, number: int, table: pa.Table) -> dict[str, Any]:
        """Return the statistics of an episode: of numbers exactly, of cameras by sampled frames."""
        stats: dict[str, Any] = {}
        for name, field in self._rows_schema.items():
            shape = field.shape if isinstance(field, Tensor) else (1,)
            values_of_row = math.prod(size or 0 for size in shape)
            if isinstance(field, Text | Image) or values_of_row > MAX_STATS_VALUES:
                continue
            values = np.asarray(column_of(field, table.column(name)), np.float64).reshape(len(table), -1)
            stats[name] = _summary(values, shape, len(table))
        size = self._levels[:].nbytes
        stored = self._levels_spool.read_at(size, number * size)
        levels = np.frombuffer(stored, "<i8").reshape(self._levels.shape)
        for camera, name in enumerate(self._watched):
            if levels[camera].any():
                stats[name] = _level_summary(levels[camera])
        return stats

    def _write_videos(self, folder: Path, lengths: Sequence[int]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = [{} for _ in lengths]
        segments = np.frombuffer(self._segments.read_at(self._segments.size, 0), "<i8").reshape(-1, 5)
        for number, name in enumerate(self._cameras):
            of_camera, stream = segments[segments[:, 1] == number], self._streams[number]
            sizes = np.bincount(of_camera[:, 0], weights=of_camera[:, 4], minlength=len(lengths))
            file, size, done, first = -1, np.inf, 0, 0
            for episode, length in [*enumerate(lengths), (len(lengths), 0)]:
                full = episode == len(lengths) or size + sizes[episode] > VIDEO_FILE_MIB << 20
                if full and file >= 0:
                    chosen = of_camera[(of_camera[:, 0] >= first) & (of_camera[:, 0] < episode)]
                    path = folder / _file(VIDEOS, file, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    parts = (stream.read_at(int(row[4]), int(row[3])) for row in chosen)
                    video.concatenate(parts, path, self._fps)
                if episode == len(lengths):
                    break
                if full:
                    file, size, done, first = file + 1, 0, 0, episode
                entries[episode] |= _place(name, file, done / self._fps, (done + length) / self._fps)
                size, done = size + sizes[episode], done + length
        return entries

    def _copy_videos(self, folder: Path, lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Copy the videos of another dataset, byte for byte."""
        source = self._copied
        assert source is not None
        if source.fps != self._fps or source.lengths.tolist() != list(lengths):
            raise OptionError("videos_from has other episodes, or another fps", path=source.path)
        entries: list[dict[str, Any]] = [{} for _ in lengths]
        for name, camera in source.videos.items():
            if name in self.schema:
                raise SchemaError("videos_from has a camera of that name, too", field=name)
            numbers = {file: number for number, file in enumerate(dict.fromkeys(camera.files))}
            for file, number in numbers.items():
                path = folder / _file(VIDEOS, number, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                data = open_source(file)
                with open(path, "wb") as out:
                    for start in range(0, data.size, SEGMENT_BYTES):
                        out.write(data.view(start, min(SEGMENT_BYTES, data.size - start)).data)
                data.close()
            for entry, file, start, length in zip(
                entries, camera.files, camera.starts.tolist(), lengths, strict=True
            ):
                entry |= _place(name, numbers[file], start, start + length / self._fps)
        return entries

    def _write_metadata(
        self, folder: Path, entries: Sequence[dict[str, Any]], stats: Sequence[dict[str, Any]]
    ) -> None:
        import pyarrow.parquet as pq

        pa, meta = pyarrow(), folder / "meta"
        tasks = list(self._task_texts)
        if not self._task_texts:
            used = {text: None for entry in entries for text in entry["tasks"]}
            numbers = {text: int(text.removeprefix("task ") or 0) for text in used}
            tasks = [self._task(number) for number in range(max(numbers.values(), default=-1) + 1)]
        numbers_of_tasks = pa.array(range(len(tasks)), pa.int64())
        table = pa.table({TASK_INDEX: numbers_of_tasks, "__index_level_0__": pa.array(tasks, pa.string())})
        pq.write_table(table.replace_schema_metadata({"pandas": _pandas_note()}), meta / "tasks.parquet")
        rows = []
        for entry, own in zip(entries, stats, strict=True):
            named = {f"stats/{name}/{key}": own[name][key] for name in own for key in own[name]}
            rows.append({**entry, **named, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), meta / "episodes" / "chunk-000" / "file-000.parquet")
        copied = self._copied
        noted = Schema({**self.schema, **({} if copied is None else copied.schema.select(copied.cameras))})
        features = {name: self._feature(name, field) for name, field in self._rows_schema.items()}
        features |= {name: self._feature(name, self.schema[name]) for name in self._cameras}
        features |= {} if copied is None else {name: dict(copied.features[name]) for name in copied.cameras}
        if copied is not None:
            shared = copied.stats()
            extra = {name: shared[name] for name in copied.cameras if name in shared}
        info = {
            "codebase_version": "v3.0",
            "robot_type": self._robot,
            "total_episodes": len(entries),
            "total_frames": sum(entry["length"] for entry in entries),
            "total_tasks": len(tasks),
            "chunks_size": FILES_OF_CHUNK,
            "data_files_size_in_mb": DATA_FILE_MIB,
            "video_files_size_in_mb": VIDEO_FILE_MIB,
            "fps": int(self._fps) if self._fps.is_integer() else self._fps,
            "splits": {"train": f"0:{len(entries)}"},
            "data_path": DATA,
            "video_path": VIDEOS if self._cameras or copied else None,
            "features": features,
            KEY: noted.to_json(),
        }
        all_stats = {**merged(stats), **({} if copied is None else extra)}
        for name, content in (("info.json", info), ("stats.json", all_stats)):
            (meta / name).write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")

    def _feature(self, name: str, field: Field) -> dict[str, Any]:
        axes = ["height", "width", "channels"]
        if name in self._watched:
            kind = "video" if name in self._cameras else "image"
            return {"dtype": kind, "shape": self._shapes.get(name, [1, 1, 3]), "names": axes}
        if isinstance(field, Text):
            return {"dtype": "string", "shape": [1], "names": None}
        shape = list(field.shape) if isinstance(field, Tensor) else [1]
        dtype = "bool" if isinstance(field, Bool) else getattr(field, "dtype", "")
        return {"dtype": dtype, "shape": shape, "names": None}

    def remarks(self) -> list[str]:
        if self._fps != DEFAULT_FPS or TIME in self.schema:
            return []
        return [f"frames are 1/{DEFAULT_FPS:g} s apart; fps=… says otherwise"]


def _is_frame(shape: Sequence[int | None]) -> bool:
    return len(shape) == 3 and shape[2] == 3 and None not in shape


def _file(template: str, number: int, camera: str = "") -> str:
    chunk, file = divmod(number, FILES_OF_CHUNK)
    return template.format(chunk_index=chunk, file_index=file, video_key=camera)


def _place(camera: str, file: int, start: float, end: float) -> dict[str, Any]:
    """Return the entries of an episode that say where its video lies."""
    chunk, number = divmod(file, FILES_OF_CHUNK)
    values = {"chunk_index": chunk, "file_index": number, "from_timestamp": start, "to_timestamp": end}
    return {f"videos/{camera}/{key}": value for key, value in values.items()}


def _chunked(table: pa.Table, size: int) -> list[Any]:
    """Return the rows as record batches of about so many bytes."""
    rows = max(1, size * len(table) // max(1, table.nbytes))
    starts = range(0, len(table), rows)
    parts = (table.slice(start, rows).combine_chunks() for start in starts)
    return [part.to_batches()[0] for part in parts]


def _leaves(described: pa.Schema) -> list[str]:
    """Return the names of the columns that lie in a Parquet file."""
    import pyarrow.parquet as pq

    sink = pyarrow().BufferOutputStream()
    with pq.ParquetWriter(sink, described):
        pass
    schema = pq.read_metadata(pyarrow().BufferReader(sink.getvalue())).schema
    return [schema.column(number).path for number in range(len(schema))]


def _summary(values: Any, shape: Sequence[int | None], count: int) -> dict[str, Any]:
    """Return the statistics of numbers, (rows, values of a row)."""
    # Sums of large numbers overflow, and those of NaN are NaN.
    with np.errstate(all="ignore"):
        stats = {"min": values.min(axis=0), "max": values.max(axis=0)}
        stats |= {"mean": values.mean(axis=0), "std": values.std(axis=0)}
        stats |= dict(zip(map(_quantile, QUANTILES), np.quantile(values, QUANTILES, axis=0), strict=True))
    return {**{key: part.reshape(shape).tolist() for key, part in stats.items()}, "count": [count]}


def _level_summary(levels: I64) -> dict[str, Any]:
    """Return the statistics of pixels, (3, 1, 1) from 0 to 1, by how many have each level."""
    values, counts = np.arange(256) / 255, levels / levels.sum(axis=1, keepdims=True)
    mean = (counts * values).sum(axis=1)
    spread = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(axis=1))
    present, ends = levels > 0, np.cumsum(counts, axis=1)
    low, high = present.argmax(axis=1) / 255, (255 - present[:, ::-1].argmax(axis=1)) / 255
    stats = {"min": low, "max": high, "mean": mean, "std": spread}
    stats |= {_quantile(q): (ends >= q - 1e-9).argmax(axis=1) / 255 for q in QUANTILES}
    pixels = int(levels[0].sum())
    return {**{key: part.reshape(3, 1, 1).tolist() for key, part in stats.items()}, "count": [pixels]}


def _quantile(q: float) -> str:
    return f"q{round(q * 100):02d}"


def _pandas_note() -> str:
    """Return the note that the texts of tasks are the index of a data frame."""
    text, column = ("name", "field_name", "pandas_type", "numpy_type", "metadata"), "__index_level_0__"
    note = {
        "index_columns": [column],
        "column_indexes": [dict(zip(text, (None, None, "unicode", "object", None), strict=True))],
        "columns": [
            dict(zip(text, (TASK_INDEX, TASK_INDEX, "int64", "int64", None), strict=True)),
            dict(zip(text, (None, column, "unicode", "object", None), strict=True)),
        ],
        "pandas_version": "2.2.0",
    }
    return json.dumps(note)
