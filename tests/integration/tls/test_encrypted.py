"""A remote service that speaks only gRPC over TLS.

One that also asks for client certificates: tests/conformance/test_tls.py.
"""

import shutil
import time

import numpy as np
import pytest

from deploy.client.probe import Probe
from deploy.deployment.deployment import Deployment, Tls
from deploy.engines.local import LocalEngine, ProcessServer
from deploy.engines.resolved import Resolved
from deploy.engines.server import start_until_ready
from deploy.host.errors import LaunchError
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY
from deploy.triton.golden import read_golden
from deploy.triton.stage import VERSION, stage
from tests.kit import SMALL, START_S
from tests.tls import OUTSIDE, smoke, told, url


def test_a_service_that_speaks_only_grpc_over_tls_is_proved(kit, encrypted, site):
    answer = smoke(kit, url(encrypted), "--ca", site.file, "--repeat", "3")
    assert answer["ok"], answer
    assert answer["servers"] == [
        {
            "url": url(encrypted),
            "ready": True,
            "health": "serving",
            "error": None,
            "remedy": None,
            "ok": True,
        }
    ]
    latency = answer["results"][0]["latency"]
    assert latency["requests"] == 3
    assert 0 < latency["median_s"] <= latency["worst_s"]


def test_up_says_what_has_no_tls(kit, encrypted, pair):
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    done = kit.run("up", "--name", "encrypted", *SMALL, "--listen", OUTSIDE, *files)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    addresses = lines.index(f"http://127.0.0.1:{encrypted['ports']['http']}  {url(encrypted)}")
    assert lines[addresses + 1] == (
        "HTTP and metrics listen on 127.0.0.1 only: Triton cannot encrypt them "
        "(--listen-http opens them)"
    )


def test_a_client_sends_its_events_over_tls(kit, encrypted, site):
    events = CHECKOUT / "scripts" / "data" / "demo_events.h5"
    flags = ("--url", url(encrypted), "--ca", str(site.file), "--json")
    done = kit.run("infer", str(events), *flags, script=True)
    assert done.returncode == 0, done.stderr
    done = kit.run("infer", str(events), "--url", url(encrypted), script=True)
    assert done.returncode == 1
    assert "was not issued by an authority that this host trusts" in done.stderr


def test_a_plaintext_port_that_is_asked_with_tls_is_told(kit, encrypted):
    address = f"127.0.0.1:{encrypted['ports']['http']}"
    assert told(smoke(kit, f"grpcs://{address}")) == (
        f"grpcs://{address} speaks HTTP without TLS",
        f"--url http://{address}",
    )
    assert told(smoke(kit, f"grpc://{address}")) == (
        f"grpc://{address} speaks HTTP/1, not gRPC",
        "gRPC has its own port (Triton's is 8001), and needs a proxy that forwards HTTP/2",
    )


def test_a_pair_that_was_changed_for_one_that_does_not_fit_is_told(folder, pair, site):
    # A server that is started again reads what lies there then; up has checked it before.
    tls = Tls(cert=pair.cert, key=site.issue("another").key)
    deployment = Deployment(name="changed", models=("nugraph3",), instances=1, tls=tls)
    engine = LocalEngine(Resolved(deployment))
    engine.prepare(lambda _: None)
    plan = engine.plan().model_copy(update={"log": folder / "changed.log"})
    served = folder / "changed"
    stage(engine.models(), served)
    arguments = tuple(a.replace(str(plan.repository), str(served)) for a in plan.arguments)
    plan = plan.model_copy(update={"arguments": arguments})
    probe = Probe(f"http://127.0.0.1:{plan.ports.http}", identity=plan.identity)
    golden = read_golden(MODEL_REPOSITORY / "nugraph3" / VERSION / "golden.npz")
    servers = []

    def start():
        servers.append(ProcessServer(plan, lambda **_: None))
        return servers[-1]

    def wait(server, patient):
        server.wait_ready(
            probe, {"nugraph3": golden}, patient=patient,
            deadline=time.monotonic() + START_S, stopped=lambda: False,
        )  # fmt: skip

    try:
        with pytest.raises(LaunchError) as caught:
            start_until_ready(start, wait)  # on a busy host a Triton may stop starting
    finally:
        for server in servers:
            server.stop()
    assert caught.value.cause == "the server cannot use its certificate and private key for TLS"


def test_wrong_values_are_told(kit, encrypted, site, tmp_path):
    shutil.copytree(MODEL_REPOSITORY / "nugraph3", tmp_path / "nugraph3")
    golden = tmp_path / "nugraph3" / VERSION / "golden.npz"
    with np.load(golden) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    changed["output/e_evt"] = changed["output/e_evt"][:, ::-1]
    np.savez(golden, **changed)
    answer = smoke(kit, url(encrypted), "--ca", site.file, "--repository", tmp_path)
    cause, remedy = told(answer)
    assert cause.startswith("model nugraph3 gives wrong answers: output e_evt is off by ")
    assert remedy == (
        "if its weights are not the kit's: --repository DIR with their golden.npz; "
        "otherwise check its weights and environment"
    )
