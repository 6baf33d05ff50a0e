"""GGUF: files of the reference library, all types, and headers that lie."""

import pickle
import struct

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.gguf import QUANTISED
from batchplant.testing.cases import cuts, flips, memory_bounded, survive
from gguf_files import key, tensor, text, write_gguf
from repository import GOLDEN
from variants import in_one_test

FILE = GOLDEN / "gguf" / "quantised.gguf"
VALUES = np.arange(512, dtype=np.float32).reshape(2, 256) / 64
F32, INT32, STRING, ARRAY = 0, 5, 8, 9


def test_a_file_of_gguf():
    with bp.open(FILE) as model:
        assert model.format == "gguf"
        tensors = model.tensors()
        assert np.array_equal(tensors["blk.0.F32"], VALUES)
        assert np.array_equal(tensors["blk.0.F16"], VALUES.astype(np.float16))
        assert tensors["blk.0.BF16"].dtype.name == "bfloat16"
        assert tensors["ids"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
        # Scale of a block in float16, then 32 values.
        blocks = tensors["blk.0.Q8_0"].reshape(-1, 34)
        scales, values = blocks[:, :2].copy().view("<f2"), blocks[:, 2:].view(np.int8)
        assert np.allclose(scales.astype(np.float32) * values, VALUES.reshape(-1, 32), atol=0.04)
        assert (model.types["blk.0.TQ1_0"], model.shapes["blk.0.TQ1_0"]) == ("TQ1_0", (2, 256))
        assert model.metadata["general.name"] == "größe"
        assert model.metadata["tokenizer.ggml.tokens"] == '["<s>", "ä", ""]'
        assert model.metadata["nested"] == "[[1, 2], [3, 4]]"
        assert model.facts()["parameters"] == 8 * VALUES.size + 6
        assert model.facts()["types"]["MXFP4"] == 1
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.tensors()["ids"], tensors["ids"])
    assert bp.verify(FILE, decode=True).ok


@pytest.mark.reference
def test_the_same_as_the_reference(tmp_path):
    reference = pytest.importorskip("gguf")
    with bp.open(FILE) as model:
        tensors = model.tensors()
        for theirs in reference.GGUFReader(FILE).tensors:
            assert model.shapes[theirs.name] == tuple(reversed(theirs.shape.tolist()))
            assert tensors[theirs.name].tobytes() == theirs.data.tobytes()
    assert {(name.value, name.name, *size) for name, size in reference.GGML_QUANT_SIZES.items()} >= {
        (number, *block) for number, block in QUANTISED.items()
    }


def test_conversion_keeps_blocks_and_metadata(tmp_path):
    bp.convert(FILE, tmp_path / "a.safetensors")
    with bp.open(FILE) as model, bp.open(tmp_path / "a.safetensors") as converted:
        assert {row["name"]: row["data"] for row in converted} == {row["name"]: row["data"] for row in model}
        assert converted.metadata == model.metadata
    with pytest.raises(bp.OptionError, match="read only"):
        bp.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf")


@in_one_test("number", QUANTISED)
def test_every_quantised_type(number, tmp_path):
    name, values, size = QUANTISED[number]
    path = write_gguf(tmp_path / "a.gguf", [tensor("a", [2 * values, 3], number, 0)], bytes(6 * size))
    with bp.open(path) as model:
        assert model.tensors()["a"].shape == (3, 2 * size)
        assert model.types == {"a": name}
    write_gguf(path, [tensor("a", [values + 1], number, 0)], bytes(6 * size))
    with pytest.raises(bp.DamagedError, match="no blocks of"):
        bp.open(path)


HUGE = 2**62
NESTED = struct.pack("<IQ", ARRAY, 1)
LIES = {
    "tensors": {"counts": (HUGE, 0)},
    "keys": {"counts": (0, HUGE)},
    "length of a name": {"keys": [struct.pack("<Q", HUGE) + b"abc"]},
    "length of a string": {"keys": [key("a", STRING, struct.pack("<Q", HUGE))]},
    "no UTF-8": {"keys": [key("a", STRING, text(b"\xff"))]},
    "length of an array": {"keys": [key("a", ARRAY, struct.pack("<IQ", INT32, HUGE))]},
    "an array of arrays": {"keys": [key("a", ARRAY, struct.pack("<IQ", ARRAY, HUGE))]},
    "arrays without end": {"keys": [key("a", ARRAY, NESTED * 100_000)]},
    "an array of nothing": {"keys": [key("a", ARRAY, struct.pack("<IQ", 77, 1))]},
    "a key twice": {"keys": [key("a", 7, b"\1")] * 2},
    "alignment": {"keys": [key("general.alignment", 4, struct.pack("<I", 48))]},
    "axes": {"tensors": [text("a") + struct.pack("<I", 2**32 - 1)]},
    "sizes": {"tensors": [tensor("a", [2**63, 2**63], F32, 0)]},
    "an offset": {"tensors": [tensor("a", [2], F32, HUGE)]},
    "an overlap": {"tensors": [tensor("a", [8], F32, 0), tensor("b", [8], F32, 0)], "data": bytes(64)},
    "a tensor twice": {"tensors": [tensor("a", [8], F32, 0), tensor("a", [8], F32, 32)], "data": bytes(64)},
    "no values": {"tensors": [tensor("a", [1000], F32, 0)]},
}


@in_one_test("lie", LIES)
def test_headers_that_lie(lie, tmp_path):
    path = write_gguf(tmp_path / "a.gguf", **LIES[lie])
    with memory_bounded(path.stat().st_size), pytest.raises(bp.DamagedError) as caught:
        bp.open(path)
    assert caught.value.path == str(path)


def test_what_is_not_read(tmp_path):
    with pytest.raises(bp.SchemaError, match="version 0x1 "):
        bp.open(write_gguf(tmp_path / "a.gguf", version=1))
    with pytest.raises(bp.SchemaError, match="big-endian"):
        bp.open(write_gguf(tmp_path / "a.gguf", version=3 << 24))
    with pytest.raises(bp.SchemaError, match="the type 4"):
        bp.open(write_gguf(tmp_path / "a.gguf", [tensor("a", [32], 4, 0)], bytes(32)))


def test_a_header_longer_than_one_read(tmp_path):
    words = [f"word {number}" * 9 for number in range(20_000)]
    array = struct.pack("<IQ", STRING, len(words)) + b"".join(map(text, words))
    path = write_gguf(tmp_path / "a.gguf", [tensor("a", [2], F32, 0)], bytes(8), [key("words", ARRAY, array)])
    with bp.open(path) as model:
        assert "word 19999" in model.metadata["words"]
        assert len(model.facts()["metadata"]["words"]) < 300
        assert model.tensors()["a"].tolist() == [0, 0]


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage(damage, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(FILE.read_bytes())

    def read():
        try:
            with bp.open(path, format="gguf") as model:
                return sum(len(row["data"]) for row in model) > 0
        except bp.BatchplantError:
            return False

    assert [outcome for _, outcome in survive(damage(path), read)]
