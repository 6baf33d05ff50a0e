"""Create a dataset."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...codecs.media.image_rules import ImageOptions, Images
from ...data.appending import check_fields, refusal
from ...data.reader import Reader
from ...data.shards import ShardNames, ShardWriter
from ...data.writer import WriteOptions, Writer
from ...errors import ExistsError, OptionError, UnknownFormatError, near
from ...schema import KINDS, Field, Schema
from ...storage import beside, is_remote, reached, recover, split_options, tree
from ..base.format import Format, Probe
from ..base.options import accept, own_options
from .find import find_format
from .known import all_formats, by_scheme, get_format, outlines, suffixed


def create(
    path: str | os.PathLike[str],
    schema: Schema | Mapping[str, Field] | None = None,
    *,
    format: str | None = None,
    mode: str = "create",
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

    The format comes from the suffix unless named. ``images`` says how images are stored: an
    :class:`ImageOptions` for all fields, or a dict of them by field. The options from ``write_mode`` to
    ``orient`` are those of ImageOptions, for all fields that ``images`` does not name. See
    :class:`WriteOptions` for the rest; further options are the format's own, and those of storage (endpoint,
    region …) where the path is a URL. With ``shard_samples`` or ``shard_size`` (bytes) it writes files of
    limited size.

    ``mode="append"`` adds to a dataset that is there, and makes one where there is none. The schema is that
    of the dataset; one that is given has to fit to it. All new samples appear when the writer is closed.
    """
    image_options = ImageOptions(
        write_mode=write_mode, max_resolution=max_resolution, jpeg_quality=jpeg_quality, to_rgb=to_rgb,
        smart_threshold=smart_threshold, compress_probability=compress_probability, reencode=reencode,
        seed=seed, image_format=image_format, quality=quality, lossless=lossless, orient=orient,
    )  # fmt: skip
    if isinstance(images, ImageOptions) and image_options != ImageOptions():
        raise OptionError("images says how images are stored; leave the other options for images out")
    write = WriteOptions(
        overwrite=overwrite, length=length, workers=workers, on_error=on_error, checksums=checksums,
        images=image_options if images is None else images, other_images=image_options,
    )  # fmt: skip
    given = None if schema is None else Schema(schema)
    return create_with(os.fspath(path), given, write, format=format, mode=mode, **options)


def create_with(
    path: str,
    schema: Schema | None,
    write: WriteOptions,
    *,
    format: str | None = None,
    mode: str = "create",
    shard_size: int | None = None,
    shard_samples: int | None = None,
    **options: Any,
) -> Writer | ShardWriter:
    """:func:`create` with its options gathered, and shards where a size or a count is given."""
    sharded = shard_size is not None or shard_samples is not None
    found = prepare(path, schema, write, format=format, mode=mode, sharded=sharded, **options)
    if found.shards is None:
        return found.make(found.path, found.write)
    return ShardWriter(
        found.path, found.schema, found.write, found.make, found.shards, size=shard_size,
        samples=shard_samples,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A target that can be written: where, what it will hold, and what makes the writer of one file."""

    path: str
    format: Format
    schema: Schema
    write: WriteOptions
    shards: ShardNames | None
    make: Callable[[str, WriteOptions], Writer]
    # Those of the format's own, each of its type.
    options: Mapping[str, Any]


def prepare(
    path: str,
    schema: Schema | None,
    write: WriteOptions,
    *,
    format: str | None = None,
    mode: str = "create",
    sharded: bool = False,
    **options: Any,
) -> Prepared:
    """Check everything that can be checked before a file is made."""
    storage, options = split_options(options)
    path = reached(path, storage)
    if mode == "append" and not is_remote(path) and os.path.lexists(path):
        # The hidden folder lies beside the file itself, and not beside a link to it.
        path = os.path.realpath(path)
    found = _format_of(path, schema, format, mode)
    made = found.writer
    if made is None:
        raise OptionError(f"{found.name} is read only", path=path)
    shards = _shard_names(path, found, made) if sharded else None
    if shards is None:
        _check_beside(path, found, made)
    if "mode" in own_options(made) and shards is None:
        # A table that has transactions of its own.
        options = options if mode == "create" else {**options, "mode": mode}
        schema = _table_schema(path, found, options) if schema is None and mode == "append" else schema
    elif mode == "append":
        how = accept(found.name, made, {name: one for name, one in options.items() if name in made.reading})
        base = _base(path, found, made, shards, how, overwrite=write.overwrite)
        write = dataclasses.replace(write, append=True, base=base)
    elif mode != "create":
        raise OptionError(
            f"mode is create or append, not {mode!r}; overwrite=True replaces a dataset", path=path
        )
    if schema is None and write.base is not None:
        schema = write.base.schema
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    found.check(schema)
    write.check_images(schema)
    options = accept(found.name, made, options)
    stored = made.as_stored(schema, write)
    if write.base is not None:
        check_fields(write.base.schema, stored, path)
        stored = write.base.schema

    def make(shard: str, how: WriteOptions) -> Writer:
        return made(shard, stored, how, **options)

    return Prepared(path, found, stored, write, shards, make, options)


def _format_of(path: str, schema: Schema | None, format: str | None, mode: str) -> Format:
    """The format to write: that of a dataset which is appended to, or by the suffix."""
    if format is not None:
        return get_format(format)
    # A folder without a suffix tells by what is in it.
    known = suffixed(path, outlines()) is None and mode == "append" and not is_remote(path)
    found = find_format(path) if known and os.path.isdir(path) and os.listdir(path) else None
    return found or target_format(path, schema)


def _check_beside(path: str, found: Format, made: type[Writer]) -> None:
    """Side-cars of an older file go with it; what is a dataset by itself is none, though it has the name."""
    for template in made.side_cars:
        other = beside(path, template)
        promised = suffixed(other, outlines())
        if "{stem}" not in template or promised in (None, found.name) or not tree.is_file(other):
            continue
        if get_format(str(promised)).matches(Probe(other)):
            raise ExistsError(
                f"{os.path.basename(other)} beside it is a dataset of another format ({promised}), and an "
                f"index of {found.name} would have the same name; choose another",
                path=path,
            )


def _shard_names(path: str, found: Format, made: type[Writer]) -> ShardNames:
    name = os.path.basename(path.rstrip("/")).lower()
    suffix = max((one for one in found.suffixes if name.endswith(one)), key=len, default=None)
    return ShardNames(path, suffix=suffix, side_cars=made.all_side_cars())


def _table_schema(path: str, found: Format, options: Mapping[str, Any]) -> Schema:
    """The fields of a table that is appended to."""
    own = own_options(found.reader)
    how = accept(found.name, found.reader, {name: one for name, one in options.items() if name in own})
    with found.reader(path, **how) as reader:
        return reader.schema


def _base(
    path: str,
    found: Format,
    made: type[Writer],
    shards: ShardNames | None,
    how: Mapping[str, Any],
    *,
    overwrite: bool,
) -> Reader | None:
    """The dataset that is appended to, opened with the options ``how``; None where there is none yet."""
    if overwrite:
        raise OptionError("a dataset is either appended to or overwritten", path=path)
    if shards is not None:
        there = shards.shards()
        return found.reader(there[-1], **how) if there else None
    if is_remote(path):
        raise OptionError(
            "an object in a bucket cannot be appended to; add shards beside it (shard_samples, "
            "--shard-samples), or append to a local file and upload that",
            path=path,
        )
    recover(os.path.dirname(path))
    if not os.path.lexists(path):
        return None
    if not made.appends:
        others = sorted(name for name, one in all_formats().items() if one.writer and one.writer.appends)
        raise refusal(found.name, others, path)
    # Of a format that nothing but its name tells, nothing is found out.
    probed = find_format(path) if found.suffixes or found.folder else None
    if probed is not None and probed.name != found.name:
        raise OptionError(f"it is {probed.name}, and not {found.name}", path=path)
    return found.reader(path, **how)


def target_format(path: str, schema: Mapping[str, Field] | None = None) -> Format:
    """The format to write at a path: by suffix; a path without one is a folder of what the schema has."""
    named = by_scheme(path)
    if named is not None:
        return named
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
    # In the order of the kinds: images come before sounds and videos.
    media = [kind for kind in KINDS if kind in folders]
    held = [kind for kind in media if any(field.kind == kind for field in (schema or {}).values())]
    if schema and not held:
        raise UnknownFormatError(
            f"a name without a suffix is a folder of files ({', '.join(media)}), and no field holds such; "
            "give the name a suffix, such as .parquet, or name the format (--to)",
            path=path,
        )
    return get_format(folders[(held or media)[0]])
