"""What a server's metrics say about the time its requests took, between two points in time.

Source of Triton's names: its user guide, "Metrics". The models' own are those of
``numl_serving.metrics``.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_NAMES = {
    "nv_inference_request_success": "requests",
    "nv_inference_queue_duration_us": "queue",
    "nv_inference_compute_input_duration_us": "execute",
    "nv_inference_compute_infer_duration_us": "execute",
    "nv_inference_compute_output_duration_us": "execute",
    "nugraph_events": "events",
    "nugraph_preprocessing_seconds": "preprocess",
    "nugraph_network_seconds": "network",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since a model was loaded: seconds, and numbers of requests and events."""

    requests: float = 0.0
    queue: float = 0.0
    execute: float = 0.0
    events: float = 0.0
    preprocess: float = 0.0
    network: float = 0.0

    def since(self, before: Counters) -> Counters:
        """Return the difference from an earlier point in time, per request and per event (s)."""
        requests, events = self.requests - before.requests, self.events - before.events
        return Counters(
            requests=requests,
            queue=(self.queue - before.queue) / max(requests, 1),
            execute=(self.execute - before.execute) / max(requests, 1),
            events=events,
            preprocess=(self.preprocess - before.preprocess) / max(events, 1),
            network=(self.network - before.network) / max(events, 1),
        )


def read_counters(text: str, model: str) -> Counters:
    """Parse a model's counters from a metrics endpoint's text; ValueError if it is malformed."""
    sums = dict.fromkeys(_NAMES.values(), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # Triton declares its counters without the ending that the parser then adds.
            name = sample.name.removesuffix("_total")
            if sample.labels.get("model") == model and name in _NAMES:
                value = sample.value / 1e6 if name.endswith("_us") else sample.value
                sums[_NAMES[name]] += value
    return Counters(**sums)
