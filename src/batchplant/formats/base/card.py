"""Cards of Hugging Face datasets: the configurations that the front matter of README.md lists.

A configuration has splits, and a split has patterns of file names below the folder. No other module reads
cards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...data.config import parse_yaml
from ...errors import DamagedError, exceptions_as
from ...storage import NOTE_ERRORS, is_below, join, open_source

CARD = "README.md"
DEFAULT = "default"
# Bytes of front matter that are looked at; descriptions of features can be long.
MAX_CARD_BYTES = 4 << 20

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_CONFIGS = re.compile(r"^configs:.*?(?=^\S(?<!-)|\Z)", re.DOTALL | re.MULTILINE)

# By configuration and split: the patterns of its files.
Configs = dict[str, dict[str, list[str]]]


def configs_text(text: str) -> str | None:
    """Return the part of a card that lists configurations; None if there is none."""
    front = _FRONT_MATTER.match(text)
    configs = None if front is None else _CONFIGS.search(front[1])
    return None if configs is None or "data_files:" not in configs[0] else configs[0]


def read_configs(folder: str) -> tuple[Configs, str | None]:
    """Return the configurations of the card in a folder, and the name of the default one.

    Raises: DamagedError where the card lists none, or a pattern leads out of the folder; MissingLibraryError
    without PyYAML.
    """
    path = join(folder, CARD)
    source = open_source(path)
    try:
        text = source.view(0, min(source.size, MAX_CARD_BYTES)).tobytes().decode("utf-8", "replace")
    finally:
        source.close()
    part = configs_text(text)
    if part is None:
        raise DamagedError("the card lists no files", path=path)
    configs: Configs = {}
    default: str | None = None
    with exceptions_as(DamagedError, "the card is damaged", *NOTE_ERRORS, path=path):
        for entry in parse_yaml(part)["configs"]:
            name = str(entry.get("config_name", DEFAULT))
            if "data_files" in entry:
                configs[name] = _splits(entry["data_files"], str(entry.get("data_dir") or ""))
                default = name if entry.get("default") is True else default
    if default is None and len(configs) != 1:
        return configs, DEFAULT if DEFAULT in configs else None
    return configs, default or next(iter(configs))


def _splits(files: Any, folder: str) -> dict[str, list[str]]:
    """Return the patterns of each split; files without one are those of ``train``."""
    if isinstance(files, Mapping):
        return {str(split): _patterns(paths, folder) for split, paths in files.items()}
    if isinstance(files, list) and files and all(isinstance(entry, Mapping) for entry in files):
        return {str(entry["split"]): _patterns(entry["path"], folder) for entry in files}
    return {"train": _patterns(files, folder)}


def _patterns(paths: Any, folder: str) -> list[str]:
    patterns = [paths] if isinstance(paths, str) else list(paths)
    for number, pattern in enumerate(patterns):
        inside = "/".join(filter(None, (folder.strip("/"), pattern.removeprefix("./"))))
        if not is_below(inside):
            raise ValueError(f"{pattern!r} names no file below the folder")
        patterns[number] = inside
    return patterns
