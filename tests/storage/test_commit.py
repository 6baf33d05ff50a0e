"""Several renames as one change: every system call of it fails, or is the last one, in turn."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

import batchplant as bp
from batchplant.storage import Partial, commit, partial_folder, recover

CALLS = (
    "open", "write", "fsync", "ftruncate", "replace", "rename", "unlink", "rmdir", "link",
)  # fmt: skip


class Killed(BaseException):
    """Nothing is done after it, as if the process were gone."""


class Faults:
    """The n-th call of the functions in CALLS raises; after a kill every further one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.what = 0, -1, OSError(5, "injected")
        self.armed = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))
        real = commit.exchange
        monkeypatch.setattr(commit, "exchange", self._wrap(real))

    def _wrap(self, real):
        def call(*args, **named):
            if self.armed:
                self.count += 1
                if self.count - 1 == self.at or (self.count > self.at >= 0 and isinstance(self.what, Killed)):
                    raise self.what
            return real(*args, **named)

        return call

    @contextlib.contextmanager
    def arm(self, at: int, what: BaseException):
        self.count, self.at, self.what, self.armed = 0, at, what, True
        try:
            yield
        finally:
            self.armed = False


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def files(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """A file with side-cars; one of the old ones has to go."""
    for name in ("t", "t.crc", "t.idx"):
        (root / name).write_text(f"old {name}")
    hidden = root / ".t.partial"
    hidden.mkdir()
    for name in ("t", "t.crc"):
        (hidden / name).write_text(f"new {name}")
    return [("t", "t"), ("t.crc", "t.crc")], ["t.idx", "t.none"]


def folders(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Folders over folders, as shards of Zarr are; one of the old ones has to go."""
    for number in range(3):
        (root / f"t-{number}").mkdir()
        (root / f"t-{number}" / "chunk").write_text(f"old {number}")
    hidden = root / ".t.partial"
    for number in range(2):
        (hidden / f"t-{number}").mkdir(parents=True)
        (hidden / f"t-{number}" / "chunk").write_text(f"new {number}")
    return [(f"t-{number}", f"t-{number}") for number in range(2)], ["t-2"]


def one_file(root: Path) -> tuple[list[tuple[str, str]], list[str]]:
    (root / "t").write_text("old")
    (root / ".t.partial").mkdir()
    (root / ".t.partial" / "x").write_text("new")
    return [("x", "t")], []


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("make", [files, folders, one_file])
@pytest.mark.parametrize("kind", ["error", "interrupt", "kill"])
def test_every_call_fails_in_turn(tmp_path, monkeypatch, make, kind, exchange):
    faults = Faults(monkeypatch)
    if not exchange:
        monkeypatch.setattr(commit, "exchange", lambda *_: False)
    number, ended = 0, False
    while not ended:
        root = tmp_path / str(number)
        root.mkdir()
        (root / "bystander").write_text("not yours")
        moves, removes = make(root)
        old = tree(root)
        what = {"error": OSError(5, "injected"), "interrupt": KeyboardInterrupt(), "kill": Killed()}[kind]
        raised = None
        with faults.arm(number, what):
            try:
                commit.commit(root / ".t.partial", moves, removes)
            except (OSError, KeyboardInterrupt, Killed) as error:
                raised = error
        ended = faults.count <= number
        recover(root)
        actual = tree(root)
        new = tree(complete(tmp_path / f"complete-{number}", make))
        assert actual in (old, new), (number, actual)
        assert actual == new or raised is not None
        assert not (root / commit.NOTE_NAME).exists()
        assert actual["bystander"] == "not yours"
        number += 1
    assert actual == new
    assert raised is None
    assert number > 3


def complete(root: Path, make) -> Path:
    root.mkdir()
    (root / "bystander").write_text("not yours")
    moves, removes = make(root)
    commit.commit(root / ".t.partial", moves, removes)
    return root


def test_a_change_that_was_copied_elsewhere_is_not_carried_out(tmp_path):
    """Nor is one that came in an archive: it cannot know the number that the hidden folder gets."""
    root = tmp_path / "a"
    root.mkdir()
    moves, _ = files(root)
    plan = {
        "hidden": ".t.partial",
        "inode": os.lstat(root / ".t.partial").st_ino,
        "folder": os.lstat(root).st_ino,
        "moves": [],
        "removes": ["t"],
        "patches": [],
        "old": {path.name: os.lstat(path).st_ino for path in root.iterdir()},
    }
    plan["moves"] = [[inside, name, os.lstat(root / ".t.partial" / inside).st_ino] for inside, name in moves]
    (root / commit.NOTE_NAME).write_text(json.dumps(plan) + "\n")
    shutil.copytree(root, tmp_path / "b")
    before = tree(tmp_path / "b")
    with pytest.raises(bp.DamagedError, match="write it anew and remove this file"):
        recover(tmp_path / "b")
    assert tree(tmp_path / "b") == before
    # At its own place it is.
    recover(root)
    assert tree(root)["t.crc"] == "new t.crc"


@pytest.mark.parametrize("name", ["../t", "a/../../t", "", "..", "a/", commit.NOTE_NAME])
def test_a_change_reaches_no_other_folder(tmp_path, name):
    root = tmp_path / "a"
    root.mkdir()
    files(root)
    (tmp_path / "t").write_text("mine")
    inode = os.lstat(root / ".t.partial").st_ino
    result = os.lstat(root / ".t.partial" / "t").st_ino
    sound = {"hidden": ".t.partial", "inode": inode, "folder": os.lstat(root).st_ino, "moves": [],
             "removes": [], "patches": [], "old": {}}  # fmt: skip
    for wrong in (
        {"moves": [["t", name, result]]},
        {"removes": [name]},
        {"inode": None},
        {"folder": inode},
        {"moves": [[f"../{name}", "t", result]]},
    ):
        plan = {**sound, **wrong}
        (root / commit.NOTE_NAME).write_text(json.dumps(plan) + "\n")
        with pytest.raises(bp.DamagedError):
            recover(root)
    assert (tmp_path / "t").read_text() == "mine"


def test_a_link_does_not_lead_a_change_out_of_its_folder(tmp_path):
    root, other = tmp_path / "a", tmp_path / "b"
    root.mkdir()
    other.mkdir()
    files(root)
    (root / "link").symlink_to(other)
    hidden = root / ".t.partial"
    with pytest.raises(bp.BatchplantError, match="no folder"):
        commit.commit(hidden, [("t", "link/t")])
    assert not list(other.iterdir())


def test_bytes_go_behind_those_of_a_file_however_often(tmp_path):
    (tmp_path / "t").write_bytes(b"old")
    hidden = tmp_path / ".t.partial"
    hidden.mkdir()
    (hidden / "tail").write_bytes(b" and new")
    [patch] = commit._plan_patches(hidden, [commit.Patch("tail", "t", 3)])
    for _ in range(2):
        commit._write_patch(tmp_path, hidden, patch)
        assert (tmp_path / "t").read_bytes() == b"old and new"
    # What has taken its place is somebody else's.
    (tmp_path / "u").write_bytes(b"mine")
    os.replace(tmp_path / "u", tmp_path / "t")
    commit._write_patch(tmp_path, hidden, patch)
    assert (tmp_path / "t").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "text", ["", "{", "[1]\n", "5\n", '{"hidden": 3}\n', '{"moves": [[1]]}\n', "x" * 99 + "\n"]
)
def test_odd_notes_of_a_change(tmp_path, text):
    (tmp_path / "t").write_text("mine")
    (tmp_path / commit.NOTE_NAME).write_text(text)
    with contextlib.suppress(bp.DamagedError):
        recover(tmp_path)
    assert (tmp_path / "t").read_text() == "mine"


def test_a_pipe_or_a_link_instead_of_a_note(tmp_path):
    os.mkfifo(tmp_path / commit.NOTE_NAME)
    with pytest.raises(bp.DamagedError, match="no file of ours"):
        recover(tmp_path)
    os.unlink(tmp_path / commit.NOTE_NAME)
    os.symlink("elsewhere", tmp_path / commit.NOTE_NAME)
    recover(tmp_path)


def test_a_reader_waits_for_the_one_who_is_at_it_but_not_for_ever(tmp_path):
    import fcntl

    with open(tmp_path / commit.NOTE_NAME, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(bp.BusyError, match="about to finish"):
            recover(tmp_path, wait=0.05)
    recover(tmp_path)
    assert not (tmp_path / commit.NOTE_NAME).exists()


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path):
    (tmp_path / ".t.partial").mkdir()
    (tmp_path / ".t.partial" / "x").write_text("new")
    (tmp_path / "t").mkdir()
    with pytest.raises(bp.ExistsError, match="it is a folder"):
        commit.commit(tmp_path / ".t.partial", [("x", "t")])
    (tmp_path / ".t.partial" / "y").mkdir()
    (tmp_path / "s").write_text("old")
    with pytest.raises(bp.ExistsError, match="it is no folder"):
        commit.commit(tmp_path / ".t.partial", [("y", "s")])
    assert (tmp_path / "s").read_text() == "old"


# -- the hidden folder ---------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("what", ["folder", "spool", "state", "lock", "deep"])
def test_links_are_never_followed(tmp_path, what, resume):
    """A link beside the target, or inside of the hidden folder, may have come along in an archive."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("years")
    data = tmp_path / "data"
    data.mkdir()
    hidden = partial_folder(str(data / "t.npy"))
    suspended = Partial(str(data / "t.npy"))
    suspended.spool("array")
    suspended.checkpoint({"received": 0, "written": 0, "skipped": [], "own": None})
    suspended.suspend()
    if what == "folder":
        shutil.copy(hidden / "state.json", victim)
        shutil.rmtree(hidden)
        hidden.symlink_to(victim)
    else:
        link = {"spool": "array", "state": "state.json.draft", "lock": "lock", "deep": "x/y"}[what]
        (hidden / link).parent.mkdir(exist_ok=True)
        (hidden / link).unlink(missing_ok=True)
        (hidden / link).symlink_to(victim / "thesis")
    before = tree(victim)
    with contextlib.suppress(bp.BatchplantError, OSError):
        with bp.create(data / "source.npy", {"x": bp.Int()}) as out:
            out.append({"x": 1})
        bp.convert(data / "source.npy", data / "t.npy", resume=resume)
    assert tree(victim) == before


def test_somebody_elses_hidden_folder_is_refused(tmp_path, monkeypatch):
    hidden = partial_folder(str(tmp_path / "t.npy"))
    hidden.mkdir()
    real = os.lstat

    def lstat(path, **named):
        result = list(real(path, **named))
        if str(path) == str(hidden):
            result[4] = 12345
        return os.stat_result(result)

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(bp.ExistsError, match="no folder of yours"):
        Partial(str(tmp_path / "t.npy"))


def test_a_folder_of_which_some_could_not_be_removed_is_not_resumed(tmp_path, monkeypatch):
    partial = Partial(str(tmp_path / "t"))
    partial.spool("a").write(b"123")
    partial.checkpoint({"received": 1})

    def fail(*_, **__):
        raise OSError(5, "injected")

    monkeypatch.setattr(shutil, "rmtree", fail)
    partial.discard()
    assert Partial(str(tmp_path / "t"), resume=True).state is None


# -- writers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["zarr", "n5", "lmdb", "delta", "iceberg"])
def test_a_folder_named_like_a_side_car(tmp_path, suffix):
    target = tmp_path / f"t.{suffix}"

    def write(count, **options):
        with bp.create(target, {"x": bp.Int()}, **options) as out:
            for n in range(count):
                out.append({"x": n})

    write(5)
    (tmp_path / f"t.{suffix}.crc").mkdir()
    with pytest.raises(bp.ExistsError, match=r"t\.\w+\.crc: it is a folder"):
        write(3, overwrite=True, checksums=True)
    assert len(bp.open(target)) == 5
    write(3, overwrite=True)
    assert len(bp.open(target)) == 3
    assert sorted(os.listdir(tmp_path)) == [f"t.{suffix}", f"t.{suffix}.crc"]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "suffix", ["beton", "tfrecord", "csv", "zarr", "h5", "npz", "parquet", "safetensors"]
)
def test_ctrl_c_while_the_writer_closes_keeps_the_state(tmp_path, monkeypatch, suffix, sharded):
    source = tmp_path / "source.npz"
    if suffix == "safetensors":
        import numpy as np

        np.savez(source, **{f"a{n}": np.arange(9) for n in range(30)})
        data = bp.open(source, as_tensors=True)
    else:
        with bp.create(source, {"x": bp.Int(), "t": bp.Text()}) as out:
            for n in range(60):
                out.append({"x": n, "t": "t" * n})
        data = bp.open(source)
    options = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=200))
    how = {"shard_samples": 25 if sharded else None, "options": options}
    target = tmp_path / f"t.{suffix}"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit", stop)
        patched.setattr("batchplant.storage.targets.commit", stop)
        with pytest.raises(KeyboardInterrupt):
            bp.convert(data, target, **how)
    assert partial_folder(str(target), sharded=sharded).is_dir()
    done = bp.convert(data, target, resume=True, **how)
    assert done.resumed_at > 0
    assert done.samples == len(data)
    assert bp.verify(done.files, against=data).ok
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
