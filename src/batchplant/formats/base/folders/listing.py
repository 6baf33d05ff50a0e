"""Listing the files below a folder, and storing the names in the user's cache for the next opening."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import numpy as np

from ....storage import index
from ....storage.platform import filesystem
from .files import FileNames, Files, LocalFiles, pack_names, unpack_names

# Listing fewer files is fast enough without a stored listing.
MIN_STORED_FILES = 20_000
# File systems that change the ctime of a folder with its entries; object stores mounted by FUSE may not.
STABLE_FILE_SYSTEMS = {
    "btrfs",
    "ceph",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "lustre",
    "nfs",
    "nfs4",
    "overlay",
    "tmpfs",
    "xfs",
    "zfs",
}
# A folder that changed so recently may change again without another ctime.
SETTLED_NS = 2_000_000_000
KIND, VERSION = "listing", 1


def list_files(
    files: Files, medium: str, is_wanted: Callable[[str], bool], own_name: str, *, by_basename: bool
) -> FileNames:
    """Return the wanted files of a folder, sorted: from the cache if no folder has changed, else by a walk.

    ``medium`` names what is wanted. The names of a large local folder go into the user's cache.
    """
    group = index.FileGroup(files.root, [], state={}, options={})
    about = f"{medium} {by_basename}"
    if isinstance(files, LocalFiles):
        stored = index.recall(group, KIND, about, mode="write", version=VERSION)
        fresh = stored and _fresh_names(files.root, stored)
        if stored and fresh:
            files.skipped = int(stored.facts["skipped"])
            return fresh
    now = time.time_ns()
    key = os.path.basename if by_basename else None
    names = FileNames.packed(sorted(files.walk(is_wanted, own_name), key=key))
    if isinstance(files, LocalFiles) and len(names) >= MIN_STORED_FILES and _is_settled(files, now):
        arrays = {
            "names": names.text,
            "folders": pack_names(names.folders),
            "folder": names.folder,
            "walked": pack_names(files.walked),
            "ctimes": np.array([ctime for _, ctime in files.walked.values()]),
        }
        facts = {"skipped": files.skipped}
        index.remember(
            group, KIND, about, lambda source, report: (arrays, facts), mode="rebuild", version=VERSION
        )
    return names


def _is_settled(files: LocalFiles, now: int) -> bool:
    """Return whether the ctimes of all folders would tell of a change."""
    states = files.walked.values()
    return (
        len({device for device, _ in states}) == 1
        and max(ctime for _, ctime in states) < now - SETTLED_NS
        and filesystem(files.root) in STABLE_FILE_SYSTEMS
    )


def _fresh_names(root: str, stored: index.Index) -> FileNames | None:
    """Return the names of a stored listing; None if a folder has changed since, or is gone."""
    arrays = stored.arrays
    walked = unpack_names(arrays["walked"])
    with contextlib.suppress(OSError):
        ctimes = [os.stat(os.path.join(root, folder)).st_ctime_ns for folder in walked]
        names = FileNames(arrays["names"], unpack_names(arrays["folders"]), arrays["folder"])
        if ctimes == arrays["ctimes"].tolist() and names.is_valid():
            return names
    return None
