"""The watch beside a server in a pod tells Prometheus what ``numlkit smoke --watch`` does."""

import re
import sys

from prometheus_client.parser import text_string_to_metric_families

from deploy.client.watch import STATES, Metrics
from deploy.host.paths import CHECKOUT


def test_both_have_the_same_names_and_states_but_for_the_certificate(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "envs" / "numl"), *sys.path])
    from numl_serving import watch

    ours = {family.name: family.type for family in Metrics().registry.collect()}
    seen = watch.Watch("pod", "127.0.0.1", 1, tmp_path)
    monkeypatch.setattr(seen, "_checked", 1.0)
    seen._models = {"nugraph3": watch.Seen("right")}
    families = {each.name: each for each in text_string_to_metric_families(seen.metrics())}
    del ours["numl_smoke_certificate_expiry_timestamp_seconds"]
    assert {name: family.type for name, family in families.items()} == ours
    states = families["numl_smoke_state"].samples
    assert {sample.labels["state"] for sample in states} == set(STATES) == set(watch.STATES)
    rules = (CHECKOUT / "containers/monitoring/rules.yaml").read_text()
    known = {re.sub("_total$", "", name) for name in re.findall(r"numl_smoke_\w+", rules)}
    assert known <= {*ours, "numl_smoke_certificate_expiry_timestamp_seconds"}
