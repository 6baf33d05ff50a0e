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
from .base.capabilities import Capabilities
from .base.folders import BESIDE, VIDEOS, FolderReader, FolderWriter, media_in, mixed, shared
from .base.format import Format, Probe


class VideoFolderReader(FolderReader):
    """Reads a folder of videos. ``file_names``: add the path below the root as field ``file_name``."""

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
    """Writes a folder: class per subfolder when the only other field has class names, else metadata.jsonl."""

    media = VIDEOS


def sniff(probe: Probe) -> bool:
    """Videos, and no other media, at the top, in the first folders, or named by a metadata file."""
    return probe.ask(media_in) == [VIDEOS]


FORMAT = Format(
    name="videofolder",
    title="Folder of videos",
    suffixes=(),
    spec="https://huggingface.co/docs/datasets/video_dataset",
    reader=VideoFolderReader,
    writer=VideoFolderWriter,
    sniff=sniff,
    kinds=(Video, *BESIDE),
    optional=True,
    folder=True,
    media=Video,
    doubt=mixed,
    extra="video",
    notes="class per subfolder, flat, or metadata.csv / metadata.jsonl",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("Hugging Face", "players"),
    ),
)
