"""Parts of a dataset: by fraction, by class, by key, by value; the same seed gives the same parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main

THREE = {"train": 0.8, "val": 0.1, "test": 0.1}


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand samples of sixty patients and three classes, the last of them rare."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("split") / "visits.npz"
    schema = {
        "patient": bp.Text(),
        "label": bp.Int(names=("cat", "dog", "emu")),
        "room": bp.Int(optional=True),
        "x": bp.Float(),
    }
    with bp.create(path, schema) as out:
        for number in range(1000):
            label = int(rng.choice(3, p=(0.7, 0.27, 0.03)))
            room = None if number % 10 == 0 else int(rng.integers(5))
            out.append({"patient": f"p{rng.integers(60)}", "label": label, "room": room, "x": float(number)})
    return path


def rows(part: bp.Reader) -> list[int]:
    return [int(value) for value in part.read(range(len(part)), ["x"])["x"]]


def values(part: bp.Reader, field: str) -> list[Any]:
    return [sample[field] for sample in part.select([field])]


@pytest.mark.parametrize("how", [{}, {"stratify": "label"}, {"by_key": "patient"}, {"stratify": "room"}])
def test_every_sample_is_in_one_part(how, visits):
    parts = bp.split(visits, THREE, **how)
    assert list(parts) == list(THREE)
    assert sorted(number for part in parts.values() for number in rows(part)) == list(range(1000))
    for part in parts.values():
        assert rows(part) == sorted(rows(part))
    near = 40 if "by_key" in how else 0
    for name, share in THREE.items():
        assert abs(len(parts[name]) - 1000 * share) <= near


@pytest.mark.parametrize("how", [{}, {"stratify": "label"}, {"by_key": "patient"}])
def test_the_seed_decides(how, visits):
    first, again, other = (
        {name: rows(part) for name, part in bp.split(visits, THREE, seed=seed, **how).items()}
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_the_draw_is_the_same_for_ever(tmp_path):
    """Parts that change with a version would leak test samples into training."""
    np.savez(tmp_path / "a.npz", x=np.arange(20), key=np.arange(20) // 2)
    half = {"a": 0.5, "b": 0.5}
    assert rows(bp.split(tmp_path / "a.npz", half, seed=1)["b"]) == [0, 3, 4, 6, 7, 8, 10, 15, 17, 19]
    grouped = bp.split(tmp_path / "a.npz", half, seed=1, by_key="key")
    assert rows(grouped["b"]) == [
        0,
        1,
        2,
        3,
        6,
        7,
        10,
        11,
        16,
        17,
    ]


def test_what_fractions_leave_is_in_no_part(visits):
    parts = bp.split(visits, {"train": 0.5, "val": 0.25})
    assert {name: len(part) for name, part in parts.items()} == {"train": 500, "val": 250}
    assert not set(rows(parts["train"])) & set(rows(parts["val"]))


def test_each_part_has_its_share_of_every_class(visits):
    whole = np.bincount(values(bp.open(visits), "label"))
    for name, part in bp.split(visits, THREE, stratify="label").items():
        result = np.bincount(values(part, "label"), minlength=3)
        assert np.abs(result - whole * THREE[name]).max() <= 1.5


def test_classes_of_few_samples_do_not_shift_the_fractions(tmp_path):
    np.savez(tmp_path / "a.npz", label=np.arange(1000) // 2)
    parts = bp.split(tmp_path / "a.npz", THREE, stratify="label")
    assert {name: len(part) for name, part in parts.items()} == {"train": 800, "val": 100, "test": 100}


def test_a_key_never_crosses(visits):
    parts = bp.split(visits, THREE, by_key="patient")
    seen = [set(values(part, "patient")) for part in parts.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 60


def test_a_missing_key_is_one_of_its_own(visits):
    parts = bp.split(visits, {"a": 0.5, "b": 0.5}, by_key="room")
    rooms = [values(part, "room") for part in parts.values()]
    assert all(None in part for part in rooms)
    assert not set(rooms[0]) & set(rooms[1]) - {None}


def test_a_part_for_each_value(visits):
    parts = bp.split(visits, by="label")
    assert set(parts) == {"cat", "dog", "emu"}
    assert set(values(parts["emu"], "label")) == {2}
    assert set(bp.split(visits, by="room")) == {"0", "1", "2", "3", "4", "missing"}


WRONG = [
    ({}, {}, "name the parts"),
    ({"a": 0.9, "b": 0.2}, {}, "add up to 1.1"),
    ({"a": 0.0}, {}, "above 0"),
    ({"a": 2}, {}, "up to 1"),
    ({"a": True}, {}, "is a number"),
    ({"a/b": 0.5}, {}, "cannot be the name"),
    ({"a": 0.5}, {"by": "label"}, "takes no fractions"),
    ({"a": 0.5}, {"stratify": "label", "by_key": "patient"}, "exclude each other"),
    ({"a": 0.5}, {"stratify": "lable"}, r"did you mean label\?"),
    ({"a": 0.5}, {"by_key": "x"}, "split by a field of whole numbers"),
    ({"a": 0.9999, "b": 0.0001}, {}, "'b' would be empty"),
    ({"a": 0.5}, {"seed": -1}, "seed must be"),
    (None, {"by": "x"}, "split by a field of"),
]


@pytest.mark.parametrize(("parts", "how", "message"), WRONG)
def test_wrong_use(parts, how, message, visits):
    with pytest.raises(bp.BatchplantError, match=message):
        bp.split(visits, parts, **how)


def test_values_that_cannot_be_names(tmp_path):
    with bp.create(tmp_path / "a.npz", {"name": bp.Text()}) as out:
        out.append({"name": "../x"})
    with pytest.raises(bp.OptionError, match="cannot be the name of a part"):
        bp.split(tmp_path / "a.npz", by="name")


# -- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_beside_the_source(visits, tmp_path, capsys):
    source = tmp_path / "visits.npz"
    source.write_bytes(visits.read_bytes())
    argv = ["split", str(source), "--into", "train=0.8", "val=20%", "--by-key", "patient", "--seed", "5"]
    assert main([*argv, "--dry-run"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["visits.npz"]
    assert main(argv) == 0
    assert f"{tmp_path}/visits-train.npz: 8" in capsys.readouterr().out
    expected = bp.split(visits, {"train": 0.8, "val": 0.2}, by_key="patient", seed=5)
    for name, part in expected.items():
        assert rows(bp.open(tmp_path / f"visits-{name}.npz")) == rows(part)
    assert main(argv) == 2
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert main([*argv, "--overwrite"]) == 0


def test_names_formats_and_json(visits, tmp_path, capsys):
    argv = ["split", str(visits), "--into", "a=0.5", "b=0.25", "--json", "--fields", "label,x"]
    assert main([*argv, "--out-dir", f"{tmp_path}/of-{{part}}.csv"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parts"]["b"] == {"samples": 250, "path": f"{tmp_path}/of-b.csv"}
    assert answer["left out"] == 250
    assert list(bp.open(tmp_path / "of-a.csv").schema) == ["label", "x"]
    assert main([*argv, "--out-dir", str(tmp_path / "parts"), "--to", "beton"]) == 0
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["a.beton", "b.beton"]


def test_nothing_is_written_where_one_part_is_there(visits, tmp_path):
    (tmp_path / "b.npz").write_bytes(b"mine")
    assert main(["split", str(visits), "--into", "a=0.5", "b=0.5", "--out-dir", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["b.npz"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--into", "train"], "NAME=FRACTION"),
        (["--into", "a=0.5", "a=0.2"], "twice"),
        (["--into", "a=0.5", "--to", "lst"], "read only"),
        (["--into", "a=0.5", "--to", "npzz"], "did you mean npz"),
        (["--by", "patient", "--by-key", "patient"], "not allowed with"),
    ],
)
def test_wrong_use_of_the_command(argv, message, visits, capsys):
    try:
        code = main(["split", str(visits), *argv])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert message in capsys.readouterr().err
