"""How a URL is reached and cached: named options, environment variables, and ``[storage]`` in one file.

The file is ``~/.config/batchplant/config.toml``, or what the variable BATCHPLANT_CONFIG names::

    [storage]
    cache = "/data/cache"
    cache_bytes = "200GB"

    [storage."s3://my-bucket"]
    endpoint = "http://minio.example:9000"
    region = "us-east-1"

An option given to ``open`` goes before a variable, a variable before the file, and of the tables in the file
the one with the longest name that the URL begins with goes first. Secrets are no options: they come from the
store's usual environment variables, profiles and instance roles, and stay there.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import OptionError, listed, near

CONFIG = "BATCHPLANT_CONFIG"
CACHE = "BATCHPLANT_CACHE"
CACHE_BYTES = "BATCHPLANT_CACHE_BYTES"
FETCH_BYTES = "BATCHPLANT_FETCH_BYTES"
RETRY_SECONDS = "BATCHPLANT_RETRY_SECONDS"

UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
# Limit of a disk cache if none is given.
DEFAULT_CACHE_BYTES = 100 * 10**9
# Blocks in memory, in flight or waiting for their batches: two windows of quasi_random, and a little more.
DEFAULT_FETCH_BYTES = 576 << 20
DEFAULT_RETRY_SECONDS = 60.0
MAX_RETRY_SECONDS = 86_400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FetchTuning:
    """Numbers of the fetcher: they change how fast bytes come, never which."""

    # Requests in flight: the limits, and the number to begin with.
    min_in_flight: int = 4
    initial_in_flight: int = 8
    max_in_flight: int = 64
    # A request that takes this many times as long as others of its size is hedged: sent a second time.
    stall_factor: float = 5.0
    min_stall_seconds: float = 1.0
    # Interval at which the concurrency limit is adapted.
    window_seconds: float = 0.25
    # Seconds without work after which a thread ends.
    idle_thread_seconds: float = 5.0
    # Seconds without a byte after which a request is given up; a stalled request is hedged long before.
    max_silent_seconds: float = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of ``open`` for URLs.

    endpoint: the server of an S3-, GCS- or Azure-compatible store. region: of the bucket. anonymous: send no
    credentials. profile: of ``~/.aws``. cache: a folder that keeps what was fetched; cache_bytes: how much at
    most (100 GB). fetch_bytes: memory for blocks that were fetched ahead (576 MiB; a Loader takes more for a
    dataset that then fits, up to an eighth of the free memory). retry_seconds: how long a request that fails
    is tried again (60); 0 for once.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool | None = None
    profile: str | None = None
    cache: str | None = None
    cache_bytes: int | None = None
    fetch_bytes: int | None = None
    retry_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("cache_bytes", "fetch_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise OptionError(f"{name} is a number of bytes, not {limit}")
        if self.retry_seconds is not None:
            seconds_of("retry_seconds", self.retry_seconds)

    def over(self, below: StorageOptions) -> StorageOptions:
        """Return these options, completed by those of ``below``."""
        set_options = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(below, **set_options)


NAMES = tuple(option.name for option in dataclasses.fields(StorageOptions))
PLAIN = StorageOptions()


def split_options(options: Mapping[str, Any]) -> tuple[StorageOptions, dict[str, Any]]:
    """Return the options of storage, and all others."""
    if not options:
        return PLAIN, {}
    storage_options = {name: value for name, value in options.items() if _is_ours(name, value)}
    return options_of(storage_options), {
        name: value for name, value in options.items() if name not in storage_options
    }


def _is_ours(name: str, value: Any) -> bool:
    """Return whether an option is ours; a ``cache`` that is a number is the format's: bytes of chunks."""
    return name in NAMES and not (name == "cache" and (isinstance(value, int) or str(value).isdigit()))


def options_of(values: Mapping[str, Any], where: str | None = None) -> StorageOptions:
    """Return options by name, each of its type; ``where``: the file that has them."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if name not in NAMES:
            message = f"storage has no option {name!r}{near(name, NAMES)}; its options are: {listed(NAMES)}"
            raise OptionError(message, path=where)
        if value is None:
            continue
        if name in ("cache_bytes", "fetch_bytes"):
            value = bytes_of(name, value, where)
        elif name == "retry_seconds":
            value = seconds_of(name, value, where)
        elif name == "anonymous":
            if isinstance(value, str):
                value = BOOLEANS.get(value.lower(), value)
            if not isinstance(value, bool):
                raise OptionError(f"anonymous is true or false, not {value!r}", path=where)
        elif not isinstance(value, str | os.PathLike):
            raise OptionError(f"{name} is text, not {value!r}", path=where)
        else:
            value = str(os.fspath(value))
        options[name] = value
    return StorageOptions(**options)


def bytes_of(name: str, value: Any, where: str | None = None) -> int:
    """Return a number of bytes: 1000000, "200GB", "64 MiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return int(size_of(name, value, where))


def size_of(name: str, value: Any, where: str | None = None) -> float:
    """Return a number of bytes, perhaps a fraction, from text with or without a unit: "200GB", "0.5"."""
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?i?)b?\s*", str(value)[:100].lower())
    if match is None or match[2] not in UNITS:
        shown = repr(value)[:60]
        raise OptionError(f"{name} is a number of bytes, such as 200GB, not {shown}", path=where)
    return float(match[1]) * UNITS[match[2]]


def seconds_of(name: str, value: Any, where: str | None = None) -> float:
    """Return a number of seconds: 60, "2.5", "90s"."""
    try:
        seconds = float(str(value).strip().lower().removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if isinstance(value, bool) or not 0 <= seconds <= MAX_RETRY_SECONDS:
        limit = f"from 0 to {MAX_RETRY_SECONDS:,.0f}"
        raise OptionError(f"{name} is a number of seconds {limit}, not {repr(value)[:60]}", path=where)
    return seconds


def config_path() -> str:
    """Return the path of the configuration file, whether it exists or not."""
    path = os.environ.get(CONFIG)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return path or os.path.join(home, "batchplant", "config.toml")


def settings_for(url: str, options: StorageOptions) -> StorageOptions:
    """Return the options for a URL from arguments, environment variables and the configuration file."""
    variables = {
        "cache": os.environ.get(CACHE), "cache_bytes": os.environ.get(CACHE_BYTES),
        "fetch_bytes": os.environ.get(FETCH_BYTES), "retry_seconds": os.environ.get(RETRY_SECONDS),
    }  # fmt: skip
    merged = options.over(
        options_of({name: value for name, value in variables.items() if value}, "the environment")
    )
    path = config_path()
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        return merged
    for prefix, table in _tables(path, stamp):
        if url.startswith(prefix):
            merged = merged.over(table)
    return merged


@functools.lru_cache(maxsize=4)
def _tables(path: str, stamp: int) -> list[tuple[str, StorageOptions]]:
    """The tables of the file by the prefix that they are for, the longest first."""
    # Few have one.
    import tomllib

    try:
        with open(path, "rb") as file:
            storage = tomllib.load(file).get("storage", {})
    except (OSError, ValueError) as error:
        raise OptionError(f"the configuration cannot be read: {error}", path=path) from None
    if not isinstance(storage, dict):
        raise OptionError("[storage] is a table", path=path)
    special = {name: value for name, value in storage.items() if isinstance(value, dict)}
    general = {name: value for name, value in storage.items() if name not in special}
    tables = {"": general, **special}
    return [(name, options_of(tables[name], path)) for name in sorted(tables, key=len, reverse=True)]
