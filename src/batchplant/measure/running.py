"""Measure a dataset in candidate formats, each in a process of its own, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..reader import Reader
from .candidates import Candidate
from .measured import Measured

# (steps done, steps in all, what is under way)
Progress = Callable[[int, int, str], None]
QUICK = 45.0


def formats(
    reader: Reader,
    names: Iterable[str | Candidate] | None = None,
    *,
    sample: int | None = None,
    pipeline: str = "train",
    size: int = 224,
    batch_size: int = 256,
    workers: int | None = None,
    order: str = "random",
    remote: str | None = None,
    remote_options: Mapping[str, Any] | None = None,
    scratch: str | None = None,
    seconds: float | None = QUICK,
    rounds: int = 3,
    progress: Progress | None = None,
) -> list[Measured]:
    """Write some samples in each format, and measure what reading them costs; one row for each candidate.

    names: formats, also with options, as ``"parquet:compression=zstd"`` or a :class:`Candidate`; None:
    :func:`candidates` of the schema, and the format of the source. sample: how many samples (None: as many as
    the time allows). pipeline, size: what the Loader does to pictures (``train``, ``val``, ``none``,
    ``raw``). remote: a URL below which they are written and read back, in a folder of their own that is
    removed. scratch: the folder for local files (None: a temporary one where there is room). seconds: about
    how long it may take; None: all samples, however long. A format that fails is a row with an ``error``.
    """
    raise NotImplementedError
