"""The shell commands that carry out the advice, and the training loop in Python."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...schema import Image, Schema
from ...storage import is_remote
from .answers import Answers
from .facts import DEFAULT_CROP_PIXELS
from .trial import StorageOption

IMAGE_SETTINGS = {
    "max_resolution": "--max-resolution",
    "image_format": "--image-format",
    "quality": "--quality",
}


def target_of(source: str, option: StorageOption, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the target of the conversion, in the current folder, and the path to open afterwards."""
    name = os.path.basename(source.rstrip("/")) if not re.search(r"[*{?\[]|…", source) else ""
    stem = re.sub(r"[^\w.-]+", "_", name.split(".")[0]) or "data"
    if "shard_size" in settings:
        folder = f"{stem}-{option.format}"
        return f"{folder}/{stem}{option.suffix}", folder
    new = f"{stem}{option.suffix}" if option.suffix else f"{stem}-{option.format}"
    # Never overwrite a file, such as the source itself.
    exists = os.path.lexists(new)
    new = f"{stem}-new{option.suffix}" if exists else new
    return new, new


def commands(
    source: Sequence[str],
    option: StorageOption,
    settings: Mapping[str, Any],
    answers: Answers,
    *,
    reading: Sequence[str] = (),
) -> tuple[list[str], str]:
    """Return the commands, and the path that the loop opens. ``reading``: flags that open the source."""
    paths = list(source)
    lines: list[str] = []
    opened = paths[0]
    if not option.unchanged:
        target, opened = target_of(paths[0], option, settings)
        lines.append(_convert(paths[0], target, option, settings, reading))
        checked = ["batchplant", "verify", opened, "--decode"]
        # Smaller or lossy images differ from their source.
        if not option.images and not settings.get("shuffle") and not settings.get("skip_errors"):
            checked += ["--against", paths[0]]
        lines.append(shlex.join(checked))
    extra = list(reading) if option.unchanged else []
    if answers.goal in ("train", "stream"):
        order = str(settings.get("order", "random"))
        lines.append(
            shlex.join(["batchplant", "bench", "loader", opened, "--order", order, *_size(answers), *extra])
        )
    else:
        lines.append(shlex.join(["batchplant", "info", opened, *extra]))
    return lines, opened


def _size(answers: Answers) -> list[str]:
    flags = ["--batch-size", str(answers.batch_size)] if answers.batch_size != Answers().batch_size else []
    return flags + (["--size", str(answers.size)] if answers.size not in (None, DEFAULT_CROP_PIXELS) else [])


def _convert(
    source: str, target: str, option: StorageOption, settings: Mapping[str, Any], reading: Sequence[str]
) -> str:
    words = ["batchplant", "convert", source, target, *reading]
    if not option.suffix:
        words += ["--to", option.format]
    for name, value in option.writer_options.items():
        words += ["--to-option", f"{name}={value}"]
    for name, value in option.images.items():
        words += [IMAGE_SETTINGS[name], str(value)]
    if "shard_size" in settings:
        words += ["--shard-size", f"{round(settings['shard_size'] / 1e6)}MB"]
    if settings.get("shuffle"):
        words.append("--shuffle")
    if settings.get("skip_errors"):
        words += ["--on-error", "skip"]
    return shlex.join(words)


def loop(opened: str, schema: Schema, settings: Mapping[str, Any], answers: Answers) -> str:
    """Return Python code of a Loader with the settings."""
    images = [name for name, field in schema.items() if isinstance(field, Image)]
    options = [f'order="{settings.get("order", "random")}"', f"workers={settings.get('workers')}"]
    options.append(f"prefetch_batches={settings.get('prefetch_batches', 3)}")
    source = f'"{opened}"'
    if settings.get("cache") and is_remote(opened):
        source = f'bp.open({source}, cache="cache")'
    lines = ["import batchplant as bp"]
    if images:
        lines.append("from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop")
        steps = f"[RandomResizedCrop({answers.size or DEFAULT_CROP_PIXELS}), RandomHorizontalFlip()]"
        pipes = ", ".join(f'"{name}": {steps}' for name in images)
        options.append(f"pipelines={{{pipes}}}")
    arguments = "".join(f"    {argument},\n" for argument in [source, str(answers.batch_size), *options])
    return "\n".join([*lines, "", f"loader = bp.Loader(\n{arguments})"])
