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
# Of a cache on disk whose limit nobody gave.
DEFAULT_CACHE_BYTES = 100 * 10**9
# Of blocks in memory, in flight or waiting for their batches: two windows of quasi_random, and a little more.
DEFAULT_FETCH_BYTES = 576 << 20
DEFAULT_RETRY_SECONDS = 60.0
MAX_RETRY_SECONDS = 86_400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of ``open`` for URLs.

    endpoint: the server of an S3-, GCS- or Azure-compatible store. region: of the bucket. anonymous: send no
    credentials. profile: of ``~/.aws``. cache: a folder that keeps what was fetched; cache_bytes: how much at
    most (100 GB). fetch_bytes: memory for blocks that were fetched ahead (576 MiB). retry_seconds: how long a
    request that fails is tried again (60); 0 for once.
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
            given = getattr(self, name)
            if given is not None and given < 0:
                raise OptionError(f"{name} is a number of bytes, not {given}")
        if self.retry_seconds is not None:
            seconds_of("retry_seconds", self.retry_seconds)

    def over(self, below: StorageOptions) -> StorageOptions:
        """These, and the others' where one is not given."""
        own = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(below, **own)


NAMES = tuple(one.name for one in dataclasses.fields(StorageOptions))
PLAIN = StorageOptions()


def split_options(options: Mapping[str, Any]) -> tuple[StorageOptions, dict[str, Any]]:
    """The options of storage, and all others."""
    if not options:
        return PLAIN, {}
    own = {name: value for name, value in options.items() if _is_ours(name, value)}
    return options_of(own), {name: value for name, value in options.items() if name not in own}


def _is_ours(name: str, value: Any) -> bool:
    """A ``cache`` that is a number is the format's: bytes of unpacked chunks to keep."""
    return name in NAMES and not (name == "cache" and (isinstance(value, int) or str(value).isdigit()))


def options_of(given: Mapping[str, Any], where: str | None = None) -> StorageOptions:
    """Options by name, each of its type; ``where``: the file they stand in."""
    found: dict[str, Any] = {}
    for name, value in given.items():
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
            if isinstance(value, str) and value.lower() in (
                "true",
                "yes",
                "on",
                "1",
                "false",
                "no",
                "off",
                "0",
            ):
                value = value.lower() in ("true", "yes", "on", "1")
            if not isinstance(value, bool):
                raise OptionError(f"anonymous is true or false, not {value!r}", path=where)
        elif not isinstance(value, str | os.PathLike):
            raise OptionError(f"{name} is text, not {value!r}", path=where)
        else:
            value = str(os.fspath(value))
        found[name] = value
    return StorageOptions(**found)


def bytes_of(name: str, given: Any, where: str | None = None) -> int:
    """A number of bytes: 1000000, "200GB", "64 MiB"."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    return int(size_of(name, given, where))


def size_of(name: str, given: Any, where: str | None = None) -> float:
    """A number of bytes, perhaps a fraction, from text with or without a unit: "200GB", "0.5"."""
    found = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?i?)b?\s*", str(given)[:100].lower())
    if found is None or found[2] not in UNITS:
        shown = repr(given)[:60]
        raise OptionError(f"{name} is a number of bytes, such as 200GB, not {shown}", path=where)
    return float(found[1]) * UNITS[found[2]]


def seconds_of(name: str, given: Any, where: str | None = None) -> float:
    """A number of seconds: 60, "2.5", "90s"."""
    try:
        found = float(str(given).strip().lower().removesuffix("s"))
    except ValueError:
        found = -1.0
    if isinstance(given, bool) or not 0 <= found <= MAX_RETRY_SECONDS:
        limit = f"from 0 to {MAX_RETRY_SECONDS:,.0f}"
        raise OptionError(f"{name} is a number of seconds {limit}, not {repr(given)[:60]}", path=where)
    return found


def config_path() -> str:
    """Where the configuration file is, or would be."""
    given = os.environ.get(CONFIG)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return given or os.path.join(home, "batchplant", "config.toml")


def settings_for(url: str, given: StorageOptions) -> StorageOptions:
    """All that is known about how to reach a URL."""
    variables = {
        "cache": os.environ.get(CACHE), "cache_bytes": os.environ.get(CACHE_BYTES),
        "fetch_bytes": os.environ.get(FETCH_BYTES), "retry_seconds": os.environ.get(RETRY_SECONDS),
    }  # fmt: skip
    found = given.over(
        options_of({name: value for name, value in variables.items() if value}, "the environment")
    )
    path = config_path()
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        return found
    for prefix, table in _tables(path, stamp):
        if url.startswith(prefix):
            found = found.over(table)
    return found


@functools.lru_cache(maxsize=4)
def _tables(path: str, stamp: int) -> list[tuple[str, StorageOptions]]:
    """The tables of the file by the prefix that they are for, the longest first."""
    # Few have one.
    import tomllib

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file).get("storage", {})
    except (OSError, ValueError) as error:
        raise OptionError(f"the configuration cannot be read: {error}", path=path) from None
    if not isinstance(found, dict):
        raise OptionError("[storage] is a table", path=path)
    special = {name: value for name, value in found.items() if isinstance(value, dict)}
    general = {name: value for name, value in found.items() if name not in special}
    tables = {"": general, **special}
    return [(name, options_of(tables[name], path)) for name in sorted(tables, key=len, reverse=True)]
