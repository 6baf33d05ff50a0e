"""Where a cell lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....errors import shown

if TYPE_CHECKING:
    from .cell import Cell


def place_of(cell: Cell) -> dict[str, Any]:
    """The file, and the place in it where the cell is a run of its bytes.

    Else the runs that have to be read for it, where the format tells.
    """
    reader, sample = cell.side.reader, cell.sample
    spans = reader.spans(cell.name, [sample])
    if spans is not None and len(spans) and spans.size[0] >= 0:
        return {
            "file": shown(spans.files[spans.file[0]]), "start": int(spans.start[0]),
            "size": int(spans.size[0]), "exact": True,
        }  # fmt: skip
    runs = reader.ranges([cell.name], [sample])
    if runs is None or not len(runs):
        return {"file": shown(reader.where(sample))}
    first = int(runs.start.min())
    return {
        "file": shown(runs.files[runs.file[0]]), "start": first, "size": int(runs.size.clip(0).sum()),
        "runs": len(runs), "exact": False,
    }  # fmt: skip
