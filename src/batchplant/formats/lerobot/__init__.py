"""LeRobot: recordings of robots as Parquet files and videos, versions 2.0, 2.1 and 3.0.

A sample is a frame; its episode is a sequence of its own, which no window crosses. ``meta/info.json`` names
the features and the files, ``meta/episodes`` the rows and the videos of each episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs.arrow import arrow_schema, column_of
from ...codecs.media.video import VideoSpan, index_of
from ...codecs.media.video.frames import Frames, fill_frames, size_pair
from ...data.expressions import Bounds
from ...data.filters import ScanRun
from ...data.layout import Layout, inner_starts
from ...data.reader import Reader
from ...errors import AccessError, BatchplantError, DamagedError, NotFoundError, located
from ...schema import Bool, Field, Float, Image, Int, Schema, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, Columns, Ragged, starts_of
from ...storage import PathSources, Source, is_remote, join, open_source, tree
from ...storage.spans import SourceRun, Spans, concat_known
from ..base.format import Capabilities, Format, Probe
from ..base.lake import LakeReader, Part
from .metadata import INFO, TASK, TASK_INDEX, Metadata
from .writer import LeRobotWriter

# -- reader -------------------------------------------------------------------------------------------

# Videos of a camera whose frames are counted to compare them with those of the table.
MAX_COUNTED_VIDEOS = 256


class LeRobotReader(LakeReader):
    """Reads LeRobot datasets of versions 2.0, 2.1 and 3.0.

    ``episodes``: only these, by number. ``split``: only the episodes of a split. ``size``: (height, width)
    that the frames of videos are scaled to as they are decoded, or one number for both. ``videos``: False:
    without the fields of videos.
    """

    def __init__(
        self,
        path: str,
        *,
        episodes: Iterable[int] | None = None,
        split: str | None = None,
        size: int | Sequence[int] | None = None,
        videos: bool = True,
    ) -> None:
        self.path = path
        self._meta = meta = Metadata(path)
        chosen = meta.chosen(episodes, split)
        self._episodes, lengths = meta.numbers[chosen], meta.lengths[chosen]
        self._begins = starts_of(lengths)
        with located(path=path):
            self._size = None if size is None else size_pair(size)
        self._cameras = dict(meta.videos) if videos else {}
        self._chosen = chosen
        self._maps, self._sources = PathSources(), dict[str, Source]()
        self._options = {"episodes": episodes, "split": split, "size": size, "videos": videos}
        self._state = {"version": meta.version, "episodes": self._episodes.tolist()}
        self._set_parts(self._data_files(), arrow_schema(self._stored()), None)
        self.schema = self._described()
        if self._cameras:
            # Decoded frames are large.
            self._frame_bytes = sum(
                int(np.prod([size or 0 for size in field.shape]))
                for name, field in self.schema.items()
                if name in self._cameras and isinstance(field, Tensor)
            )

    def _data_files(self) -> list[Part]:
        """Return the files of the chosen episodes; rows of others that lie there do not count."""
        is_chosen = np.zeros(len(self._meta.numbers), dtype=np.bool_)
        is_chosen[self._chosen] = True
        rows_of_file: dict[str, list[int]] = {}
        for position, file in enumerate(self._meta.files):
            rows_of_file.setdefault(file, []).append(position)
        parts = []
        for file, positions in rows_of_file.items():
            if not is_chosen[positions].any():
                continue
            lengths = self._meta.lengths[positions]
            left_out = None
            if not is_chosen[positions].all():
                left_out = np.flatnonzero(~np.repeat(is_chosen[positions], lengths))
            parts.append(Part(file, int(lengths.sum()), deleted=left_out))
        return parts

    def _stored(self) -> Schema:
        """Return the fields that lie in the Parquet files."""
        noted = self._meta.noted
        fields = {**self._meta.schema, **{name: noted[name] for name in noted if name in self._meta.schema}}
        return Schema((name, field) for name, field in fields.items() if name not in self._meta.cameras)

    def _described(self) -> Schema:
        """Return the fields of samples: as they were written, or all of them, and the texts of tasks."""
        fields: dict[str, Field] = {name: self.schema[name] for name in self.schema}
        for name in self._cameras:
            field = self._meta.schema[name]
            assert isinstance(field, Tensor)
            sides = field.shape[:2] if self._size is None else self._size
            fields[name] = Tensor("uint8", (*sides, 3))
        if TASK not in fields and TASK_INDEX in fields and self._meta.tasks():
            fields[TASK] = Text()
        order = self._meta.noted or [*self._meta.schema, TASK]
        return Schema((name, fields[name]) for name in order if name in fields)

    # -- frames of videos ------------------------------------------------------------------------------

    def _source(self, file: str) -> Source:
        # A source that is referred to is the same one for those who read ahead.
        if file not in self._sources:
            source = open_source(file) if is_remote(file) else self._maps.source(file)
            self._sources.setdefault(file, source)
        return self._sources[file]

    def _requests(self, name: str, indices: I64) -> Iterator[Frames]:
        """Yield the frames of a camera that samples need, video by video.

        The time of a frame is that of its episode in the video, and its number in the episode: ``timestamp``
        is a float32, and wrong by milliseconds in long episodes.
        """
        camera = self._cameras[name]
        episodes = np.searchsorted(self._begins, indices, side="right") - 1
        positions = self._chosen[episodes]
        seconds = camera.starts[positions] + (indices - self._begins[episodes]) / self._meta.fps
        files = np.array([camera.files[position] for position in positions.tolist()], dtype=object)
        for file in dict.fromkeys(files.tolist()):
            rows = np.flatnonzero(files == file)
            with located(path=file, sample=int(indices[rows[0]]), field=name):
                try:
                    span = self._span(file)
                    shown = index_of(span).seconds
                except (FileNotFoundError, NotFoundError):
                    raise DamagedError("the dataset lists this video, but it is not there") from None
                except BatchplantError:
                    raise
                except OSError as error:
                    raise AccessError(f"the video cannot be opened: {error.strerror}") from None
                after = np.clip(np.searchsorted(shown, seconds[rows]), 1, max(1, len(shown) - 1))
                before = after - 1
                after = np.minimum(after, len(shown) - 1)
                near = seconds[rows] - shown[before] <= shown[after] - seconds[rows]
                numbers = np.where(near, before, after)
                off = np.abs(shown[numbers] - seconds[rows]) * self._meta.fps
                if (off > 0.5).any():
                    row = rows[int(np.argmax(off > 0.5))]
                    raise DamagedError(
                        f"episode {self._episodes[episodes[row]]}, frame "
                        f"{indices[row] - self._begins[episodes[row]]}: the video has no frame at "
                        f"{seconds[row]:.3f} s; it ends at {shown[-1]:.3f} s",
                        sample=int(indices[row]),
                    )
            yield Frames(span, file, numbers.astype(np.int64), rows, indices[rows])

    def leftovers(self) -> Iterator[str]:
        """Yield what lies in the dataset and belongs to no sample, each with its place."""
        meta = self._meta
        used = {file for camera in meta.videos.values() for file in camera.files} | set(meta.files)
        for folder in ("data", "videos"):
            where = join(self.path, folder)
            names = (join(where, name) for name, _ in tree.walk(where)) if tree.is_folder(where) else ()
            for file in sorted(name for name in names if name.endswith((".parquet", ".mp4"))):
                if file not in used:
                    yield f"{file.removeprefix(self.path).strip('/')}: no episode is in this file"
        for name in self._cameras:
            positions: dict[str, list[int]] = {}
            for position, file in enumerate(meta.videos[name].files):
                positions.setdefault(file, []).append(position)
            for file, of_file in itertools.islice(positions.items(), MAX_COUNTED_VIDEOS):
                # Checks of samples report videos that cannot be read.
                with contextlib.suppress(BatchplantError, OSError):
                    total = len(index_of(self._span(file)).times)
                    difference = self._count_difference(of_file, total)
                    if difference:
                        yield f"{file.removeprefix(self.path).strip('/')}: {difference}"

    def _count_difference(self, positions: Sequence[int], total: int) -> str | None:
        """Return how the frames of a video differ from the rows of its episodes; None where they do not."""
        numbers, ends = self._meta.numbers[positions], np.cumsum(self._meta.lengths[positions])
        count = int(ends[-1])
        if total == count:
            return None
        if total > count:
            return f"the video has {total} frames, and episode {numbers[-1]} ends at frame {count}"
        at = int(np.searchsorted(ends, total, side="right"))
        frame = total - (int(ends[at - 1]) if at else 0)
        return f"the video has {total} frames, and ends at episode {numbers[at]}, frame {frame}"

    def _span(self, file: str) -> VideoSpan:
        return VideoSpan(self._source(file))

    def _frames(self, name: str, indices: I64) -> U8:
        (_, shape) = self.schema[name].cell or (None, ())
        frames: U8 = self._buffers.take((len(indices), *shape), np.dtype(np.uint8))
        self._fill(name, indices, frames, np.arange(len(indices)))
        return frames

    def _fill(self, field: str, indices: I64, out: AnyArray, rows: I64) -> bool:
        if field not in self._cameras:
            return False
        if len(indices):
            size = None if self._size is None else out.shape[1:3]
            requests = [
                request._replace(rows=rows[request.rows]) for request in self._requests(field, indices)
            ]
            fill_frames(out, requests, size=size, field=field)
        return True

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        stored = [name for name in fields if name not in self._cameras]
        columns = super()._read(indices, stored) if stored else Columns()
        for name in fields:
            if name in self._cameras:
                columns[name] = self._frames(name, indices)
        return Columns((name, columns[name]) for name in fields)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        ranges = [super()._ranges([name for name in fields if name not in self._cameras], indices)]
        for name in fields:
            if name in self._cameras:
                # Reading a video that is not there says so.
                with contextlib.suppress(BatchplantError):
                    for request in self._requests(name, indices):
                        assert isinstance(request.data, VideoSpan)
                        runs = request.data.runs(request.numbers)
                        ranges.append(Spans([self._source(request.path)], *runs))
        return concat_known(ranges)

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        return self._way(fields)._consecutive(self, size, fields)

    def _scan_runs(self, fields: Sequence[str]) -> Iterator[ScanRun]:
        return self._way(fields)._scan_runs(self, fields)

    def _way(self, fields: Sequence[str]) -> type[Reader]:
        """Return the class that reads these fields in order: frames are not cached by row groups."""
        return Reader if any(name in self._cameras for name in fields) else LakeReader

    def _row_reader(self, rows: I64) -> Any:
        return None if self._cameras else super()._row_reader(rows)

    def _layout(self) -> Layout:
        return dataclasses.replace(
            super()._layout(),
            boundaries=lambda: inner_starts(self._begins, self.length),
            sizes=np.broadcast_to(np.int64(self._frame_bytes), (self.length,)) if self._cameras else None,
        )

    # -- tasks, which lie in the files as numbers ------------------------------------------------------

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        names = [name for name in fields if name != TASK or not self._has_texts(fields)]
        columns = super()._load_rows(unit, rows, names)
        if self._has_texts(fields):
            stored = self._arrow_columns(*self._file_of(unit), [TASK_INDEX], rows)
            if TASK_INDEX not in stored:
                raise DamagedError("the file has no such column", field=TASK_INDEX)
            numbers, tasks = column_of(Int(), stored[TASK_INDEX]), self._meta.tasks()
            assert not isinstance(numbers, Ragged)
            unknown = [row for row, number in enumerate(numbers.tolist()) if number not in tasks]
            if unknown:
                raise DamagedError(
                    f"there is no task {numbers[unknown[0]]}", sample=unknown[0], field=TASK_INDEX
                )
            columns[TASK] = Ragged.from_cells([tasks[number].encode() for number in numbers.tolist()])
        return Columns((name, columns[name]) for name in fields)

    def _has_texts(self, fields: Sequence[str]) -> bool:
        return TASK in fields and TASK not in self._meta.schema

    def _row_runs(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> list[SourceRun] | None:
        return super()._row_runs(unit, rows, _numbered(fields) if self._has_texts(fields) else fields)

    def _fixed_bounds(self, number: int, fields: Sequence[str]) -> dict[str, Bounds]:
        decoded = {*self._cameras, *([TASK] if self._has_texts(fields) else [])}
        return super()._fixed_bounds(number, [name for name in fields if name not in decoded])

    # -- facts -----------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        facts = {"version": self._meta.version, "episodes": len(self._episodes), "fps": self._meta.fps}
        robot = self._meta.info.get("robot_type")
        return {**facts, **({"robot": str(robot)} if robot else {}), **super().facts()}

    @property
    def metadata(self) -> Mapping[str, str]:
        robot = self._meta.info.get("robot_type")
        return {"fps": f"{self._meta.fps:g}", **({"robot_type": str(robot)} if robot else {})}

    @property
    def attributes(self) -> Mapping[str, Mapping[str, object]]:
        """Statistics of each field, of cameras in levels from 0 to 255, and the names of its axes."""
        stats = self._meta.stats()
        return {name: self._attributes_of(name, stats.get(name, {})) for name in self.schema if name in stats}

    def _attributes_of(self, name: str, stats: Mapping[str, Any]) -> dict[str, object]:
        levels = 255.0 if name in self._meta.cameras or isinstance(self.schema[name], Image) else 1.0
        with located(path=self.path, field=name):
            try:
                values = {k: np.asarray(v, np.float64) for k, v in stats.items() if k != "count"}
            except (TypeError, ValueError) as error:
                raise DamagedError(f"its statistics are damaged: {error}") from None
        names = self._meta.features.get(name, {}).get("names")
        lists: dict[str, object] = {key: (v.reshape(-1) * levels).tolist() for key, v in values.items()}
        return {**lists, **({"names": names} if names else {})}

    def close(self) -> None:
        super().close()
        self._maps.close()
        for source in self._sources.values():
            source.close()


def _numbered(fields: Sequence[str]) -> list[str]:
    """Return the names of columns, the numbers of tasks in the place of their texts."""
    return list(dict.fromkeys(TASK_INDEX if name == TASK else name for name in fields))


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    return "meta/" in probe.names and tree.is_file(join(probe.path, INFO))


FORMAT = Format(
    name="lerobot",
    title="LeRobot",
    suffixes=(".lerobot",),
    spec="https://huggingface.co/docs/lerobot/lerobot-dataset-v3",
    reader=LeRobotReader,
    writer=LeRobotWriter,
    sniff=sniff,
    kinds=(Int, Float, Bool, Tensor, Text, Image),
    folder=True,
    extra="lerobot",
    notes="a sample is a frame; episodes; frames of videos in place",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("LeRobot", "Hugging Face"),
    ),
)
