"""Write megatron/ with Megatron's own builder: ``pip install --no-deps megatron-core``, and torch."""

import sys
from pathlib import Path

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

FOLDER = Path(__file__).parent / "megatron"


def tokens(length: int, dtype: type) -> np.ndarray:
    return (np.arange(length) * 7 % 100).astype(dtype)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    plain = IndexedDatasetBuilder(str(FOLDER / "plain.bin"), dtype=np.uint16)
    for length in (3, 0, 8, 1):
        plain.add_document(tokens(length, np.uint16), [length])
    plain.finalize(str(FOLDER / "plain.idx"))
    parts = IndexedDatasetBuilder(str(FOLDER / "parts.bin"), dtype=np.int32, multimodal=True)
    for lengths, modes in (([2, 3], [0, 1]), ([4], [1]), ([1, 1, 5], [0, 0, 1])):
        parts.add_document(tokens(sum(lengths), np.int32), lengths, modes)
    parts.finalize(str(FOLDER / "parts.idx"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
