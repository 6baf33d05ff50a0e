"""Data folders of Kaldi: ``wav.scp`` with the recordings, and beside it ``segments``, ``text``, ``utt2spk``.

A line is a name and, behind a space, what it has. A sample is an utterance: a line of ``segments``
(``utterance recording start end``, in seconds), or a recording where there are no segments. Entries of
``wav.scp`` that are commands (``sph2pipe … |``) are refused and never run.
"""

from __future__ import annotations

import numpy as np

from ..codecs.text import Texts
from ..data.keys import FormatKeys
from ..data.reader import ReaderWrapper
from ..errors import DamagedError, UnsafeError
from ..schema import Audio, Field, Float, Text
from ..schema.columns import AnyArray
from ..storage import join, like, tree
from .base.folders.media import KALDI, RECORDINGS, annotated
from .base.format import Capabilities, Format, Probe
from .base.manifest import MediaReader
from .base.texttable import NamedLines, TextTable

ID, AUDIO, SEGMENTS = "id", "audio", "segments"
WINDOW = ("start", "duration")
PIPE, STANDARD_INPUT, SHOWN_BYTES = ord("|"), ord("-"), 80
# Files of texts about utterances, and the fields that they become.
BESIDE = {"text": "text", "utt2spk": "speaker", "utt2lang": "language"}


class KaldiReader(ReaderWrapper):
    """Reads data folders of Kaldi.

    ``root``: the folder that paths in wav.scp are relative to (default: the data folder). ``outside``:
    whether they may lead out of it.
    """

    def __init__(self, path: str, *, root: str | None = None, outside: bool = False) -> None:
        recordings = NamedLines(join(path, RECORDINGS))
        _refuse_commands(recordings)
        segmented = tree.is_file(join(path, SEGMENTS))
        utterances = NamedLines(join(path, SEGMENTS)) if segmented else recordings
        # Two of one name are an error.
        _ = utterances.places
        columns: dict[str, tuple[Field, Texts | AnyArray]] = {ID: (Text(), utterances.names)}
        columns |= _segments(utterances, recordings) if segmented else {AUDIO: (Text(), recordings.values)}
        for name, field in BESIDE.items():
            if tree.is_file(join(path, name)):
                texts = NamedLines(join(path, name)).of(utterances)
                columns[field] = Text(optional=bool((texts.sizes < 0).any())), texts
        table = TextTable(path, columns)
        folder = path if root is None else like(path, root)
        window = WINDOW if segmented else None
        super().__init__(
            MediaReader(table, media={AUDIO: Audio()}, outside=outside, folder=folder, window=window)
        )
        self.format = FORMAT.name

    def _keys(self) -> FormatKeys:
        return FormatKeys(Text(), lambda rows: self.base.read(rows, [ID])[ID])


def _refuse_commands(recordings: NamedLines) -> None:
    data, starts, sizes = recordings.values
    first, last = data[starts], data[np.maximum(starts + sizes - 1, 0)]
    commands = (first == PIPE) | (last == PIPE) | ((sizes == 1) & (first == STANDARD_INPUT))
    if commands.any():
        line = int(np.argmax(commands))
        command = data[starts[line] :][: min(sizes[line], SHOWN_BYTES)].tobytes().decode("utf-8", "replace")
        raise UnsafeError(
            f"line {line + 1}: the recording is the output of a command, {command!r}: data are not run; "
            "write its sounds to files first",
            path=recordings.path,
        )


def _segments(utterances: NamedLines, recordings: NamedLines) -> dict[str, tuple[Field, Texts | AnyArray]]:
    """Return columns of utterances that are parts of recordings; an end of -1 is the recording's."""
    places = recordings.places

    def parse(lines: list[bytes]) -> tuple[list[int], AnyArray]:
        # Split together: a list for each line would take twice as long.
        words = b" | ".join([*lines, b""]).split()
        if len(words) != 4 * len(lines) or {*words[3::4]} - {b"|"}:
            raise ValueError("a recording, its start and its end are needed")
        times = [*map(float, words[1::4]), *map(float, words[2::4])]
        return [places[name] for name in words[::4]], np.array(times)

    lines = utterances.listed()
    try:
        rows, times = parse(lines)
    except (ValueError, KeyError):
        for line, value in enumerate(lines):
            try:
                parse([value])
            except (ValueError, KeyError) as error:
                raise DamagedError(f"line {line + 1}: {error!r}", path=utterances.path, sample=line) from None
        raise
    start, end = times.reshape(2, -1)
    wrong = ~((start >= 0) & (start < np.inf) & ((end == -1) | ((end >= start) & (end < np.inf))))
    if wrong.any():
        line = int(np.argmax(wrong))
        message = f"line {line + 1}: {start[line]} to {end[line]} are no seconds of a recording"
        raise DamagedError(message, path=utterances.path, sample=line)
    data, starts, sizes = recordings.values
    files = Texts(data, starts[rows], sizes[rows])
    seconds = np.where(end == -1, np.nan, end - start)
    return {AUDIO: (Text(), files), "start": (Float(), start.copy()), "duration": (Float(), seconds)}


def sniff(probe: Probe) -> bool:
    return probe.ask(annotated) == KALDI


FORMAT = Format(
    name="kaldi",
    title="Kaldi data folder",
    suffixes=(),
    spec="https://kaldi-asr.org/doc/data_prep.html",
    reader=KaldiReader,
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
