"""Make containers/monitoring/dashboard.json, the Grafana dashboard.

    .venv/bin/python -m scripts.monitoring.dashboard

It needs grafana-foundation-sdk, which `scripts/kit-environment --tests` installs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    FieldColor,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

PATH = Path(__file__).resolve().parents[2] / "containers/monitoring/dashboard.json"
_HEIGHT, _WIDTH = 7, 12  # of a panel; a dashboard is 24 wide


@dataclass(frozen=True)
class Graph:
    """A panel with lines: its title, unit, and a PromQL expression by each line's name.

    ``states``: it shows 1 and 0 as good and bad instead.
    """

    title: str
    unit: str
    lines: dict[str, str]
    about: str = ""
    states: bool = False


_MODEL = 'model=~"$model"'
_BY = "sum by (instance, model)"
# On a GPU a model queues by itself, and Triton's own queue is empty.
_QUEUE = '__name__=~"nv_inference_queue_duration_us|nugraph_queue_duration_us"'
_WAITING = '__name__=~"nv_inference_pending_request_count|nugraph_pending_request_count"'
# Of each row: what numlkit smoke --watch, a server, and the sync agent export.
ROWS: dict[str, tuple[Graph, ...]] = {
    "Answers to a known event (numlkit smoke --watch)": (
        Graph(
            "Right answers",
            "short",
            {"{{server}} {{model}}": f'numl_smoke_state{{state="right", {_MODEL}}}'},
            about="Values compared with the reference, whatever the server reports about itself.",
            states=True,
        ),
        Graph(
            "Checks without a right answer",
            "short",
            {
                "{{server}} {{model}} {{state}}": "increase(numl_smoke_checks_total"
                f'{{state!~"right|unjudged", {_MODEL}}}[$__rate_interval]) > 0'
            },
        ),
        Graph(
            "Time since the last right answer",
            "s",
            {
                "{{server}} {{model}}": "time() - "
                f"numl_smoke_last_right_timestamp_seconds{{{_MODEL}}}"
            },
        ),
        Graph(
            "Time of an answer, as a client sees it",
            "s",
            {"{{server}} {{model}}": f"numl_smoke_latency_seconds{{{_MODEL}}}"},
        ),
        Graph(
            "Time until the certificate expires",
            "s",
            {"{{server}}": "numl_smoke_certificate_expiry_timestamp_seconds - time()"},
        ),
        Graph(
            "Alerts",
            "short",
            {
                "{{alertname}} {{server}}{{instance}} {{model}}": "ALERTS"
                '{alertname=~"Numl.*", alertstate="firing"}'
            },
        ),
    ),
    "Servers (Triton's metrics port)": (
        Graph(
            "Requests answered",
            "reqps",
            {
                "{{instance}} {{model}}": f"{_BY} (rate(nv_inference_request_success"
                f"{{{_MODEL}}}[$__rate_interval]))"
            },
        ),
        Graph(
            "Requests failed",
            "reqps",
            {
                "{{instance}} {{model}} {{reason}}": "sum by (instance, model, reason) "
                f"(rate(nv_inference_request_failure{{{_MODEL}}}[$__rate_interval])) > 0",
                "{{instance}} {{model}} refused as invalid": f"{_BY} (rate("
                f"nugraph_rejected_events_total{{{_MODEL}}}[$__rate_interval])) > 0",
            },
        ),
        Graph(
            "Time of a request in the server, last minute",
            "s",
            {
                f"{{{{instance}}}} {{{{model}}}} p{percent}": "nv_inference_request_summary_us"
                f'{{quantile="{quantile}", {_MODEL}}} / 1e6'
                for percent, quantile in (("50", "0.5"), ("99", "0.99"))
            },
        ),
        Graph(
            "Time in the queue, of each request",
            "s",
            {
                "{{instance}} {{model}}": f"{_BY} (rate({{{_QUEUE}, {_MODEL}}}"
                f"[$__rate_interval])) / {_BY} (rate(nv_inference_request_success"
                f"{{{_MODEL}}}[$__rate_interval])) / 1e6"
            },
        ),
        Graph(
            "Requests that wait",
            "short",
            {"{{instance}} {{model}}": f"{_BY} ({{{_WAITING}, {_MODEL}}})"},
        ),
        Graph(
            "Instances at work",
            "short",
            {
                "{{instance}} {{model}}": f"{_BY} (rate(nv_inference_compute_infer_duration_us"
                f"{{{_MODEL}}}[$__rate_interval])) / 1e6"
            },
            about="At the number of instances, the model is at its limit.",
        ),
        Graph(
            "Hits labelled per second",
            "short",
            {
                "{{instance}} {{model}}": f"{_BY} (rate(nugraph_hits_total{{{_MODEL}}}"
                "[$__rate_interval]))"
            },
        ),
        Graph(
            "Memory of the host in use",
            "bytes",
            {
                "{{instance}}": "nv_cpu_memory_used_bytes",
                "{{instance}} total": "nv_cpu_memory_total_bytes",
            },
        ),
    ),
    "Releases (the agent that mirrors a bucket)": (
        Graph(
            "Release",
            "short",
            {
                "{{instance}} serves": "numl_sync_release",
                "{{instance}}: the bucket says": "numl_sync_published_release",
            },
            about="If the two lines stay apart, the new release is refused, or the bucket is "
            "unreachable.",
        ),
        Graph(
            "Time since the bucket answered",
            "s",
            {"{{instance}}": "time() - numl_sync_last_success_timestamp_seconds"},
        ),
        Graph(
            "Failed polls",
            "short",
            {"{{instance}} {{reason}}": "increase(numl_sync_failures_total[$__rate_interval]) > 0"},
        ),
        Graph("Release refused", "short", {"{{instance}}": "1 - numl_sync_refused"}, states=True),
    ),
}


def expressions() -> list[str]:
    """Return every PromQL expression of the dashboard."""
    return [line for graphs in ROWS.values() for graph in graphs for line in graph.lines.values()]


def dashboard() -> str:
    """Return the dashboard as Grafana imports it, in JSON."""
    source = DataSourceRef(type_val="prometheus", uid="${source}")
    built = (
        Dashboard("NuGraph on Triton")
        .uid("numlkit")
        .tags(["numlkit", "triton"])
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("model")
            .label("Model")
            .datasource(source)
            .query("label_values(nv_inference_request_success, model)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for title, graphs in ROWS.items():
        built = built.with_row(Row(title))
        for graph in graphs:
            built = built.with_panel(_panel(graph, source))
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return encoder.encode(built.build()) + "\n"


def _panel(graph: Graph, source: DataSourceRef) -> StateTimeline | TimeSeries:
    panel: StateTimeline | TimeSeries = StateTimeline() if graph.states else TimeSeries()
    panel = panel.title(graph.title).description(graph.about).datasource(source)
    panel = panel.unit(graph.unit).height(_HEIGHT).span(_WIDTH)
    for letter, (name, expression) in zip("ABCDEF", graph.lines.items(), strict=False):
        query = Dataquery().ref_id(letter).expr(expression).legend_format(name).range()
        panel = panel.with_target(query)
    legend = VizLegendOptions().display_mode(LegendDisplayMode.TABLE)
    panel = panel.legend(legend.placement(LegendPlacement.BOTTOM).show_legend(True))
    if isinstance(panel, TimeSeries):
        return panel.min(0)
    steps = [Threshold(None, "red"), Threshold(1, "green")]
    panel = panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    return panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))


if __name__ == "__main__":
    partial = PATH.with_suffix(".partial")
    partial.write_text(dashboard())
    partial.replace(PATH)
