"""Layout of samples in files: too many files, too few, unequal ones; blocks and compression."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from ....errors import BatchplantError
from ....schema import Audio, Bytes, Image, Video
from ....schema.columns import I64
from ....storage import open_source
from ....storage.compressed import is_zstd, kind_of
from ....storage.limits import human_size
from ....storage.spans import Spans
from ..check import Check, Example, Finding, Subject

# Of the mean: how much more one rank may have than another.
UNEQUAL = 0.01
# Files of a large dataset whose first bytes are looked at.
LOOKED_AT = 32


class UnequalShards(Check):
    name = "unequal-shards"
    unit = "ranks"
    title = "files that give ranks unequal shares (--world-size)"
    severity = "warning"
    sentence = (
        "Loaders that give whole files to ranks let all wait for the one with most, or hang at the end."
    )

    def findings(self) -> Iterator[Finding]:
        world_size, sizes = self.subject.world_size, _lengths(self.subject)
        if world_size is None or world_size < 2 or len(sizes) < world_size:
            return
        ranks = np.array([sizes[rank::world_size].sum() for rank in range(world_size)])
        if ranks.max() - ranks.min() <= UNEQUAL * ranks.mean():
            return
        odd = np.argsort(ranks, kind="stable")
        examples = [
            Example(said=f"rank {rank}: {ranks[rank]:,} samples in {len(sizes[rank::world_size])} files")
            for rank in (int(odd[-1]), int(odd[0]))
        ]
        yield self.finding(
            f"dealt to {world_size} ranks, the {len(sizes)} files give one {ranks.max():,} samples and "
            f"another {ranks.min():,}",
            int((ranks < ranks.max()).sum()),
            world_size,
            "batchplant's Loader(…, rank=…, world_size=…) deals samples, not files; for others:\n"
            + self.subject.command(f"--shard-samples {_even(self.subject.samples, world_size, len(sizes))}"),
            examples=examples,
            facts={"largest": int(ranks.max()), "smallest": int(ranks.min())},
        )


class FewShards(Check):
    name = "few-shards"
    unit = "ranks"
    title = "fewer files than ranks (--world-size)"
    severity = "warning"
    sentence = "With fewer files than ranks, loaders that give whole files to ranks leave some without any."

    def findings(self) -> Iterator[Finding]:
        world_size, count = self.subject.world_size, len(self.subject.parts)
        # One sample a file: there is no lack of them.
        if world_size is None or count >= world_size or _own_files(self.subject):
            return
        where = self.subject.can.splittable
        yield self.finding(
            f"{count} file{'s' if count > 1 else ''} for {world_size} ranks: the others get none",
            world_size - count, world_size,
            "batchplant's Loader(…, rank=…, world_size=…) deals samples, not files; for others:\n"
            + self.subject.command(f"--shard-samples {_even(self.subject.samples, world_size, world_size)}"),
            severity="note" if where else None,
        )  # fmt: skip


class TinyFiles(Check):
    name = "tiny-files"
    unit = "files"
    title = "many tiny files"
    severity = "warning"
    sentence = (
        "Many tiny files take longer to open than to read, and most of all on a network drive or in a bucket."
    )

    def findings(self) -> Iterator[Finding]:
        subject = self.subject
        single = _own_files(subject)
        count = subject.samples if single else len(subject.parts)
        size = subject.sample_bytes * subject.samples / max(count, 1)
        if count < subject.limits.many_files or size >= subject.limits.tiny_file_bytes:
            return
        layout = "every sample is a file of its own" if single else "the dataset is in many files"
        yield self.finding(
            f"{layout}: {count:,} files of {human_size(size)} each on average", count, count,
            "put them into a few: " + subject.command("--shard-size 500MB"),
            examples=[subject.place(0)], facts={"files": count, "bytes": size},
        )  # fmt: skip


class LargeBlocks(Check):
    name = "large-blocks"
    unit = "blocks"
    title = "row groups or chunks that are large to read"
    severity = "warning"
    sentence = "To read one sample, its whole row group or chunk is read; in random order, again and again."

    def findings(self) -> Iterator[Finding]:
        subject = self.subject
        if not subject.samples or _in_place(subject) or subject.can.human_readable:
            return
        blocks = subject.reader.blocks()
        if blocks is None or not len(blocks):
            return
        numbers, firsts, counts = np.unique(blocks, return_index=True, return_counts=True)
        sizes = counts * subject.sample_bytes
        limit = subject.limits.block_bytes
        large = np.flatnonzero(sizes > limit)
        if not len(large) or self._reads_less(int(firsts[large[0]]), limit):
            return
        rows = max(1, int((limit // 4) / max(subject.sample_bytes, 1)))
        examples = [
            subject.place(int(firsts[block]), said=f"{counts[block]:,} samples, {sizes[block] / 1e6:,.0f} MB")
            for block in large[:5].tolist()
        ]
        yield self.finding(
            f"blocks of up to {sizes.max() / 1e6:,.0f} MB have to be read for one sample",
            len(large), len(numbers),
            f'Loader(…, order="quasi_random") reads each block once; or write blocks of about {rows:,}\n'
            f"samples: `batchplant formats {subject.reader.format or 'NAME'}` lists the writer's options",
            examples=examples, about=not subject.every,
            facts={"largest": float(sizes.max()), "samples": rows},
        )  # fmt: skip

    def _reads_less(self, sample: int, limit: int) -> bool:
        """Return whether a sample takes little of its block: packets of a video, or pages."""
        with contextlib.suppress(BatchplantError):
            ranges = self.subject.reader.ranges(None, [sample])
            return ranges is not None and ranges.bytes <= limit
        return False


class CompressedFiles(Check):
    name = "compressed-files"
    unit = "files"
    title = "files compressed as a whole"
    severity = "warning"
    sentence = (
        "A file that is compressed as a whole can only be read from its start: no random order, no ranges."
    )

    def findings(self) -> Iterator[Finding]:
        parts = self.subject.parts
        looked = parts[:: max(1, len(parts) // LOOKED_AT)]
        packed = [(part.path, kind) for part in looked if (kind := self._packing(part.path)) is not None]
        if not packed:
            return
        yield self.finding(
            f"files are compressed as a whole ({', '.join(sorted({kind for _, kind in packed}))})",
            round(len(packed) * len(parts) / len(looked)), len(parts),
            "unpack them, or write a format that packs samples or columns by themselves:\n"
            + self.subject.command(),
            examples=[Example(path=path, said=kind) for path, kind in packed],
            about=len(looked) < len(parts),
        )  # fmt: skip

    def _packing(self, path: str) -> str | None:
        """Compression of a file as a whole; None for plain, small or missing files."""
        try:
            source = open_source(path)
        except (BatchplantError, OSError):
            return None
        try:
            if source.size < self.subject.limits.packed_file_bytes:
                return None
            head = source.view(0, 16).tobytes()
        except (BatchplantError, OSError):
            return None
        finally:
            source.close()
        # The two bytes of a ZLIB file begin other files too.
        return "zstd" if is_zstd(head) else "gzip" if kind_of(head) == "gzip" else None


def _lengths(subject: Subject) -> I64:
    return np.array([len(part) for part in subject.parts], dtype=np.int64)


def _even(samples: int, world_size: int, files: int) -> int:
    """Samples in a file, such that every rank gets about as many files and samples."""
    files = max(world_size, -(-files // world_size) * world_size)
    return max(1, -(-samples // files))


def _in_place(subject: Subject) -> bool:
    """True where cells are stored as they are, so that reading one reads no others."""
    return any(_spans(subject, name) is not None for name in subject.fields(Image, Audio, Video, Bytes))


def _own_files(subject: Subject) -> bool:
    """True where every sample has a file of its own."""
    rows = min(subject.samples, 16)
    for name in subject.fields(Image, Audio, Video):
        spans = _spans(subject, name, rows)
        if spans is not None and rows > 1:
            return len({spans.files[file] for file in spans.file.tolist()}) == rows
    return False


def _spans(subject: Subject, name: str, rows: int = 1) -> Spans | None:
    try:
        return subject.reader.spans(name, range(min(rows, subject.samples)))
    except BatchplantError:
        return None
