"""Versions of batchplant, Python and the libraries, and the machine: for a bug report."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from .. import _native
from .measure import timing

# Frameworks that batches go to; none of them is an extra.
FRAMEWORKS = ("torch", "jax", "keras", "tensorflow", "lightning", "accelerate", "transformers")


def show_versions() -> None:
    """Print this machine and the versions of all libraries that batchplant can use, for a bug report."""
    for name, value in versions().items():
        print(f"{name:22} {value}")


def versions() -> dict[str, str]:
    """Return the machine, and the version of each library by name; "not installed" where it is missing."""
    lines = {
        "machine": timing.describe(),
        "python": f"{sys.version.split()[0]} ({sys.implementation.name}), {sys.executable}",
        "native core": ", ".join(f"{unit}: {library}" for unit, library in _native.features().items()),
    }
    for library in ("batchplant", *_libraries(), *FRAMEWORKS):
        try:
            lines[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            lines[library] = "not installed"
    return lines


def _libraries() -> list[str]:
    """Names of the dependencies and of the extras of users, as the installed metadata has them."""
    try:
        requirements = metadata.requires("batchplant") or []
    except metadata.PackageNotFoundError:
        return ["numpy", "rich"]
    of_users = (line for line in requirements if not re.search(r"extra == ['\"](?:test|dev|docs)['\"]", line))
    names = {match[0] for line in of_users if (match := re.match(r"[\w.-]+", line))}
    return sorted(names - {"batchplant"}, key=str.lower)
