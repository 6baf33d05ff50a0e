"""Write tests/golden/litdata with LitData itself.

usage: make_litdata.py FOLDER [--old]

--old: with a version before 0.2.50, the one set that it lays out otherwise.
"""

import hashlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
from PIL import Image

OUT = Path(sys.argv[1])
RNG = np.random.default_rng(20251)


def picture(mode: str, height: int, width: int) -> Any:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    return Image.fromarray(RNG.integers(0, 256, (height, width, channels), np.uint8).squeeze(), mode)


def encoded(kind: str, *size: int) -> bytes:
    out = io.BytesIO()
    picture("RGB", *size).save(out, kind)
    return out.getvalue()


def every(n: int) -> dict[str, Any]:
    return {
        "n": n - 3, "real": n / 3, "flag": n % 2 == 0, "text": ["", "Größe", "🌱", "x" * 40][n % 4],
        "blob": bytes(range(n)),
        "photo": litdata.types.Jpeg(bytes=encoded("jpeg", 6 + n, 8)),
        "mask": litdata.types.Image(path="a.png", bytes=encoded("png", 5, 4 + n)),
        "file": litdata.types.File(path="a.bin", bytes=bytes(3)),
        "pixels": picture(("L", "RGB", "RGBA")[n % 3], 2, 1 + n),
        "line": np.arange(n, dtype=np.int16), "free": np.arange((n + 1) * 2.0).reshape(n + 1, 2),
        "ids": torch.arange(n, dtype=torch.int32), "grid": torch.full((2, n), n / 2, dtype=torch.float16),
        "scalar": torch.tensor(n > 3), "label": np.int64(n),
        "box": {"corner": (n, n + 0.5), "names": ["a"] * (n % 3), "rows": [{"k": n, "v": None, "t": "ß"}]},
        "any": [1, "two", None, {"three": [n / 8]}],
    }  # fmt: skip


def row(n: int) -> dict[str, Any]:
    found = {
        "text": "ß" * n, "label": n, "score": None if n % 3 == 0 else n / 4, "raw": bytes(n), "ok": n > 2,
        "tags": ["x"] * n, "meta": {"n": n, "deep": {"a": [n]}},
    }  # fmt: skip
    # A key that the first samples do not have.
    return {**found, "late": f"{n}"} if n > 8 else found


def few(n: int) -> dict[str, Any]:
    return {"n": n, "text": "x" * n, "line": np.arange(1 + 20 * n, dtype=np.int16)}


def described(value: Any) -> Any:
    """A value as JSON has it; arrays and pictures by their SHA-256."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, Image.Image):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return [value.dtype.name, list(value.shape), digest]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex() if len(value) < 64 else hashlib.sha256(value).hexdigest()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: described(one) for name, one in value.items()}
    return [described(one) for one in value] if isinstance(value, list | tuple) else value


class Raw(litdata.streaming.serializers.BytesSerializer):
    """Pictures as they lie there: what decodes them is not LitData."""

    def deserialize(self, data: Any) -> Any:
        return bytes(data)


def write(name: str, samples: list[Any], **options: Any) -> None:
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    writer = BinaryWriter(str(out), **options)
    for n, sample in enumerate(samples):
        writer[n] = sample
    writer.done()
    writer.merge()
    loader = options.get("item_loader")
    # It unpacks what is packed where it lies.
    copy = shutil.copytree(out, OUT / "copy")
    kinds = {name: Raw() for name in ("jpeg", "image")}
    found = litdata.StreamingDataset(
        str(copy), serializers=kinds, item_loader=TokensLoader(block_size=8) if loader else None
    )
    read = [described(found[n]) for n in range(len(found))]
    shutil.rmtree(copy)
    expected = OUT / "expected.json"
    known = json.loads(expected.read_text("utf-8")) if expected.exists() else {}
    expected.write_text(json.dumps({**known, name: read}, ensure_ascii=False), "utf-8")


if "--old" in sys.argv:
    write("old", [few(n) for n in range(12)], chunk_bytes=1500)
    sys.exit()
write("every", [every(n) for n in range(7)], chunk_bytes=4096)
write("tuples", [(n, [np.arange(n), "x"]) for n in range(4)], chunk_bytes=4096)
write("tables", [row(n) for n in range(14)], chunk_bytes=300)
write("packed_tables", [row(n) for n in range(6)], chunk_bytes=4096, compression="zstd")
for level in ("chunk", "batch", "sample"):
    write(
        f"zstd_{level}", [few(n) for n in range(12)], chunk_bytes=1500, compression="zstd",
        compression_level=level, compression_batch_size=4,
    )  # fmt: skip
# One that begins with a sample without tokens would have no count of them.
tokens = [torch.arange(n * 5, dtype=torch.int32) for n in range(1, 12)]
write("tokens", tokens, chunk_bytes=500, item_loader=TokensLoader())
