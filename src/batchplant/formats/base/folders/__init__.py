"""Base classes of folders of images, sounds and videos: class per subfolder, flat, or with metadata.

- ``root/cat/001.jpg``: the image and ``label``, the classes being the subfolders in order of name;
- ``root/001.jpg``: only the image;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: the image and the other columns.

Cells are the bytes of the files. Hidden files and files of other kinds are skipped and counted. What we
write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples (the number
in the file's name) come back.
"""

from .media import IMAGE_FILES, MEDIA, SOUNDS, VIDEOS, Media, media_in, mixed
from .reader import BESIDE, FolderReader, FolderWriter, folder_format, shared

__all__ = [
    "BESIDE", "IMAGE_FILES", "MEDIA", "SOUNDS", "VIDEOS", "FolderReader", "FolderWriter", "Media",
    "folder_format", "media_in", "mixed", "shared",
]  # fmt: skip
