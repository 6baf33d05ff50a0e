"""Convert a dataset into another format: encoded cells pass through, nothing is decoded without need."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..codecs.media.image_rules import ImageOptions, Images
from ..storage import is_remote
from . import engines
from .engines.inline import Inline
from .engines.sources import for_others

if TYPE_CHECKING:
    from .conversion.run import Conversion, Progress


def convert(
    source: Any,
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    target_format: str | None = None,
    fields: Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    two_passes: bool | None = None,
    masks: Iterable[str] = (),
    images: Images | None = None,
    tokenize: Any = None,
    shard_size: int | None = None,
    shard_samples: int | None = None,
    engine: str | engines.Engine = "threads",
    workers: int | None = None,
    overwrite: bool = False,
    append: bool = False,
    on_error: str = "raise",
    checksums: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Write all samples of ``source`` to ``target``, whatever their formats are.

    The target appears only when it is complete. Stopped by Ctrl-C, a kill or an error, a long conversion
    leaves a hidden folder beside the target, and the same call with ``resume=True`` goes on from there.
    Source and target may be URLs; ``source_options`` and ``target_options`` say how to reach them, as in
    ``target_options={"region": "eu-west-1"}``, and hold the options of their formats.
    ``on_error="skip"`` leaves out what cannot be read or encoded; the result lists it. ``masks`` are fields
    of images whose values are classes, by their names in the source. ``images`` says how images are
    stored: an :class:`ImageOptions` for all fields, or a dict of them by the fields' names in the target.
    ``append`` adds the samples to a target that is there; see :func:`create`.
    ``tokenize`` writes ids in the place of text: a tokenizer, or a dict of them by field, each the path of a
    ``tokenizer.json``, an object or a function; :class:`batchplant.ops.Tokenize` has options. The ids are
    called ``tokens``, of several fields ``NAME_tokens``.

    ``shuffle`` writes the samples in a random order, so that reading them from end to end later is as good as
    reading at random. ``two_passes``: first read the source from end to end and spill it, sorted by where
    samples go, beside the target; by default where a large source would be slow to read at random.

    ``engine`` says who writes the shards: ``"threads"`` of this process, ``"processes"``, ``"ranks"``,
    ``"dask"``, ``"ray"``, or one that :func:`batchplant.engines.make` gave. Whoever does, the files are the
    same to the byte. ``workers``: encoding threads of each task.
    """
    # Whoever imports batchplant need not wait for it.
    from .conversion.job import Job
    from .conversion.run import convert_to_file, convert_to_files

    where = os.fspath(target)
    by = engines.make(engine)
    if not isinstance(by, Inline) or by.world_size > 1:
        source, where = for_others(source), where if is_remote(where) else os.path.abspath(where)
    job = Job(
        source, where, format=format, target_format=target_format, limit=limit, shuffle=shuffle, seed=seed,
        fields=None if fields is None else tuple(fields), rename=dict(rename or {}), masks=tuple(masks),
        images=ImageOptions() if images is None else images, shard_size=shard_size,
        shard_samples=shard_samples, overwrite=overwrite, append=append, on_error=on_error,
        checksums=checksums, source_options=dict(source_options or {}),
        target_options=dict(target_options or {}), two_passes=two_passes,
        tokenize=_tokenizers(tokenize, by),
    )  # fmt: skip
    alone = isinstance(by, Inline) and by.world_size == 1
    if alone and not job.sharded:
        return convert_to_file(job, workers=workers, resume=resume, progress=progress)
    if not job.sharded:
        # Before anything is written: does it fit?
        _ = job.prepared
        job = dataclasses.replace(job, parts=True)
    return convert_to_files(job, by, workers=workers, resume=resume, progress=progress)


def _tokenizers(asked: Any, by: engines.Engine) -> Any:
    """What is asked for as tokenizers, which travel to other processes by file and digest."""
    if asked is None:
        return None
    # Needed for nothing else.
    from ..data.tokenized import as_tokenizer, check_portable
    from .engines.processes import Processes

    found = asked if isinstance(asked, Mapping) else {"": asked}
    made = {name: as_tokenizer(one) for name, one in found.items()}
    if isinstance(by, Processes):
        for one in made.values():
            check_portable(one)
    return made if isinstance(asked, Mapping) else made[""]
