"""Small sets of the formats that are folders of shards, for their tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batchplant as bp


def written(
    format: str, path: Path, schema: dict[str, Any], samples: list[dict[str, Any]], **options: Any
) -> Path:
    with bp.create(path, schema, format=format, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


def numbers(format: str, path: Path, count: int = 12, **options: Any) -> Path:
    samples = [{"n": n, "text": "x" * n} for n in range(count)]
    return written(format, path, {"n": bp.Int(), "text": bp.Text()}, samples, **options)


def index_of(path: Path) -> Any:
    return json.loads((path / "index.json").read_text("utf-8"))


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    index = index_of(path)
    edit(index)
    (path / "index.json").write_text(json.dumps(index), "utf-8")
