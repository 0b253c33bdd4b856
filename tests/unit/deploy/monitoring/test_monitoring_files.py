"""The alerts and the dashboard in containers/monitoring; tests/integration has a real server's."""

import shutil
import subprocess
from pathlib import Path

from deploy.host.paths import CHECKOUT
from scripts.monitoring import dashboard
from tests.kit import lacking

RULES = CHECKOUT / "containers/monitoring/rules.yaml"


def promtool(*words: str | Path) -> str:
    program = shutil.which("promtool")
    if program is None:
        lacking("promtool is missing (apt-get install prometheus)")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_is_raised_when_it_should_be_and_not_before():
    promtool("test", "rules", Path(__file__).with_name("alerts.yaml"))


def test_each_alert_is_tested_and_says_what_to_do():
    names = [word.split()[-1] for word in RULES.read_text().splitlines() if "- alert:" in word]
    assert f"SUCCESS: {len(names)} rules found" in promtool("check", "rules", RULES)
    tested = Path(__file__).with_name("alerts.yaml").read_text()
    page = (CHECKOUT / "docs/monitoring.md").read_text()
    assert [name for name in names if name not in tested or f"`{name}`" not in page] == []
    assert RULES.read_text().count("remedy: ") == len(names)


def test_the_dashboard_is_what_its_script_makes():
    remedy = ".venv/bin/python -m scripts.monitoring.dashboard"
    assert dashboard.PATH.read_text() == dashboard.dashboard(), remedy


def test_each_expression_of_the_dashboard_is_promql(tmp_path):
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, expression in enumerate(dashboard.expressions()):
        # What Grafana puts in; its quoting of YAML is that of a folded block.
        filled = expression.replace("$__rate_interval", "1m").replace("$model", "m")
        lines += [f"  - record: line:{number}", "    expr: >-", f"      {filled}"]
    rules = tmp_path / "dashboard.yaml"
    rules.write_text("\n".join(lines) + "\n")
    promtool("check", "rules", rules)
