"""Counts and latencies of each model, from a server's metrics port.

Names: Triton's user guide, "Metrics". The quantiles are Triton's summaries, which cover the last
minute and are off by default.
"""

import math
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from http.client import HTTPException

from deploy.host.errors import LaunchError

_SUCCESSES = "nv_inference_request_success_total"
_FAILURES = "nv_inference_request_failure_total"
_SUMMARY = "nv_inference_request_summary_us"


@dataclass(frozen=True)
class ModelCounts:
    """The requests for one model since it was loaded.

    ``p50`` and ``p99`` are seconds in the server; None without a request in the last minute.
    """

    requests: int = 0
    failures: int = 0
    p50: float | None = None
    p99: float | None = None


def read_counts(text: str) -> dict[str, ModelCounts]:
    """Parse a metrics endpoint's text into counts by model; ValueError if it is malformed."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[tuple[str, str], float] = defaultdict(float)
    quantiles: dict[tuple[str, str], float] = {}
    models = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # Triton declares its counters without the suffix, which the parser then adds.
            name, model = sample.name.removesuffix("_total") + "_total", sample.labels.get("model")
            if model is None:
                continue
            models.add(model)
            if name in (_SUCCESSES, _FAILURES):
                totals[model, name] += sample.value
            elif sample.name == _SUMMARY and not math.isnan(sample.value):
                quantiles[model, sample.labels["quantile"]] = sample.value / 1e6
    return {
        model: ModelCounts(
            requests=int(totals[model, _SUCCESSES]),
            failures=int(totals[model, _FAILURES]),
            p50=quantiles.get((model, "0.5")),
            p99=quantiles.get((model, "0.99")),
        )
        for model in sorted(models)
    }


def fetch_counts(endpoint: str, *, timeout: float) -> dict[str, ModelCounts]:
    """Return a server's counts by model; LaunchError if ``endpoint`` (``host:port``) fails."""
    url = f"http://{endpoint}/metrics"
    try:
        # A proxy for the outside world does not know this server.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=timeout) as answer:
            return read_counts(answer.read().decode())
    except (OSError, ValueError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())
        raise LaunchError(f"no metrics from {url}: {reason}") from None
