"""AnnData in HDF5 and Zarr: matrices, data frames, joins, filters; damage is one error of ours."""

import shutil

import h5py
import numpy as np
import pytest

import batchplant as bp
from batchplant.errors import BatchplantError, DamagedError, FieldNameError, OptionError
from batchplant.formats.anndata import join
from single_cell import COLUMNS, ROWS, TYPES, codes, make, matrix


def dense_of(reader, rows, field="X"):
    loader = bp.Loader(reader, len(rows), order="sequential", indices=rows, pipelines={"obs_names": None})
    value = next(iter(loader))[field]
    return value.to_dense() if hasattr(value, "to_dense") else value


@pytest.mark.parametrize("options", [{}, {"chunks": (7,)}, {"chunks": (50,), "compression": "gzip"}])
@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "array"])
@pytest.mark.filterwarnings("ignore:X is stored by columns")
def test_rows_are_those_of_the_matrix(tmp_path, kind, options):
    with bp.open(
        make(tmp_path / "a.h5ad", kind=kind, **options), layers=["counts"], obsm=["X_pca"]
    ) as reader:
        assert (reader.format, len(reader)) == ("anndata", ROWS)
        rows = np.random.default_rng(1).permutation(ROWS)
        assert (dense_of(reader, rows) == matrix()[rows]).all()
        assert (dense_of(reader, rows, "layers.counts") == 2 * matrix()[rows]).all()
        assert reader[7]["obsm.X_pca"].tolist() == [14, 15]
        assert reader.var_names[3] == "gene3"


def test_a_square_matrix_by_columns_is_told_by_its_attribute(tmp_path):
    square = matrix(COLUMNS, COLUMNS)
    path = make(tmp_path / "a.h5ad", square, "csc_matrix", index="barcode")
    with pytest.warns(UserWarning, match="stored by columns"):
        opened = bp.open(path)
    with opened as reader:
        assert (dense_of(reader, np.arange(COLUMNS)) == square).all()
        assert reader[4]["obs_names"] == "cell4"


def test_a_matrix_by_columns_stays_within_its_memory(tmp_path):
    with pytest.raises(OptionError, match=r"stored by columns .* memory="):
        bp.open(make(tmp_path / "a.h5ad", kind="csc_matrix"), memory=1000)


def test_columns_of_obs_are_fields_and_filters_read_no_matrix(tmp_path):
    path = make(tmp_path / "a.h5ad")
    with h5py.File(path, "r+") as file:
        file["X/indices"][...] = -1
    with bp.open(path) as reader:
        assert reader.schema["type"] == bp.Int("int32", tuple(TYPES), optional=True)
        assert [sample["type"] for sample in reader.select(["type", "age"])][:5] == [None, 0, 1, 2, None]
        assert [sample["age"] for sample in reader.select(["age"])][:3] == [None, 1, 2]
        chosen = reader.filter((bp.col("type") == "T") & (bp.col("size") > 0.5))
        assert len(chosen) == sum(codes()[row] == 2 and row / (ROWS - 1) > 0.5 for row in range(ROWS))
        with pytest.raises(DamagedError, match="a column is none of 24"):
            chosen[0]


def test_genes_are_chosen_by_name(tmp_path):
    path = make(tmp_path / "a.h5ad")
    with bp.open(path, genes=["gene9", "gene2"]) as reader:
        assert reader.schema["X"] == bp.Sparse(2, "float32", ["gene9", "gene2"])
        assert (dense_of(reader, np.arange(ROWS)) == matrix()[:, [9, 2]]).all()
    with bp.open(path, genes=["gene9", "other"], outer=True) as reader:
        assert (dense_of(reader, np.arange(ROWS))[:, 1] == 0).all()
    with pytest.raises(FieldNameError, match="no gene"):
        bp.open(path, genes=["gene99"])


@pytest.mark.parametrize("kind", ["csr_matrix", "array"])
@pytest.mark.parametrize("how", ["inner", "outer"])
def test_files_are_joined_by_names(tmp_path, kind, how):
    first, second = matrix(20, 4, 1), matrix(30, 3, 2)
    a = make(tmp_path / "a.h5ad", first, kind, ["p", "q", "r", "s"])
    b = make(tmp_path / "b.h5ad", second, kind, ["s", "t", "q"], ["T", "X", "B"])
    genes = ["q", "s"] if how == "inner" else ["p", "q", "r", "s", "t"]
    expected = np.zeros((50, len(genes)), np.float32)
    for rows, dense, names in ((slice(0, 20), first, "pqrs"), (slice(20, 50), second, "stq")):
        for place, gene in enumerate(genes):
            if gene in names:
                expected[rows, place] = dense[:, names.index(gene)]
    with join([a, b], how) as reader:
        assert (dense_of(reader, np.arange(50)) == expected).all()
        assert reader.schema["type"].names == ("B", "NK", "T", "X")
        assert [sample["type"] for sample in reader.select(["type"])][20:24] == [None, 2, 3, 0]


def test_quasi_random_reads_chunk_by_chunk_and_every_row_once(tmp_path):
    path = make(tmp_path / "a.h5ad", chunks=(64,), compression="gzip")
    with bp.open(path) as reader:
        loader = bp.Loader(reader, 16, order="quasi_random", pipelines={"X": None})
        names = [name for batch in loader for name in batch["obs_names"]]
    assert sorted(names) == sorted(f"cell{n}" for n in range(ROWS))


def damage(path, name, change):
    with h5py.File(path, "r+") as file:
        values = file[name][...]
        del file[name]
        file[name] = change(values)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("X/indptr", lambda values: values[:-1]),
        ("X/indptr", lambda values: values[::-1].copy()),
        ("X/indptr", lambda values: values + 1),
        ("X/indptr", lambda values: values * 1000),
        ("X/indptr", lambda values: values.astype(np.float32)),
        ("X/indices", lambda values: values[:-2]),
        ("X/indices", lambda values: values + COLUMNS),
        ("X/indices", lambda values: values.astype(np.float32)),
        ("obs/type/codes", lambda values: values + 5),
        ("obs/type/categories", lambda values: np.array(["a", "a", "a"], object)),
        ("var/_index", lambda values: values[:-1]),
    ],
)
def test_damage_is_one_error(tmp_path, name, change):
    path = make(tmp_path / "a.h5ad")
    damage(path, name, change)
    with pytest.raises(BatchplantError) as caught, bp.open(path) as reader:
        list(reader)
    assert path in str(caught.value)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix"])
@pytest.mark.filterwarnings("ignore:X is stored by columns")
def test_cut_files_are_one_error(tmp_path, kind):
    make(tmp_path / "a.h5ad", kind=kind)
    data = (tmp_path / "a.h5ad").read_bytes()
    for size in range(0, len(data), max(1, len(data) // 12)):
        (tmp_path / "cut.h5ad").write_bytes(data[:size])
        with pytest.raises(BatchplantError), bp.open(tmp_path / "cut.h5ad") as reader:
            list(reader)


def test_other_encodings_of_a_matrix_are_refused(tmp_path):
    path = make(tmp_path / "a.h5ad", matrix(COLUMNS, COLUMNS))
    with h5py.File(path, "r+") as file:
        file["X"].attrs["encoding-type"] = "coo_matrix"
    with pytest.raises(BatchplantError, match="coo_matrix"):
        bp.open(path)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["h5ad", "zarr2", "zarr3"])
def test_files_of_anndata(tmp_path, form):
    """What anndata writes is what is read."""
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    sparse = pytest.importorskip("scipy.sparse")
    obs = pandas.DataFrame(
        {
            "type": pandas.Categorical.from_codes(codes(), TYPES),
            "age": pandas.array([None, *range(1, ROWS)], dtype="Int32"),
            "name": [f"sample {n}" for n in range(ROWS)],
        },
        index=[f"cell{n}" for n in range(ROWS)],
    )
    table = anndata.AnnData(sparse.csr_matrix(matrix()), obs, layers={"dense": matrix()})
    path = str(tmp_path / f"a.{form[:4]}")
    if form == "h5ad":
        table.write_h5ad(path)
    else:
        with anndata.settings.override(zarr_write_format=int(form[-1])):
            table.write_zarr(path)
    with bp.open(path, format="anndata", layers=["dense"]) as reader:
        rows = np.arange(ROWS)[::-1]
        assert (dense_of(reader, rows) == matrix()[rows]).all()
        assert (dense_of(reader, rows, "layers.dense") == matrix()[rows]).all()
        sample = reader[9]
        assert [sample[name] for name in ("type", "age", "name", "obs_names")] == [0, 9, "sample 9", "cell9"]
        assert reader[0]["age"] is None
    if form == "zarr2":
        document = tmp_path / "a.zarr" / "obs" / ".zattrs"
        document.write_text(document.read_text().replace('"name"', '"../../../x"'))
        with pytest.raises(BatchplantError):
            bp.open(path, format="anndata")
        shutil.rmtree(tmp_path / "a.zarr" / "X")
        with pytest.raises(BatchplantError):
            bp.open(path, format="anndata")
