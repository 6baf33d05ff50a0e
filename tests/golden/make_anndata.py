"""Write the golden files of AnnData by anndata 0.12: pip install "anndata<0.13"."""

import shutil
import tempfile
from pathlib import Path

import anndata
import numpy as np
import pandas
from scipy.sparse import csr_matrix

FOLDER = Path(__file__).parent / "anndata"
GAP = [True, False, True, True]


def gapped(values: list[object], dtype: str) -> object:
    return pandas.array(
        [value if there else None for value, there in zip(values, GAP, strict=True)], dtype=dtype
    )


def table() -> anndata.AnnData:
    obs = pandas.DataFrame(
        {
            "type": pandas.Categorical.from_codes([0, -1, 1, 0], ["B", "T"]),
            "age": gapped([0, 1, 2, 3], "Int32"),
            "good": gapped([True, False, True, False], "boolean"),
        },
        index=[f"cell{n}" for n in range(4)],
    )
    dense = np.array([[1, 0, 0], [0, 0, 0], [3, 0, 5], [0, 7, 0]], np.float32)
    result = anndata.AnnData(
        csr_matrix(dense),
        obs,
        pandas.DataFrame(index=["p", "q", "größe"]),
        layers={"dense": np.arange(12, dtype=np.int16).reshape(4, 3)},
        obsm={"X_map": np.arange(8.0).reshape(4, 2)},
    )
    # Texts that repeat would become categories.
    result.strings_to_categoricals()
    result.obs["note"] = gapped(["n0", "n1", "n2", "n3"], "string")
    return result


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    options = {"convert_strings_to_categoricals": False}
    with anndata.settings.override(allow_write_nullable_strings=True):
        table().write_h5ad(FOLDER / "csr.h5ad", **options)
        with tempfile.TemporaryDirectory() as stores:
            for version in (2, 3):
                with anndata.settings.override(zarr_write_format=version):
                    table().write_zarr(Path(stores) / f"v{version}.zarr", **options)
            shutil.make_archive(str(FOLDER / "stores"), "zip", stores)


if __name__ == "__main__":
    main()
