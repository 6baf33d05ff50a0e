"""The folders that save_to_disk of Hugging Face's datasets leaves: which files are in them."""

from __future__ import annotations

from typing import Any

from ...errors import DamagedError, OptionError, SchemaError
from ...storage import is_plain, join, parse_object, read_whole, tree

# What lies in a folder, and in that of several splits.
STATE, SPLITS = "state.json", "dataset_dict.json"


def saved_files(path: str, split: str | None) -> list[str]:
    """The files of a dataset: the path itself, or those that a saved folder lists."""
    if not tree.is_folder(path):
        return [path]
    if SPLITS in tree.names(path):
        splits = _json(join(path, SPLITS)).get("splits")
        names = [str(split) for split in splits] if isinstance(splits, list) else []
        chosen = names[0] if split is None and len(names) == 1 else split
        if chosen is None or chosen not in names:
            raise OptionError(f"choose one of its splits with split=…: {', '.join(names)}", path=path)
        return saved_files(join(path, _name(chosen, path)), None)
    state = _json(join(path, STATE))
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed) or not listed:
        raise DamagedError("it lists no data files", path=join(path, STATE))
    if state.get("_indices_data_files"):
        raise SchemaError(
            "it is saved with a list of indices; save it again with flatten_indices()", path=path
        )
    return [join(path, _name(str(one.get("filename")), path)) for one in listed]


def _json(path: str) -> dict[str, Any]:
    try:
        return parse_object(read_whole(path), finite=False)
    except ValueError as error:
        raise DamagedError(f"it cannot be read: {error}", path=path) from None


def _name(name: str, path: str) -> str:
    """A name that came out of a file is no path."""
    if not is_plain(name):
        raise DamagedError(f"{name!r} is no file in this folder", path=path)
    return name
