"""Whom we trust: hidden names are acted upon only if they are this user's, and nobody else can write to them.

Tests with several users fork and give up root's rights, and are skipped where they cannot.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.storage import Partial, commit, partial_folder, recover, targets
from batchplant.storage.index import sidecar
from batchplant.storage.remote.disk import DiskCache
from batchplant.storage.work import leftovers

ATTACKER, VICTIM = 65534, 12345

users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can work as several users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may write to, with the sticky bit, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="batchplant-shared-"))
    os.chmod(folder, 0o1777)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, work: Callable[[], object]) -> None:
    """Run ``work`` as another user; it fails where it raises."""

    def changed() -> bool:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        work()
        return True

    assert processes.in_fork(changed)


def write_npy(path: Path, count: int = 3) -> None:
    with bp.create(path, {"x": bp.Int()}) as out:
        for number in range(count):
            out.append({"x": number})


def inodes(folder: Path, *names: str) -> dict[str, int | None]:
    return {
        name: os.lstat(folder / name).st_ino if os.path.lexists(folder / name) else None for name in names
    }


def forge(folder: Path, hidden: str = ".x.partial", mode: int = 0o755, note_mode: int = 0o644) -> None:
    """A note that replaces thesis.txt and removes mydata, in whoever's name this runs."""
    path = folder / hidden
    path.mkdir(exist_ok=True)
    (path / "new").write_text("replaced")
    plan = {
        "hidden": hidden,
        "inode": os.lstat(path).st_ino,
        "folder": os.lstat(folder).st_ino,
        "moves": [["new", "thesis.txt", os.lstat(path / "new").st_ino]],
        "removes": ["mydata"],
        "patches": [],
        "old": inodes(folder, "thesis.txt", "mydata"),
    }
    (folder / commit.NOTE_NAME).write_text(json.dumps(plan) + "\n")
    os.chmod(folder / commit.NOTE_NAME, note_mode)
    os.chmod(path, mode)


def treasures(folder: Path) -> None:
    (folder / "thesis.txt").write_text("years of work")
    (folder / "mydata").mkdir()
    (folder / "mydata" / "x").write_text("private")
    write_npy(folder / "v.npy")


def is_untouched(folder: Path) -> bool:
    return (folder / "thesis.txt").read_text() == "years of work" and (folder / "mydata" / "x").exists()


def opens_with_one_warning(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(bp.open(folder / "v.npy")) == 3
    assert len(caught) == 1, [str(item.message) for item in caught]
    assert "is ignored" in str(caught[0].message)


# -- one user ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "note_mode"), [(0o777, 0o644), (0o775, 0o644), (0o755, 0o666), (0o755, 0o664)]
)
def test_a_note_that_others_can_write_to_is_ignored(tmp_path, mode, note_mode):
    treasures(tmp_path)
    forge(tmp_path, mode=mode, note_mode=note_mode)
    opens_with_one_warning(tmp_path)
    assert is_untouched(tmp_path)


def test_a_note_that_has_a_second_name_is_ignored(tmp_path):
    treasures(tmp_path)
    forge(tmp_path)
    os.link(tmp_path / commit.NOTE_NAME, tmp_path / "second")
    opens_with_one_warning(tmp_path)
    assert is_untouched(tmp_path)


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
def test_a_note_with_a_name_that_no_file_can_have(tmp_path, name):
    treasures(tmp_path)
    forge(tmp_path)
    plan = json.loads((tmp_path / commit.NOTE_NAME).read_text())
    plan["moves"][0][0] = name
    (tmp_path / commit.NOTE_NAME).write_text(json.dumps(plan) + "\n")
    with pytest.raises(bp.DamagedError, match="happened elsewhere"):
        bp.open(tmp_path / "v.npy")
    assert is_untouched(tmp_path)


def test_a_note_of_another_folder_is_not_carried_out(tmp_path):
    """The note and its hidden folder were moved, and both are the same files as before."""
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        (folder / "t").write_text("old")
    kill_amid_commit(first)
    os.rename(first / commit.NOTE_NAME, second / commit.NOTE_NAME)
    os.rename(first / ".t.partial", second / ".t.partial")
    with pytest.raises(bp.DamagedError, match="happened elsewhere"):
        recover(second)
    assert (second / "t").read_text() == "old"


def kill_amid_commit(folder: Path) -> None:
    """Leave a note of a decided change of t and t.crc, as a writer that is killed then does."""

    def write() -> bool:
        partial = Partial(str(folder / "t"), overwrite=True)
        partial.spool("data").write(b"new")
        partial.spool("sums").write(b"new sums")
        commit._carry_out = lambda *_, **__: os._exit(0)
        partial.commit("data", [("sums", "{name}.crc")])
        return False

    assert processes.in_fork(write)
    assert (folder / commit.NOTE_NAME).exists()


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_the_own_note_is_honoured_in_a_folder_that_others_write_to(tmp_path, umask):
    os.chmod(tmp_path, 0o777)
    (tmp_path / "t").write_text("old")
    before = os.umask(umask)
    try:
        kill_amid_commit(tmp_path)
    finally:
        os.umask(before)
    recover(tmp_path)
    assert ((tmp_path / "t").read_text(), (tmp_path / "t.crc").read_text()) == ("new", "new sums")
    assert sorted(os.listdir(tmp_path)) == ["t", "t.crc"]


def test_what_has_taken_the_place_of_the_old_stays(tmp_path):
    (tmp_path / "t").write_text("old")
    kill_amid_commit(tmp_path)
    (tmp_path / "other").write_text("copied here since")
    os.replace(tmp_path / "other", tmp_path / "t")
    recover(tmp_path)
    assert (tmp_path / "t").read_text() == "copied here since"
    assert not (tmp_path / commit.NOTE_NAME).exists()


def test_a_link_or_a_pipe_in_place_of_a_note_is_told_to_the_writer(tmp_path):
    for make in (lambda path: path.symlink_to("elsewhere"), lambda path: path.mkdir()):
        make(tmp_path / commit.NOTE_NAME)
        with (
            pytest.raises(bp.ExistsError, match="stands in the way"),
            bp.create(tmp_path / "t.npy", {"x": bp.Int()}, checksums=True) as out,
        ):
            out.append({"x": 1})
        assert os.listdir(tmp_path) == [commit.NOTE_NAME]
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_a_hidden_folder_that_others_could_write_to_is_closed_to_them(tmp_path):
    hidden = partial_folder(str(tmp_path / "t"))
    hidden.mkdir()
    os.chmod(hidden, 0o777)
    partial = Partial(str(tmp_path / "t"))
    assert hidden.stat().st_mode & 0o022 == 0
    partial.discard()


@pytest.mark.parametrize(
    "plan",
    [
        {"steps": [["remove", ["other.parquet"]]]},
        {"steps": [["copy", ["t/../../x"]]]},
        {"steps": [["mark", ["/etc/x"]]]},
        {"moves": [["data", "other.parquet"]], "removes": [], "side_cars": []},
        {"moves": [["../data", "t.parquet"]], "removes": [], "side_cars": []},
        {"moves": [], "removes": ["other.crc"], "side_cars": []},
    ],
)
def test_a_plan_in_a_bucket_reaches_only_what_belongs_to_its_target(plan):
    assert targets._parse_plan(json.dumps(plan).encode(), "t.parquet") is None


def test_a_plan_of_ours_in_a_bucket():
    keys = ["t-00000.tar.gz", "t-00000.tar.gz.crc", "t-00000.idx"]
    plan = json.dumps({"steps": [["copy", keys]]}).encode()
    assert targets._parse_plan(plan, "t.tar.gz.shards") is not None
    assert targets._parse_plan(plan, "t-%05d.tar.gz.shards") is not None


# -- several users -------------------------------------------------------------------------------------


@users
@pytest.mark.parametrize("reader", [VICTIM, 0])
def test_a_note_of_another_user_is_ignored(shared, reader):
    as_user(reader, lambda: treasures(shared))
    as_user(ATTACKER, lambda: forge(shared))
    as_user(reader, lambda: opens_with_one_warning(shared))
    assert is_untouched(shared)


@users
def test_a_note_of_another_user_that_names_a_hidden_folder_of_ours(shared):
    as_user(VICTIM, lambda: treasures(shared))
    as_user(VICTIM, lambda: (shared / ".x.partial").mkdir())
    as_user(VICTIM, lambda: (shared / ".x.partial" / "new").write_text("replaced"))

    def attack() -> None:
        path = shared / ".x.partial"
        plan = {
            "hidden": path.name,
            "inode": os.lstat(path).st_ino,
            "folder": os.lstat(shared).st_ino,
            "moves": [["new", "thesis.txt", os.lstat(path / "new").st_ino]],
            "removes": ["mydata"],
            "patches": [],
            "old": inodes(shared, "thesis.txt", "mydata"),
        }
        (shared / commit.NOTE_NAME).write_text(json.dumps(plan) + "\n")

    as_user(ATTACKER, attack)
    as_user(VICTIM, lambda: opens_with_one_warning(shared))
    assert is_untouched(shared)


@users
def test_our_note_with_files_of_another_user_is_ignored(shared):
    """Such as one that was unpacked by a program that keeps the owners."""
    as_user(VICTIM, lambda: treasures(shared))
    as_user(VICTIM, lambda: forge(shared))
    os.chown(shared / ".x.partial" / "new", ATTACKER, ATTACKER)
    as_user(VICTIM, lambda: opens_with_one_warning(shared))
    assert is_untouched(shared)


@users
def test_a_pipe_or_a_held_lock_of_another_user_stops_nobody(shared):
    as_user(VICTIM, lambda: treasures(shared))

    def pipe() -> None:
        os.mkfifo(shared / commit.NOTE_NAME)
        os.chmod(shared / commit.NOTE_NAME, 0o666)

    as_user(ATTACKER, pipe)
    as_user(VICTIM, lambda: opens_with_one_warning(shared))
    os.unlink(shared / commit.NOTE_NAME)
    as_user(ATTACKER, lambda: forge(shared))
    with open(shared / commit.NOTE_NAME) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        as_user(VICTIM, lambda: opens_with_one_warning(shared))
    assert is_untouched(shared)


@users
def test_a_writer_is_told_of_a_note_of_another_user(shared):
    as_user(ATTACKER, lambda: forge(shared))

    def write() -> None:
        with (
            pytest.warns(RuntimeWarning, match="is ignored"),
            pytest.raises(bp.ExistsError, match="belongs to the user 65534"),
            bp.create(shared / "t.npy", {"x": bp.Int()}, checksums=True) as out,
        ):
            out.append({"x": 1})

    as_user(VICTIM, write)
    assert sorted(os.listdir(shared)) == [commit.NOTE_NAME, ".x.partial"]


@users
def test_an_unfinished_note_in_a_folder_that_cannot_be_written_to(shared):
    """Nothing was decided, so that there is nothing to finish."""
    folder = shared / "data"
    folder.mkdir()
    write_npy(folder / "v.npy")
    os.chmod(folder, 0o555)
    (folder / commit.NOTE_NAME).write_text('{"hidden": ')
    os.chown(folder / commit.NOTE_NAME, VICTIM, VICTIM)
    as_user(VICTIM, lambda: len(bp.open(folder / "v.npy")))
    assert (folder / commit.NOTE_NAME).exists()


@users
def test_a_hidden_folder_with_files_of_another_user_is_not_gone_on_from(shared):
    hidden = partial_folder(str(shared / "t.npy"))

    def stop_amid() -> None:
        out = bp.create(shared / "t.npy", {"x": bp.Int()})
        out.append({"x": 1})
        out.checkpoint()
        out.suspend()

    as_user(VICTIM, stop_amid)
    (hidden / "planted").write_text("x")
    os.chown(hidden / "planted", ATTACKER, ATTACKER)

    def resume() -> None:
        partial = Partial(str(shared / "t.npy"), resume=True)
        assert partial.state is None
        assert os.listdir(hidden) == ["lock"]
        partial.discard()

    as_user(VICTIM, resume)


@users
def test_work_folders_of_another_user_send_nothing(shared, monkeypatch):
    monkeypatch.setenv("BATCHPLANT_WORK", str(shared))
    target = "s3://bucket/t.npy"
    hidden = partial_folder(target)

    def plant() -> None:
        hidden.mkdir()
        (hidden / "target.json").write_text(json.dumps({"url": target, "whole": True, "options": {}}))
        (hidden / ".batchplant.send").write_text(
            json.dumps({"moves": [["target.json", "t.npy"]], "removes": [], "side_cars": []})
        )

    as_user(ATTACKER, plant)

    def look() -> None:
        assert leftovers() == []
        with pytest.raises(bp.ExistsError, match="no folder of yours"):
            Partial(target)

    as_user(VICTIM, look)
    os.chown(shared, ATTACKER, ATTACKER)
    as_user(VICTIM, look)


@users
def test_blocks_and_indexes_of_another_user_are_not_used(shared):
    key, data = "ab" * 8, np.arange(100, dtype=np.uint8)

    def plant() -> None:
        os.umask(0)
        DiskCache(shared, 1 << 20).put(key, 0, data)
        os.chmod(shared / "total", 0o666)
        os.chmod(shared / "ab", 0o777)
        for block in (shared / "ab").iterdir():
            os.chmod(block, 0o644)

    as_user(ATTACKER, plant)

    def look() -> None:
        assert DiskCache(shared, 1 << 20).get(key, 0, 100) is None
        with pytest.raises(PermissionError):
            sidecar.read(shared / "planted.bpindex")

    (shared / "planted.bpindex").write_bytes(b"BPINDEX")
    os.chown(shared / "planted.bpindex", ATTACKER, ATTACKER)
    as_user(VICTIM, look)
