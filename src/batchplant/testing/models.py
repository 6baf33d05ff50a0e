"""ModelSuite: what every format of named tensors has to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..formats.base.tensors import BITS, TENSORS, size_of
from ..schema import Field
from .cases import Case, Sample
from .suite import FormatSuite

SHAPES: list[tuple[int, ...]] = [(2, 3), (), (5,), (0, 4), (1, 2, 3, 2)]


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> Sample:
    """A tensor whose bytes are the same every time; a bool's are 0 and 1."""
    size = size_of(dtype, shape)
    data = np.random.default_rng([size, *map(ord, name)]).integers(0, 256, size, np.uint8)
    data = data & 1 if dtype == "bool" else data
    return {"name": name, "dtype": dtype, "shape": np.array(shape, np.int64), "data": data.tobytes()}


class ModelSuite(FormatSuite):
    """Like FormatSuite, with tensors for samples. ``dtypes``: those that the format holds."""

    dtypes: ClassVar[Any] = tuple(name for name, bits in BITS.items() if bits >= 8)
    # Fields are always the same four.
    test_field_names_of_any_script: ClassVar[Any] = None

    def cases(self, *, held: bool = True) -> dict[str, Case]:
        """Other fields are refused, or are what FormatSuite tries."""
        return {} if held else super().cases(held=False)

    def dataset(self, count: int, *fields: str) -> tuple[Mapping[str, Field], list[Sample]]:  # type: ignore[override]
        dtypes = list(self.dtypes)
        samples = [
            tensor(f"layer.{n}.größe/{n}", dtypes[n % len(dtypes)], SHAPES[n % len(SHAPES)])
            for n in range(count)
        ]
        return TENSORS, samples

    def test_every_dtype_and_shape(self, tmp_path: Any) -> None:
        samples = [tensor(f"{n} {d}", d, shape) for d in self.dtypes for n, shape in enumerate(SHAPES)]
        self.write(self.path(tmp_path), TENSORS, samples)
        with self.open(self.path(tmp_path)) as reader:
            assert [one["name"] for one in reader] == [one["name"] for one in samples]
            for read, wrote in zip(reader, samples, strict=True):
                assert (read["dtype"], read["shape"].tolist()) == (wrote["dtype"], wrote["shape"].tolist())
                assert read["data"] == wrote["data"]
            for name, array in reader.tensors().items():
                wrote = next(one for one in samples if one["name"] == name)
                assert array.shape == tuple(wrote["shape"])
                assert array.dtype.name == wrote["dtype"]
                assert array.tobytes() == wrote["data"]
