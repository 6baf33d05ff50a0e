"""A dataset repository of the Hugging Face Hub: a folder whose card (README.md) lists files by configuration
and split.

The samples are those of the files of one split, which are opened together in place. It may lie on a disk or
at ``hf://datasets/OWNER/NAME@REVISION``.
"""

from __future__ import annotations

from typing import Any

from ..data.reader import ReaderWrapper, open_reader
from ..errors import DamagedError, OptionError, located
from ..schema import EVERY_KIND
from ..storage import join, like, read_beside, tree
from ..storage.patterns import naturally
from .base.capabilities import Capabilities
from .base.card import CARD, configs_text, read_configs
from .base.format import Format, Probe

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

    def facts(self) -> dict[str, Any]:
        return {"config": self._config, "split": self._split, **self.base.facts()}


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
    writer=None,
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
