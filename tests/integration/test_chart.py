"""The rendered chart before checkov, KEDA's own schema and a real Prometheus.

checkov takes as much room as the kit; with KEDA's schema it lives in a folder of its own, which
the first test makes.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.host.paths import CHECKOUT
from tests.chart import CHART, SITES, find, render, render_text
from tests.kit import lacking
from tests.programs import run_program

TOOLS = ("checkov==3.3.30", "cloudcoil-models-keda==2.16.1.0")
ACCEPTED = {
    "CKV_K8S_9": "sync has no readiness: a bucket that is away is no reason to stop serving",
    "CKV_K8S_11": "a limit to the CPU throttles a pod while its node is idle",
    "CKV_K8S_15": "an image by digest is the same on every node; a laptop has it loaded",
    "CKV_K8S_40": "a high user id of its own is what OpenShift gives; a fixed one it refuses",
    "CKV_K8S_43": "only a site knows its digest: image.digest",
}


@pytest.fixture(scope="session")
def tools():
    """The folder of checkov's programs: half a minute the first time."""
    folder = CHECKOUT / ".venv" / "chart-tools"
    marker = folder / ".complete"
    if not marker.exists() or marker.read_text() != " ".join(TOOLS):
        venv = (sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
        subprocess.run(venv, check=True)
        pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install")
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        subprocess.run([*pip, *quiet, *TOOLS], check=True)
        marker.write_text(" ".join(TOOLS))
    return folder / "bin"


def test_checkov_fails_nothing_but_what_is_listed(tools, tmp_path):
    for name in ("gpu", "okd", "everything"):
        (tmp_path / f"{name}.yaml").write_text(render_text(SITES[name]))
    command = [tools / "checkov", "--directory", tmp_path, "--framework", "kubernetes"]
    done = run_program([*command, "--skip-download", "--output", "json"])
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 400
    failed = {
        (check["check_id"], check["check_name"], check["resource"])
        for check in report["results"]["failed_checks"]
        if check["check_id"] not in ACCEPTED
    }
    assert failed == set()
    unneeded = set(ACCEPTED) - {c["check_id"] for c in report["results"]["failed_checks"]}
    assert unneeded == set()


def keda_takes(tools: Path, scaled: Mapping[str, Any]) -> bool:
    script = (
        "import json, sys\n"
        "from cloudcoil.models.keda.v1alpha1 import ScaledObject\n"
        "ScaledObject.model_validate(json.load(sys.stdin))\n"
    )
    done = run_program([tools / "python", "-c", script], input=json.dumps(scaled))
    assert done.returncode == 0 or "ValidationError" in done.stderr, done.stderr
    return done.returncode == 0


def test_keda_takes_the_scaled_object(tools):
    scaled = find(render(SITES["everything"]), "ScaledObject")
    assert keda_takes(tools, scaled)
    aimless = {**scaled, "spec": {"triggers": scaled["spec"]["triggers"]}}
    assert not keda_takes(tools, aimless)


# What NVIDIA's example for autoscaling computes (triton-inference-server/server#8979).
NVIDIA = (
    "avg(delta(nv_inference_queue_duration_us[1m])"
    " / (1 + delta(nv_inference_request_success[1m]))) by (pod)"
)


@pytest.mark.parametrize(
    ("asked", "wait_us", "seen"),
    [
        (("nugraph3", 150, 0), 500_000, {"keda": 500, "adapter": 500, "nvidia": 166_389}),
        # Waiting requests count, too: 77 of them, of which 10 are answered in a second.
        (("nugraph3", 150, 77), 200, {"keda": 7700, "adapter": 7700, "nvidia": 67}),
        (("nugraph3", 0, 0), 0, {"keda": 0, "adapter": 0, "nvidia": 0}),
    ],
    ids=["waited", "waiting", "idle"],
)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_prometheus_sees_the_queue_of_the_one_model_that_is_asked(
    tmp_path, asked, wait_us, seen, device
):
    """Three models, of which one is asked; NVIDIA's example shows a third, in microseconds.

    On a GPU models queue by themselves: Triton's own queue, which is all that the example sees, is
    empty.
    """
    promtool = shutil.which("promtool")
    if promtool is None:
        lacking("promtool is missing: apt-get install --no-install-recommends prometheus")
    [trigger] = find(render(SITES["everything"]), "ScaledObject")["spec"]["triggers"]
    [rule] = yaml.safe_load((CHART / "adapter-values.yaml").read_text())["rules"]["custom"]
    adapter = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="physics"')
    rules = {
        "keda": trigger["metadata"]["query"],
        "adapter": adapter.replace("<<.GroupBy>>", "pod"),
        "nvidia": NVIDIA,
    }
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump(
            {
                "groups": [
                    {
                        "name": "queue",
                        "interval": "15s",
                        "rules": [{"record": n, "expr": e} for n, e in rules.items()],
                    }
                ]
            }
        )
    )
    labels = 'namespace="physics",service="numl",pod="numl-0",version="1"'
    series = []
    for model, requests, waiting in (("nugraph2", 0, 0), ("nugraph2_cpu", 0, 0), asked):
        queues = {"nv_inference": (requests * wait_us, waiting)}
        if device == "gpu":
            queues = {"nugraph": queues["nv_inference"], "nv_inference": (0, 0)}
        of_model = f'{labels},model="{model}"'
        answered = f"nv_inference_request_success{{{of_model}}}"
        series.append({"series": answered, "values": f"0+{requests}x40"})
        for queue, (wait, pending) in queues.items():
            own = f'{of_model},worker="0"' if queue == "nugraph" else of_model
            for metric, values in (
                ("queue_duration_us", f"0+{wait}x40"),
                ("pending_request_count", f"{pending}x40"),
            ):
                series.append({"series": f"{queue}_{metric}{{{own}}}", "values": values})

    def sample(name: str, value: float, of_pod: bool) -> dict[str, Any]:
        labels = f'{name}{{pod="numl-0"}}' if of_pod else name
        return {
            "expr": f"round({name}, 1)",
            "eval_time": "10m",
            "exp_samples": [{"labels": labels.removeprefix(name) or "{}", "value": value}],
        }

    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": series,
                "promql_expr_test": [
                    sample(n, v, n != "keda")
                    for n, v in seen.items()
                    if (n, device) != ("nvidia", "gpu")
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = run_program([promtool, "test", "rules", tmp_path / "test.yaml"])
    assert done.returncode == 0, done.stdout + done.stderr
