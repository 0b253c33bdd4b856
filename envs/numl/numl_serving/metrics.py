"""The models' own Prometheus metrics, published through Triton's metrics endpoint.

Triton's compute metrics see only ``execute``, which returns at once where a worker answers, and
know nothing of hits.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_COUNTERS = {
    "events": ("nugraph_events_total", "Number of events answered"),
    "hits": ("nugraph_hits_total", "Number of hits in the events answered"),
    "rejected": ("nugraph_rejected_events_total", "Number of events refused as invalid"),
    "batches": (
        "nugraph_batches_total",
        "Number of network runs, each over one batch of events",
    ),
    "preprocessing": (
        "nugraph_preprocessing_seconds_total",
        "Time spent building graphs (s); 0 where it is counted in the network's time",
    ),
    "network": ("nugraph_network_seconds_total", "Time spent in the network (s)"),
}
# Triton's own queue is empty where a worker has one. But for their beginning the names are those of
# Triton, so that one query sees both queues, in which the label "worker" keeps them apart.
_QUEUE = ("nugraph_queue_duration_us", "Time that requests waited for the worker (us)")
_WAITING = ("nugraph_pending_request_count", "Number of requests that wait for the worker")
_BATCH_EVENTS = ("nugraph_batch_events", "Number of events in the last batch")
_PUBLISH_S = 0.1


class Metrics:
    """Counters of one model instance; all instances of a model add to the same counters.

    To change a counter of Triton's is to wait for an answer of the server. No event waits for
    that: what is counted is published by a thread, a tenth of a second later at most.

    Args:
        pb: The module ``triton_python_backend_utils``.
        labels: Labels of every metric, such as model and version.
        failed: Told once, in that thread, why nothing is published any more.
        worker: The instance's name if it has a queue of its own, which then has metrics.
    """

    def __init__(
        self,
        pb: Any,
        labels: dict[str, str],
        failed: Callable[[Exception], None],
        worker: str | None = None,
    ) -> None:
        self._counters = {
            key: _metric(pb, name, description, pb.MetricFamily.COUNTER, labels)
            for key, (name, description) in _COUNTERS.items()
        }
        self._pending, self._waiting = None, 0
        if worker is not None:
            own = labels | {"worker": worker}
            self._counters["queue"] = _metric(pb, *_QUEUE, pb.MetricFamily.COUNTER, own)
            self._pending = _metric(pb, *_WAITING, pb.MetricFamily.GAUGE, own)
            self._pending.set(0)  # whatever one that died has left
        self._batch_events = _metric(pb, *_BATCH_EVENTS, pb.MetricFamily.GAUGE, labels)
        self._failed = failed
        self._changed = threading.Condition()
        self._counted: dict[str, float] = {}
        self._last_batch = 0
        self._closed = False
        # A daemon: a stub whose server was killed must exit, and has nobody left to tell.
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def count_batch(
        self, *, events: int, hits: int, preprocess_s: float, network_s: float, batches: int = 1
    ) -> None:
        """Count events answered as one batch, whether in one run of the network or several."""
        self._last_batch = events
        # Published in this order: who reads of an event finds all the rest of it, too.
        self._add(
            preprocessing=preprocess_s, network=network_s, hits=hits, batches=batches, events=events
        )

    def count_rejected(self) -> None:
        """Count an event rejected as invalid."""
        self._add(rejected=1)

    def count_queued(self) -> None:
        """Count a request that begins to wait for the worker."""
        self._change_queue(1, 0)

    def count_taken(self, waited_s: Sequence[float]) -> None:
        """Count requests that have waited for so long (s), and wait no more."""
        self._change_queue(-len(waited_s), sum(waited_s))

    def _change_queue(self, more: int, waited_s: float) -> None:
        with self._changed:
            self._waiting += more
            self._add(queue=1e6 * waited_s)

    def _add(self, **counts: float) -> None:
        with self._changed:
            for key, count in counts.items():
                self._counted[key] = self._counted.get(key, 0) + count
            self._changed.notify()

    def close(self) -> None:
        """Publish pending counts and stop counting."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._publish():
                time.sleep(_PUBLISH_S)
        except Exception as error:  # an answer is worth more than its count
            self._failed(error)

    def _publish(self) -> bool:
        """Wait for pending counts and publish them; returns False once closed."""
        with self._changed:
            while not self._counted and not self._closed:
                self._changed.wait()
            counted, self._counted = self._counted, {}
            closed = self._closed
        for key, value in counted.items():
            self._counters[key].increment(value)
        if "batches" in counted:
            self._batch_events.set(self._last_batch)
        if self._pending is not None and "queue" in counted:
            self._pending.set(self._waiting)
        return not closed


def _metric(pb: Any, name: str, description: str, kind: Any, labels: dict[str, str]) -> Any:
    family = pb.MetricFamily(name=name, description=description, kind=kind)
    metric = family.Metric(labels=labels)
    # To collect one is to ask the server to drop the metric, in which other processes count, too;
    # and when the interpreter ends, the stub can ask no more, and crashes (Triton 2.51). So both
    # stay until the process has ended.
    for lasting in (family, metric):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(lasting))
    return metric
