"""Figures of a Loader, all of ``loader.stats()``, for Prometheus, OpenTelemetry, loggers and trainers."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import MissingLibraryError, OptionError
from ..loading.loader import Loader
from ..loading.service.server import Figure, exposition, serve_metrics

__all__ = ["figures", "lightning", "log", "opentelemetry", "prometheus", "scalars", "transformers"]

PREFIX = "batchplant_loader"
# Figures by name: kind, meaning, and the keys of `stats()` that lead to the number.
FIGURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "batches_total": ("counter", "Batches that the loop took.", ("batches",)),
    "samples_total": ("counter", "Samples of these.", ("samples",)),
    "bytes_total": ("counter", "Bytes of the values of these.", ("bytes",)),
    "wait_seconds_total": ("counter", "Seconds that the loop waited for batches.", ("waited",)),
    "step_seconds_total": ("counter", "Seconds that the loop took itself.", ("step",)),
    "storage_seconds_total": ("counter", "Seconds of finding and reading cells.", ("storage",)),
    "decode_seconds_total": ("counter", "Seconds that batches were with the decoder.", ("decode",)),
    "transform_seconds_total": ("counter", "Seconds of ops behind the decoder.", ("transforms",)),
    "device_seconds_total": ("counter", "Seconds of sending batches to the device.", ("device",)),
    "worker_decode_seconds_total": ("counter", "Seconds of decoding threads.", ("workers", "decode")),
    "fetched_bytes_total": ("counter", "Bytes fetched from servers.", ("bytes fetched",)),
    "requests_total": ("counter", "Requests to servers.", ("requests",)),
    "retries_total": ("counter", "Requests that were tried again.", ("retries",)),
    "cache_hits_total": ("counter", "Decoded images taken from the cache.", ("cache hits",)),
    "cache_misses_total": ("counter", "Images that were not in the cache.", ("cache misses",)),
    "skipped_total": ("counter", "Samples that could not be read and were left out.", ("skipped",)),
    "queue_ready": ("gauge", "Batches that wait for the loop.", ("queue", "ready")),
    "queue_making": ("gauge", "Batches that are being made.", ("queue", "making")),
    "input_bound_ratio": ("gauge", "Share of the loop's time that it waited.", ("input bound",)),
}  # fmt: skip


def figures(loader: Loader) -> list[Figure]:
    """Return the figures of a loader; those that it does not have, such as of a cache, are left out."""
    stats, entries = loader.stats(), []
    for name, (kind, text, keys) in FIGURES.items():
        value: Any = stats
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            entries.append(Figure(name, kind, text, float(value)))
    return [*entries, Figure("steps", "gauge", "Steps of the run so far.", loader.steps)]


def scalars(loader: Loader, prefix: str = "loader/") -> dict[str, float]:
    """Return the figures as a flat dict, as in ``wandb.log(scalars(loader))``; ``prefix``: of names."""
    return {prefix + figure.name.removesuffix("_total"): figure.value for figure in figures(loader)}


def labels_of(loader: Loader, name: str) -> dict[str, object]:
    """Return the labels of a loader's figures: its name, its rank, and that along each axis of its mesh."""
    mesh = loader.config.mesh
    axes = {} if mesh is None else mesh.coordinates()
    valid = {re.sub(r"\W|^(?=\d)", "_", axis): rank for axis, rank in axes.items()}
    return {**valid, "loader": name, "rank": loader.rank}


def prometheus(
    loader: Loader,
    port: int | None = None,
    *,
    host: str = "0.0.0.0",
    registry: Any = None,
    name: str = "train",
) -> Any:
    """Serve the figures of a loader at ``http://HOST:PORT/metrics``.

    Their labels are its rank, the rank along each axis of its mesh, and a name.

    registry: put them into a registry of prometheus-client instead, as ``prometheus_client.REGISTRY``, whose
    server your program runs already; this needs ``batchplant[metrics]``.

    Returns: the server, whose ``shutdown()`` ends it and whose ``server_port`` is its port; or the collector
    in the registry.
    """
    reference = weakref.ref(loader)

    def labelled() -> tuple[list[Figure], dict[str, object]]:
        alive = reference()
        return ([], {}) if alive is None else (figures(alive), labels_of(alive, name))

    if registry is None:
        if port is None:
            raise OptionError("prometheus needs a port, or a registry")
        return serve_metrics(f"{host}:{port}", lambda: exposition(PREFIX, *labelled()))
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError:
        raise _missing("prometheus-client") from None

    class Collector:
        def collect(self) -> Iterator[Any]:
            entries, labels = labelled()
            for entry in entries:
                family = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
                metric = family(f"{PREFIX}_{entry.name}", entry.text, labels=list(labels))
                metric.add_metric([str(value) for value in labels.values()], entry.value)
                yield metric

    collector = Collector()
    registry.register(collector)
    return collector


def opentelemetry(loader: Loader, meter: Any = None, *, name: str = "train") -> None:
    """Give the figures of a loader to a meter of OpenTelemetry (default: that of the global provider).

    Needs ``batchplant[metrics]``.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise _missing("opentelemetry-api") from None
    meter = meter or metrics.get_meter("batchplant")
    reference = weakref.ref(loader)

    def observed(figure: str) -> Callable[[Any], list[Any]]:
        def observe(options: Any) -> list[Any]:
            alive = reference()
            if alive is None:
                return []
            attributes = labels_of(alive, name)
            return [
                metrics.Observation(entry.value, attributes)
                for entry in figures(alive)
                if entry.name == figure
            ]

        return observe

    for figure, (kind, text, _) in FIGURES.items():
        make = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        make(f"batchplant.loader.{figure.removesuffix('_total')}", [observed(figure)], description=text)


def log(loader: Loader, target: Any, step: int | None = None) -> None:
    """Log the figures of a loader: to a run of wandb, mlflow, a TensorBoard writer, or a Lightning logger.

    step: of the run (default: ``loader.steps``).
    """
    step, values = loader.steps if step is None else step, scalars(loader)
    if hasattr(target, "add_scalar"):
        for name, value in values.items():
            target.add_scalar(name, value, step)
    elif hasattr(target, "log_metrics"):
        target.log_metrics(values, step=step)
    elif hasattr(target, "log"):
        target.log(values, step=step)
    else:
        raise OptionError(f"log takes what has add_scalar, log_metrics or log, not {target!r:.100}")


def lightning(loader: Loader, every: int = 50) -> Any:
    """Return a callback for ``Trainer(callbacks=[…])`` that logs the figures every so many batches."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise _missing("lightning", extra=False) from None

    def on_train_batch_end(callback: Any, trainer: Any, *unused: Any) -> None:
        if trainer.global_step % every == 0:
            for logger in trainer.loggers:
                log(loader, logger, trainer.global_step)

    return type("LoaderFigures", (Callback,), {"on_train_batch_end": on_train_batch_end})()


def transformers(loader: Loader) -> Any:
    """Return a callback for the Trainer of Hugging Face: the figures join what it logs."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise _missing("transformers", extra=False) from None

    def on_log(callback: Any, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> None:
        if logs is not None:
            logs |= scalars(loader)

    return type("LoaderFigures", (TrainerCallback,), {"on_log": on_log})()


def _missing(library: str, *, extra: bool = True) -> MissingLibraryError:
    hint = "pip install 'batchplant[metrics]'" if extra else f"pip install {library}"
    return MissingLibraryError(f"this needs {library}: {hint}")
