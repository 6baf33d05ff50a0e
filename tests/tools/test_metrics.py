"""Figures of loaders for monitoring, and warnings of loaders that are stuck."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import types
import urllib.request
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.errors import MissingLibraryError, OptionError
from batchplant.tools import metrics
from processes import PATIENCE


@pytest.fixture
def loader() -> bp.Loader:
    loader = bp.Loader({"x": np.arange(100)}, 8)
    for _ in loader:
        pass
    return loader


def test_prometheus_reads_the_figures_of_stats(loader: bp.Loader) -> None:
    server = metrics.prometheus(loader, 0, host="127.0.0.1", name='a"b')
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
    finally:
        server.shutdown()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = '{loader="a\\"b",rank="0"}'
    assert float(lines[f"batchplant_loader_samples_total{label}"]) == 100
    assert float(lines[f"batchplant_loader_batches_total{label}"]) == loader.stats()["batches"] == 13
    assert float(lines[f"batchplant_loader_bytes_total{label}"]) == 800
    assert float(lines[f"batchplant_loader_steps{label}"]) == 13
    assert set(re.findall(r"# TYPE \S+ (\w+)", text)) == {"counter", "gauge"}
    with pytest.raises(OptionError, match="needs a port"):
        metrics.prometheus(loader)


def test_ranks_along_the_axes_of_a_mesh_are_labels() -> None:
    loader = bp.Loader({"x": list(range(8))}, 2, mesh={"dp": 2, "tp-x": 2}, rank=3, batch_axes=("dp",))
    server = metrics.prometheus(loader, 0, host="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
    finally:
        server.shutdown()
    assert 'batchplant_loader_steps{dp="1",tp_x="1",loader="train",rank="1"} 0' in text


def test_the_dashboard_shows_figures_that_there_are() -> None:
    board = json.loads((repository.ROOT / "docs/assets/grafana-loader.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    shown = {name for text in expressions for name in re.findall(r"batchplant_loader_(\w+)", text)}
    assert shown <= {*metrics.FIGURES, "steps"}
    assert len(shown) > 10


def test_a_registry_gets_them_too(loader: bp.Loader) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    metrics.prometheus(loader, registry=registry)
    labels = {"loader": "train", "rank": "0"}
    assert registry.get_sample_value("batchplant_loader_samples_total", labels) == 100


def test_opentelemetry_observes_them(loader: bp.Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    api = types.SimpleNamespace(Observation=lambda value, attributes: (value, attributes))
    monkeypatch.setitem(sys.modules, "opentelemetry", types.SimpleNamespace(metrics=api))
    observed: dict[str, Any] = {}

    class Meter:
        def create_observable_counter(self, name: str, callbacks: Any, description: str) -> None:
            observed[name] = callbacks[0](None)

        create_observable_gauge = create_observable_counter

    metrics.opentelemetry(loader, Meter())
    assert observed["batchplant.loader.samples"] == [(100.0, {"loader": "train", "rank": 0})]
    assert observed["batchplant.loader.cache_hits"] == []


def test_loggers_get_them_in_a_line(loader: bp.Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    for name in ("add_scalar", "log_metrics", "log"):
        logged.clear()
        metrics.log(loader, types.SimpleNamespace(**{name: lambda *values, **options: logged.append(values)}))
        assert "loader/samples" in str(logged)
    with pytest.raises(OptionError, match="add_scalar"):
        metrics.log(loader, 3)
    for library, make in (("transformers", metrics.transformers), ("lightning.pytorch", metrics.lightning)):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingLibraryError, match="this needs"):
            make(loader)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(TrainerCallback=object))
    logs: dict[str, float] = {}
    metrics.transformers(loader).on_log(None, None, None, logs)
    assert logs["loader/samples"] == 100
    pytorch = types.SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "lightning", types.SimpleNamespace(pytorch=pytorch))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", pytorch)
    target = types.SimpleNamespace(log_metrics=lambda values, step: logged.append(step))
    trainer = types.SimpleNamespace(global_step=100, loggers=[target])
    metrics.lightning(loader).on_train_batch_end(trainer, None, None, None, 0)
    assert logged[-1] == 100


def test_a_loader_that_is_stuck_says_where(caplog: pytest.LogCaptureFixture) -> None:
    entered, free = threading.Event(), threading.Event()

    def slow_step(value: Any) -> Any:
        entered.set()
        free.wait(PATIENCE)
        return value

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A warning may come before the function is reached.
            if "slow_step" in record.getMessage():
                free.set()

    handler = Freeing()
    logging.getLogger("batchplant").addHandler(handler)
    try:
        loader = bp.Loader({"x": np.arange(8)}, 8, pipelines={"x": [slow_step]}, stall_after=0.05)
        assert [batch["x"].tolist() for batch in loader] == [list(range(8))]
    finally:
        logging.getLogger("batchplant").removeHandler(handler)
    text = caplog.records[-1].getMessage()
    assert "batch 0 is waited for" in text
    assert "runs ops" in text
    with pytest.raises(OptionError, match="stall_after"):
        bp.Loader({"x": np.arange(8)}, 8, stall_after=0)
