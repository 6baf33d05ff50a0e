"""What the remote benchmark is measured against: ratios, and which of the targets they meet."""

from __future__ import annotations

from typing import Any

from batchplant.storage.settings import DEFAULT_FETCH_BYTES

LOCAL, CACHE = ", local", ", cache"
# Of the local speed, of the speed without latency, of memory; and round trips to the first batch.
OF_LOCAL, OF_NEAR, OF_MEMORY, ROUND_TRIPS = 0.9, 0.85, 1.5, 3

Case = dict[str, Any]
Row = dict[str, Any]


def targets(found: dict[str, Any]) -> list[Row]:
    """Every target with its figures; they are printed, too. The median decides."""
    cases = found["cases"]
    near, far = cases.get("0"), cases.get("30")
    rows = [] if near is None else _local(near, shares_cores=not found.get("server cores"))
    if near is not None and far is not None:
        rows += [*_latency(near, far), *_first_batch(near, far)]
    for delay, case in cases.items():
        rows += [*_peers(f"{delay} ms", case), *_memory(f"{delay} ms", case, found["MB"])]
    for delay, value in found["ds[i]"].items():
        rows += [
            _row(f"{delay} ms: requests of ds[i], {name}", "≤", 1, it["requests"])
            for name, it in value.items()
        ]
    for row in rows:
        shown = " ".join(f"{row[key]:>9,.2f}" for key in ("median", "best") if key in row)
        met = "met" if row["met"] else "MISSED"
        print(f"  {met:<6} {row['what']:<78} {row['is']} {row['target']:<8,.4g} {shown}")
    return rows


def _row(what: str, sense: str, target: float, median: float, best: float | None = None) -> Row:
    met = median >= target if sense == "≥" else median <= target
    row = {"what": what, "is": sense, "target": target, "median": median, "met": met}
    return row if best is None else {**row, "best": best}


def _ratio(one: dict[str, float], other: dict[str, float], scale: float = 1) -> tuple[float, float]:
    return one["median"] / other["median"] / scale, one["best"] / other["best"] / scale


def _ours(case: Case) -> list[str]:
    return [name for name in case["first batch, s"] if name.startswith("batchplant") and LOCAL not in name]


def _local_of(name: str) -> str:
    return name.removesuffix(CACHE) + LOCAL


def _local(case: Case, *, shares_cores: bool) -> list[Row]:
    """Beside the local loader; where the server gives less than that, beside obstore alone."""
    rows = []
    for which in ("first", "second"):
        speeds = case[f"{which} epoch, images/s"]
        for name in _ours(case):
            ours, local, alone = speeds[name], speeds.get(_local_of(name)), speeds.get("obstore")
            if local is None:
                continue
            what = f"0 ms, {which} epoch: {name}"
            if alone is not None and alone["median"] < local["median"]:
                rows.append(_row(f"{what} : obstore alone", "≥", OF_LOCAL, *_ratio(ours, alone)))
                continue
            rows.append(_row(f"{what} : local", "≥", OF_LOCAL, *_ratio(ours, local)))
            # Far away, the server would have cores of its own.
            if shares_cores and (left := 1 - case[f"{which} epoch, server's share"][name]):
                ratio = _ratio(ours, local, left)
                rows.append(_row(f"{what} : local on the cores that the server left", "≥", OF_LOCAL, *ratio))
    return rows


def _latency(near: Case, far: Case) -> list[Row]:
    """Whether latency is hidden."""
    slow, fast = (case["first epoch, images/s"] for case in (far, near))
    return [
        _row(f"first epoch: {name}, 30 ms : 0 ms", "≥", OF_NEAR, *_ratio(slow[name], fast[name]))
        for name in _ours(far)
        if name in fast
    ]


def _first_batch(near: Case, far: Case) -> list[Row]:
    """How many times 30 ms the first batch comes later."""
    seconds = [case["first batch, s"] for case in (far, near)]
    trips = {name: (seconds[0][name] - seconds[1][name]) / 0.03 for name in _ours(far) if name in seconds[1]}
    return [
        _row(f"round trips to the first batch: {name}", "≤", ROUND_TRIPS, trip)
        for name, trip in trips.items()
    ]


def _peers(delay: str, case: Case) -> list[Row]:
    """Beside all others: the slowest of ours shall be ahead."""
    rows = []
    for which in ("first", "second"):
        speeds = case[f"{which} epoch, images/s"]
        ours = min(_ours(case), key=lambda name: speeds[name]["median"], default=None)
        for name in speeds:
            if ours is not None and not name.startswith(("batchplant", "obstore")):
                what = f"{delay}, {which} epoch: {ours} : {name}"
                rows.append(_row(what, "≥", 1, *_ratio(speeds[ours], speeds[name])))
    return rows


def _memory(delay: str, case: Case, dataset_mb: float) -> list[Row]:
    """Beside the local loader's and what is fetched ahead, or the dataset, which is kept where it fits."""
    held = case["peak memory, MB"]
    fetched = max(DEFAULT_FETCH_BYTES / 1e6, dataset_mb)
    return [
        _row(f"{delay}, peak MB: {name}", "≤", OF_MEMORY * local + fetched, held[name])
        for name in _ours(case)
        if (local := held.get(_local_of(name))) is not None
    ]
