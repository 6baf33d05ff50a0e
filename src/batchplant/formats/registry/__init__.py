"""The registry: which formats there are, opening a dataset of any, creating one. Everybody below calls it."""

from .creating import Prepared, create, create_with, prepare, target_format
from .find import (
    Candidate,
    all_formats,
    by_scheme,
    by_suffix,
    expand,
    files_of,
    find_format,
    get_format,
    own_formats,
    size_of,
)
from .opening import AT_ONCE, open

__all__ = [
    "AT_ONCE", "Candidate", "Prepared", "all_formats", "by_scheme", "by_suffix", "create", "create_with",
    "expand", "files_of", "find_format", "get_format", "open", "own_formats", "prepare", "size_of",
    "target_format",
]  # fmt: skip
