"""A folder of sounds: class per subfolder, flat, or with a metadata file.

- ``root/bark/001.wav``: fields ``audio`` and ``label``, the classes being the subfolders in order of name;
- ``root/001.wav``: only ``audio``;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: ``audio`` and the other columns.

Cells are the bytes of the files. Hidden files and files that are no sounds are skipped and counted.
What we write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples
(the number in the file's name) come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codecs.media import audio
from ..errors import BatchplantError
from ..schema import Audio
from .base.folders import SOUNDS, FolderReader, FolderWriter, folder_format, shared


class AudioFolderReader(FolderReader):
    """Reads a folder of sounds. ``file_names``: add the path below the root as field ``file_name``;
    ``split``: the one of folders such as train and val that have class folders below."""

    media = SOUNDS

    def _look(self, files: Sequence[str]) -> Audio:
        encodings: list[str] = []
        facts: list[tuple[int, int]] = []
        for data in self._some(files):
            encodings.append(audio.encoding_of(data))
            try:
                header = audio.header(data)
                facts.append((header.rate, header.channels))
            # Damaged, or of an encoding whose library is missing; decoding the sample raises the error.
            except BatchplantError:
                continue
        rate, channels = shared(fact[0] for fact in facts), shared(fact[1] for fact in facts)
        return Audio(shared(encodings) or None, rate or None, channels or None)


class AudioFolderWriter(FolderWriter):
    __doc__ = FolderWriter.__doc__
    media = SOUNDS


FORMAT = folder_format(
    AudioFolderReader,
    AudioFolderWriter,
    spec="https://huggingface.co/docs/datasets/audio_dataset",
    extra="audio",
    notes="class per subfolder, flat, or metadata.csv / metadata.jsonl",
    ecosystem=("torchaudio", "Hugging Face", "players"),
)
