"""What Delta Lake and Iceberg have in common: versions, transactions, fields that come later."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.cli import main
from batchplant.jobs.convert import convert
from batchplant.testing.cases import EXHAUSTIVE, cells, jpeg
from variants import first

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

SCHEMA = {"n": bp.Int("uint8"), "t": bp.Text(optional=True)}


@pytest.fixture(params=["delta", "iceberg"])
def path(request, tmp_path):
    return str(tmp_path / f"t.{request.param}")


# Of what LakeWriter and LakeReader do for both formats.
in_one_format = pytest.mark.parametrize("path", first(1, ["delta", "iceberg"]), indirect=True)


def write(path, numbers, schema=SCHEMA, **options):
    with bp.create(path, schema, **options) as out:
        for n in numbers:
            out.append({"n": n, **({"t": f"№ {n}"} if "t" in schema else {})})


def read(path, **options):
    with bp.open(path, **options) as reader:
        return [sample["n"] for sample in reader]


def state(path):
    """What an older state is opened by."""
    with bp.open(path) as reader:
        return {
            name: value for name, value in reader._init_args[1].items() if name in ("version", "snapshot")
        }


def files(path):
    return sorted(str(item) for item in Path(path).rglob("*.parquet"))


KEYED = {
    "split": bp.Text(optional=True),
    "flag": bp.Bool(),
    "k": bp.Int("int16"),
    "day": bp.Time("D"),
    "n": bp.Int(),
}


def keyed(numbers):
    return [
        {
            "split": [None, "train", "a b/ü=%"][n % 3],
            "flag": n % 2 == 0,
            "k": -(n % 2),
            "day": np.datetime64("2024-05-01") + n % 2,
            "n": n,
        }
        for n in numbers
    ]


@pytest.mark.parametrize("keys", first(2, [["flag", "split"], ["day"], "split", ["k"]]))
def test_new_tables_are_partitioned(path, keys):
    with bp.create(path, KEYED, partition_by=keys) as out:
        for one in keyed(range(12)):
            out.append(one)
    assert "ordered by" in out.remarks()[0]
    names = [keys] if isinstance(keys, str) else keys
    with bp.create(path, KEYED, mode="append") as out:
        out.append(keyed([12])[0])
    with bp.open(path) as reader:
        assert reader.facts()["partitioned by"] == ", ".join(names)
        assert sorted((dict(sample) for sample in reader), key=lambda row: row["n"]) == keyed(range(13))
        values = {tuple(str(item[name]) for name in names) for item in keyed(range(12))}
        assert reader.facts()["files"] == len(values) + 1
        one = {"split": "split == 'train'", "flag": "flag", "k": "k == -1", "day": "day == '2024-05-02'"}
    # Whole files are left out by the log alone.
    with bp.open(path, where=one[names[0]]) as reader:
        kept, of = reader.facts()["files"], len(values) + 1
        assert reader.facts()["files skipped"] == f"{of - kept} of {of}"
        assert kept < of
    with pytest.raises(bp.OptionError, match="the table is partitioned by"):
        bp.create(path, KEYED, mode="append", partition_by=["k", "split"])
    bp.create(path, KEYED, mode="append", partition_by=keys).abort()


@in_one_format
def test_what_cannot_be_a_partition(path):
    for keys, text in ((["n", "t"], "every field"), (["x"], "'x'"), (["q"], "no field")):
        with pytest.raises(bp.BatchplantError, match=text):
            bp.create(path, {**SCHEMA, "x": bp.Float()} if keys == ["x"] else SCHEMA, partition_by=keys)
    write(path, [1])
    with pytest.raises(bp.OptionError, match="is not partitioned"):
        bp.create(path, SCHEMA, mode="append", partition_by="n")


@in_one_format
def test_convert_makes_partitions(path, tmp_path, capsys):
    with bp.create(tmp_path / "a.jsonl", KEYED) as out:
        for item in keyed(range(6)):
            out.append(item)
    assert main(["convert", str(tmp_path / "a.jsonl"), path, "--to-option", "partition_by=split,flag"]) == 0
    with bp.open(path) as reader:
        assert reader.facts()["partitioned by"] == "split, flag"
        assert len(reader) == 6


def test_rows_are_appended_and_older_states_stay(path):
    write(path, range(3))
    first = state(path)
    time.sleep(0.01)
    between = time.time()
    time.sleep(0.01)
    write(path, [7, 8], mode="append")
    second = state(path)
    write(path, [9], mode="overwrite")
    assert read(path) == [9]
    assert read(path, **second) == [0, 1, 2, 7, 8]
    assert read(path, **first) == [0, 1, 2]
    assert read(
        path, at=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.6f}"[1:]
    ) == [0, 1, 2]
    write(path, [1], overwrite=True)
    assert read(path) == [1]
    assert len(files(path)) == 1
    assert [name for name in os.listdir(Path(path).parent) if name.startswith(".")] == []


def test_states_that_there_are_not(path):
    write(path, [1])
    wrong = {"version": 77} if path.endswith("delta") else {"snapshot": 77}
    with pytest.raises(bp.OptionError, match=r"there is no .*77"):
        bp.open(path, **wrong)
    with pytest.raises(bp.OptionError, match="2025-01-31T12:00:00"):
        bp.open(path, at="yesterday")
    with pytest.raises(bp.OptionError, match="choose"):
        bp.open(path, at="2025-01-31T12:00:00", **wrong)


def test_appending_to_nothing_makes_the_table(path):
    write(path, [1], mode="append")
    write(path, [2], mode="append")
    assert read(path) == [1, 2]


@in_one_format
def test_modes(path, tmp_path):
    with pytest.raises(bp.OptionError, match="create, append, overwrite"):
        write(path, [1], mode="replace")
    os.mkdir(path)
    with pytest.raises(bp.ExistsError, match=r"it is no (Delta|Iceberg) table"):
        write(path, [1], mode="append")
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_info_shows_the_history(path, capsys):
    write(path, range(3))
    write(path, range(2), mode="append")
    assert main(["info", path]) == 0
    output = capsys.readouterr().out
    assert output.count("Z") >= 2
    assert "append" in output.lower()


# -- conflicts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["append", "overwrite"])
def test_an_overwrite_notices_what_others_did(other, path):
    write(path, [1])
    out = bp.create(path, SCHEMA, mode="overwrite")
    out.append({"n": 5, "t": None})
    write(path, [2], mode=other)
    before = files(path)
    with pytest.raises(bp.BusyError, match="another process changed the table meanwhile"):
        out.close()
    assert read(path) == ([1, 2] if other == "append" else [2])
    assert files(path) == before
    assert [name for name in os.listdir(Path(path).parent) if name.startswith(".")] == []


def test_an_append_beside_an_append(path):
    write(path, [1])
    with bp.create(path, SCHEMA, mode="append") as one, bp.create(path, SCHEMA, mode="append") as two:
        one.append({"n": 2, "t": None})
        two.append({"n": 3, "t": None})
    assert read(path) == [1, 3, 2]


@pytest.mark.parametrize("happened", [False, True])
def test_an_append_that_another_came_before_is_tried_again(happened, path, monkeypatch):
    from batchplant.formats.base import lake

    write(path, [1])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    out = bp.create(path, SCHEMA, mode="append")
    commit, tried = out._commit, []

    def busy():
        tried.append(True)
        if happened or len(tried) == 3:
            commit()
        if len(tried) < 3:
            raise lake.conflict(path)

    monkeypatch.setattr(out, "_commit", busy)
    out.append({"n": 2, "t": None})
    out.close()
    # Where the answer was lost, the table tells that the rows are there.
    assert len(tried) == (1 if happened else 3)
    assert read(path) == [1, 2]


@in_one_format
def test_an_append_is_not_tried_for_ever(path, monkeypatch):
    from batchplant.formats.base import lake

    write(path, [1])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    out = bp.create(path, SCHEMA, mode="append")
    out.append({"n": 2, "t": None})

    def busy():
        raise lake.conflict(path)

    monkeypatch.setattr(out, "_commit", busy)
    with pytest.raises(bp.BusyError, match="another process changed the table"):
        out.close()
    assert read(path) == [1]


APPEND = """
import sys, batchplant as bp
path, first = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    with bp.create(path, {"n": bp.Int("uint8"), "t": bp.Text(optional=True)}, mode="append") as out:
        for n in range(first, first + 20):
            out.append({"n": n, "t": None})
except bp.BusyError as error:
    print(error)
    sys.exit(3)
"""


def test_processes_append_at_a_time(path):
    if path.endswith(".iceberg") and not EXHAUSTIVE:
        pytest.skip("its library takes seconds to load; two writers of one process append in another test")
    write(path, [])
    # This process and another one.
    command = [sys.executable, "-c", APPEND, path, "20"]
    landed = [40]
    with processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        try:
            write(path, range(40, 60), mode="append")
        except bp.BusyError:
            landed.remove(40)
        other.communicate(timeout=processes.PATIENCE)
    assert other.returncode in (0, 3)
    landed += [20] if other.returncode == 0 else []
    assert landed
    result = read(path)
    assert sorted(result) == sorted(n for first in landed for n in range(first, first + 20))
    # The rows of one writer stay together.
    assert all(
        result[start : start + 20] == [*range(result[start], result[start] + 20)]
        for start in range(0, len(result), 20)
    )


def test_a_stopped_append_resumes(path, tmp_path):
    write(path, [250])
    write(str(tmp_path / "s.npz"), range(200))

    def interrupt(done, _):
        if done > 100:
            raise KeyboardInterrupt

    how = {
        "target_options": {"mode": "append", "format": path.rpartition(".")[2]},
        "options": bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0)),
    }
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "s.npz", path, progress=interrupt, **how)
    assert read(path) == [250]
    converted = convert(tmp_path / "s.npz", path, resume=True, **how)
    assert converted.resumed_at > 0
    assert read(path) == [250, *range(200)]


@in_one_format
def test_from_the_command_line(path, tmp_path):
    write(str(tmp_path / "s.npz"), range(3))
    for how in (["--append"], ["--to-option", "mode=append"]):
        assert main(["convert", str(tmp_path / "s.npz"), path, *how, "--quiet"]) == 0
    assert read(path) == [0, 1, 2, 0, 1, 2]
    before = state(path)
    assert main(["convert", str(tmp_path / "s.npz"), path, "--to-option", "mode=overwrite", "--quiet"]) == 0
    assert read(path) == [0, 1, 2]
    assert read(path, **before) == [0, 1, 2, 0, 1, 2]


@in_one_format
def test_an_append_needs_no_schema(path):
    write(path, [1])
    with bp.create(path, mode="append") as out:
        out.append({"n": 2, "t": None})
    assert read(path) == [1, 2]


def test_a_reader_that_looks_again(path):
    write(path, [1])
    with bp.open(path) as reader, bp.open(path, **state(path)) as old:
        write(path, [2], mode="append")
        assert [len(reader), len(reader.refresh()), len(old.refresh())] == [1, 2, 1]
        assert [row["n"] for row in reader.select(["n"]).refresh()] == [1, 2]
    # Made without the registry, too.
    with type(reader)(path) as direct:
        write(path, [3], mode="append")
        assert [len(direct), len(direct.refresh())] == [2, 3]


# -- fields ---------------------------------------------------------------------------------------------


def test_fields_that_come_later(path):
    write(path, [1, 2])
    wide = {**SCHEMA, "x": bp.Tensor("float16", (2, 2)), "größe": bp.Int("uint64")}
    values = {"x": np.ones((2, 2), np.float16), "größe": 2**64 - 1}
    first = state(path)
    with bp.create(path, wide, mode="append") as out:
        out.append({"n": 3, "t": None, **values})
    write(path, [4], {"n": bp.Int("uint8")}, mode="append")
    with bp.open(path) as reader:
        assert reader.schema["x"] == bp.Tensor("float16", (2, 2), optional=True)
        assert reader.schema["größe"] == bp.Int("uint64", optional=True)
        samples = list(reader)
    assert [sample["n"] for sample in samples] == [1, 2, 3, 4]
    assert [sample["t"] for sample in samples] == ["№ 1", "№ 2", None, None]
    assert [sample["größe"] for sample in samples] == [None, None, 2**64 - 1, None]
    assert np.array_equal(samples[2]["x"], values["x"])
    assert list(bp.open(path, **first).schema) == ["n", "t"]


@in_one_format
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"n": bp.Int("int16")}, r"it is Int\(dtype='int16'\), and in the table Int\(dtype='uint8'\)"),
        ({"n": bp.Int("uint8", optional=True)}, "the table allows no missing values"),
        ({"t": bp.Text()}, "the table needs this field"),
        ({"n": bp.Int("uint8"), "t": bp.Bytes()}, "field 't'"),
    ],
)
def test_rows_that_do_not_fit(schema, reason, path):
    write(path, [1])
    with pytest.raises(bp.SchemaError, match=reason):
        bp.create(path, schema, mode="append")
    assert read(path) == [1]


def test_times(path):
    values = {
        "day": np.datetime64("1969-07-20"), "s": np.datetime64("2025-01-31T12:00:00"),
        "ns": np.datetime64("2025-01-31T12:00:00.123456789"),
        "us": np.datetime64("0001-01-01T00:00:00.000001"),
        "took": np.timedelta64(5, "ms"),
    }  # fmt: skip
    schema = {name: bp.Tensor(value.dtype) for name, value in values.items()}
    with bp.create(path, schema) as out:
        out.append(values)
        out.append({name: np.array("NaT", value.dtype) for name, value in values.items()})
    with bp.open(path) as reader:
        assert dict(reader.schema) == schema
        assert reader[0] == values
        assert all(np.isnat(value) for value in reader[1].values())


# -- reading --------------------------------------------------------------------------------------------


@in_one_format
def test_row_groups_and_files(path):
    schema = {"n": bp.Int("uint8"), "b": bp.Bytes()}
    with bp.create(path, schema, row_group=3000, file_size=9000) as out:
        for n in range(200):
            out.append({"n": n, "b": bytes([n]) * 100})
    with bp.open(path) as reader:
        blocks = reader.blocks()
        assert len(files(path)) > 2
        assert blocks.max() > len(files(path))
        assert (np.diff(blocks) >= 0).all()
        order = np.random.default_rng(0).permutation(200)
        assert reader.read(order)["n"].tolist() == order.tolist()
        # Every row group was unpacked once.
        assert reader._cache.misses == blocks.max() + 1
        assert reader.where(0) != reader.where(199)
    with bp.open(path) as reader:
        assert reader.read([0, 199], ["n"])["n"].tolist() == [0, 199]
        assert reader._cache.misses == 2


def test_a_pickled_reader_sees_the_same_rows(path):
    write(path, [1, 2])
    with bp.open(path) as reader:
        packed = pickle.dumps(reader)
    write(path, [3], mode="append")
    assert len(pickle.loads(packed)) == 2


@in_one_format
def test_the_loader(path):
    with bp.create(path, {"image": bp.Image("jpeg"), "label": bp.Int()}, row_group=2000) as out:
        for n in range(40):
            out.append({"image": jpeg(16, 16), "label": n})
    loader = bp.Loader(path, batch_size=10, order="quasi_random")
    seen = list(loader)
    assert seen[0]["image"].shape == (10, 16, 16, 3)
    assert sorted(int(n) for batch in seen for n in batch["label"]) == list(range(40))


def test_a_moved_table(path, tmp_path):
    write(path, range(5))
    before = cells(bp.open(path))
    moved = str(tmp_path / "elsewhere")
    os.rename(path, moved)
    assert cells(bp.open(moved)) == before
    write(moved, [9], format=path.rpartition(".")[2], mode="append")
    assert read(moved) == [0, 1, 2, 3, 4, 9]
    assert not os.path.exists(path)


def test_a_data_file_that_is_cut_or_gone(path):
    write(path, range(5))
    [file] = files(path)
    os.truncate(file, os.path.getsize(file) - 1)
    report = bp.verify(path)
    assert "it was cut short" in str(report.problems[0])
    assert file in str(report.problems[0])
    with open(file, "ab") as out:
        out.write(b"1" * 100 + b"PAR1")
    assert bp.verify(path).problems
    os.unlink(file)
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="it is not there"):
        reader.read([0])
    assert json.dumps([str(problem) for problem in bp.verify(path).problems]).count("not there") > 0


def test_the_library_is_missing(path, monkeypatch, tmp_path):
    write(path, [1])
    kind = path.rpartition(".")[2]
    for name in [module for module in sys.modules if module.partition(".")[0] in ("deltalake", "pyiceberg")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(bp.MissingLibraryError, match=rf"batchplant\[{kind}\]"):
        bp.open(path)
    with pytest.raises(bp.MissingLibraryError, match=rf"batchplant\[{kind}\]"):
        write(str(tmp_path / f"new.{kind}"), [1])
    assert os.listdir(tmp_path) == [os.path.basename(path)]
