"""What MDS and LitData have in common: folders of shards, with a note of ours in their index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import jpeg, pixels
from shard_folders import change, index_of, written

pytestmark = pytest.mark.parametrize("format", ["mds", "litdata"])


def test_pixels_stay_pixels_where_that_is_asked_for(format: str, tmp_path: Path) -> None:
    values = [pixels(4, 5, 3), pixels(2, 2), pixels(3, 1, 4)]
    path = written(
        format,
        tmp_path / "a",
        {"x": bp.Image(mode=None)},
        [{"x": value} for value in values],
        image_format="raw",
    )
    output = index_of(path)
    encodings = (
        output["shards"][0]["column_encodings"] if format == "mds" else output["config"]["data_format"]
    )
    assert encodings == ["pil"]
    with bp.open(path) as reader:
        assert all(map(np.array_equal, [sample["x"] for sample in reader], values))
        spans = reader.spans("x", [1])
        assert spans is not None
        assert spans.shape is not None
        assert spans.shape.tolist() == [[2, 2, 1]]


def test_what_is_missing(format: str, tmp_path: Path) -> None:
    """Their libraries see a value that stands for nothing; we see that there is none."""
    schema = {
        "__missing__": bp.Int(optional=True), "text": bp.Text(optional=True), "meta": bp.Json(optional=True),
        "photo": bp.Image(optional=True), "row": bp.Tensor("f4", (None,), optional=True),
        "free": bp.Tensor("f4", (None, None), optional=True), "there": bp.Int(),
    }  # fmt: skip
    whole = {
        "__missing__": 3, "text": "x", "meta": {}, "photo": jpeg(), "row": np.ones(2, "f4"),
        "free": np.ones((1, 2), "f4"), "there": 1,
    }  # fmt: skip
    path = written(format, tmp_path / "a", schema, [whole, {**dict.fromkeys(schema), "there": 2}, whole])
    with bp.open(path) as reader:
        assert dict(reader.schema) == schema
        assert reader[1] == {**dict.fromkeys(schema), "there": 2}
        assert reader.read([0, 1], ["__missing__"])["__missing__"].values.tolist() == [3, 0]
    # Their own tools leave our note out.
    change(path, lambda item: item.pop("batchplant"))
    with bp.open(path) as reader:
        result = reader[1]
        assert result["__missing___"].tolist() == [1] * 6
        assert (result["__missing__"], result["text"], result["meta"], result["photo"]) == (0, "", None, b"")
        assert (result["row"].shape, result["free"].shape) == ((0,), (0, 0))
