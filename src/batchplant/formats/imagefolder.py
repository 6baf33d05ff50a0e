"""A folder of images: class per subfolder, flat, or with a metadata file.

- ``root/cat/001.jpg``: fields ``image`` and ``label``, the classes being the subfolders in order of name;
- ``root/001.jpg``: only ``image``;
- ``root/images/001.jpg`` and ``root/masks/001.png``, all by the same names: fields ``image`` and ``mask``;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: ``image`` and the other columns.

Cells are the bytes of the files. Hidden files and files that are no images are skipped and counted.
What we write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples
(the number in the file's name) come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codecs.infer import decoded_mode
from ..codecs.media import image
from ..schema import Image, Schema
from .base.folders import IMAGE_FILES, FolderReader, FolderWriter, folder_format, shared
from .base.folders.media import Asked

# Where the size and the mode of an image stand, unless there is a thumbnail before them.
HEAD_BYTES = 1 << 16


class ImageFolderReader(FolderReader):
    """Reads a folder of images. ``file_names``: add the path below the root as field ``file_name``;
    ``mode``: what images decode to (default: found by looking at some of them); ``pairs``: which subfolders
    hold images and their masks (``"images,masks"``; False: every subfolder is a class); ``split``: the one of
    folders such as train and val that have class folders below."""

    media = IMAGE_FILES

    def __init__(
        self,
        path: str,
        *,
        file_names: bool = False,
        mode: str | None = None,
        pairs: Asked = None,
        split: str | None = None,
    ) -> None:
        super().__init__(path, file_names=file_names, pairs=pairs, split=split)
        if mode is not None:
            field = self.schema[self._field]
            assert isinstance(field, Image)
            field_kind = Image(field.encoding, mode, field.mask)
            self.schema = Schema({**self.schema, self._field: field_kind})

    def _look(self, files: Sequence[str]) -> Image:
        headers = [image.header(data[:HEAD_BYTES]) for data in self._some(files)]
        encoding = shared(header.encoding for header in headers) or None
        return Image(encoding, decoded_mode(header.mode for header in headers))


class ImageFolderWriter(FolderWriter):
    __doc__ = FolderWriter.__doc__
    media = IMAGE_FILES


FORMAT = folder_format(
    ImageFolderReader,
    ImageFolderWriter,
    spec="https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.ImageFolder.html",
    notes="class per subfolder, flat, images and masks side by side, or metadata.csv / metadata.jsonl; "
    "images other than JPEG, PNG and WebP need batchplant[images]",
    ecosystem=("torchvision", "Keras", "Hugging Face", "viewers"),
)
