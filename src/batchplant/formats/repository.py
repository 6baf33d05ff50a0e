"""A dataset repository of the Hugging Face Hub: a folder whose card (README.md) lists files by configuration
and split.

A configuration of the card's front matter has splits, and a split has patterns of file names below the
folder. The samples are those of the files of one split, which are opened together in place. It may lie on a
disk or at ``hf://datasets/OWNER/NAME@REVISION``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..data.config import parse_yaml
from ..data.reader import ReaderWrapper, open_reader
from ..errors import DamagedError, OptionError, exceptions_as, located
from ..schema import EVERY_KIND
from ..storage import NOTE_ERRORS, is_below, join, like, open_source, read_beside, tree
from ..storage.patterns import naturally
from .base.format import Capabilities, Format, Probe

CARD = "README.md"
DEFAULT = "default"
# Bytes of front matter that are looked at; descriptions of features can be long.
MAX_CARD_BYTES = 4 << 20

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_CONFIGS = re.compile(r"^configs:.*?(?=^\S(?<!-)|\Z)", re.DOTALL | re.MULTILINE)

# By configuration and split: the patterns of its files.
Configs = dict[str, dict[str, list[str]]]
# Files of tables and shards; folders of other files open by themselves.
SUFFIXES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".arrow", ".tar", ".gz", ".zst")


class RepositoryReader(ReaderWrapper):
    """Reads a dataset repository.

    ``config``: the configuration (default: the card's own default). ``split``: needed where the configuration
    has several, for samples of one and another should not mix by accident.
    """

    def __init__(self, path: str, *, config: str | None = None, split: str | None = None) -> None:
        configs, default = read_configs(path)
        with located(path=path):
            self._config = _chosen("config", config or default, list(configs))
            splits = configs[self._config]
            only = next(iter(splits)) if len(splits) == 1 else None
            self._split = _chosen("split", split or only, list(splits))
            files = [file for pattern in splits[self._split] for file in _files(path, pattern)]
        super().__init__(open_reader(list(dict.fromkeys(files))))
        self.path, self.format = path, FORMAT.name

    def facts(self) -> dict[str, object]:
        return {"config": self._config, "split": self._split, **self.base.facts()}


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


def _chosen(kind: str, name: str | None, names: list[str]) -> str:
    if name is None or name not in names:
        why = f"there are several {kind}s" if name is None else f"there is no {kind} {name!r}"
        raise OptionError(f"{why}; {kind}=… is one of {', '.join(names)}")
    return name


def _files(path: str, pattern: str) -> list[str]:
    complete = like(path, join(path, pattern))
    files = naturally(tree.glob(complete)) if tree.has_magic(complete) else [complete]
    if not files:
        raise DamagedError(f"no file matches {pattern!r}, which the card names")
    return files


def sniff(probe: Probe) -> bool:
    """A card that lists files of tables; a recording of robots may have one, too."""
    if CARD not in probe.names or "meta/" in probe.names:
        return False
    content = read_beside(join(probe.path, CARD)) or b""
    configs = configs_text(content.decode("utf-8", "replace"))
    return configs is not None and any(suffix in configs for suffix in SUFFIXES)


FORMAT = Format(
    name="repository",
    title="Hugging Face repository",
    suffixes=(),
    spec="https://huggingface.co/docs/hub/datasets-manual-configuration",
    reader=RepositoryReader,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="yaml",
    notes="files of one split, as the card lists them",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        ecosystem=("Hugging Face",),
    ),
)
