"""From a trial on a few samples to the whole dataset: samples/s, disk, conversion time, the bottleneck."""

from __future__ import annotations

import dataclasses

from .answers import Answers
from .facts import Facts
from .machine import Machine
from .trial import Trial

# The figure that a goal is about: its name, whether more is better, and what it is in words.
FIGURES = {
    "train": ("epoch_rate", True, "samples/s of a shuffled epoch"),
    "stream": ("sequential_rate", True, "samples/s from start to end"),
    "analyse": ("column_rate", True, "samples/s of one column"),
    "archive": ("bytes", False, "bytes on disk"),
    "share": ("bytes", False, "bytes on disk"),
}
# Part of the memory that files stay in, beside what a training process holds.
KEPT = 0.7
WORDS = {
    "decode": "decoding on the CPU", "storage": "reading samples", "transforms": "transforms on the CPU",
    "disk": "the disk", "link": "the network", "step": "the GPU's own step", "scan": "reading samples",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the whole dataset would give. rate: samples/s of later epochs; first: of the first.

    needed: samples/s that the GPUs take, where that is known. bottleneck: what bounds the rate, in words.
    """

    rate: float | None
    first: float | None
    bytes: float
    seconds: float
    bottleneck: str
    needed: float | None = None


def figure(trial: Trial, goal: str, samples: int) -> float | None:
    """What the goal is about, of a trial."""
    if trial.error is not None:
        return None
    name = FIGURES[goal][0]
    found: float | None = trial.disk(samples) if name == "bytes" else getattr(trial, name)
    return found


def predict(
    trial: Trial,
    facts: Facts,
    machine: Machine,
    answers: Answers,
    *,
    read_each: float = 0.0,
    encode_each: float = 0.0,
) -> Prediction:
    """read_each, encode_each: seconds to read a sample of the source, and to encode its pictures."""
    size = trial.disk(facts.samples)
    loads = answers.goal in ("train", "stream")
    rate = trial.epoch_rate if answers.goal == "train" else trial.sequential_rate
    bound = machine.read_mb_s * 1e6 / max(trial.bytes_each, 1.0)
    outside = "link" if machine.storage == "s3" else "disk"
    first = None if rate is None else min(rate, bound)
    fits = size < KEPT * machine.memory and machine.storage != "s3"
    later = rate if fits else first
    needed = answers.needed if loads else None
    what = max(trial.parts, key=lambda one: trial.parts[one]) if trial.parts else "scan"
    if later is not None and rate is not None and later < rate:
        what = outside
    if needed is not None and later is not None and later >= needed:
        what = "step"
    # Reading goes on while the last samples are written.
    each = max(trial.seconds_each + encode_each, read_each)
    seconds = 0.0 if trial.way.stays else trial.seconds_fixed + each * facts.samples
    return Prediction(
        rate=later, first=first, bytes=size, seconds=seconds, bottleneck=WORDS[what], needed=needed
    )  # fmt: skip
