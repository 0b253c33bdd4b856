"""A real Prometheus watches a real server; a real alertmanager delivers what is wrong with it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from deploy.engines.server import living_stubs
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.triton.golden import read_golden
from scripts.monitoring.dashboard import expressions
from tests.certificates import Authority
from tests.inputs import inputs_of
from tests.kit import NUMLKIT, SOON_S, free_ports, lacking, until
from tests.programs import started
from tests.unit.deploy.artefacts.test_trust import make_publisher

RULES = CHECKOUT / "containers/monitoring/rules.yaml"
# Requests at once for one instance: the last ones wait for more than two seconds.
BURST = 1200
PATIENT = "[limits]\nwaiting = 0\nwait_s = 0\n"
ABOUT = ("model", "server", "instance")  # the label that says what an alert is about
UNREACHABLE = "NumlServerUnreachable"  # for all of a server's models
AGENT = "import sys; sys.path[0] = 'envs/numl'; from numl_sync.command import main; main()"


def metrics(watched: SimpleNamespace) -> str:
    """Return what the watches, the server and the agent export."""
    own = f"127.0.0.1:{watched.server['ports']['metrics']}"
    ports = (watched.exported, own, watched.agent, watched.audit)
    return "\n".join(get(f"http://{port}/metrics") for port in ports)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def answers(url: str) -> bool:
    try:
        return bool(get(url))
    except OSError:
        return False


@contextmanager
def receiver(delivered: set[tuple[str, str]]) -> Iterator[str]:
    """Take what an alertmanager delivers; yield the URL to which."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in message["alerts"]:
                labels = alert["labels"]
                about = ("server",) if labels["alertname"] == UNREACHABLE else ABOUT
                delivered.add(
                    (labels["alertname"], next((labels[n] for n in about if n in labels), ""))
                )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def configure(folder: Path, targets: list[str], alertmanager: str, webhook: str) -> None:
    """Write the configurations (JSON is YAML): as a site's, but that nothing waits."""
    impatient, waits = re.subn(r"^( +for:) .*", r"\1 0s", RULES.read_text(), flags=re.M)
    assert waits
    (folder / "rules.yaml").write_text(impatient)
    prometheus = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "numl", "static_configs": [{"targets": targets}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
    }
    (folder / "prometheus.yaml").write_text(json.dumps(prometheus))
    route = {
        "receiver": "test",
        "group_by": ["..."],
        "group_wait": "0s",
        "group_interval": "1s",
    }
    receivers = [{"name": "test", "webhook_configs": [{"url": webhook}]}]
    (folder / "alertmanager.yaml").write_text(json.dumps({"route": route, "receivers": receivers}))


@pytest.fixture(scope="module")
def watched(kit, tmp_path_factory):
    """A server without healing, whose certificate is for a week, and an address without one.

    Beside it run a watch over both, an agent whose bucket is away, and a watch over a signed
    folder. ``delivered`` are the alerts that came, and of what.
    """
    programs = [shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")]
    if not all(programs):
        lacking("no Prometheus (apt-get install prometheus prometheus-alertmanager)")
    prometheus, alertmanager = map(str, programs)
    folder = tmp_path_factory.mktemp("monitoring")
    authority, now = Authority(folder, "site"), datetime.now(timezone.utc)
    week = (now - timedelta(days=1), now + timedelta(days=7))
    pair = authority.issue("127.0.0.1", valid=week)
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    repository = folder / "models"
    shutil.copytree(MODEL_REPOSITORY, repository)
    free = free_ports()
    exported, own, alerts = (f"127.0.0.1:{port}" for port in (free.http, free.grpc, free.metrics))
    with ExitStack() as stack:
        (folder / "patient.toml").write_text(PATIENT)
        patient = str(folder / "patient.toml")
        answer = kit.up("watched", patient, "--no-heal", "--instances", "1", *tls)
        stack.callback(kit.down, "watched")
        url = f"grpcs://127.0.0.1:{answer['ports']['grpc']}"
        others = free_ports()
        nobody, agent = f"grpcs://127.0.0.1:{others.grpc}", f"127.0.0.1:{others.http}"
        bucket = (f"s3://http://127.0.0.1:{others.metrics}/models", folder / "mirror")
        mirror = (sys.executable, "-c", AGENT, *bucket, "--poll", "1", "--status-port", others.http)
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        stack.enter_context(started(*mirror, cwd=CHECKOUT, env={**os.environ, **keys}, **silent))
        owner, audit = make_publisher(folder), f"127.0.0.1:{free_ports().http}"
        owner.release(b"image")
        look = (NUMLKIT, "published", owner.place, "--verify", owner.signer.path, "--check")
        look = (*look, "--watch", "1", "--metrics", audit)
        state = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        stack.enter_context(started(*look, cwd=CHECKOUT, env=state, **silent))
        asked = ("--url", url, "--url", nobody, "--ca", authority.file, "--repository", repository)
        smoke = (NUMLKIT, "smoke", "--watch", "0.5", "--metrics", exported)
        smoke = (*smoke, "--timeout", "60")  # what waits in a queue is not dead
        log = folder / "watch.log"
        said = {"stdout": stack.enter_context(log.open("w")), "stderr": subprocess.STDOUT}
        watch = stack.enter_context(started(*smoke, *asked, cwd=CHECKOUT, **said))
        found = SimpleNamespace(
            server=answer, folder=kit.folder("watched"), repository=repository,
            watch=watch, log=log, exported=exported, url=url, nobody=nobody,
            authority=authority.file, agent=agent, place=owner, audit=audit, delivered=set(),
        )  # fmt: skip
        webhook = stack.enter_context(receiver(found.delivered))
        targets = [exported, f"127.0.0.1:{answer['ports']['metrics']}", agent, audit]
        for target in (exported, agent, audit):  # what is absent is an alert, too
            until(partial(answers, f"http://{target}/metrics"), "the metrics")
        configure(folder, targets, alerts, webhook)
        quiet = {"cwd": folder, **silent}
        listen = f"--web.listen-address={alerts}"
        options = ("--config.file=alertmanager.yaml", "--storage.path=alerts", listen)
        stack.enter_context(started(alertmanager, *options, "--cluster.listen-address=", **quiet))
        listen = f"--web.listen-address={own}"
        options = ("--config.file=prometheus.yaml", "--storage.tsdb.path=series", listen)
        stack.enter_context(started(prometheus, *options, **quiet))
        yield found


def on_a_busy_host(watched: SimpleNamespace) -> set[tuple[str, str]]:
    """What is true of any model while others have the processors."""
    return {(name, m) for name in ("NumlSlow", "NumlQueueTime") for m in watched.server["models"]}


def test_a_watch_of_several_servers_is_about_each_of_them(watched):
    wanted = {
        ("NumlCertificateExpires", watched.url),
        (UNREACHABLE, watched.nobody),
        ("NumlBucketNeverRead", watched.agent),
    }
    until(lambda: wanted <= watched.delivered, "the first alerts")
    assert watched.delivered - wanted <= on_a_busy_host(watched)
    for model in watched.server["models"]:
        state = f'numl_smoke_state{{server="{watched.url}",model="{model}",state="right"}}'
        assert f"{state} 1" in metrics(watched)


def test_every_metric_of_the_alerts_and_the_dashboard_is_there(watched):
    shown = set(re.findall(r"^(\w+)[{ ]", metrics(watched), re.M))
    text = "\n".join([RULES.read_text(), *expressions()])
    named = set(re.findall(r"\b(?:nv|nugraph|numl)_\w+", text))
    assert len(named) > 15
    # Before the bucket has answered, or without a signature, an agent has nothing to say there, and
    # a model has a queue of its own only on a GPU.
    assert named - shown == {
        "nugraph_pending_request_count",
        "nugraph_queue_duration_us",
        "numl_sync_last_success_timestamp_seconds",
        "numl_sync_statement_expires_timestamp_seconds",
    }


def test_a_published_folder_that_somebody_changes_is_delivered(watched):
    until(lambda: f'place="{watched.place.place}"}} 0.0' in metrics(watched), "the first look")
    assert watched.place.published is not None
    watched.place.write(replace(watched.place.published, sequence=99), signed=False)
    until(lambda: ("NumlPlaceDamaged", watched.audit) in watched.delivered, "the alert")


def test_a_long_queue_is_delivered_and_so_is_slowness(watched):
    golden = read_golden(MODEL_REPOSITORY / "nugraph3/1/golden.npz")
    tensors = inputs_of(triton, golden.inputs)
    address = watched.url.removeprefix("grpcs://")
    trusted = str(watched.authority)
    with triton.InferenceServerClient(address, ssl=True, root_certificates=trusted) as client:
        answers: SimpleQueue[Exception | None] = SimpleQueue()
        for _ in range(BURST):
            client.async_infer("nugraph3", tensors, lambda result, error: answers.put(error))
        failed = [answers.get(timeout=SOON_S) for _ in range(BURST)]
        assert {str(each) for each in failed} == {"None"}
    wanted = {("NumlQueueTime", "nugraph3"), ("NumlSlow", "nugraph3")}
    until(lambda: wanted <= watched.delivered, "the alerts")


def test_what_readiness_does_not_show_is_delivered(watched):
    """A dead model process, a model that is unloaded, and wrong values, of three models."""
    before = set(watched.delivered)
    server = psutil.Process(watched.server["server"]["pid"])
    for stub in living_stubs(server):
        if stub.model == "nugraph3":
            os.kill(stub.process.pid, signal.SIGKILL)
    shutil.rmtree(watched.folder / "model_repository/nugraph2_cpu")  # Triton polls this copy
    golden = watched.repository / "nugraph2/1/golden.npz"
    with np.load(golden) as arrays:
        changed = {k: a + 0.01 if k.startswith("output/") else a for k, a in arrays.items()}
    partial = golden.with_suffix(".partial.npz")
    np.savez(partial, **changed)
    partial.replace(golden)
    wanted = {
        ("NumlModelProcessDead", "nugraph3"),
        ("NumlModelUnloaded", "nugraph2_cpu"),
        ("NumlWrongValues", "nugraph2"),
    }
    until(lambda: wanted <= watched.delivered, "the alerts")
    said = watched.log.read_text()
    assert re.search(r"^\S+Z grpcs://\S+ nugraph2: wrong \(.* off by", said, re.M), said
    assert get(f"http://127.0.0.1:{watched.server['ports']['http']}/v2/health/ready") == ""
    # True as well: requests fail; a Triton that unloads a model is not ready for a moment, and
    # the model's process ends before Triton says that the model is gone.
    also = {
        ("NumlRequestsFail", "nugraph3"),
        ("NumlServerNotReady", watched.url),
        ("NumlModelProcessDead", "nugraph2_cpu"),
    }
    assert watched.delivered - before - wanted - on_a_busy_host(watched) <= also


def test_the_watch_ends_well_when_it_is_told_to(watched):
    watched.watch.send_signal(signal.SIGTERM)
    status = watched.watch.wait(timeout=60)
    said = watched.log.read_text()
    assert status == 0, said
    assert "Traceback" not in said
