"""URLs: text that carries its storage options, and the names below it."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..errors import OptionError, exceptions_as
from .settings import PLAIN, StorageOptions


class Url(str):
    """A URL with the options that say how to reach it. Paths made of it by :func:`join` have them too."""

    options: StorageOptions

    def __new__(cls, text: str, options: StorageOptions = PLAIN) -> Url:
        self = super().__new__(cls, text)
        self.options = options
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Url, (str(self), self.options)

    def __str__(self) -> str:
        return str.__str__(self)


def reached(path: str, options: StorageOptions) -> str:
    """Return a URL with the options that say how to reach it; a local path has none."""
    if is_remote(path):
        return path if isinstance(path, Url) and options == PLAIN else Url(path, options)
    if options is PLAIN or options == PLAIN:
        return path
    names = [name for name, value in dataclasses.asdict(options).items() if value is not None]
    if names:
        raise OptionError(f"{', '.join(names)}: options for URLs, and this is a local path", path=path)
    return path


class Place(NamedTuple):
    """The components of a URL. ``root``: scheme and bucket or host. ``name``: the object, no slash before."""

    scheme: str
    root: str
    name: str
    query: str


def is_remote(path: str) -> bool:
    return "://" in path


def options_at(path: str) -> StorageOptions:
    """Return the options that a path carries."""
    return path.options if isinstance(path, Url) else PLAIN


def like(path: str, text: str) -> str:
    """Return text as a path with the options of another path."""
    return Url(text, path.options) if isinstance(path, Url) and is_remote(text) else text


def join(path: str, *names: str) -> str:
    """Return a path below a folder, local or remote."""
    if not is_remote(path):
        return os.path.join(path, *names)
    return like(path, "/".join([path.rstrip("/"), *(name for name in names if name)]))


def parent(path: str) -> str:
    """Return the folder of a file."""
    if not is_remote(path):
        return os.path.dirname(path)
    return like(path, path.rstrip("/").rpartition("/")[0])


def beside(path: str, template: str) -> str:
    """Return the path of a side-car: the template ``{name}.crc`` or ``{stem}.idx`` filled in."""
    folder, slash, name = path.rstrip("/").rpartition("/")
    stem = os.path.splitext(name)[0]
    return like(path, folder + slash + template.format(name=name, stem=stem))


def absolute(path: str) -> str:
    """Return the absolute path; a URL as it is."""
    return path if is_remote(path) else os.path.abspath(path)


# A repository of the Hugging Face Hub, its revision (which may name a branch with a slash), and a path in it.
HUB = re.compile(
    r"(?:(datasets|spaces|buckets)/)?(?!(?:datasets|spaces|buckets)/)([^/@]+/[^/@]+)"
    r"(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?"
)


def hub_parts(root: str) -> tuple[str, str, str]:
    """Return the kind of a repository of the Hub, its name, and the revision."""
    match = HUB.fullmatch(root.partition("://")[2])
    if match is None or ".." in match[2].split("/"):
        raise OptionError("a URL of the Hub is hf://datasets/OWNER/NAME@REVISION/PATH", path=root)
    return match[1] or "models", match[2], unquote(match[3] or "main")


def place_of(url: str) -> Place:
    """Return the components of a URL; names of objects are as stored, those of HTTP are decoded."""
    scheme, _, path = str(url).partition("://")
    scheme = scheme.lower()
    if scheme in ("http", "https"):
        with exceptions_as(OptionError, "this is no URL", ValueError, path=url):
            parts = urlsplit(str(url))
            host = parts.netloc
        if not host:
            raise OptionError("this URL has no host", path=url)
        return Place(scheme, f"{scheme}://{host}", unquote(parts.path).lstrip("/"), parts.query)
    bucket, _, name = path.partition("/")
    if scheme == "hf":
        match = HUB.fullmatch(path)
        name = (match and match[4]) or ""
        bucket = path[: len(path) - len(name)].rstrip("/")
    return Place(scheme, f"{scheme}://{bucket}", posixpath.normpath(name) if name.strip("/.") else "", "")
