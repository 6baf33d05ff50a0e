"""A video as its frames: MP4, MOV, MKV, WebM and AVI.

A sample is a frame: its pixels as ``frame``, uint8 (height, width, 3), and the second at which it is shown as
``time``; the first is shown at 0. The sample tables of MP4 and MOV, and the blocks of Matroska and WebM, tell
where the packets of each frame lie, so that only those are read; of AVI the whole file is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..codecs.media.video import SUFFIXES, Index, VideoSpan, encoding_of, index_of
from ..codecs.media.video.frames import Frames, fill_frames, rotation_of, sized
from ..data.layout import Layout
from ..data.reader import Reader
from ..errors import OptionError, exceptions_as, located
from ..schema import Float, Schema, Tensor
from ..schema.columns import I64, AnyArray, Columns
from ..storage import open_source
from ..storage.spans import Spans, concat_spans
from .base.format import Capabilities, Format, Probe

FRAME, TIME = "frame", "time"


class VideoReader(Reader):
    """Reads the frames of a video.

    size: (height, width) that frames are scaled to as they are decoded, or one number for both. upright:
    turned as a player does.
    """

    def __init__(self, path: str, *, size: int | Sequence[int] | None = None, upright: bool = False) -> None:
        self.path = path
        self._size, self._upright = size, bool(upright)
        self._source = open_source(path)
        with located(path=path):
            self._video = VideoSpan(self._source)
            video_index = self._index
            height, width = sized(size, video_index)
            if self._upright and size is None and round(rotation_of(self._video, video_index) / 90) % 2:
                height, width = width, height
        self.schema = Schema({FRAME: Tensor("uint8", (height, width, 3)), TIME: Float("float64")})
        self.length = len(video_index.times)

    @property
    def _index(self) -> Index:
        """Index of the video; a cache bounds the memory of those of many open videos."""
        return index_of(self._video)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            if name == TIME:
                columns[name] = self._index.seconds[indices]
                continue
            (_, shape) = self.schema[name].cell or (None, ())
            frames = self._buffers.take((len(indices), *shape), np.dtype(np.uint8))
            self._fill(name, indices, frames, np.arange(len(indices)))
            columns[name] = frames
        return columns

    def _fill(self, field: str, indices: I64, out: AnyArray, rows: I64) -> bool:
        if field == FRAME:
            request = Frames(self._video, self.path, indices, rows, indices)
            fill_frames(out, [request], size=self._size, upright=self._upright, field=field)
        return field == FRAME

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        runs = self._video.runs(indices) if FRAME in fields else (indices[:0], indices[:0])
        return concat_spans([Spans([self._source], *runs)])

    def _layout(self) -> Layout:
        return Layout(blocks=self._keyframes)

    def _keyframes(self) -> I64:
        """Return the keyframe that each frame is decoded from."""
        video_index = self._index
        if not video_index.seekable:
            return np.zeros(self.length, dtype=np.int64)
        return np.maximum(np.searchsorted(video_index.key_times, video_index.times, side="right") - 1, 0)

    def frames_at(self, seconds: npt.ArrayLike) -> I64:
        """Return the number of the frame that is shown at each of these seconds.

        Raises: OptionError for a time before the first frame or behind the end of the video.
        """
        with exceptions_as(OptionError, "seconds are numbers", ValueError, TypeError, path=self.path):
            times = np.asarray(seconds, dtype=np.float64)
        video_index = self._index
        outside = ~((times >= 0) & (times <= video_index.duration))
        if outside.any():
            raise OptionError(
                f"the video is {video_index.duration} seconds long, and {times[outside][0]} lies outside",
                path=self.path,
            )
        # Times such as 7 / 30 are rounded.
        return np.maximum(np.searchsorted(video_index.seconds - 1e-6, times, side="right") - 1, 0)

    def facts(self) -> dict[str, object]:
        index = self._index
        keys = len(index.keys)
        return {"codec": index.codec, "fps": index.fps, "seconds": index.duration, "keyframes": keys}

    def close(self) -> None:
        self._source.close()


def sniff(probe: Probe) -> bool:
    return encoding_of(probe.head) is not None


FORMAT = Format(
    name="video",
    title="Video",
    suffixes=tuple(SUFFIXES),
    spec="https://developer.apple.com/documentation/quicktime-file-format",
    reader=VideoReader,
    sniff=sniff,
    kinds=(Tensor, Float),
    extra="video",
    notes="a sample is a frame; decoded from its keyframe; MP4's tables and MKV's blocks locate it",
    can=Capabilities(
        random_access=True,
        compression=("H.264", "HEVC", "AV1", "VP9"),
        compressed="group of pictures",
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        ecosystem=("FFmpeg", "torchcodec", "players"),
    ),
)
