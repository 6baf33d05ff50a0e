"""The Sparse kind: values, batches, ops, storage; damage is one error."""

import pickle

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.codecs.cells import encode_value
from batchplant.codecs.sparse import SparseCells, SparseRow, unpack_rows
from batchplant.data.sparse import SparseRows
from batchplant.errors import DecodeError, OptionError, SchemaError
from batchplant.loading.node.wire import Decoder, Encoder
from batchplant.schema.columns import Ragged

COLUMNS, ROWS = 30, 40
NAMES = [f"gene{number}" for number in range(COLUMNS)]
FIELD = bp.Sparse(COLUMNS, "float32", NAMES)


def matrix() -> np.ndarray:
    """A matrix most of whose values are 0; its rows 0 and 7 have no others."""
    generator = np.random.default_rng(5)
    dense = generator.integers(1, 99, (ROWS, COLUMNS)) * (generator.random((ROWS, COLUMNS)) < 0.2)
    dense[[0, 7]] = 0
    return dense.astype(np.float32)


@pytest.fixture(params=["beton", "parquet", "h5", "zarr"])
def reader(request, tmp_path):
    path = tmp_path / f"cells.{request.param}"
    with bp.create(path, {"x": FIELD, "label": bp.Int()}) as out:
        for number, row in enumerate(matrix()):
            columns = np.flatnonzero(row)
            out.append({"x": (columns, row[columns]) if number % 2 else row, "label": number})
    with bp.open(path) as opened:
        yield opened


def batch_of(reader, *pipeline, **options) -> SparseRows:
    pipelines = {"x": list(pipeline)}
    return next(iter(bp.Loader(reader, ROWS, order="sequential", pipelines=pipelines, **options)))["x"]


def test_batches_are_csr_in_every_form(reader):
    assert reader.schema["x"] == FIELD
    row = reader[3]["x"]
    assert isinstance(row, SparseRow)
    assert (matrix()[3][row.indices] == row.values).all()
    batch = batch_of(reader)
    indptr, indices, values, columns = batch
    assert (indptr[-1], columns, batch.shape) == (len(indices), COLUMNS, (ROWS, COLUMNS))
    assert (values.dtype, indices.dtype) == ("float32", "int32")
    assert (batch.to_dense() == matrix()).all()
    assert (batch.to_dense([4, 2]) == matrix()[:, [4, 2]]).all()
    assert (batch.rows(slice(3, 9)).to_dense() == matrix()[3:9]).all()
    assert (pickle.loads(pickle.dumps(batch)).to_dense() == matrix()).all()
    assert (Decoder().load(Encoder().dump(batch)).to_dense() == matrix()).all()


def test_scipy_takes_the_same_memory_and_gives_rows():
    sparse = pytest.importorskip("scipy.sparse")
    counts = np.count_nonzero(matrix(), axis=1)
    rows, columns = np.nonzero(matrix())
    cells = SparseCells(FIELD, counts, columns, matrix()[rows, columns])
    (indptr, indices, values), bad = unpack_rows(FIELD, cells)
    assert not np.shares_memory(values, cells.values)
    for other in (
        pickle.loads(pickle.dumps(cells)),
        cells.take(slice(None)),
        Ragged(cells.data, cells.offsets),
    ):
        again, _ = unpack_rows(FIELD, other)
        assert all(map(np.array_equal, again, (indptr, indices, values)))
    batch = SparseRows((indptr, indices, values, COLUMNS))
    assert not bad
    assert (batch.to_scipy().toarray() == matrix()).all()
    assert np.shares_memory(batch.to_scipy().data, batch.values)
    cells = [encode_value(FIELD, sparse.csr_array(matrix()[row : row + 1]))[0] for row in range(ROWS)]
    assert (
        SparseRows((*unpack_rows(FIELD, Ragged.from_cells(cells))[0], COLUMNS)).to_dense() == matrix()
    ).all()


def test_tensors_of_torch(reader):
    torch = pytest.importorskip("torch")
    batch = batch_of(reader, device="cpu")
    assert isinstance(batch.values, torch.Tensor)
    tensor = batch.to_torch()
    assert tensor.layout == torch.sparse_csr
    assert (tensor.to_dense().numpy() == matrix()).all()
    assert isinstance(batch.to_dense(), torch.Tensor)
    assert (batch.to_dense([4, 2]).numpy() == matrix()[:, [4, 2]]).all()
    assert (batch_of(reader).to_torch().to_dense().numpy() == matrix()).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint16", "bool"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rows_of_any_dtype_in_any_order_become_dense(dtype, index):
    """Rows without values, and columns that are there twice or in no order."""
    indices, values = np.array([4, 1, 1, 0, 4], index), np.array([1, 2, 3, 0, 1]).astype(dtype)
    batch = SparseRows((np.array([0, 0, 3, 5, 5]), indices, values, 5))
    expected = np.zeros((4, 5), dtype)
    np.add.at(expected, ([1, 1, 1, 2, 2], indices), values)
    dense = batch.to_dense()
    assert dense.dtype == dtype
    assert (dense == expected).all()
    assert (batch.to_dense([4, 0]) == expected[:, [4, 0]]).all()
    assert (batch.select([4, 0]).to_dense() == expected[:, [4, 0]]).all()
    for columns in ([5], [-1], [1, 1]):
        with pytest.raises(OptionError, match="numbers below 5, each once"):
            batch.to_dense(columns)
    torch = pytest.importorskip("torch")
    if dtype != "uint16":
        tensors = SparseRows((*map(torch.as_tensor, batch[:3]), 5))
        assert (tensors.to_dense([4, 0]).numpy() == expected[:, [4, 0]]).all()


def test_rows_without_values():
    """A whole batch of them, through every op."""
    batch = SparseRows((np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), 5))
    for op in (ops.NormalizeTotal(), ops.Log1p(), ops.Binarize(), ops.ToDense()):
        result = op.run(batch, np.arange(3), None)
        assert not (result if isinstance(result, np.ndarray) else result.to_dense()).any()
    assert batch.select([2]).shape == (3, 1)
    assert batch.rows(1).to_dense().shape == (1, 5)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [([0, 2], [0, 5]), ([0, 2], [-1, 0]), ([0, 3], [0, 1]), ([-1, 2], [0, 1]), ([2, 0], [0, 1])],
)
def test_rows_that_lie_are_refused(indptr, indices):
    rows = SparseRows((np.array(indptr), np.array(indices), np.ones(2, np.float32), 5))
    with pytest.raises(IndexError):
        rows.to_dense()


def test_ops_are_those_of_the_dense_matrix(reader):
    dense = matrix()
    totals = dense.sum(axis=1, keepdims=True)
    totals[totals == 0] = 1
    expected = np.log1p(dense / totals * 100)
    chosen = ["gene9", 2, "gene0"]
    batch = batch_of(reader, ops.NormalizeTotal(100), ops.Log1p(), ops.SelectColumns(chosen))
    np.testing.assert_allclose(batch.to_dense(), expected[:, [9, 2, 0]], rtol=1e-5)
    array = batch_of(reader, ops.NormalizeTotal(100), ops.Log1p(), ops.ToDense(chosen))
    np.testing.assert_allclose(array, expected[:, [9, 2, 0]], rtol=1e-5)
    assert (batch_of(reader, ops.Binarize(20)).to_dense() == (dense > 20)).all()
    assert (batch_of(reader, ops.ToDense()) == dense).all()
    # A selection has names of its own.
    assert (batch_of(reader, ops.SelectColumns(chosen), ops.ToDense(["gene0"])) == dense[:, [0]]).all()
    rows = batch_of(reader, ops.Function(lambda row: row.to_dense()[0], each=True, shape=(COLUMNS,)))
    assert (rows == dense).all()


def test_ops_refuse_what_they_cannot_take(reader):
    for pipeline, words in (
        ([ops.SelectColumns(["gene99"])], "no column gene99"),
        ([ops.ToDense([COLUMNS])], "numbers below 30"),
        ([ops.ToDense(), ops.Log1p()], "rows of a sparse matrix"),
        ([ops.Normalize(0, 1)], "Sparse"),
    ):
        with pytest.raises(OptionError, match=words):
            bp.Loader(reader, 4, pipelines={"x": pipeline})
    with pytest.raises(OptionError, match="none of them twice"):
        ops.SelectColumns([1, 1])
    with pytest.raises(OptionError, match="needs rows of a sparse matrix"):
        bp.Loader(reader, 4, pipelines={"label": [ops.Binarize()]})


@pytest.mark.parametrize(
    "value",
    [
        ([COLUMNS], [1.0]), ([-1], [1.0]), ([1, 2], [1.0]), ([0.5], [1.0]), ([[1]], [[1.0]]), np.zeros(3),
        ([1], [1j]), (np.array([1]), np.array([1.0])), ([1],), b"123",
    ],
)  # fmt: skip
def test_values_that_are_no_row_are_refused(tmp_path, value):
    with (
        pytest.raises((SchemaError, DecodeError)),
        bp.create(tmp_path / "a.npz", {"x": bp.Sparse(COLUMNS)}) as out,
    ):
        out.append({"x": value})


def test_cells_that_are_damaged_are_errors_of_their_samples():
    good = np.array([3], "<i4").tobytes() + np.array([1], "<f4").tobytes()
    outside = np.array([COLUMNS], "<i4").tobytes() + bytes(4)
    negative = np.array([-1], "<i4").tobytes() + bytes(4)
    _, bad = unpack_rows(FIELD, Ragged.from_cells([good, outside, b"", good[:-1], negative]))
    assert sorted(bad) == [1, 3, 4]


def test_kinds_say_what_they_are():
    kind = bp.Sparse((20,), np.uint16)
    assert bp.Schema.from_json(bp.Schema({"x": kind}).to_json()) == bp.Schema({"x": kind})
    assert str(bp.Sparse(3, names="abc", optional=True)) == "Sparse(3, 'float32', 3 names, optional=True)"
    for arguments in ((-1,), ((2, 3),), (True,), (3, "complex64"), (3, "float32", ["a"]), (1 << 60,)):
        with pytest.raises(OptionError):
            bp.Sparse(*arguments)
