"""The models' own Prometheus metrics, published through Triton's metrics endpoint.

Triton's compute metrics see only ``execute``, which returns at once where a worker answers, and
know nothing of hits.
"""

from __future__ import annotations

from typing import Any

_COUNTERS = {
    "events": ("nugraph_events_total", "Number of events answered"),
    "hits": ("nugraph_hits_total", "Number of hits in the events answered"),
    "rejected": ("nugraph_rejected_events_total", "Number of events refused as invalid"),
    "batches": (
        "nugraph_batches_total",
        "Number of times the network ran, each over one batch of events",
    ),
    "preprocessing": (
        "nugraph_preprocessing_seconds_total",
        "Time spent building the graphs of events (s)",
    ),
    "network": ("nugraph_network_seconds_total", "Time spent in the network (s)"),
}
_BATCH_EVENTS = ("nugraph_batch_events", "Number of events in the last batch")


class Metrics:
    """Counters of one model instance; all instances of a model add to the same counters.

    Args:
        pb: The module ``triton_python_backend_utils``.
        labels: Labels of every metric, such as model and version.
    """

    def __init__(self, pb: Any, labels: dict[str, str]) -> None:
        # Triton drops a metric whose family is collected: hold both.
        self._families: list[Any] = []
        self._counters = {
            key: self._metric(pb, name, description, pb.MetricFamily.COUNTER, labels)
            for key, (name, description) in _COUNTERS.items()
        }
        self._batch_events = self._metric(pb, *_BATCH_EVENTS, pb.MetricFamily.GAUGE, labels)

    def _metric(
        self, pb: Any, name: str, description: str, kind: Any, labels: dict[str, str]
    ) -> Any:
        family = pb.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family.Metric(labels=labels)

    def count_batch(self, *, events: int, hits: int, preprocess_s: float, network_s: float) -> None:
        """Count one run of the network over some events."""
        self._counters["batches"].increment(1)
        self._counters["events"].increment(events)
        self._counters["hits"].increment(hits)
        self._counters["preprocessing"].increment(preprocess_s)
        self._counters["network"].increment(network_s)
        self._batch_events.set(events)

    def count_rejected(self) -> None:
        """Count one event that was refused as invalid."""
        self._counters["rejected"].increment(1)
