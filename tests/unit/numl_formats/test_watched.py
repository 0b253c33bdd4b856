"""The metrics of a watch: Prometheus reads them, and the rules name no others."""

import re
import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from numl_formats.watched import STATES, Watched

RULES = Path(__file__).parents[3] / "containers/monitoring/rules.yaml"


def test_prometheus_reads_them_whatever_servers_and_models_are_called_and_rules_know_no_others():
    watched, name = Watched(), 'a "b"\\c'
    found = {name: ("right", 0.25)}
    assert watched.record("s", found, ready=True, now=1.5, expires=9.0) == {name: "right"}
    families = {each.name: each for each in text_string_to_metric_families(watched.metrics())}
    states = families["numl_smoke_state"].samples
    assert {sample.labels["state"]: sample.value for sample in states} == {
        state: state == "right" for state in STATES
    }
    assert {sample.labels["model"] for sample in states} == {name}
    assert families["numl_smoke_checks"].type == "counter"
    assert families["numl_smoke_latency_seconds"].samples[0].value == 0.25
    rules = re.findall(r"numl_smoke_\w+", RULES.read_text())
    assert {re.sub("_total$", "", rule) for rule in rules} <= families.keys()


def test_a_model_that_is_gone_is_no_longer_exported_and_begins_afresh():
    watched = Watched()
    watched.record("s", {"a": ("right", 0.1), "b": ("wrong", None)}, ready=True, now=1.0)
    assert watched.record("s", {"b": ("wrong", None)}, ready=True, now=2.0) == {}
    assert 'model="a"' not in watched.metrics()
    watched.forget_models()
    assert "model=" not in watched.metrics()
    assert 'numl_smoke_server_ready{server="s"} 1' in watched.metrics()
    assert watched.record("s", {"b": ("right", 0.1)}, ready=True, now=3.0) == {"b": "right"}
    watched.forget("s")
    assert 'server="s"' not in watched.metrics()


def test_threads_record_while_others_read():
    watched = Watched()

    def record(server: str) -> None:
        for now in range(200):
            watched.record(server, {"a": ("right", 0.1)}, ready=True, now=now)

    threads = [threading.Thread(target=record, args=(f"s{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        watched.metrics()
    for thread in threads:
        thread.join()
    assert watched.metrics().count('state="right"} 200') == 4
