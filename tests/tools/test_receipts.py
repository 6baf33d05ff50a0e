"""Receipts: what was consumed, proved by hashes that anybody can compute again."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import cli
from batchplant.codecs.media import image
from batchplant.errors import DataError, OptionError
from batchplant.tools.seen import Run, receipts
from loaders import numbers, smooth, write, write_jpeg
from processes import run


def tree(leaves: list[bytes]) -> bytes:
    """RFC 6962, as it defines the hash of a list."""
    if len(leaves) < 2:
        return hashlib.sha256(b"\0" + leaves[0]).digest() if leaves else hashlib.sha256().digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\1" + tree(leaves[:split]) + tree(leaves[split:])).digest()


def test_the_tree_is_that_of_rfc_6962() -> None:
    for count in range(20):
        leaves = [bytes([number]) for number in range(count)]
        levels = receipts.tree_of(leaves)
        assert (levels[-1] or [hashlib.sha256().digest()])[0] == tree(leaves)
        for number in range(count):
            path = receipts.path_of(levels, number)
            assert receipts.root_of(leaves[number], number, count, path) == tree(leaves)
            assert len(path) <= max(count - 1, 0).bit_length()
            if count > 1:
                with pytest.raises(DataError):
                    receipts.root_of(leaves[number], number, count, path[:-1])
                assert receipts.root_of(b"x", number, count, path) != tree(leaves)


def train(source: Any, path: Any, steps: int, **options: Any) -> Counter[int]:
    seen: Counter[int] = Counter()
    loader = bp.Loader(source, 4, record=path, ids=True, **{"order": "random", "seed": 3, **options})
    epoch = iter(loader)
    for _ in range(steps):
        batch = next(epoch, None)
        if batch is None:
            epoch = iter(loader)
            batch = next(epoch)
        seen.update(batch["ids"].tolist())
    loader.close()
    return seen


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(9):
        folder = tmp_path / "photos" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(_jpeg(number))
    return tmp_path / "photos"


def _jpeg(number: int) -> bytes:
    return image.encode(smooth(number, 16, 16), "jpeg")


def test_a_receipt_verifies_elsewhere_and_nothing_else_does(tmp_path, photos, capsys):
    record, out = tmp_path / "run.bprun", str(tmp_path / "receipt.json")
    seen = train(photos, record, 4)
    assert cli.main(["receipt", str(record), "--step", "4", "-o", out, "--sign-with", "cat"]) == 0
    assert Path(out + ".sig").read_bytes() == Path(out).read_bytes()
    receipt = receipts.read(out)
    assert receipt["head"]["consumed"] == seen.total()
    moved = tmp_path / "elsewhere" / "photos"
    shutil.copytree(photos, moved)
    shutil.rmtree(photos)
    # Another process, as on another machine.
    command = [sys.executable, "-m", "batchplant", "receipt", "verify", out, "--data", str(moved)]
    assert run(command, cwd=tmp_path).returncode == 0
    for change in ("seed", "steps", "root", "consumed"):
        changed = json.loads(Path(out).read_text())
        if change == "seed":
            other = tmp_path / "other.bprun"
            train(moved, other, 4, seed=4)
            with Run(other) as other_run:
                changed["head"]["process"] = receipts.make(other_run)["head"]["process"]
        elif change == "root":
            changed["root"] = "00" * 32
        else:
            changed["head"][change] -= 1
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        assert cli.main(["receipt", "verify", str(tmp_path / "changed.json"), "--data", str(moved)]) == 1
    file = sorted(moved.rglob("*.jpg"))[4]
    whole = file.read_bytes()
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    assert cli.main(["receipt", "verify", out, "--data", str(moved)]) == 1
    file.unlink()
    assert cli.main(["receipt", "verify", out, "--data", str(moved)]) == 1
    file.write_bytes(whole)
    assert cli.main(["receipt", "verify", out, "--data", str(moved)]) == 0
    capsys.readouterr()


def test_membership_and_absence_are_proved(tmp_path, photos, capsys):
    record, out, proof = tmp_path / "run.bprun", str(tmp_path / "receipt.json"), str(tmp_path / "proof.json")
    seen = train(photos, record, 1)
    assert cli.main(["receipt", str(record), "-o", out]) == 0
    reader = bp.open(photos)
    receipt = receipts.read(out)
    for sample in range(len(reader)):
        file = reader.spans("image", [sample]).files[0]
        target = ([str(sample)], [file], ["--image", file])[sample % 3]
        code = cli.main(["receipt", "contains", out, *target, "-o", proof])
        assert code == (0 if sample in seen else 1)
        assert cli.main(["receipt", "verify", out, "--proof", proof]) == 0
        told = receipts.read(proof)
        assert told["present"] == (sample in seen)
        # No proof says the contrary, and none is of another sample.
        other = "ff" * 40 if told["present"] else told["leaves"][0][1][:80]
        for lie in ({"present": not told["present"]}, {"target": other}, {"size": told["size"] + 1},
                    {"leaves": told["leaves"][:0]}):  # fmt: skip
            with pytest.raises(DataError):
                receipts.proof_of({**told, **lie}).check(receipt)
    (tmp_path / "mine.jpg").write_bytes(_jpeg(77))
    assert cli.main(["receipt", "contains", out, "--image", str(tmp_path / "mine.jpg"), "-o", proof]) == 1
    assert cli.main(["receipt", "verify", out, "--proof", proof]) == 0
    capsys.readouterr()


def test_counts_are_those_of_the_loop(tmp_path):
    path = numbers(tmp_path / "n.npz", 23)
    for number, (source, options) in enumerate((
        (path, {}),
        (path, {"skip": bp.Skip(samples=[3, 4], steps=(1, 3))}),
        (path, {"skip": bp.Skip(samples=[3, 4], replace="next")}),
        (bp.Mix([(bp.open(path), 0.6), (bp.open(numbers(tmp_path / "m.npz", 9)), 0.4)]), {}),
        (write_jpeg(tmp_path / "p.beton", 23, damaged=[5]), {"on_error": "skip"}),
    )):  # fmt: skip
        record = tmp_path / f"{number}.bprun"
        seen = train(source, record, 9, **options)
        with Run(record) as run:
            receipt = receipts.make(run)
            rows = run.rows_of(np.array(list(seen.elements())))
        assert receipt["head"]["consumed"] == seen.total()
        assert receipt["head"]["distinct"] == len(np.unique(rows))
        receipts.verify(json.loads(json.dumps(receipt)))


def test_every_file_of_every_part_is_covered(tmp_path):
    def files(folder: Path, photos: int = 6, rows: int = 8, y: int = 0) -> dict[str, Any]:
        folder.mkdir()
        numbers(folder / "x.npz", rows)
        write(folder / "y.npz", {"y": bp.Int()}, ({"y": n + y} for n in range(rows)))
        lines = ["image,y"]
        for number in range(photos):
            (folder / f"{number}.jpg").write_bytes(_jpeg(number))
            lines.append(f"{number}.jpg,{number + y}")
        (folder / "list.csv").write_text("\n".join(lines))
        x, pair = folder / "x.npz", [folder / "x.npz", folder / "y.npz"]
        return {
            "join": bp.join(pair),
            "part": bp.join(pair).subset([6, 2, 2]),
            "windows": bp.Windows(bp.concat([x, x]), 3, across=True),
            "list": bp.open(folder / "list.csv", media={"image": bp.Image()}),
        }

    sources = files(tmp_path / "a")
    moved = files(tmp_path / "b")
    others = [files(tmp_path / "c", rows=7), files(tmp_path / "d", y=1), files(tmp_path / "e", photos=5)]
    (tmp_path / "f").mkdir()
    flipped = files(tmp_path / "f" / "f")
    data = (tmp_path / "f" / "f" / "4.jpg").read_bytes()
    (tmp_path / "f" / "f" / "4.jpg").write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    for name, differing in (
        ("join", [others[0], others[1]]), ("part", [others[0], others[1]]), ("windows", [others[0]]),
        ("list", [others[1], others[2], flipped]),
    ):  # fmt: skip
        record = tmp_path / f"{name}.bprun"
        seen = train(sources[name], record, 2)
        with Run(record) as recorded:
            receipt = json.loads(json.dumps(receipts.make(recorded)))
        assert receipt["head"]["consumed"] == seen.total()
        receipts.verify(receipt, source=moved[name])
        for other in differing:
            with pytest.raises(DataError):
                receipts.verify(receipt, source=other[name])
    # Rows are those of the files: sample 0 of the part is row 6, and 1 and 2 are row 2.
    train(sources["part"], tmp_path / "rows.bprun", 1)
    with Run(tmp_path / "rows.bprun") as recorded:
        rows = [sample.file_row for sample in recorded.samples(0)]
        consumed = receipts.make(recorded)["head"]
    assert sorted(rows) == [2, 2, 6]
    assert (consumed["consumed"], consumed["distinct"], consumed["dataset"]["files"]) == (3, 4, 2)
    train({"x": np.arange(8)}, tmp_path / "memory.bprun", 1)
    with Run(tmp_path / "memory.bprun") as recorded, pytest.raises(OptionError, match="in memory"):
        receipts.make(recorded)


def test_a_checkpoint_says_until_when(tmp_path):
    torch = pytest.importorskip("torch")
    path = numbers(tmp_path / "n.npz", 40)
    loader = bp.Loader(path, 4, order="random", record=tmp_path / "run.bprun")
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    torch.save({"model": torch.zeros(2), "data": [loader.state_dict()]}, tmp_path / "c.pt")
    (tmp_path / "c.json").write_text(json.dumps(loader.state_dict()))
    next(epoch)
    assert receipts.step_in(str(tmp_path / "c.pt")) == receipts.step_in(str(tmp_path / "c.json")) == 3
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(DataError, match="no state of a loader"):
        receipts.step_in(str(tmp_path / "c.json"))
    with pytest.raises(DataError, match="no receipt"):
        receipts.verify({})
