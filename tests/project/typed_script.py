"""A script as users write it: ``make check`` runs ``mypy --strict`` over it."""

import batchplant as bp

reader = bp.open("train.parquet")
names: tuple[str, ...] | None = reader.schema["label"].names
field = reader.schema["label"]
if isinstance(field, bp.Int):
    number: int = field.number("cat")
loader = bp.Loader(reader, 32, order="random", seed=1)
narrowed = bp.Loader(
    reader, 32, order=bp.order.QuasiRandom(window=64), decode=bp.DecodeOptions(fast_scale=True),
    cache=bp.DecodedCache("2GB"), workers=[0, 1],
)  # fmt: skip
for batch in loader:
    keys: list[str] = list(batch)
    images = batch["image"]
first: dict[str, object] = next(iter(loader))
sample: dict[str, object] = reader[0]
