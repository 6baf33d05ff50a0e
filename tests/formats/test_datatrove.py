"""Token files of datatrove: the suite, files as datatrove lays them out, and what is damaged."""

import struct
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.datatrove import STORED
from batchplant.testing import FormatSuite
from repository import GOLDEN


class TestDatatrove(FormatSuite):
    format = "datatrove"
    suffix = ".ds"
    golden = GOLDEN
    # They are stored as others.
    leave_out = tuple(f"sequence {name}" for name in STORED)


def written(path: Path, documents: list[list[int]], code: str = "H") -> Path:
    """Files as datatrove's TokenizedFile writes them."""
    tokens = [token for document in documents for token in document]
    path.write_bytes(struct.pack(f"<{len(tokens)}{code}", *tokens))
    ends = np.cumsum([len(document) for document in documents]).tolist()
    Path(f"{path}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    return path


@pytest.mark.parametrize("code", ["H", "I"])
def test_files_of_datatrove(code: str, tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [40000], [5, 6]]
    path = written(tmp_path / "00000_shuffled.ds", documents, code)
    Path(f"{path}.metadata").write_text(f"openai-community/gpt2|{struct.calcsize(code)}\n6\n6 T")
    with bp.open(path) as reader:
        assert reader.format == "datatrove"
        assert [sample["tokens"].tolist() for sample in reader] == documents
        assert reader.facts()["tokenizer"] == "openai-community/gpt2"
    bp.convert(path, tmp_path / "again.ds")
    assert (tmp_path / "again.ds").read_bytes() == path.read_bytes()
    assert (tmp_path / "again.ds.index").read_bytes() == Path(f"{path}.index").read_bytes()


def test_damaged_indexes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ds", [[1, 2], [3]])
    index = Path(f"{path}.index")
    index.write_bytes(struct.pack("<2Q", 2, 9))
    with pytest.raises(bp.DamagedError, match="9 tokens do not take 6 bytes"):
        bp.open(path)
    index.write_bytes(struct.pack("<2Q", 2**63 + 1, 3))
    with bp.open(path) as reader, pytest.raises(bp.DamagedError):
        reader[0]
    index.unlink()
    with pytest.raises(bp.NotFoundError):
        bp.open(path)
