"""Convert a dataset into another format: encoded cells pass through, nothing is decoded without need."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..codecs.media.image_rules import ImageOptions, Images
from ..storage import is_remote
from . import engines
from .convert_options import ConvertOptions
from .engines.base import Inline, portable_source

if TYPE_CHECKING:
    from .conversion.run import Conversion, Progress


def convert(
    source: Any,
    target: str | os.PathLike[str],
    *,
    fields: Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    shuffle: bool = False,
    images: Images | None = None,
    tokenize: Any = None,
    shard_size: int | None = None,
    shard_samples: int | None = None,
    engine: str | engines.Engine = "threads",
    overwrite: bool = False,
    append: bool = False,
    on_error: str = "raise",
    resume: bool = False,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    options: ConvertOptions | None = None,
) -> Conversion:
    """Write all samples of ``source`` to ``target``, whatever their formats are.

    ``rename`` maps names of fields to new ones. A file ends before its cells exceed ``shard_size`` bytes, or
    after ``shard_samples``. ``overwrite`` replaces a target that exists. ``progress`` is called as samples
    are written.

    The target appears only when it is complete. Stopped by Ctrl-C, a kill or an error, a long conversion
    leaves a hidden folder beside the target, and the same call with ``resume=True`` goes on from there.
    Source and target may be URLs. ``source_options`` are the arguments of :func:`open`, ``target_options``
    those of :func:`create`: the name of the format as in ``target_options={"format": "webdataset"}``, options
    of the format, and those of storage as in ``{"region": "eu-west-1"}``. :class:`ConvertOptions` has what is
    needed less often, such as ``options=ConvertOptions(seed=7, checksums=True)``.

    ``on_error="skip"`` leaves out what cannot be read or encoded; the result lists it. ``images`` says how
    images are stored: an :class:`ImageOptions` for all fields, or a dict of them by the fields' names in the
    target. ``append`` adds the samples to a target that is there; see :func:`create`. ``shuffle`` writes the
    samples in a random order, so that reading them from end to end later is as good as reading at random.
    ``tokenize`` writes ids in the place of text: a tokenizer, or a dict of them by field, each the path of a
    ``tokenizer.json``, an object or a function; :class:`batchplant.ops.Tokenize` has options. The ids are
    called ``tokens``, of several fields ``NAME_tokens``.

    ``engine`` writes the shards: ``"threads"`` of this process, ``"processes"``, ``"ranks"``, ``"dask"``,
    ``"ray"``, or the result of :func:`batchplant.engines.make`. With any of them the files are the same to
    the byte.

    Returns: a Conversion with ``files``, ``samples``, ``skipped`` (a :class:`Problem` for each sample left
    out), ``remarks`` (what the target stores otherwise), ``seconds`` and ``resumed_at``.

    Raises: ExistsError where the target exists; BusyError where another process writes it; SchemaError where
    the format cannot hold a field; DataError, with path, sample and field, where a sample cannot be read or
    encoded; WriteError where the disk is full. The target is then as it was.
    """
    # Imported late: ``import batchplant`` need not wait for them.
    from .conversion.job import Job
    from .conversion.run import convert_to_file, convert_to_files

    path = os.fspath(target)
    runner = engines.make(engine)
    alone = isinstance(runner, Inline) and runner.world_size == 1
    if not alone:
        source, path = portable_source(source), path if is_remote(path) else os.path.abspath(path)
    job = Job(
        source,
        path,
        fields=None if fields is None else tuple(fields),
        rename=dict(rename or {}),
        shuffle=shuffle,
        images=ImageOptions() if images is None else images,
        tokenize=_load_tokenizers(tokenize, runner),
        shard_size=shard_size,
        shard_samples=shard_samples,
        overwrite=overwrite,
        append=append,
        on_error=on_error,
        source_options=dict(source_options or {}),
        # An absent format and None are the same job.
        target_options={k: v for k, v in (target_options or {}).items() if k != "format" or v is not None},
        options=options or ConvertOptions(),
    )
    if alone and not job.sharded:
        return convert_to_file(job, resume=resume, progress=progress)
    if not job.sharded:
        # Refuse a schema that does not fit before anything is written.
        _ = job.prepared
        job = dataclasses.replace(job, parts=True)
    return convert_to_files(job, runner, resume=resume, progress=progress)


def _load_tokenizers(tokenize: Any, engine: engines.Engine) -> Any:
    """Turn paths, objects and functions into tokenizers; these travel to workers by file and digest."""
    if tokenize is None:
        return None
    from ..data.tokenized import as_tokenizer, check_portable
    from .engines.processes import Processes

    by_field = tokenize if isinstance(tokenize, Mapping) else {"": tokenize}
    tokenizers = {name: as_tokenizer(tokenizer) for name, tokenizer in by_field.items()}
    if isinstance(engine, Processes):
        for tokenizer in tokenizers.values():
            check_portable(tokenizer)
    return tokenizers if isinstance(tokenize, Mapping) else tokenizers[""]
