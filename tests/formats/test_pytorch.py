"""PyTorch: the suite, files of PyTorch both ways, and pickles that nobody honest wrote."""

import contextlib
import io
import json
import os
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant.formats.base.tensors import TENSORS
from batchplant.formats.pytorch import STORAGES, PytorchWriter, TensorUnpickler
from batchplant.testing import ModelSuite
from batchplant.testing.cases import cuts, flips, memory_bounded, survive
from batchplant.testing.suite import tensor
from repository import GOLDEN
from variants import in_one_test

EXPECTED = json.loads((GOLDEN / "pytorch/expected.json").read_text())


class TestSuite(ModelSuite):
    format = "pytorch"
    suffix = ".pt"
    golden = GOLDEN
    dtypes = PytorchWriter.dtypes


def write(path, samples):
    with bp.create(path, TENSORS) as out:
        for sample in samples:
            out.append(sample)
    return path


# -- files of PyTorch --------------------------------------------------------------------------------------


@in_one_test("name", list(EXPECTED))
def test_files_of_pytorch(name):
    with bp.open(GOLDEN / "pytorch" / name) as reader:
        actual = {
            sample["name"]: [sample["dtype"], sample["shape"].tolist(), sample["data"].hex()]
            for sample in reader
        }
        assert actual == EXPECTED[name]
        # In any order, several at once.
        rows = list(range(len(reader)))[::-1]
        data = reader.read(rows, ["data"])["data"]
        assert [bytes(data[n]).hex() for n in range(len(rows))] == [
            value[2] for value in EXPECTED[name].values()
        ][::-1]
    assert bp.verify(GOLDEN / "pytorch" / name).problems == []


def test_what_else_a_checkpoint_says():
    facts = bp.open(GOLDEN / "pytorch/nested.pt").facts()
    assert facts["values"]["epoch"] == 3
    assert facts["values"]["name"] == "größe"
    assert facts["values"]["optimizer.param_groups.0.lr"] == 0.1
    assert facts["kind"] == "archive"
    script = bp.open(GOLDEN / "pytorch/script.pt").facts()
    assert script["kind"] == "TorchScript"
    assert "__torch__/net.py" in script["code (never run)"]
    assert "before 1.6" in bp.open(GOLDEN / "pytorch/legacy.pt").facts()["kind"]


def test_plain_tensors_lie_in_the_file_and_views_do_not():
    with bp.open(GOLDEN / "pytorch/nested.pt") as reader:
        names = [sample["name"] for sample in reader]
        spans = reader.spans("data", [names.index("views.tied")])
        assert spans.size.tolist() == [96]
        assert reader.spans("data", [names.index("views.again")]).start == spans.start
        assert reader.spans("data", [names.index("views.transposed")]) is None
        result = reader.tensors()
        assert np.shares_memory(result["views.tied"], result["views.again"])
        assert np.array_equal(result["views.transposed"], result["views.tied"].T)
        assert np.array_equal(result["views.part"], result["views.tied"][1:3, 2:4])


@in_one_test(
    ("name", "kind", "reason"),
    [
        ("module.pt", bp.UnsafeError, r"its pickle asks for net\.Net.*state_dict"),
        ("sparse.pt", bp.SchemaError, "'s' is sparse"),
        ("quantized.pt", (bp.SchemaError, bp.UnsafeError), "QInt8Storage|quantized"),
        ("conjugated.pt", bp.SchemaError, "'c' is conjugated"),
    ],
)
def test_what_is_refused(name, kind, reason):
    with pytest.raises(kind, match=reason):
        bp.open(GOLDEN / "pytorch" / name)


@in_one_test("damage", [cuts, flips])
@in_one_test("name", ["legacy_small.pt", "script.pt"])
def test_damaged_files(name, damage, tmp_path):
    file = tmp_path / name
    file.write_bytes((GOLDEN / "pytorch" / name).read_bytes())

    def is_sound():
        try:
            with bp.open(file, format="pytorch") as reader:
                reader.read(range(len(reader)))
            return True
        except bp.BatchplantError:
            return False

    assert is_sound()
    with memory_bounded(file.stat().st_size):
        for what, sound in survive(damage(file), is_sound):
            assert not (sound and damage is cuts), what


@pytest.mark.parametrize("protocol", [3, 5])
def test_files_without_an_archive_of_later_protocols(protocol, tmp_path):
    path = GOLDEN / f"pytorch/legacy_protocol{protocol}.pt"
    with bp.open(path) as reader:
        assert reader.format == "pytorch"
        assert "without an archive" in reader.facts()["kind"]
        actual = {name: array.tolist() for name, array in reader.tensors().items()}
    assert actual == {"w": [[0, 1, 2], [3, 4, 5]], "b": [1, 1]}
    copy = tmp_path / "x.pt"
    copy.write_bytes(path.read_bytes())
    for what, _ in survive(flips(copy), lambda: TestSuite().is_sound(str(copy))):
        assert what


def test_a_schedule_with_a_counter():
    with bp.open(GOLDEN / "pytorch/schedule.pt") as reader:
        assert sorted(reader.tensors()) == ["model.bias", "model.weight"]
        values = reader.facts()["values"]
        assert (values["sched.milestones.2"], values["sched.milestones.5"]) == (1, 2)


@pytest.mark.reference
def test_pytorch_reads_what_we_write(tmp_path):
    torch = pytest.importorskip("torch")
    dtypes = [name for name in PytorchWriter.dtypes if hasattr(torch, name)]
    samples = [
        tensor(f"{n} {d}", d, shape) for d in dtypes for n, shape in enumerate([(3, 4), (), (0, 2), (1, 5)])
    ]
    path = write(tmp_path / "a.pt", samples)
    for how in ({}, {"mmap": True}):
        loaded = torch.load(path, weights_only=True, **how)
        assert list(loaded) == [sample["name"] for sample in samples]
        for sample in samples:
            there = loaded[sample["name"]]
            assert str(there.dtype) == f"torch.{sample['dtype']}"
            assert list(there.shape) == sample["shape"].tolist()
            assert there.is_contiguous()
            flat = there.reshape(-1).view(torch.uint8).numpy().tobytes() if there.numel() else b""
            assert flat == sample["data"]


@pytest.mark.reference
def test_a_model_goes_through_us_and_back(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Embedding(5, 2).bfloat16()
    )
    torch.save(net.state_dict(), tmp_path / "a.pt")
    bp.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    bp.convert(tmp_path / "a.safetensors", tmp_path / "b.pt")
    back = torch.load(tmp_path / "b.pt", weights_only=True)
    for name, value in net.state_dict().items():
        assert value.dtype == back[name].dtype
        assert torch.equal(value, back[name])
    net.load_state_dict(back)


def test_a_model_in_several_files(tmp_path):
    write(tmp_path / "pytorch_model-1.pt", [tensor("a", "float32", (2,))])
    write(tmp_path / "pytorch_model-2.pt", [tensor("b", "bool", (2,)), tensor("c", "bool", (2,))])
    names = {"b": "pytorch_model-2.pt", "a": "pytorch_model-1.pt"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    with bp.open(index) as reader:
        assert [sample["name"] for sample in reader] == ["b", "a"]
        assert reader.facts()["files"] == 2
    with bp.open(tmp_path) as reader:
        assert [sample["name"] for sample in reader] == ["b", "a"]
    assert bp.verify(index).problems == []
    index.write_text(json.dumps({"weight_map": {"z": "pytorch_model-1.pt"}}))
    with pytest.raises(bp.DamagedError, match="no tensor 'z'"):
        bp.open(index)
    index.write_text(json.dumps({"weight_map": {"z": "pytorch_model-3.pt"}}))
    with pytest.raises(bp.DamagedError, match="is missing"):
        bp.open(index)


# -- pickles that nobody honest wrote ----------------------------------------------------------------------


def archive(path, pickled, *, kind=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", kind) as out:
        out.writestr("a/data.pkl", pickled)
        for name, data in ({"data/0": b"\0" * 16} | members).items():
            out.writestr(f"a/{name}", data)
    return path


def rebuilt(storage="FloatStorage", key="0", count=4, offset=0, shape=(4,), stride=(1,), more=b""):
    """The pickle of a dict with one tensor ``w``."""

    def put(value):
        return pickle.dumps(value, 2)[2:-1]

    output = (
        b"(" + put("storage") + f"ctorch\n{storage}\n".encode() + put(key) + put("cpu") + put(count) + b"tQ"
    )
    call = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + output + put(offset) + put(shape) + put(stride) + b"\x89}"
    )
    return b"\x80\x02}" + put("w") + call + more + b"tRs."


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


def test_our_own_archives_of_this_kind_open(tmp_path):
    assert bp.open(archive(tmp_path / "a.pt", rebuilt()))[0]["data"] == b"\0" * 16
    assert bp.open(archive(tmp_path / "a.pt", rebuilt(), kind=zipfile.ZIP_DEFLATED))[0]["data"] == b"\0" * 16
    with bp.open(archive(tmp_path / "a.pt", rebuilt(shape=(2, 2), stride=(1, 2)))) as reader:
        assert reader[0]["shape"].tolist() == [2, 2]


@in_one_test(
    ("pickled", "reason"),
    [
        (rebuilt(shape=(5,)), "needs 20 bytes of storage 0, which has 16"),
        (rebuilt(offset=1), "needs 20 bytes"),
        (rebuilt(offset=-1), "strides are impossible"),
        (rebuilt(shape=(2,), stride=(4,)), "needs 20 bytes"),
        (rebuilt(shape=(2,), stride=(-1,)), "strides are impossible"),
        (rebuilt(shape=(2, 2), stride=(1,)), "strides are impossible"),
        (rebuilt(shape=(-2,)), "cannot have the shape"),
        (rebuilt(shape=(2**40, 2**40), stride=(0, 0)), "cannot have the shape"),
        (rebuilt(shape=(2**40,), stride=(0,)), "from 16, and the limit is"),
        (rebuilt(shape=(1,) * 100, stride=(1,) * 100), "cannot have the shape"),
        (rebuilt(shape=("a",)), "a shape or stride is a tuple"),
        (rebuilt(shape=3), "a shape or stride is a int"),
        (rebuilt(key="1"), "there is no member a/data/1"),
        (rebuilt(key="../data.pkl", shape=(0,)), "there is no member"),
        (rebuilt(count="many"), "a storage is not described as one"),
        (rebuilt()[:40], "cut short"),
        (b"", "cut short"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02]e.", "damaged"),
        (b"\x80\x02K\x01K\x02s.", "damaged"),
        (b"\x80\x02}]K\x01s.", "a list as the key of a dict"),
        (b"\x80\x02K\x01K\x02a.", "appended to what is no list"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"\x80\x02X\xff\xff\xff\xffabc.", "cut short"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "cut short"),
        (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "cut short"),
        (b"\x80\x02c" + b"a" * 5000, "a name without an end"),
        (b"\x80\x02K\x01)R.", "calls what cannot be called"),
        (b"\x80\x02(K\x01I1\n.", "an instruction 0x49"),
        (b"\x80\x02}r\xff\xff\xff\xffK\x01j\xff\xff\xff\xffs.", "holds itself"),
        (b"\x80\x02]q\x00h\x00a.", "holds itself"),
        (b"\x80\x02}X\x20\x4e\0\0" + b"a" * 20_000 + b"K\x01s.", "a name has 20000 letters"),
        (b"\x80\x02" + b"]" * 300 + b"K\x01" + b"a" * 300 + b".", "nested too deep"),
        (b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s.", "a tuple as the key"),
        # Ten lists, each of which has the one before ten times.
        (b"\x80\x02]K\x01aq\x00" + b"".join(
            b"](" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1]) for n in range(10)
        ) + b".", "repeats more than 100000 parts"),
        (b"\x80\x02}(X\1\0\0\0aX\1\0\0\0bX\1\0\0\0cu.", "keys are set in what is no dict"),
    ],
)  # fmt: skip
def test_pickles_that_lie(pickled, reason, tmp_path):
    path = archive(tmp_path / "a.pt", pickled)
    with memory_bounded(path.stat().st_size), pytest.raises(bp.DamagedError, match=reason) as caught:
        bp.open(path)
    assert caught.value.path == str(path)


@in_one_test(
    ("pickled", "name"),
    [
        (pickle.dumps(Evil(), 2), "posix.system"),
        (pickle.dumps(Evil(), 4), "posix.system"),
        (b"\x80\x02cbuiltins\neval\nX\1\0\0\x001\x85R.", "builtins.eval"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x80\x02ctorch.storage\n_load_from_bytes\n.", "torch.storage._load_from_bytes"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.", "numpy.core.multiarray._reconstruct"),
    ],
)
def test_names_that_no_tensor_needs(pickled, name, tmp_path):
    with pytest.raises(bp.UnsafeError, match=name.replace(".", r"\.")):
        bp.open(archive(tmp_path / "a.pt", pickled))
    assert not os.path.exists("/tmp/never")


def test_two_tensors_of_one_name(tmp_path):
    inner = rebuilt()[2:-1]
    pickled = b"\x80\x02}(X\1\0\0\0a" + inner + b"X\3\0\0\0a.w" + inner[7:-1] + b"u."
    with pytest.raises(bp.DamagedError, match=r"'a\.w': there are two of that name"):
        bp.open(archive(tmp_path / "a.pt", pickled))


def test_machines_of_the_other_byte_order(tmp_path):
    path = archive(tmp_path / "a.pt", rebuilt(), byteorder=b"big")
    with pytest.raises(bp.SchemaError, match="big-endian"):
        bp.open(path)


def test_other_archives_are_not_ours(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("a/b.txt", b"")
    with pytest.raises(bp.UnknownFormatError):
        bp.open(tmp_path / "a.zip")
    with pytest.raises(bp.DamagedError, match=r"no data\.pkl"):
        bp.open(tmp_path / "a.zip", format="pytorch")
    (tmp_path / "b.pt").write_bytes(b"PK\3\4 nonsense")
    with pytest.raises(bp.DamagedError, match="not a ZIP"):
        bp.open(tmp_path / "b.pt")


def test_the_archives_own_checksums_are_verified(tmp_path):
    path = write(tmp_path / "a.pt", [tensor("a", "uint8", (9,)), tensor("b", "uint8", (9,))])
    start = int(bp.open(path).spans("data", [1]).start[0])
    data = bytearray(path.read_bytes())
    data[start] ^= 1
    path.write_bytes(data)
    [problem] = bp.verify(path).problems
    assert problem.message == "the checksum of archive/data/1 is wrong"


def test_older_files_with_parts_of_storages():
    """A storage that is a part of another, as PyTorch 0.4 wrote them."""
    data = pickle.dumps
    output = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\4(X\1\0\0\x001K\1K\2ttQ."
    pickles = TensorUnpickler(memoryview(data(1, 2) + b"\x80\x02" + output))
    assert pickles.load() == 1
    loaded = pickles.load()
    assert (loaded.key, loaded.count, loaded.offset) == ("0", 2, 1)
    assert pickles.storages["0"].count == 4


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_every_storage_has_its_dtype():
    torch = pytest.importorskip("torch")
    for name, dtype in STORAGES.items():
        assert str(getattr(torch, name).dtype) == f"torch.{dtype}"


def test_large_sizes_are_written_as_such():
    from batchplant.formats.pytorch import _int

    for number in (0, 2**31 - 1, 2**31, 2**40):
        assert pickle.loads(b"\x80\x02" + _int(number) + b".") == number
    assert io.BytesIO(_int(5)).read(1) == b"J"
    assert struct.unpack("<i", _int(5)[1:]) == (5,)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(value=plain, protocol=st.integers(2, 5))
def test_plain_values_are_read_as_python_reads_them(value, protocol):
    loaded = TensorUnpickler(memoryview(pickle.dumps(value, protocol))).load()
    assert loaded == value
    assert type(loaded) is type(value)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_values_or_errors(data):
    with contextlib.suppress(bp.BatchplantError):
        TensorUnpickler(memoryview(data)).load()


def test_models_are_read_without_the_libraries_that_wrote_them(tmp_path):
    """PyTorch and ONNX alike, in one process: starting it is what takes long."""
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import batchplant as bp\n"
        "[bp.open(path)[0] for path in sys.argv[2:]]\n"
        "assert not {'torch', 'ml_dtypes', 'safetensors'} & set(sys.modules)\n"
        "reader = bp.open(sys.argv[-1]); reader.facts()\n"
        "bp.convert(reader, sys.argv[1])\n"
        "assert bp.verify(sys.argv[1]).ok\n"
    )
    names = "pytorch/nested.pt", "pytorch/script.pt", "models/onnx/branches.onnx"
    files = [GOLDEN / name for name in names]
    processes.run([sys.executable, "-c", code, tmp_path / "b.onnx", *files], check=True)
