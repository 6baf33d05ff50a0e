"""Create a dataset."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...codecs.media.image_rules import ImageOptions, Images
from ...data.reader import Reader
from ...data.shards import ShardNames, ShardWriter
from ...data.writer import WriteOptions, Writer, check_fields
from ...errors import ExistsError, OptionError, UnknownFormatError, near
from ...schema import KINDS, Field, Schema
from ...storage import beside, is_remote, reached, recover, split_options, tree
from ..base.format import Format, Probe
from ..base.options import accept, own_options
from .find import all_formats, by_scheme, find_format, get_format, outlines, suffixed


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

    The format comes from the suffix unless named. schema: fields of the samples, by name. overwrite: replace
    a dataset at the path. length: number of samples to come, if known. workers: threads that encode (default:
    all cores). on_error: ``raise``, or ``skip`` to leave out samples that cannot be encoded and list them in
    ``skipped``. checksums: also write a side-car with the CRC of every cell. Further options are the format's
    own, and those of storage (endpoint, region …) where the path is a URL. With ``shard_samples`` or
    ``shard_size`` (bytes) it writes files of limited size.

    images: storage of images, an :class:`ImageOptions` for all fields, or a dict of them by field.
    write_mode, max_resolution, jpeg_quality, smart_threshold, compress_probability, reencode, to_rgb, seed,
    image_format, quality, lossless, orient: options of ImageOptions, for all fields that ``images`` does not
    name.

    ``mode="append"`` adds to a dataset that is there, and makes one where there is none. The schema is that
    of the dataset; one that is given has to fit to it. All new samples appear when the writer is closed.

    Returns: a :class:`Writer` of one file, or of shards, for a ``with`` block. The dataset appears when the
    block ends, and not at all if it ends by an error.

    Raises: ExistsError where there is something and ``overwrite`` is not given; BusyError where another
    process writes it; UnknownFormatError, SchemaError where the format is not known or cannot hold a field;
    OptionError.
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
    parsed_schema = None if schema is None else Schema(schema)
    return create_with(os.fspath(path), parsed_schema, write, format=format, mode=mode, **options)


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
    target = prepare(path, schema, write, format=format, mode=mode, sharded=sharded, **options)
    if target.shards is None:
        return target.make(target.path, target.write)
    return ShardWriter(
        target.path, target.schema, target.write, target.make, target.shards, size=shard_size,
        samples=shard_samples,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A checked target: its path, schema and options, and the function that makes the writer of one file."""

    path: str
    format: Format
    schema: Schema
    write: WriteOptions
    shards: ShardNames | None
    make: Callable[[str, WriteOptions], Writer]
    # Options of the format itself, converted to their types.
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
    """Check everything that can be checked before a file is created."""
    storage, options = split_options(options)
    path = reached(path, storage)
    if mode == "append" and not is_remote(path) and os.path.lexists(path):
        # The staging directory lies beside the file itself, not beside a link to it.
        path = os.path.realpath(path)
    target = _format_of(path, schema, format, mode)
    writer_class = target.writer
    if writer_class is None:
        raise OptionError(f"{target.name} is read only", path=path)
    shards = _shard_names(path, target, writer_class) if sharded else None
    if shards is None:
        _check_beside(path, target, writer_class)
    if "mode" in own_options(writer_class) and shards is None:
        # A table that has transactions of its own.
        options = options if mode == "create" else {**options, "mode": mode}
        schema = _table_schema(path, target, options) if schema is None and mode == "append" else schema
    elif mode == "append":
        reader_options = accept(
            target.name,
            writer_class,
            {name: value for name, value in options.items() if name in writer_class.reading},
        )
        base = _base(path, target, writer_class, shards, reader_options, overwrite=write.overwrite)
        write = dataclasses.replace(write, append=True, base=base)
    elif mode != "create":
        raise OptionError(
            f"mode is create or append, not {mode!r}; overwrite=True replaces a dataset", path=path
        )
    if schema is None and write.base is not None:
        schema = write.base.schema
    if not schema:
        raise OptionError("a dataset needs at least one field", path=path)
    target.check(schema)
    write.check_images(schema)
    options = accept(target.name, writer_class, options)
    stored = writer_class.as_stored(schema, write)
    if write.base is not None:
        check_fields(write.base.schema, stored, path)
        stored = write.base.schema

    def make(shard: str, write_options: WriteOptions) -> Writer:
        return writer_class(shard, stored, write_options, **options)

    return Prepared(path, target, stored, write, shards, make, options)


def _format_of(path: str, schema: Schema | None, format: str | None, mode: str) -> Format:
    """Return the format to write: that of the dataset that is appended to, or by the suffix."""
    if format is not None:
        return get_format(format)
    # A folder without a suffix is recognized by its contents.
    is_unnamed = suffixed(path, outlines()) is None and mode == "append" and not is_remote(path)
    detected = find_format(path) if is_unnamed and os.path.isdir(path) and os.listdir(path) else None
    return detected or target_format(path, schema)


def _check_beside(path: str, target: Format, writer_class: type[Writer]) -> None:
    """Refuse a side-car name that is taken by a dataset: side-cars are deleted with an older file."""
    for template in writer_class.side_cars:
        side_car = beside(path, template)
        promised = suffixed(side_car, outlines())
        if "{stem}" not in template or promised in (None, target.name) or not tree.is_file(side_car):
            continue
        if get_format(str(promised)).matches(Probe(side_car)):
            raise ExistsError(
                f"{os.path.basename(side_car)} beside it is a dataset of another format ({promised}), and an "
                f"index of {target.name} would have the same name; choose another",
                path=path,
            )


def _shard_names(path: str, target: Format, writer_class: type[Writer]) -> ShardNames:
    name = os.path.basename(path.rstrip("/")).lower()
    suffix = max(
        (candidate for candidate in target.suffixes if name.endswith(candidate)), key=len, default=None
    )
    return ShardNames(path, suffix=suffix, side_cars=writer_class.all_side_cars())


def _table_schema(path: str, target: Format, options: Mapping[str, Any]) -> Schema:
    """Return the fields of the table that is appended to."""
    known_options = own_options(target.reader)
    reader_options = accept(
        target.name, target.reader, {name: value for name, value in options.items() if name in known_options}
    )
    with target.reader(path, **reader_options) as reader:
        return reader.schema


def _base(
    path: str,
    target: Format,
    writer_class: type[Writer],
    shards: ShardNames | None,
    reader_options: Mapping[str, Any],
    *,
    overwrite: bool,
) -> Reader | None:
    """Return the dataset that is appended to, opened with ``reader_options``; None if there is none yet."""
    if overwrite:
        raise OptionError("a dataset is either appended to or overwritten", path=path)
    if shards is not None:
        existing = shards.shards()
        return target.reader(existing[-1], **reader_options) if existing else None
    if is_remote(path):
        raise OptionError(
            "an object in a bucket cannot be appended to; add shards beside it (shard_samples, "
            "--shard-samples), or append to a local file and upload that",
            path=path,
        )
    recover(os.path.dirname(path))
    if not os.path.lexists(path):
        return None
    if not writer_class.appends:
        appendable = sorted(
            name for name, candidate in all_formats().items() if candidate.writer and candidate.writer.appends
        )
        raise OptionError(
            f"{target.name} files cannot be appended to; add shards beside it (shard_samples, "
            f"--shard-samples), which every format can, or write one that can: {', '.join(appendable)}",
            path=path,
        )
    # A format that only its name tells cannot be detected.
    probed = find_format(path) if target.suffixes or target.folder else None
    if probed is not None and probed.name != target.name:
        raise OptionError(f"it is {probed.name}, and not {target.name}", path=path)
    return target.reader(path, **reader_options)


def target_format(path: str, schema: Mapping[str, Field] | None = None) -> Format:
    """Return the format to write at a path: by suffix; without one, a folder of the schema's media."""
    named = by_scheme(path)
    if named is not None:
        return named
    all_outlines = outlines()
    name = suffixed(path, all_outlines)
    if name is not None:
        return get_format(name)
    suffix = os.path.splitext(path.rstrip("/"))[1].lower()
    if suffix:
        written = [known.suffixes for known in all_formats().values() if known.writer]
        hint = near(suffix, itertools.chain.from_iterable(written))
        message = f"no format that we write has the suffix {suffix}{hint}; `batchplant formats` lists all"
        raise UnknownFormatError(message, path=path)
    folders = {outline.media: name for name, outline in all_outlines.items() if outline.media is not None}
    # In the order of the kinds: images come before sounds and videos.
    media = [kind for kind in KINDS if kind in folders]
    matching = [kind for kind in media if any(field.kind == kind for field in (schema or {}).values())]
    if schema and not matching:
        raise UnknownFormatError(
            f"a name without a suffix is a folder of files ({', '.join(media)}), and no field holds such; "
            "give the name a suffix, such as .parquet, or name the format (--to)",
            path=path,
        )
    return get_format(folders[(matching or media)[0]])
