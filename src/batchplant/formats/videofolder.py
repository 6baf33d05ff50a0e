"""A folder of videos: class per subfolder, flat, or with a metadata file.

- ``root/jump/001.mp4``: fields ``video`` and ``label``, the classes being the subfolders in order of name;
- ``root/001.mp4``: only ``video``;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: ``video`` and the other columns.

Cells are the bytes of the files. Hidden files and files that are no videos are skipped and counted.
What we write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples
(the number in the file's name) come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codecs.media import video
from ..codecs.media.video import Header, header
from ..errors import BatchplantError
from ..schema import Video
from .base.folders import VIDEOS, FolderReader, FolderWriter, folder_format, shared


class VideoFolderReader(FolderReader):
    """Reads a folder of videos. ``file_names``: add the path below the root as field ``file_name``;
    ``split``: the one of folders such as train and val that have class folders below."""

    media = VIDEOS

    def _look(self, files: Sequence[str]) -> Video:
        encodings: list[str | None] = []
        facts: list[Header] = []
        for data in self._some(files):
            encodings.append(video.encoding_of(data))
            try:
                facts.append(header(data))
            # Damaged, or the library is missing; decoding the sample raises the error.
            except BatchplantError:
                continue
        return Video(
            shared(encodings) or None,
            fps=shared(fact.fps for fact in facts),
            width=shared(fact.width for fact in facts),
            height=shared(fact.height for fact in facts),
        )


class VideoFolderWriter(FolderWriter):
    __doc__ = FolderWriter.__doc__
    media = VIDEOS


FORMAT = folder_format(
    VideoFolderReader,
    VideoFolderWriter,
    spec="https://huggingface.co/docs/datasets/video_dataset",
    extra="video",
    notes="class per subfolder, flat, or metadata.csv / metadata.jsonl",
    ecosystem=("Hugging Face", "players"),
)
