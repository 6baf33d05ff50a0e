"""Convert a dataset into another format: encoded cells pass through, nothing is decoded without need."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .codecs.media import image_rules
from .codecs.media.image_rules import ImageOptions, Images
from .columns import I64, Columns, column_runs, end_within
from .errors import BatchplantError, DataError, OptionError, Problem, shown
from .options import own_options
from .reader import Reader
from .registry import create_with, get_format
from .registry import open as open_reader
from .registry import target_format as format_of_target
from .schema import Schema
from .shards import ShardWriter
from .storage import is_remote, split_options
from .storage.uploads import look
from .writer import WriteOptions, Writer

CHECKPOINT_SECONDS = 2.0
BATCH_BYTES = 4 << 20
# Rows of a table are small, and each batch costs something by itself.
BATCH_ROWS = 16384
# Batches read ahead of the one being written.
AHEAD = 2

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    files: list[str]
    samples: int
    skipped: list[Problem]
    seconds: float
    resumed_at: int
    remarks: list[str]


class _Source:
    """The samples to convert, in the order they are written, in batches that are read ahead."""

    def __init__(
        self, reader: Reader, schema: Schema, names: Mapping[str, str], order: I64, skip: bool
    ) -> None:
        self.reader = reader
        self.fields = tuple(schema)
        self.names = names
        self.order = order
        self.skip = skip
        self.skipped: list[tuple[int, Problem]] = []
        sizes = reader.sizes()
        self._sizes = None if sizes is None else sizes[order]

    def batches(self, start: int) -> Iterator[tuple[int, Columns, list[tuple[int, Problem]]]]:
        """(end, cells, what could not be read) from position ``start`` of the order on."""
        rows, position = 16, start
        waiting: deque[Future[tuple[int, Columns, list[tuple[int, Problem]]]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="batchplant-read") as pool:
            try:
                while position < len(self.order) or waiting:
                    while position < len(self.order) and len(waiting) < AHEAD:
                        end = min(position + rows, len(self.order))
                        end = end_within(self._sizes, position, end - position, BATCH_BYTES)
                        waiting.append(pool.submit(self._read, position, end))
                        position = end
                    done = waiting.popleft().result()
                    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in done[1].values())
                    rows = int(np.clip(BATCH_BYTES * done[1].rows // max(size, 1), 1, BATCH_ROWS))
                    yield done
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, start: int, end: int) -> tuple[int, Columns, list[tuple[int, Problem]]]:
        indices = self.order[start:end]
        try:
            return end, self._renamed(self.reader.read(indices, self.fields)), []
        except DataError as error:
            if not self.skip:
                raise error.at(path=self.reader.path) from None
        parts, failed = [], []
        for position, index in enumerate(indices, start):
            try:
                parts.append(self.reader.read([index], self.fields))
            except DataError as error:
                failed.append((position, Problem.of(error.at(path=self.reader.path, sample=int(index)))))
        empty = self.reader.read([], self.fields)
        return end, self._renamed(Columns.concat(parts) if parts else empty), failed

    def source_of(self, received: int) -> tuple[int, str]:
        """The number and the file of the sample that was the n-th handed to the writer."""
        position = received
        for at in sorted(at for at, _ in self.skipped):
            position += at <= position
        sample = int(self.order[position])
        return sample, self.reader.where(sample)

    def named(self, problem: Problem) -> Problem:
        if problem.sample is None:
            return problem
        sample, path = self.source_of(problem.sample)
        return dataclasses.replace(problem, sample=sample, path=path)

    def _renamed(self, columns: Columns) -> Columns:
        return Columns((self.names.get(name, name), column) for name, column in columns.items())


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
    masks: Iterable[str] = (),
    images: Images | None = None,
    shard_size: int | None = None,
    shard_samples: int | None = None,
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
    of pictures whose values are classes, by their names in the source. ``images`` says how pictures are
    stored: an :class:`ImageOptions` for all fields, or a dict of them by the fields' names in the target.
    ``append`` adds the samples to a target that is there; see :func:`create`.
    """
    began = time.monotonic()
    reader = (
        source if isinstance(source, Reader) else open_reader(source, format=format, **(source_options or {}))
    )
    reader = reader.with_masks(masks) if masks else reader
    chosen = reader.schema if fields is None else reader.schema.select(fields)
    names = dict(rename or {})
    order = _order(len(reader), limit, shuffle, seed)
    options = WriteOptions(
        overwrite=overwrite, length=len(order), workers=workers, on_error=on_error,
        images=ImageOptions() if images is None else images, checksums=checksums, resume=resume,
    )  # fmt: skip
    made_by = get_format(target_format) if target_format is not None else format_of_target(os.fspath(target))
    can = own_options(made_by.writer) if made_by.writer else ()
    # What the target says about itself stays as it is.
    said = {} if append else _metadata(reader, can, chosen, names)
    writer = create_with(
        os.fspath(target), chosen.rename(names), options, format=target_format, shard_size=shard_size,
        shard_samples=shard_samples,
        **{**said, **({"mode": "append"} if append else {}), **(target_options or {})},
    )  # fmt: skip
    identity = {
        "source": shown(reader.path), "samples": len(reader), "fields": chosen.to_json(), "rename": names,
        "limit": limit, "shuffle": shuffle, "seed": seed, "images": _described(options.images),
        "shard_size": shard_size, "shard_samples": shard_samples, "checksums": checksums, "append": append,
        "stamp": _stamp(reader.path), "filter": reader.facts().get("filter"),
        "target_options": _digests(split_options(target_options or {})[1]),
    }  # fmt: skip
    feed = _Source(reader, chosen, names, order, on_error == "skip")
    start = _resume_at(writer, feed, identity)
    try:
        _run(writer, feed, start, identity, progress)
    except DataError as error:
        # The writer counts what it was handed; a person wants the sample of the source.
        if error.path == writer.path and error.sample is not None:
            error.sample, error.path = feed.source_of(error.sample)
        raise
    skipped = [problem for _, problem in feed.skipped] + [feed.named(one) for one in writer.skipped]
    remarks = [*writer.remarks(), *image_rules.remarks(writer.schema, options.images_of), *_lost(reader, can)]
    return Conversion(writer.files, writer.written, skipped, time.monotonic() - began, start, remarks)


def _metadata(
    reader: Reader, can: Collection[str], chosen: Schema, names: Mapping[str, str]
) -> dict[str, Any]:
    """What a model or a file says about itself and its fields, where the target can hold that too."""
    found: dict[str, Any] = {}
    if "metadata" in can and reader.metadata:
        found["metadata"] = dict(reader.metadata)
    if "attributes" in can and reader.attributes:
        kept = {name: dict(one) for name, one in reader.attributes.items() if name == "" or name in chosen}
        found["attributes"] = {names.get(name, name): values for name, values in kept.items()}
    return found


def _lost(reader: Reader, can: Collection[str]) -> list[str]:
    """That the target has no place for what the source says about itself."""
    found: Mapping[str, Mapping[str, Any]] = {} if "attributes" in can else reader.attributes
    if not found:
        return []
    some = [f"{name}.{key}" if name else key for name, values in found.items() for key in values]
    return [f"the source's attributes are not kept: {', '.join(some[:8])}{', …' * (len(some) > 8)}"]


def _described(images: Images) -> dict[str, Any]:
    """The options for pictures as JSON."""
    if isinstance(images, ImageOptions):
        return dataclasses.asdict(images)
    return {name: dataclasses.asdict(one) for name, one in images.items()}


def _digests(options: Mapping[str, Any]) -> dict[str, str]:
    """What tells options apart and does not give them away: one may hold a password."""
    return {
        name: hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
        for name, value in options.items()
    }


def _stamp(path: str) -> list[Any] | None:
    """Size and date or tag of a source file, so that a resume notices another one under its name."""
    if is_remote(path):
        with contextlib.suppress(BatchplantError):
            there = look(path)
            return None if there is None else [there.size, there.tag]
        return None
    if not os.path.isfile(path):
        return None
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


def _order(samples: int, limit: int | None, shuffle: bool, seed: int) -> I64:
    if limit is not None and limit < 0:
        raise OptionError(f"limit must not be negative, as {limit} is")
    order = np.random.default_rng(seed).permutation(samples) if shuffle else np.arange(samples)
    return order[:limit].astype(np.int64)


def _resume_at(writer: Writer | ShardWriter, feed: _Source, identity: dict[str, Any]) -> int:
    """The position to go on from: as many samples as the writer has, and those that could not be read."""
    extra = writer.resumed
    if extra is None:
        return 0
    if extra["identity"] != identity:
        different = ", ".join(name for name in identity if extra["identity"].get(name) != identity[name])
        writer.suspend()
        raise OptionError(
            f"what was begun here had other options ({different}); use the same, or do not resume",
            path=writer.path,
        )
    position = writer.received
    for at, problem in extra["unread"]:
        if at <= position:
            feed.skipped.append((at, Problem(**problem)))
            position += 1
    return position


def _run(
    writer: Writer | ShardWriter,
    feed: _Source,
    start: int,
    identity: dict[str, Any],
    progress: Progress | None,
) -> None:
    saved = time.monotonic()
    try:
        for end, columns, failed in feed.batches(start):
            feed.skipped += failed
            writer.append(columns)
            if progress is not None:
                progress(end, len(feed.order))
            if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                unread = [[at, dataclasses.asdict(problem)] for at, problem in feed.skipped]
                writer.checkpoint({"identity": identity, "unread": unread})
                saved = time.monotonic()
        writer.close()
    except BaseException:
        writer.give_up()
        raise
