"""Clips of videos: a dataset of videos as one of runs of their frames."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ...codecs.media.video import VideoSpan, index_of
from ...codecs.media.video.frames import Frames, check_clip, fill_frames, rotation_of
from ...errors import DataError, DecodeError, OptionError, Problem, SchemaError, located
from ...order.keyed import whole
from ...schema import Bytes, Field, Int, Schema, Tensor, Video
from ...schema.columns import I64, U8, Columns, starts_of, take_cells
from ...storage import index
from ...storage.spans import Spans, concat_known
from ..layout import Layout, inner_starts
from ..reader import DerivedReader, Reader, open_reader

START, VIDEO_ID = "start", "video_id"
MAX_FRAMES, MAX_SIDE_PIXELS = 1 << 30, 1 << 26
# Number of frames that marks a video whose container cannot be read.
UNREADABLE = -1
VERSION = 1


class VideoClips(DerivedReader):
    """All clips of the videos of a dataset: ``frames`` frames, ``step`` apart, from every ``stride``-th on.

    source: a reader, or the path of one. stride: by default, a clip begins where the one before it ends.
    field: that of the videos (default: the only Video field). size: (height, width) of the frames, or one
    number for both; without it, all videos must have one size. upright: turned as a player does.

    pad: without it, clips lie inside of their video: frames at its end that fill none, and videos shorter
    than a clip, are left out. With ``"last"``, the last frame is repeated, and every video is covered to its
    end. on_error: ``raise``, or ``skip`` to leave out videos whose container cannot be read; ``skipped``
    lists them. Damage between the frames is found when a clip is decoded, and is up to the Loader's on_error.

    A sample has the clip, uint8 (frames, height, width, 3), in the place of the video; ``start``, its first
    frame; ``video_id``, the number of the sample that it is cut from; and the other fields of that sample.
    Decoding starts at the keyframe before a clip. The clips of a video are a block: in a batch that has
    several, frames they share are decoded once.

    Raises: OptionError where the field is not named and there is not one of videos; DataError for a video
    whose container cannot be read, unless ``on_error`` is ``skip``.
    """

    format = "clips"

    def __init__(
        self,
        source: Reader | str | os.PathLike[str],
        frames: int = 16,
        stride: int | None = None,
        *,
        step: int = 1,
        field: str | None = None,
        size: int | Sequence[int] | None = None,
        pad: str | None = None,
        upright: bool = False,
        on_error: str = "raise",
    ) -> None:
        self.base = base = open_reader(source)
        self.path = base.path
        # Videos that have no clips here, because their containers cannot be read.
        self.skipped: list[Problem] = []
        with located(path=self.path):
            self._frames = whole("frames", frames, 1, MAX_FRAMES)
            self._step = whole("step", step, 1, MAX_FRAMES)
            # Frames from the first of a clip to its last.
            self._span = (self._frames - 1) * self._step + 1
            self._stride = self._span if stride is None else whole("stride", stride, 1, MAX_FRAMES)
            if pad not in (None, "last"):
                raise OptionError(f"pad is 'last' or None, not {pad!r}")
            if on_error not in ("raise", "skip"):
                raise OptionError(f"on_error is raise or skip, not {on_error!r}")
            self._size, self._upright = _pair(size), bool(upright)
            self._field = self._video_field(field)
            self._facts = self._facts_of_all(skip=on_error == "skip")
            self.schema = self._schema()
        totals = np.maximum(self._facts[:, 0], 0)
        over = totals - self._span
        if pad is None:
            counts = np.maximum(over // self._stride + 1, 0)
        else:
            # No clip begins behind the last frame.
            counts = 1 + np.minimum(-(-np.maximum(over, 0) // self._stride), (totals - 1) // self._stride)
        # The number of the first clip of every video.
        self._firsts = starts_of(np.where(totals > 0, counts, 0))
        self.length = int(self._firsts[-1])

    def _video_field(self, name: str | None) -> str:
        if name is None:
            videos = [
                field_name for field_name, field in self.base.schema.items() if isinstance(field, Video)
            ]
            if len(videos) != 1:
                listed = ", ".join(map(repr, videos)) or "none"
                raise OptionError(f"clips are cut from one field of videos, and there are {listed}: name it")
            return videos[0]
        (name,) = self.base._names([name])
        if not isinstance(self.base.schema[name], Video | Bytes):
            raise OptionError(f"clips are cut from videos, not from {self.base.schema[name]}", field=name)
        return name

    def _schema(self) -> Schema:
        fields: dict[str, Field] = dict(self.base.schema)
        for name in (START, VIDEO_ID):
            if name in fields:
                raise SchemaError(
                    f"a field cannot be called {name!r}: clips have one of their own; rename() it first"
                )
        fields[self._field] = Tensor("uint8", (self._frames, *self._frame_size(), 3))
        fields[START], fields[VIDEO_ID] = Int(), Int()
        return Schema(fields)

    def _frame_size(self) -> tuple[int, int]:
        """Return height and width of all frames."""
        if self._size is not None:
            height, width = self._size
        else:
            readable = np.flatnonzero(self._facts[:, 0] > 0)
            if not len(readable):
                raise SchemaError("there is no video to tell the size by; give size=(height, width)")
            sizes = self._facts[readable, 1:]
            different = np.flatnonzero((sizes != sizes[0]).any(axis=1))
            height, width = sizes[0].tolist()
            if len(different):
                high, wide = sizes[different[0]].tolist()
                raise OptionError(
                    f"the video is {wide}×{high}, and that of sample {readable[0]} is {width}×{height}; "
                    "size=(height, width) resizes the frames of all",
                    sample=int(readable[different[0]]),
                    field=self._field,
                )
        check_clip(self._frames, height, width)
        return height, width

    def _facts_of_all(self, *, skip: bool) -> I64:
        """Return frames, height and width of every video; an index stores them.

        Zero frames: the video is missing.
        """

        def build(reader: Reader) -> tuple[index.Arrays, index.Facts]:
            facts = np.zeros((len(reader), 3), dtype=np.int64)
            for number in range(len(reader)):
                try:
                    facts[number] = self._video_facts(reader, number)
                except DataError:
                    facts[number] = UNREADABLE
            return {"facts": facts}, {}

        def check(content: index.Index) -> bool:
            facts = content.arrays["facts"]
            return facts.dtype == np.int64 and facts.shape == (len(self.base), 3)

        about = "upright" if self._upright else ""
        stored = self.base._indexed((self._field,), "video-facts", about, build, version=VERSION, check=check)
        facts: I64 = np.array((build(self.base)[0] if stored is None else stored.arrays)["facts"])
        for number in np.flatnonzero(facts[:, 0] == UNREADABLE).tolist():
            # Read again for the reason; a limit may also have been raised since.
            try:
                facts[number] = self._video_facts(self.base, number)
            except DataError as error:
                error.sample = number
                error.at(path=self.base.where(number), field=self._field)
                if not skip:
                    raise
                self.skipped.append(Problem.of(error))
        return facts

    def _video_facts(self, reader: Reader, number: int) -> tuple[int, int, int]:
        """Return frames, height and width of a video."""
        (data,) = self._videos(reader, np.array([number]))
        if data is None:
            return 0, 0, 0
        facts = index_of(data)
        turned = self._upright and round(rotation_of(data, facts) / 90) % 2
        return len(facts.times), *((facts.width, facts.height) if turned else (facts.height, facts.width))

    def _videos(self, reader: Reader, numbers: I64) -> list[VideoSpan | memoryview | None]:
        """Return the bytes of videos, in place if they have spans; None for those that are missing."""
        spans = reader._spans(self._field, numbers)
        if spans is not None:
            return [*videos_of(spans)]
        column = reader._read(numbers, (self._field,)).ragged(self._field)
        cells = (column[row] for row in range(len(numbers)))
        return [None if cell is None else np.ascontiguousarray(cell).data for cell in cells]

    def _locate(self, indices: I64) -> tuple[I64, I64]:
        """Return the video of each clip, and its first frame."""
        videos = np.searchsorted(self._firsts, indices, side="right") - 1
        return videos, (indices - self._firsts[videos]) * self._stride

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        videos, starts = self._locate(indices)
        used, back = np.unique(videos, return_inverse=True)
        computed = {START: starts, VIDEO_ID: videos}
        names = tuple(name for name in fields if name not in computed and name != self._field)
        base = self.base._read(used, names)
        columns = Columns()
        for name in fields:
            if name in computed:
                columns[name] = computed[name]
            elif name == self._field:
                columns[name] = self._clips(indices, used, back, starts)
            else:
                columns[name] = take_cells(base[name], back)
        return columns

    def _clips(self, indices: I64, used: I64, back: I64, starts: I64) -> U8:
        cell = self.schema[self._field].cell
        assert cell is not None
        clips: U8 = self._buffers.take((len(indices), *cell[1]), cell[0])
        numbers = self._numbers(self._facts[used[back], 0], starts)
        videos = self._videos(self.base, used)
        requests = []
        for number, data in enumerate(videos):
            rows = np.flatnonzero(back == number)
            path = self.base.where(int(used[number]))
            with located(path=path, sample=int(indices[rows[0]]), field=self._field):
                if data is None:
                    raise DecodeError("the video is missing")
                frames, total = len(index_of(data).times), int(self._facts[used[number], 0])
                if frames != total:
                    raise DecodeError(f"the video has {frames} frames, and had {total} when it was opened")
            places = (rows[:, None] * self._frames + np.arange(self._frames)).reshape(-1)
            requests.append(
                Frames(data, path, numbers[rows].reshape(-1), places, indices[places // self._frames])
            )
        flat = clips.reshape(-1, *cell[1][1:])
        fill_frames(flat, requests, size=self._size, upright=self._upright, field=self._field)
        return clips

    def _numbers(self, totals: I64, starts: I64) -> I64:
        """Return the frames of clips that begin at these frames of videos with ``totals`` frames."""
        numbers = starts[:, None] + np.arange(self._frames) * self._step
        return np.asarray(np.minimum(numbers, totals[:, None] - 1), dtype=np.int64)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        videos, starts = self._locate(indices)
        used, back = np.unique(videos, return_inverse=True)
        names = [name for name in fields if name in self.base.schema and name != self._field]
        ranges = [self.base._ranges(names, used)] if names else []
        spans = self.base._spans(self._field, used) if self._field in fields else None
        if spans is None:
            return self.base._ranges([name for name in fields if name in self.base.schema], used)
        numbers = self._numbers(self._facts[videos, 0], starts)
        for number, data in enumerate(videos_of(spans)):
            if data is not None:
                runs = data.runs(numbers[back == number].reshape(-1))
                ranges.append(Spans([spans.sources[spans.file[number]]], *runs))
        return concat_known(ranges)

    def _layout(self) -> Layout:
        """Return the videos as blocks of clips."""
        return Layout(block_sizes=np.diff(self._firsts), boundaries=inner_starts(self._firsts, self.length))

    def _base_rows(self, rows: I64) -> I64:
        return self._locate(rows)[0]

    def facts(self) -> dict[str, object]:
        return {"videos": len(self.base), "frames": self._frames, "stride": self._stride, "step": self._step}


def videos_of(spans: Spans) -> list[VideoSpan | None]:
    """Return videos by where they lie; None for those that are missing."""
    places = zip(spans.file.tolist(), spans.start.tolist(), spans.size.tolist(), strict=True)
    return [
        VideoSpan(spans.sources[file], start, size) if size >= 0 else None for file, start, size in places
    ]


def _pair(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2:
        raise OptionError(f"size is (height, width), or one number for both, not {size!r}")
    return whole("height", sides[0], 1, MAX_SIDE_PIXELS), whole("width", sides[1], 1, MAX_SIDE_PIXELS)
