"""Create a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..codecs.media.image_rules import ImageOptions, Images
from ..errors import OptionError, UnknownFormatError, near
from ..format import Format
from ..options import accept
from ..schema import KINDS, Field, Schema
from ..shards import ShardWriter
from ..storage import reached, split_options
from ..writer import WriteOptions, Writer
from .known import all_formats, get_format, outlines, suffixed


def create(
    path: str | os.PathLike[str],
    schema: Schema | Mapping[str, Field],
    *,
    format: str | None = None,
    overwrite: bool = False,
    length: int | None = None,
    workers: int | None = None,
    on_error: str = "raise",
    checksums: bool = False,
    write_mode: str | None = None,
    max_resolution: int | None = None,
    jpeg_quality: int = 90,
    smart_threshold: int = 256 * 256 * 3,
    compress_probability: float = 0.5,
    reencode: bool = False,
    to_rgb: bool = False,
    seed: int = 0,
    image_format: str | None = None,
    quality: int | None = None,
    lossless: bool = False,
    orient: bool = False,
    images: Images | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """Write a dataset: ``with create("a.beton", schema) as out: out.append({...})``.

    The format comes from the suffix unless named. ``images`` says how pictures are stored: an
    :class:`ImageOptions` for all fields, or a dict of them by field. The options from ``write_mode`` to
    ``orient`` are those of ImageOptions, for all fields that ``images`` does not name. See
    :class:`WriteOptions` for the rest; further options are the format's own, and those of storage (endpoint,
    region …) where the path is a URL. With ``shard_samples`` or ``shard_size`` (bytes) it writes files of
    limited size.
    """
    pictures = ImageOptions(
        write_mode=write_mode, max_resolution=max_resolution, jpeg_quality=jpeg_quality, to_rgb=to_rgb,
        smart_threshold=smart_threshold, compress_probability=compress_probability, reencode=reencode,
        seed=seed, image_format=image_format, quality=quality, lossless=lossless, orient=orient,
    )  # fmt: skip
    if isinstance(images, ImageOptions) and pictures != ImageOptions():
        raise OptionError("images says how pictures are stored; leave the other options for pictures out")
    write = WriteOptions(
        overwrite=overwrite, length=length, workers=workers, on_error=on_error, checksums=checksums,
        images=pictures if images is None else images, other_images=pictures,
    )  # fmt: skip
    return create_with(os.fspath(path), Schema(schema), write, format=format, **options)


def create_with(
    path: str,
    schema: Schema,
    write: WriteOptions,
    *,
    format: str | None = None,
    shard_size: int | None = None,
    shard_samples: int | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """:func:`create` with its options gathered, and shards where a size or a count is given."""
    storage, options = split_options(options)
    path = reached(path, storage)
    found = get_format(format) if format is not None else target_format(path, schema)
    if found.writer is None:
        raise OptionError(f"{found.name} is read only", path=path)
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    found.check(schema)
    write.check_images(schema)
    made = found.writer
    options = accept(found.name, made, options)
    schema = made.as_stored(schema, write)

    def make(shard: str, how: WriteOptions) -> Writer:
        return made(shard, schema, how, **options)

    if shard_size is None and shard_samples is None:
        return make(path, write)
    name = os.path.basename(path.rstrip("/")).lower()
    suffix = max((one for one in found.suffixes if name.endswith(one)), key=len, default=None)
    return ShardWriter(
        path, schema, write, make, size=shard_size, samples=shard_samples, suffix=suffix,
        side_cars=made.all_side_cars(),
    )  # fmt: skip


def target_format(path: str, schema: Mapping[str, Field] | None = None) -> Format:
    """The format to write at a path: by suffix; a path without one is a folder of what the schema has."""
    known = outlines()
    name = suffixed(path, known)
    if name is not None:
        return get_format(name)
    suffix = os.path.splitext(path.rstrip("/"))[1].lower()
    if suffix:
        hint = near(suffix, [one for each in all_formats().values() if each.writer for one in each.suffixes])
        message = f"no format that we write has the suffix {suffix}{hint}; `batchplant formats` lists all"
        raise UnknownFormatError(message, path=path)
    folders = {one.media: name for name, one in known.items() if one.media is not None}
    # In the order of the kinds: pictures come before sounds and videos.
    media = [kind for kind in KINDS if kind in folders]
    held = [kind for kind in media if any(field.kind == kind for field in (schema or {}).values())]
    if schema and not held:
        raise UnknownFormatError(
            f"a name without a suffix is a folder of files ({', '.join(media)}), and no field holds such; "
            "give the name a suffix, such as .parquet, or name the format (--to)",
            path=path,
        )
    return get_format(folders[(held or media)[0]])
