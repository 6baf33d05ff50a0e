"""The registry: which formats there are, opening a dataset of any, creating one. Everybody below calls it."""

from .creating import create, create_with, target_format
from .find import Found, expand, files_of, find_format
from .known import all_formats, by_suffix, get_format, own_formats
from .opening import AT_ONCE, open

__all__ = [
    "AT_ONCE", "Found", "all_formats", "by_suffix", "create", "create_with", "expand", "files_of",
    "find_format", "get_format", "open", "own_formats", "target_format",
]  # fmt: skip
