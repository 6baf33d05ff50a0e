"""What folders of pictures, sounds and videos share: class per subfolder, flat, or with a metadata file.

- ``root/cat/001.jpg``: the picture and ``label``, the classes being the subfolders in order of name;
- ``root/001.jpg``: only the picture;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: the picture and the other columns.

Cells are the bytes of the files. Hidden files and files of other kinds are skipped and counted. What we
write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples (the number
in the file's name) come back.
"""

from .media import MEDIA, PICTURES, SOUNDS, VIDEOS, Media, media_in, mixed
from .reader import FolderReader, shared
from .writer import BESIDE, FolderWriter

__all__ = [
    "BESIDE",
    "MEDIA",
    "PICTURES",
    "SOUNDS",
    "VIDEOS",
    "FolderReader",
    "FolderWriter",
    "Media",
    "media_in",
    "mixed",
    "shared",
]
