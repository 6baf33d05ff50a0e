"""The user's requirements: the goal, the storage, the speed, and answers to the questions of the guide."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ...errors import OptionError

GOALS = ("train", "archive", "share", "analyse", "stream")
STORAGES = ("nvme", "nfs", "s3")


class Question(NamedTuple):
    """A question of the decision guide: its flag, its text, and the section that explains it."""

    name: str
    text: str
    doc: str


# A yes becomes a requirement of the format; see rules.
QUESTIONS = (
    Question(
        "analytics", "Will people query single columns, or some of the rows?", "docs/choosing.md#analytics"
    ),
    Question("mutable", "Will samples be added later?", "docs/choosing.md#mutable-data"),
    Question("many-writers", "Will several jobs add samples at once?", "docs/choosing.md#mutable-data"),
    Question("versions", "Must older versions stay readable?", "docs/choosing.md#schema-changes"),
    Question("random-access", "Will single samples be read in any order?", "docs/choosing.md#random-access"),
    Question("cloud", "Will it be read from a bucket?", "docs/choosing.md#cloud"),
    Question("streaming", "Is it read from start to end, by several machines?", "docs/choosing.md#streaming"),
    Question("small", "Is disk space dearer than time?", "docs/choosing.md#compression"),
    Question("schema", "Must the fields come back exactly as they were?", "docs/choosing.md#schema-changes"),
    Question("safety", "Must damage be found by checksums?", "docs/choosing.md#safety"),
    Question("readable", "Must people read it in a text editor?", "docs/choosing.md#interop"),
    Question("lossless", "Must images stay exactly as they are?", "docs/choosing.md#images"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """The goal and its circumstances.

    storage: where it will be read from, None: where it is now. step_ms: GPU time of a batch of
    ``batch_size``. size: of images in a batch, None: 224, or less where they are smaller. interop: a program
    that must read it. yes: the questions (:data:`QUESTIONS`) answered with yes. formats: try only these.
    """

    goal: str = "train"
    storage: str | None = None
    gpus: int = 1
    step_ms: float | None = None
    batch_size: int = 256
    size: int | None = None
    interop: str | None = None
    yes: frozenset[str] = frozenset()
    formats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise OptionError(f"the goal is one of {', '.join(GOALS)}, not {self.goal!r}")
        if self.storage is not None and self.storage not in STORAGES:
            raise OptionError(f"the storage is one of {', '.join(STORAGES)}, not {self.storage!r}")
        if min(self.gpus, self.batch_size, self.size or 1) < 1 or self.size == 0:
            raise OptionError("gpus, batch_size and size are at least 1")
        if self.step_ms is not None and not self.step_ms > 0:
            raise OptionError(f"step_ms is more than 0, not {self.step_ms}")
        unknown = self.yes - {question.name for question in QUESTIONS}
        if unknown:
            raise OptionError(f"there is no question {sorted(unknown)[0]!r}")

    @property
    def needed(self) -> float | None:
        """Samples/s that all GPUs consume together, if the time of a step is known."""
        return None if self.step_ms is None else self.gpus * self.batch_size * 1000 / self.step_ms
