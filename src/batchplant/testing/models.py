"""ModelSuite: the tests that every format of named tensors has to pass."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..formats.base.tensors import BITS, TENSORS, size_of
from ..schema import Field
from .cases import Case, Sample
from .suite import FormatSuite

SHAPES: list[tuple[int, ...]] = [(2, 3), (), (5,), (0, 4), (1, 2, 3, 2)]


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> Sample:
    """Return a tensor whose bytes are the same every time; those of a bool are 0 and 1."""
    size = size_of(dtype, shape)
    data = np.random.default_rng([size, *map(ord, name)]).integers(0, 256, size, np.uint8)
    data = data & 1 if dtype == "bool" else data
    return {"name": name, "dtype": dtype, "shape": np.array(shape, np.int64), "data": data.tobytes()}


class ModelSuite(FormatSuite):
    """Like FormatSuite, with tensors for samples. ``dtypes``: those that the format holds."""

    dtypes: ClassVar[Collection[str]] = tuple(name for name, bits in BITS.items() if bits >= 8)
    # Fields are always the same four.
    test_field_names_of_any_script: ClassVar[Any] = None

    def cases(self, *, supported: bool = True) -> dict[str, Case]:
        """Return no supported cases: the fields are always the same."""
        return {} if supported else super().cases(supported=False)

    def dataset(self, count: int, *fields: str) -> tuple[dict[str, Field], list[Sample]]:
        dtypes = list(self.dtypes)
        samples = [
            tensor(f"layer.{n}.größe/{n}", dtypes[n % len(dtypes)], SHAPES[n % len(SHAPES)])
            for n in range(count)
        ]
        return dict(TENSORS), samples

    def test_every_dtype_and_shape(self, tmp_path: Path) -> None:
        samples = [tensor(f"{n} {d}", d, shape) for d in self.dtypes for n, shape in enumerate(SHAPES)]
        self.write(self.path(tmp_path), TENSORS, samples)
        with self.open(self.path(tmp_path)) as reader:
            assert [sample["name"] for sample in reader] == [sample["name"] for sample in samples]
            for read, wrote in zip(reader, samples, strict=True):
                assert (read["dtype"], read["shape"].tolist()) == (wrote["dtype"], wrote["shape"].tolist())
                assert read["data"] == wrote["data"]
            for name, array in reader.tensors().items():
                wrote = next(sample for sample in samples if sample["name"] == name)
                assert array.shape == tuple(wrote["shape"])
                assert array.dtype.name == wrote["dtype"]
                assert array.tobytes() == wrote["data"]
