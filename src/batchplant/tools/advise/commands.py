"""The commands that carry the advice out, as they can be pasted into a shell, and the loop in Python."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...schema import Image, Schema
from ...storage import is_remote
from .answers import Answers
from .facts import CROP
from .trial import Way

IMAGE_SETTINGS = {
    "max_resolution": "--max-resolution",
    "image_format": "--image-format",
    "quality": "--quality",
}


def target_of(source: str, way: Way, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Where the command writes, in the current folder, and what is opened afterwards."""
    name = os.path.basename(source.rstrip("/")) if not re.search(r"[*{?\[]|…", source) else ""
    stem = re.sub(r"[^\w.-]+", "_", name.split(".")[0]) or "data"
    if "shard_size" in settings:
        folder = f"{stem}-{way.format}"
        return f"{folder}/{stem}{way.suffix}", folder
    new = f"{stem}{way.suffix}" if way.suffix else f"{stem}-{way.format}"
    # Never what is there already, or the source itself.
    taken = os.path.lexists(new)
    new = f"{stem}-new{way.suffix}" if taken else new
    return new, new


def commands(
    source: Sequence[str],
    way: Way,
    settings: Mapping[str, Any],
    answers: Answers,
    *,
    reading: Sequence[str] = (),
) -> tuple[list[str], str]:
    """The commands, and what the loop opens. ``reading``: how the source is opened, as flags."""
    given = list(source)
    found: list[str] = []
    opened = given[0]
    if not way.stays:
        target, opened = target_of(given[0], way, settings)
        found.append(_convert(given[0], target, way, settings, reading))
        checked = ["batchplant", "verify", opened, "--decode"]
        # What was made smaller or lossy is not equal to its source.
        if not way.images and not settings.get("shuffle") and not settings.get("skip_errors"):
            checked += ["--against", given[0]]
        found.append(shlex.join(checked))
    extra = list(reading) if way.stays else []
    if answers.goal in ("train", "stream"):
        order = str(settings.get("order", "random"))
        found.append(
            shlex.join(["batchplant", "bench", "loader", opened, "--order", order, *_size(answers), *extra])
        )
    else:
        found.append(shlex.join(["batchplant", "info", opened, *extra]))
    return found, opened


def _size(answers: Answers) -> list[str]:
    flags = ["--batch-size", str(answers.batch_size)] if answers.batch_size != Answers().batch_size else []
    return flags + (["--size", str(answers.size)] if answers.size not in (None, CROP) else [])


def _convert(source: str, target: str, way: Way, settings: Mapping[str, Any], reading: Sequence[str]) -> str:
    words = ["batchplant", "convert", source, target, *reading]
    if not way.suffix:
        words += ["--to", way.format]
    for name, value in way.options.items():
        words += ["--to-option", f"{name}={value}"]
    for name, value in way.images.items():
        words += [IMAGE_SETTINGS[name], str(value)]
    if "shard_size" in settings:
        words += ["--shard-size", f"{round(settings['shard_size'] / 1e6)}MB"]
    if settings.get("shuffle"):
        words.append("--shuffle")
    if settings.get("skip_errors"):
        words += ["--on-error", "skip"]
    return shlex.join(words)


def loop(opened: str, schema: Schema, settings: Mapping[str, Any], answers: Answers) -> str:
    """The Loader with the settings, as Python."""
    images = [name for name, field in schema.items() if isinstance(field, Image)]
    options = [f'order="{settings.get("order", "random")}"', f"workers={settings.get('workers')}"]
    options.append(f"ahead={settings.get('ahead', 3)}")
    if settings.get("cache") and is_remote(opened):
        options.append('source_options={"cache": "cache"}')
    lines = ["import batchplant as bp"]
    if images:
        lines.append("from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop")
        steps = f"[RandomResizedCrop({answers.size or CROP}), RandomHorizontalFlip()]"
        pipes = ", ".join(f'"{name}": {steps}' for name in images)
        options.append(f"pipelines={{{pipes}}}")
    said = "".join(f"    {one},\n" for one in [f'"{opened}"', str(answers.batch_size), *options])
    return "\n".join([*lines, "", f"loader = bp.Loader(\n{said})"])
