"""The footer of a Parquet file, taken apart and put together again.

A writer that was stopped cannot go on in a Parquet file: where row groups lie stands only in the footer. So
every row group is written as a file of its own, whose footer the writer takes off; :func:`merge` makes one of
all of them, with all row groups at their true places, and the lists of where their pages lie.

Footers are Thrift structures in the compact protocol, which ``tables.thrift`` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.tables.footer import footer_bytes
from ..base.tables.thrift import STRUCT, Struct, read_struct, struct_bytes

# FileMetaData
_ROWS, _ROW_GROUPS = 3, 4
# RowGroup, ColumnChunk, ColumnMetaData: the fields that are offsets in the file.
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_DATA, _CHUNK_OFFSETS = 3, (2, 4, 6)
_DATA_OFFSETS = (9, 10, 11, 14)
# Of a ColumnChunk, where its OffsetIndex lies and how long it is; in that, the pages, and where each lies.
_INDEX_OFFSET, _INDEX_SIZE = 4, 5
_PAGES, _PAGE_OFFSET = 1, 1


def merge(footers: Sequence[tuple[int, bytes]], end: int, read: Callable[[int, int], bytes]) -> bytes:
    """Return the end of a file that follows its parts: moved page indexes, then one footer of all row groups.

    Each footer of a part comes with the start of the part.

    ``read`` gives so many bytes of the file from a place on.
    """
    struct: Struct = {}
    moved = b""
    for start, data in footers:
        part = read_struct(data)[0]
        groups = part.get(_ROW_GROUPS, (9, (STRUCT, [])))[1][1]
        for group in groups:
            _move(group, start)
            for chunk in group[_GROUP_COLUMNS][1][1] if start else ():
                moved += _move_pages(chunk, start, end + len(moved), read)
        if not struct:
            struct = part
            continue
        there = struct[_ROW_GROUPS][1][1]
        for group in groups:
            group[_GROUP_ORDINAL] = (4, min(len(there), 32767))
            there.append(group)
        struct[_ROWS] = (struct[_ROWS][0], struct[_ROWS][1] + part[_ROWS][1])
    return moved + footer_bytes(struct)


def _move(group: Struct, by: int) -> None:
    """Shift everything in a row group that is a place in the file."""
    _shift(group, (_GROUP_OFFSET,), by)
    for chunk in group[_GROUP_COLUMNS][1][1]:
        _shift(chunk, _CHUNK_OFFSETS, by)
        if _CHUNK_DATA in chunk:
            _shift(chunk[_CHUNK_DATA][1], _DATA_OFFSETS, by)


def _move_pages(chunk: Struct, by: int, to: int, read: Callable[[int, int], bytes]) -> bytes:
    """The places of the pages of a column, shifted, which lie at another place from now on."""
    if _INDEX_OFFSET not in chunk:
        return b""
    pages = read_struct(read(chunk[_INDEX_SIZE][1], chunk[_INDEX_OFFSET][1]))[0]
    for page in pages[_PAGES][1][1]:
        _shift(page, (_PAGE_OFFSET,), by)
    data = struct_bytes(pages)
    chunk[_INDEX_OFFSET] = (chunk[_INDEX_OFFSET][0], to)
    chunk[_INDEX_SIZE] = (chunk[_INDEX_SIZE][0], len(data))
    return data


def _shift(struct: Struct, fields: Sequence[int], by: int) -> None:
    for field in fields:
        # 0 stands for none.
        if field in struct and struct[field][1] > 0:
            struct[field] = (struct[field][0], struct[field][1] + by)
