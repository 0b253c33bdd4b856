"""A remote service that speaks only gRPC over TLS.

One that also asks for client certificates: tests/conformance/test_tls.py.
"""

import shutil

import numpy as np

from deploy.deployment.deployment import Deployment, Tls
from deploy.engines.local import LocalEngine
from deploy.engines.resolved import Resolved
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.golden import golden_of
from deploy.triton.stage import VERSION, stage
from tests.environments import ignore
from tests.failed_start import Bench, serving
from tests.inputs import EVENTS
from tests.kit import SMALL
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
    flags = ("--url", url(encrypted), "--ca", str(site.file), "--json")
    done = kit.run("infer", str(EVENTS), *flags, script=True)
    assert done.returncode == 0, done.stderr
    done = kit.run("infer", str(EVENTS), "--url", url(encrypted), script=True)
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
    engine.prepare(ignore)
    served = folder / "changed"
    stage(engine.models(), served)
    plan = serving(engine.plan(), served, folder / "changed.log")
    golden = {"nugraph3": golden_of(MODEL_REPOSITORY / "nugraph3")}
    failure = Bench(folder, plan.repository).failure(plan, golden=golden)
    assert failure.cause == "the server cannot use its certificate and private key for TLS"


def test_wrong_values_are_told(kit, encrypted, site, tmp_path):
    shutil.copytree(MODEL_REPOSITORY / "nugraph3", tmp_path / "nugraph3")
    golden = tmp_path / "nugraph3" / VERSION / "golden.npz"
    with np.load(golden) as arrays:
        changed = dict(arrays)
    changed["output/e_evt"] = changed["output/e_evt"][:, ::-1]
    np.savez(golden, **changed)
    answer = smoke(kit, url(encrypted), "--ca", site.file, "--repository", tmp_path)
    cause, remedy = told(answer)
    assert cause.startswith("model nugraph3 gives wrong answers: output e_evt is off by ")
    assert remedy == (
        "if its weights are not the kit's: --repository DIR with their golden.npz; "
        "otherwise check its weights and environment"
    )
