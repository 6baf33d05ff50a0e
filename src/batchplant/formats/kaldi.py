"""Data folders of Kaldi: ``wav.scp`` with the recordings, and beside it ``segments``, ``text``, ``utt2spk``.

A line is a name and, behind a space, what it has. A sample is an utterance: a line of ``segments``
(``utterance recording start end``, in seconds), or a recording where there are no segments. Entries of
``wav.scp`` that are commands (``sph2pipe … |``) are refused and never run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..data.keys import FormatKeys
from ..data.reader import ReaderWrapper
from ..errors import DamagedError, UnsafeError
from ..schema import Audio, Field, Float, Text
from ..schema.columns import Ragged
from ..storage import join, like, read_text, tree
from .base.capabilities import Capabilities
from .base.folders.annotated import KALDI, RECORDINGS, annotated
from .base.format import Format, Probe
from .base.manifest import MediaReader
from .base.memory import MemoryReader

ID, AUDIO = "id", "audio"
WINDOW = ("start", "duration")
# Files of texts about utterances, and the fields that they become.
BESIDE = {"text": "text", "utt2spk": "speaker", "utt2lang": "language"}


class KaldiReader(ReaderWrapper):
    """Reads data folders of Kaldi.

    ``root``: the folder that paths in wav.scp are relative to (default: the data folder). ``outside``:
    whether they may lead out of it.
    """

    def __init__(self, path: str, *, root: str | None = None, outside: bool = False) -> None:
        recordings = _lines(path, RECORDINGS)
        for line, (name, file) in enumerate(recordings.items()):
            if file.endswith("|") or file.startswith("|") or file == "-":
                raise UnsafeError(
                    f"line {line + 1}: {name} is the output of a command, {file[:80]!r}; data are not run: "
                    "write its sounds to files first",
                    path=join(path, RECORDINGS),
                )
        columns: dict[str, Any] = {ID: list(recordings), AUDIO: list(recordings.values())}
        schema: dict[str, Field] = {ID: Text(), AUDIO: Text()}
        segmented = tree.is_file(join(path, "segments"))
        if segmented:
            columns = _segments(path, recordings)
            schema |= dict.fromkeys(WINDOW, Float())
        for name, field in BESIDE.items():
            if tree.is_file(join(path, name)):
                texts = _lines(path, name)
                columns[field] = [texts.get(utterance) for utterance in columns[ID]]
                schema[field] = Text(optional=None in columns[field])
        table = MemoryReader(columns, schema=schema)
        table.path = path
        folder = path if root is None else like(path, root)
        window = WINDOW if segmented else None
        super().__init__(
            MediaReader(table, media={AUDIO: Audio()}, outside=outside, folder=folder, window=window)
        )
        self.format = FORMAT.name

    def _keys(self) -> FormatKeys:
        def cells(rows: Any) -> Ragged:
            column = self.base.read(rows, [ID])[ID]
            assert isinstance(column, Ragged)
            return column

        return FormatKeys(Text(), cells)


def _lines(folder: str, name: str) -> dict[str, str]:
    """Return what stands behind the name at the beginning of each line."""
    path = join(folder, name)
    content = read_text(path).replace("\t", " ").replace("\r\n", "\n")
    rows = [row.partition(" ")[::2] for row in content.split("\n") if row]
    entries = {key: text.strip() for key, text in rows}
    if len(entries) < len(rows) or "" in entries:
        raise DamagedError("a line has no name, or that of another one", path=path)
    return entries


def _segments(folder: str, recordings: dict[str, str]) -> dict[str, Any]:
    """Return the columns of utterances that are parts of recordings; an end of -1 is the recording's."""
    columns: dict[str, list[Any]] = {name: [] for name in (ID, AUDIO, *WINDOW)}
    for line, (utterance, text) in enumerate(_lines(folder, "segments").items()):
        try:
            recording, *times = text.split()
            first, last = map(float, times)
            columns[AUDIO].append(recordings[recording])
            if not (0 <= first < math.inf and (last == -1 or first <= last < math.inf)):
                raise ValueError(f"{first} to {last} are no seconds of a recording")
        except (ValueError, KeyError) as error:
            raise DamagedError(
                f"line {line + 1}: {error!r}", path=join(folder, "segments"), sample=line
            ) from None
        columns[ID].append(utterance)
        columns["start"].append(first)
        columns["duration"].append(math.nan if last == -1 else last - first)
    return {**columns, **{name: np.array(columns[name], dtype=np.float64) for name in WINDOW}}


def sniff(probe: Probe) -> bool:
    return probe.ask(annotated) == KALDI


FORMAT = Format(
    name="kaldi",
    title="Kaldi data folder",
    suffixes=(),
    spec="https://kaldi-asr.org/doc/data_prep.html",
    reader=KaldiReader,
    writer=None,
    sniff=sniff,
    kinds=(Audio, Float, Text),
    optional=True,
    folder=True,
    notes="read only; commands in wav.scp are refused",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        splittable=True,
        remote_ranges=True,
        ecosystem=("Kaldi", "ESPnet", "lhotse"),
    ),
)
