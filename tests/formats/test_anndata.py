"""AnnData in HDF5 and Zarr: matrices, data frames, joins, filters; damage is one error of ours."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import batchplant as bp
from batchplant.errors import BatchplantError, DamagedError, FieldNameError, OptionError
from batchplant.formats.anndata import join, save
from single_cell import COLUMNS, ROWS, TYPES, codes, make, matrix
from variants import exhaustive

GOLDEN = Path(__file__).parent.parent / "golden" / "anndata"


def dense_of(reader, rows, field="X"):
    loader = bp.Loader(reader, len(rows), order="sequential", indices=rows, pipelines={"obs_names": None})
    value = next(iter(loader))[field]
    return value.to_dense() if hasattr(value, "to_dense") else value


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csr_matrix", {}),
        ("csr_matrix", {"chunks": (7,)}),
        ("csc_matrix", {"chunks": (50,), "compression": "gzip"}),
        ("array", {"chunks": (7,)}),
        *exhaustive(("csc_matrix", {}), ("array", {"chunks": (50,), "compression": "gzip"})),
    ],
)
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
    path = make(tmp_path / "a.h5ad", kind="csc_matrix")
    with pytest.raises(OptionError, match=r"stored by columns .* memory=\d+, or in a file with scratch="):
        bp.open(path, memory=1000)
    with pytest.raises(OptionError, match="scratch is a folder"):
        bp.open(path, memory=1000, scratch=str(tmp_path / "missing"))
    (tmp_path / "scratch").mkdir()
    with pytest.warns(UserWarning, match="turned into rows in .*scratch"):
        reader = bp.open(path, memory=1000, scratch=str(tmp_path / "scratch"))
    with reader:
        assert not list((tmp_path / "scratch").iterdir())
        rows = np.random.default_rng(1).permutation(ROWS)
        assert (dense_of(reader, rows) == matrix()[rows]).all()


def test_rows_of_var_are_samples_too(tmp_path):
    path = make(tmp_path / "a.h5ad")
    with h5py.File(path, "r+") as file:
        file["var/variable"] = np.arange(COLUMNS) % 3 == 0
    with bp.open(path, axis="var") as genes:
        assert (len(genes), list(genes.schema)) == (COLUMNS, ["variable", "var_names"])
        chosen = [sample["var_names"] for sample in genes.filter(bp.col("variable"))]
    with bp.open(path, genes="gene3", obs="age", layers="counts", obsm="X_pca") as reader:
        assert list(reader.schema) == ["X", "layers.counts", "obsm.X_pca", "age", "obs_names"]
    with bp.open(path, genes=chosen) as reader:
        assert (dense_of(reader, np.arange(ROWS)) == matrix()[:, ::3]).all()
    with pytest.raises(OptionError, match="axis is obs or var"):
        bp.open(path, axis="uns")


FIELDS = {
    "X": bp.Sparse(3, "float32", "abc"), "layers.dense": bp.Tensor("int16", (3,)),
    "obsm.map": bp.Tensor("float64", (2,)), "obs_names": bp.Text(),
    "type": bp.Int(names=("B", "größe"), optional=True), "age": bp.Int("uint16", optional=True),
    "good": bp.Bool(optional=True), "note": bp.Text(optional=True), "size": bp.Float(optional=True),
    "n": bp.Int(), "flag": bp.Bool(), "text": bp.Text(),
}  # fmt: skip


def cells_of(rows: int) -> list[dict]:
    samples = []
    for n in range(rows):
        optional = {"type": n % 2, "age": n, "good": n % 3 == 0, "note": f"n{n}", "size": n / 2}
        row = np.array([n, 0, -1], np.float32) if n % 4 else np.zeros(3, np.float32)
        sample = {name: None if n % 5 == 1 else value for name, value in optional.items()}
        layer = np.array([n, -n, 0], np.int16)
        sample |= {"X": row, "layers.dense": layer, "obsm.map": np.array([n, 0.5]), "obs_names": f"cell {n}"}
        samples.append(sample | {"n": n, "flag": n % 2 == 1, "text": "ü" * n})
    return samples


def written(folder, rows=12, **options) -> str:
    with bp.create(folder / "cells.beton", FIELDS) as out:
        for sample in cells_of(rows):
            out.append(sample)
    save(folder / "saved.h5ad", str(folder / "cells.beton"), **options)
    return str(folder / "saved.h5ad")


@pytest.mark.parametrize(("rows", "compression"), [(0, None), (12, "gzip")])
def test_files_that_are_saved_come_back(tmp_path, rows, compression):
    path = written(tmp_path, rows, compression=compression)
    with bp.open(path, layers=["dense"], obsm=["map"]) as reader:
        assert reader.schema["X"] == FIELDS["X"]
        assert len(reader) == rows
        for sample, expected in zip(reader, cells_of(rows), strict=True):
            assert (sample.pop("X").values == expected["X"][expected.pop("X") != 0]).all()
            for name in ("layers.dense", "obsm.map"):
                assert (sample.pop(name) == expected.pop(name)).all()
            if expected["size"] is None:
                assert np.isnan(sample.pop("size"))
                del expected["size"]
            assert sample == expected
    with join([path, path]) as both:
        save(tmp_path / "new" / "both.h5ad", both)
        save(path, both)
    assert len(bp.open(path)) == len(bp.open(tmp_path / "new" / "both.h5ad")) == 2 * rows


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path):
    path = written(tmp_path)
    before = (tmp_path / "saved.h5ad").read_bytes()
    x = {"X": (bp.Sparse(2), (np.array([1]), np.ones(1, "f4")))}
    for number, (fields, words) in enumerate([
        ({"n": (bp.Int(), 1)}, "has a matrix X"),
        ({**x, "layers.a": (bp.Sparse(3), ((), ()))}, "3 columns, and others have 2"),
        ({**x, "image": (bp.Image(), np.zeros((2, 2, 3), "u1"))}, "no place for"),
        ({**x, "obs_names": (bp.Int(), 1)}, "can be called so"),
        ({**x, "text": (bp.Text(), "a\0b")}, "NUL"),
        ({**x, "obsm.a": (bp.Text(), "a")}, "no matrix of AnnData"),
    ]):  # fmt: skip
        source = tmp_path / f"{number}.beton"
        with bp.create(source, {name: field for name, (field, _) in fields.items()}) as out:
            out.append({name: value for name, (_, value) in fields.items()})
        with pytest.raises(BatchplantError, match=words):
            save(path, str(source))
    with pytest.raises(OptionError, match="compression is gzip"):
        save(path, path, compression="zip")
    assert (tmp_path / "saved.h5ad").read_bytes() == before
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".saved")]


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
    with pytest.raises(OptionError, match="a name twice"):
        bp.open(path, genes=["gene9", "gene9"])
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
def test_anndata_reads_what_is_saved(tmp_path):
    anndata = pytest.importorskip("anndata")
    table = anndata.read_h5ad(written(tmp_path))
    expected = cells_of(12)
    assert table.shape == (12, 3)
    assert table.var_names.tolist() == list("abc")
    assert (table.X.toarray() == [sample["X"] for sample in expected]).all()
    assert (table.layers["dense"] == [sample["layers.dense"] for sample in expected]).all()
    assert (table.obsm["map"] == [sample["obsm.map"] for sample in expected]).all()
    assert table.obs_names.tolist() == [sample["obs_names"] for sample in expected]
    assert table.obs["type"].cat.categories.tolist() == ["B", "größe"]
    assert table.obs["type"].cat.codes.tolist()[:3] == [0, -1, 0]
    for name in ("age", "good", "note", "n", "flag", "text"):
        column = table.obs[name]
        values = [None if gap else value for value, gap in zip(column.tolist(), column.isna(), strict=True)]
        assert values == [sample[name] for sample in expected]
    assert table.obs["size"].isna().sum() == sum(sample["size"] is None for sample in expected)
    backed = anndata.read_h5ad(tmp_path / "saved.h5ad", backed="r")
    assert (backed.X[[3, 7]].toarray() == [expected[3]["X"], expected[7]["X"]]).all()


@pytest.mark.parametrize("name", ["csr.h5ad", "v2.zarr", "v3.zarr"])
def test_golden_files_of_anndata(name, tmp_path):
    """Files that anndata 0.12 wrote."""
    shutil.unpack_archive(GOLDEN / "stores.zip", tmp_path)
    folder = tmp_path if name.endswith("zarr") else GOLDEN
    with bp.open(folder / name, format="anndata", layers=["dense"], obsm=["X_map"]) as reader:
        sample = reader[2]
        assert sample["X"].indices.tolist() == [0, 2]
        assert sample["X"].values.tolist() == [3.0, 5.0]
        assert sample["layers.dense"].tolist() == [6, 7, 8]
        assert sample["obsm.X_map"].tolist() == [4, 5]
        names = ("type", "age", "good", "note", "obs_names")
        assert [sample[name] for name in names] == [1, 2, True, "n2", "cell2"]
        assert [reader[1][name] for name in names] == [None, None, None, None, "cell1"]
        assert reader.schema["X"].names == ("p", "q", "größe")


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
