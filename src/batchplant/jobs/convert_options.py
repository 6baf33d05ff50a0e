"""Options of ``convert`` that few callers need: :class:`ConvertOptions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertTuning:
    """Sizes and intervals of a conversion: they change its speed and memory, never the dataset.

    batch_bytes: size of the batches that are read and written. max_batch_rows: limit of samples in a batch:
    rows of a table are small. checkpoint_seconds: interval of checkpoints, from which a stopped conversion
    resumes. min_parts: least number of parts that one file is cut into where many workers write it.
    max_part_samples: limit of samples in such a part. poll_seconds: interval at which a rank looks for the
    files of other ranks.

    min_spilled_bytes: size from which a source is shuffled in two passes; the page cache holds smaller ones.
    spill_run_bytes: size of a sorted run of the first pass; it is in memory as a whole, twice while it is
    sorted. spill_read_bytes: size of the batches that the second pass reads from the runs.
    """

    batch_bytes: int = 4 << 20
    max_batch_rows: int = 16384
    checkpoint_seconds: float = 2.0
    min_parts: int = 64
    max_part_samples: int = 1 << 16
    min_spilled_bytes: int = 1 << 30
    spill_run_bytes: int = 128 << 20
    spill_read_bytes: int = 32 << 20
    poll_seconds: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of :func:`convert` that few callers need.

    limit: write at most so many samples. seed: of a shuffle. two_passes: shuffle by reading the source from
    end to end first and spilling it, sorted by target position, beside the target; by default for large
    sources that are slow to read at random. masks: fields of images whose values are classes, by their names
    in the source. checksums: also write a side-car with the CRC of every cell. workers: encoding threads of
    each task. tuning: sizes and intervals that change speed and memory alone.
    """

    limit: int | None = None
    seed: int = 0
    two_passes: bool | None = None
    masks: Sequence[str] = ()
    checksums: bool = False
    workers: int | None = None
    tuning: ConvertTuning = dataclasses.field(default_factory=ConvertTuning)
